"""The loss from slices of the classes, any number of them, against the oracle.

The slices are threads here that exchange what processes would; real processes are in
`test_sharded_head`.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail.train.sharded_head import Margins, Slice, slice_losses
from loss_contract import CONTRACTS, NUM_CLASSES
from oracles import float32_bound, pairwise_loss, smoothed, soft_loss

TARGET = torch.tensor([0, 1, 2, 3, 3, 0])
SIZES = (1, 2, 3)  # slices of 4 classes: 4; 2, 2; and 2, 2, 0


class Exchange:
    """What threads tell each other."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=30)
        self.values = [None] * size

    def all(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        every = torch.stack(self.values)
        self.barrier.wait()
        return every


class ThreadSlice(Slice):
    """A slice whose neighbours are threads; `group` is their Exchange."""

    def gather(self, tensor):
        return self.group.all(self.rank, tensor)

    def sum(self, tensor):
        return self.group.all(self.rank, tensor).sum(0)


def in_slices(size, features, weight, bias, margin, epsilon):
    """Losses, and the gradients of features, weight and bias, from `size` slices."""
    exchange, classes = Exchange(size), len(weight)
    alpha, a, b, scale = margin

    def one(rank):
        part = ThreadSlice.cut(classes, rank=rank, size=size, group=exchange)
        own = slice(part.start, part.stop)
        leaves = [t.detach().clone().requires_grad_() for t in (features, weight[own], bias[own])]
        counted = torch.ones(len(TARGET), dtype=torch.bool)
        margins = Margins(TARGET, counted, b[own], scale * (a + b), alpha, scale, epsilon)
        losses = slice_losses(*leaves, margins, part)
        return losses.detach(), torch.autograd.grad(losses.sum(), leaves)

    with ThreadPoolExecutor(size) as pool:
        losses, grads = zip(*pool.map(one, range(size)), strict=True)
    assert all(torch.equal(one, losses[0]) for one in losses)
    ofs, ws, bs = zip(*grads, strict=True)
    return losses[0], sum(ofs), torch.cat(ws), torch.cat(bs)


def parts(contract):
    module = contract.module().float()
    return module.alpha, module.positive, module.negative, module.scale


def logits_for(contract, which):
    near = 3 * torch.randn(6, NUM_CLASSES, generator=torch.Generator().manual_seed(3))
    one_hot = F.one_hot(TARGET, NUM_CLASSES)
    logits = {
        "wide": 8 * near,
        "ahead by 80": near + 80 * one_hot,
        "behind by 80": near - 80 * one_hot,
        "ties": torch.zeros_like(near),
    }[which]
    return logits / contract.scale


def within(got, expected, bound, terms):
    excess = np.abs(got.double().numpy() - expected) / (bound * terms + np.finfo(np.float32).tiny)
    assert np.isfinite(got.numpy()).all()
    assert excess.max() <= 1.0, f"{excess.max():.2f} times the bound"


@pytest.mark.parametrize("which", ["wide", "ahead by 80", "behind by 80", "ties"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_slices_match_the_oracle_within_what_float32_allows(contract, epsilon, which, monkeypatch):
    if which == "wide":
        monkeypatch.setattr("longtail.train.sharded_head.BLOCK_BYTES", 1)  # an example at a time
    logits = logits_for(contract, which)
    eye, zero = torch.eye(NUM_CLASSES), torch.zeros(NUM_CLASSES)
    bound = float32_bound(logits, contract.delta, contract.scale)
    found = []
    for row, y in zip(logits.double().numpy(), TARGET.tolist(), strict=True):
        if epsilon:
            q = smoothed(y, NUM_CLASSES, epsilon)
            found.append(soft_loss(row, q, contract.alpha, contract.delta, contract.scale))
        else:
            value, slope = pairwise_loss(row, y, contract.alpha, contract.delta, contract.scale)
            found.append((value, slope, np.abs(slope)))
    expected, slopes, terms = (np.array(part) for part in zip(*found, strict=True))
    for size in SIZES:
        losses, *grads = in_slices(size, logits, eye, zero, parts(contract), epsilon)
        within(losses, expected, bound, np.abs(expected))
        # The oracle's gradient in f is that of features (weights are the unit matrix).
        within(grads[0], slopes, 2 * bound, terms)
        within(grads[2], slopes.sum(0), 2 * bound, terms.sum(0))
