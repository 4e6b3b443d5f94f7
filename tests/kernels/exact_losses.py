"""The additive losses written from their equation in float64: what the kernels are held against."""

import torch
from torch.nn import functional as F


def exact_loss(
    logits,
    target,
    *,
    offset=None,
    positive=None,
    alpha=None,
    weight=None,
    scale=1.0,
    reduction="mean",
):
    """Σ w·α·log(1 + Σ_{j≠y} e^{s·(f_j + b_j − f_y + a_y)}), reduced, and its gradient."""
    f = logits.detach().double().requires_grad_()
    counted = target != -100
    y = target.long().masked_fill(~counted, 0)
    tables = zip((offset, positive, alpha, weight), (0.0, 0.0, 1.0, 1.0), strict=True)
    b, a, alpha, weight = (
        torch.full((f.shape[1],), neutral, device=f.device).double()
        if table is None
        else table.double().flatten()
        for table, neutral in tables
    )
    rest = (scale * (f + b)).scatter(1, y[:, None], -torch.inf).logsumexp(1)
    d = rest - scale * (f.gather(1, y[:, None]).squeeze(1) - a[y])
    losses = (weight * alpha)[y] * F.softplus(d, threshold=700)
    loss = losses[counted].sum()
    if reduction == "mean":
        loss = loss / weight[y][counted].sum()
    return loss.detach(), torch.autograd.grad(loss, f)[0]
