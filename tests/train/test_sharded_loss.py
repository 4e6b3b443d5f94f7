"""The loss from slices of the classes, any number of them, against the oracle.

The slices take turns here and find what the others told; real processes are in
`test_sharded_head`.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail.train.sharded_head import SliceLoss, class_slices
from loss_contract import CONTRACTS, NUM_CLASSES
from oracles import float32_bound, smoothed, soft_loss

TARGET = torch.tensor([0, 1, 2, 3, 3, 0])
SIZES = (1, 2, 3)  # slices of 4 classes: 4; 2, 2; and 2, 2, 0


def in_slices(size, logits, criterion):
    """Losses, and the logits' gradient, from `size` slices."""
    parts, told = class_slices(NUM_CLASSES, size), []
    for part in parts:
        own = logits[:, part].clone()
        SliceLoss.apply(own, TARGET, criterion, part, lambda it: (told.append(it), it[None])[1])
    leaves = [logits[:, part].clone().requires_grad_() for part in parts]
    losses = [
        SliceLoss.apply(own.clone(), TARGET, criterion, part, lambda _: torch.stack(told))
        for own, part in zip(leaves, parts, strict=True)
    ]
    assert all(torch.equal(one, losses[0]) for one in losses)
    sums = zip(losses, leaves, strict=True)
    grads = [torch.autograd.grad(one.sum(), own)[0] for one, own in sums]
    return losses[0].detach(), torch.cat(grads, 1)


def logits_for(contract, which):
    near = 3 * torch.randn(6, NUM_CLASSES, generator=torch.Generator().manual_seed(3))
    one_hot = F.one_hot(TARGET, NUM_CLASSES)
    logits = {
        "wide": 8 * near,
        "ahead by 20": near + 20 * one_hot,
        "ahead by 80": near + 80 * one_hot,
        "behind by 80": near - 80 * one_hot,
        "ties": torch.zeros_like(near),
    }[which]
    return logits / contract.scale


@pytest.mark.parametrize("which", ["wide", "ahead by 20", "ahead by 80", "behind by 80", "ties"])
@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_slices_match_the_oracle_within_what_float32_allows(contract, which, monkeypatch):
    if which == "wide":
        monkeypatch.setattr("longtail.train.sharded_head.BLOCK_BYTES", 1)  # an example at a time
    logits, lowered = logits_for(contract, which), contract.module().parts()[2] is not None
    bound = contract.alpha.max() * float32_bound(logits, contract.delta, contract.scale)
    for epsilon in (0.0,) if lowered else (0.0, 0.1):
        criterion = contract.module(label_smoothing=epsilon)
        found = []
        for row, y in zip(logits.double().numpy(), TARGET.tolist(), strict=True):
            q = smoothed(y, NUM_CLASSES, epsilon)
            found.append(soft_loss(row, q, contract.alpha, contract.delta, contract.scale)[:2])
        expected, slopes = (np.array(part) for part in zip(*found, strict=True))
        for size in SIZES:
            losses, grads = in_slices(size, logits, criterion)
            np.testing.assert_allclose(losses, expected, rtol=0, atol=bound)
            np.testing.assert_allclose(grads, slopes, rtol=0, atol=contract.scale * bound)
            if which == "ahead by 20" and not epsilon:  # small, and right to four digits
                np.testing.assert_allclose(losses, expected, rtol=1e-4)
                np.testing.assert_allclose(grads, slopes, rtol=1e-4)
