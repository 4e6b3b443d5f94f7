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

from longtail.train import sharded_loss
from longtail.train.class_slices import Slice
from longtail.train.sharded_loss import Margins, slice_losses
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


def in_slices(size, features, weight, bias, margin, *, epsilon=0.0, upstream=None):
    """Losses, and the gradients of features, weight and bias, from `size` slices."""
    exchange, classes = Exchange(size), len(weight)

    def one(rank):
        part = ThreadSlice.cut(classes, rank=rank, size=size, group=exchange)
        own = slice(part.start, part.stop)
        leaves = [t.detach().clone().requires_grad_() for t in (features, weight[own], bias[own])]
        work = torch.promote_types(features.dtype, torch.float32)
        alpha, a, b = (torch.as_tensor(v).to(work) for v in margin[:3])
        scale = margin[3]
        margins = Margins(
            TARGET, torch.ones(len(TARGET), dtype=torch.bool), b[own], scale * (a + b), alpha,
            scale, epsilon,
        )  # fmt: skip
        losses = slice_losses(*leaves, margins, part)
        grads = torch.autograd.grad(
            losses, leaves, torch.ones_like(losses) if upstream is None else upstream,
            retain_graph=True,
        )  # fmt: skip
        again = torch.autograd.grad(losses, leaves, torch.ones_like(losses))
        return losses.detach(), grads, again

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(one, range(size)))
    assert all(torch.equal(losses, found[0][0]) for losses, _, _ in found)
    first, second = (
        (sum(g[0] for g in grads), *(torch.cat([g[i] for g in grads]) for i in (1, 2)))
        for grads in zip(*(f[1:] for f in found), strict=True)
    )
    return found[0][0], first, second


def parts(contract):
    module = contract.module()
    return (module.alpha.double(), module.positive.double(), module.negative.double(), module.scale)


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
def test_slices_match_the_oracle_within_what_float32_allows(contract, epsilon, which):
    logits = logits_for(contract, which)
    eye, zero = torch.eye(NUM_CLASSES), torch.zeros(NUM_CLASSES)
    bound = float32_bound(logits, contract.delta, contract.scale)
    expected, slopes, terms = [], [], []
    for row, y in zip(logits.double().numpy(), TARGET.tolist(), strict=True):
        if epsilon:
            q = smoothed(y, NUM_CLASSES, epsilon)
            value, slope, sizes = soft_loss(row, q, contract.alpha, contract.delta, contract.scale)
        else:
            value, slope = pairwise_loss(row, y, contract.alpha, contract.delta, contract.scale)
            sizes = np.abs(slope)
        expected.append(value)
        slopes.append(slope)
        terms.append(sizes)
    expected, slopes, terms = map(np.array, (expected, slopes, terms))
    for size in SIZES:
        losses, grads, again = in_slices(size, logits, eye, zero, parts(contract), epsilon=epsilon)
        within(losses, expected, bound, np.abs(expected))
        # The oracle's gradient in f is that of features (weights are the unit matrix).
        within(grads[0], slopes, 2 * bound, terms)
        within(grads[2], slopes.sum(0), 2 * bound, terms.sum(0))
        assert all(torch.equal(one, two) for one, two in zip(grads, again, strict=True))


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_slices_have_the_derivatives_of_the_loss_as_autograd_finds_them(epsilon, monkeypatch):
    """In float64, with weights, bias and an upstream gradient per example; in small blocks."""
    monkeypatch.setattr(sharded_loss, "BLOCK_BYTES", 1)
    contract = next(c for c in CONTRACTS if c.name == "logit-adjusted-adaptive")
    random = torch.Generator().manual_seed(0)
    features, weight, bias, upstream = (
        torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)
        for shape in ((6, 5), (NUM_CLASSES, 5), (NUM_CLASSES,), (6,))
    )
    upstream = upstream.detach()
    whole = contract.module(reduction="none", label_smoothing=epsilon).double()
    # Buffers that were never float32: the reference is exact.
    for name, value in zip(("alpha", "positive", "negative"), exact(contract), strict=True):
        setattr(whole, name, value)
    losses = whole(F.linear(features, weight, bias), TARGET)
    grads = torch.autograd.grad(losses, (features, weight, bias), upstream)
    for size in SIZES:
        found, slopes, _ = in_slices(
            size,
            features,
            weight,
            bias,
            (*exact(contract), 1.0),
            epsilon=epsilon,
            upstream=upstream,
        )
        torch.testing.assert_close(found, losses.detach(), rtol=1e-12, atol=1e-12)
        for got, wanted in zip(slopes, grads, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def exact(contract):
    from longtail import margins
    from test_margins import PRIOR

    margin = margins.by_name(contract.name, PRIOR, **contract.settings)
    return tuple(torch.tensor(v) for v in (margin.alpha, margin.positive, margin.negative))
