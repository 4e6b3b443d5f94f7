"""The losses of several runs at once: each run's own, from the equation, in few operations."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longtail import losses, margins
from longtail.losses.stacked import StackedLoss
from loss_contract import CONTRACTS, NUM_CLASSES
from oracles import pairwise_loss
from test_margins import PRIOR

EXAMPLES = 6
WEIGHT = np.array([0.2, 1.0, 3.0, 0.7])


def numbers(runs, *, mixed, seed=0):
    """Logits, two labels of each example, and the share of the first; without mixing it is all."""
    draw = torch.Generator().manual_seed(seed)
    shape = (runs, EXAMPLES)
    logits = 2 * torch.randn(*shape, NUM_CLASSES, generator=draw, dtype=torch.float64)
    first, second = (torch.randint(NUM_CLASSES, shape, generator=draw) for _ in range(2))
    share = torch.rand(shape, generator=draw, dtype=torch.float64) if mixed else torch.ones(shape)
    share[:, 0] = 1.0
    return logits, first, second, share


def two_labels(second, share, *, mixed):
    return {"second": second, "share": share} if mixed else {}


def loss_by_loops(contract, logits, first, second, share, weight):
    """Σ λ w ℓ / Σ λ w of one run, and its gradient, by loops in float64."""
    above, below, slope = 0.0, 0.0, np.zeros(logits.shape)
    for n in range(EXAMPLES):
        for y, part in ((int(first[n]), float(share[n])), (int(second[n]), 1 - float(share[n]))):
            value, grad = pairwise_loss(
                logits[n], y, contract.alpha, contract.delta, contract.scale
            )
            above += part * weight[y] * value
            slope[n] += part * weight[y] * grad
            below += part * weight[y]
    return above / below, slope / below


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "class weights"])
def test_every_run_has_its_own_loss_and_gradient_by_the_equation(mixed, weighted):
    """Every margin of the package beside the others, every second one with class weights."""
    modules, weights = [], []
    for n, contract in enumerate(CONTRACTS):
        own = WEIGHT if weighted and n % 2 else None
        more = {} if own is None else {"weight": torch.from_numpy(own)}
        modules.append(contract.module(**more).double())
        weights.append(np.ones(NUM_CLASSES) if own is None else own)
    logits, first, second, share = numbers(len(CONTRACTS), mixed=mixed)
    scales = torch.tensor([contract.scale for contract in CONTRACTS]).double()
    logits = (logits / scales[:, None, None]).requires_grad_()
    found = StackedLoss(modules)(logits, first, **two_labels(second, share, mixed=mixed))
    assert found.shape == (len(CONTRACTS),)
    (grad,) = torch.autograd.grad(found.sum(), logits)
    for n, contract in enumerate(CONTRACTS):
        rows = (part[n].detach().numpy() for part in (logits, first, second, share))
        value, slope = loss_by_loops(contract, *rows, weights[n])
        assert found[n].item() == pytest.approx(value, rel=1e-6), contract.name
        np.testing.assert_allclose(grad[n], slope, rtol=1e-5, atol=1e-9, err_msg=contract.name)


def odd_ones(plain, dense):
    """Losses that are not like the others, between two that are."""
    return [
        losses.LogitAdjustedLoss(PRIOR),
        losses.SoftmaxLoss(PRIOR, label_smoothing=0.1),
        losses.EqualizedThresholdLoss(PRIOR, threshold=0.3, gamma=0.5),
        losses.PairwiseMarginLoss(dense),
        plain,
    ]


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
def test_losses_that_differ_in_kind_keep_their_places(mixed):
    matrix = np.arange(16.0).reshape(4, 4) / 10 * (1 - np.eye(4))
    odd = odd_ones(losses.AdaptiveLoss(PRIOR), margins.Margin.from_matrix(matrix))
    modules = [one.double() for one in odd]
    logits, first, second, share = numbers(len(modules), mixed=mixed)
    dropped = [None, None, modules[2].draw(logits[2]), None, None]
    assert int(dropped[2].sum()) > 0
    found = StackedLoss(modules)(
        logits, first, dropped=dropped, **two_labels(second, share, mixed=mixed)
    )
    for n, one in enumerate(modules):
        draw = {} if dropped[n] is None else {"dropped": dropped[n]}
        expected = (
            one.mixed(logits[n], first[n], second[n], share[n], **draw)
            if mixed
            else one(logits[n], first[n], **draw)
        )
        torch.testing.assert_close(found[n], expected)
    alone = StackedLoss(modules[1:2])(
        logits[1:2], first[1:2], **two_labels(second[1:2], share[1:2], mixed=mixed)
    )
    torch.testing.assert_close(alone[0], found[1])


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
@pytest.mark.parametrize("ignored", [2, -1])
def test_a_run_may_ignore_labels(ignored, mixed):
    """A class of its own, or a label that is none."""
    modules = [losses.SoftmaxLoss(PRIOR), losses.LogitAdjustedLoss(PRIOR, ignore_index=ignored)]
    modules = [one.double() for one in modules]
    logits, first, second, share = numbers(2, mixed=mixed)
    first[:, 1], first[1, 2:4] = 2, ignored
    found = StackedLoss(modules)(logits, first, **two_labels(second, share, mixed=mixed))
    for n, one in enumerate(modules):
        expected = (
            one.mixed(logits[n], first[n], second[n], share[n])
            if mixed
            else one(logits[n], first[n])
        )
        torch.testing.assert_close(found[n], expected)


def test_class_weights_are_changed_in_place():
    modules = [losses.SoftmaxLoss(PRIOR), losses.SoftmaxLoss(PRIOR, weight=torch.ones(4))]
    modules = [one.double() for one in modules]
    both = StackedLoss(modules)
    logits, first, _, _ = numbers(2, mixed=False)
    torch.testing.assert_close(both(logits, first)[1], modules[0](logits[1], first[1]))
    modules[1].weight.copy_(torch.from_numpy(WEIGHT))
    found = both(logits, first)
    expected = torch.nn.functional.cross_entropy(logits[1], first[1], torch.from_numpy(WEIGHT))
    torch.testing.assert_close(found[1], expected)
    torch.testing.assert_close(found[0], modules[0](logits[0], first[0]))
    assert "weight" in modules[1].state_dict()


class Counted(TorchDispatchMode):
    """How many operations of torch ran."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
def test_many_runs_take_as_many_operations_as_few(mixed):
    counts = []
    for times in (1, 3):  # every kind of loss, once and three times
        stacked = StackedLoss([contract.module() for contract in CONTRACTS * times])
        logits, first, second, share = numbers(times * len(CONTRACTS), mixed=mixed)
        logits = logits.float().requires_grad_()
        with Counted() as mode:
            stacked(logits, first, **two_labels(second, share, mixed=mixed)).sum().backward()
        counts.append(mode.count)
    assert counts[0] == counts[1] < 80
