"""The losses of rows in torch operations, as the kernels define them.

For machines without a kernel, and to judge the kernels by.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.kernels._launch import Options, Tables


def torch_losses(f: Tensor, target: Tensor, tables: Tables, options: Options) -> Tensor:
    """The losses of rows as the kernel defines them; slow, for machines without it.

    Args:
        f: logits in float32 or float64, shape (N, C).
        target: shape (N,).
        tables: (1, C) each.
        options: the reduction plays no part.
    """
    classes = f.shape[1]
    u, t = options.scale * f, options.scale * f
    if tables.offset is not None:
        u = options.scale * (f + tables.offset)
    if tables.positive is not None:
        t = options.scale * (f - tables.positive)
    a = torch.ones(1, classes, dtype=f.dtype, device=f.device)
    for table in (tables.alpha, tables.weight):
        a = a if table is None else a * table
    ignored = target == options.ignore_index
    index = target.masked_fill(ignored, 0).unsqueeze(1)
    never = torch.finfo(u.dtype).min / 4
    if options.label_smoothing == 0:
        rest = u.scatter(1, index, never).logsumexp(1, keepdim=True)
        losses = a.expand_as(f).gather(1, index) * F.softplus(
            rest - t.gather(1, index), threshold=40
        )
    else:
        # log(e^R − e^{u_c}) is safe for all but the largest; that one has its own sum.
        u = u.clamp_min(never)  # else −inf less −inf where every class is masked
        total, top = u.logsumexp(1, keepdim=True), u.argmax(1, keepdim=True)
        share = (u - total).exp().scatter(1, top, 0.0).clamp_max(0.75)
        others = u.scatter(1, top, never).logsumexp(1, keepdim=True)
        rest = (total + torch.log1p(-share)).scatter(1, top, others)
        every = a * F.softplus(rest - t, threshold=40)
        epsilon = options.label_smoothing
        losses = (1 - epsilon) * every.gather(1, index)
        losses = losses + epsilon / classes * every.sum(1, keepdim=True)
    return losses.squeeze(1).masked_fill(ignored, 0.0)
