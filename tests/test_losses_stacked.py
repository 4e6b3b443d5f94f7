"""The losses of several runs at once: each run's own, from the equation, in few operations."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longtail import losses, margins
from longtail.losses.stacked import StackedLoss
from loss_contract import CONTRACTS, NUM_CLASSES
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


def assert_each_its_own(modules, logits, first, second, share, *, mixed, dropped=None):
    """Values and gradients of all runs at once are those of each by itself."""
    logits = logits.detach().requires_grad_()
    draws = dropped or [None] * len(modules)
    found = StackedLoss(modules)(
        logits, first, dropped=draws, **two_labels(second, share, mixed=mixed)
    )
    expected = torch.stack(
        [
            one.mixed(logits[n], first[n], second[n], share[n], dropped=draws[n])
            if mixed
            else one(logits[n], first[n], dropped=draws[n])
            for n, one in enumerate(modules)
        ]
    )
    torch.testing.assert_close(found, expected)
    for got, wanted in zip(
        *(torch.autograd.grad(each.sum(), logits) for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "class weights"])
def test_every_run_has_its_own_loss_and_gradient(mixed, weighted):
    """Every margin of the package beside the others, every second one with class weights."""
    modules = []
    for n, contract in enumerate(CONTRACTS):
        more = {"weight": torch.from_numpy(WEIGHT)} if weighted and n % 2 else {}
        modules.append(contract.module(**more).double())
    logits, first, second, share = numbers(len(CONTRACTS), mixed=mixed)
    scales = torch.tensor([contract.scale for contract in CONTRACTS]).double()
    logits = logits / scales[:, None, None]
    assert_each_its_own(modules, logits, first, second, share, mixed=mixed)


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
    given = logits, first, second, share
    assert_each_its_own(modules, *given, mixed=mixed, dropped=dropped)
    assert_each_its_own(modules[1:2], *(part[1:2] for part in given), mixed=mixed)


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
@pytest.mark.parametrize("ignored", [2, -1])
def test_a_run_may_ignore_labels(ignored, mixed):
    """A class of its own, or a label that is none."""
    modules = [losses.SoftmaxLoss(PRIOR), losses.LogitAdjustedLoss(PRIOR, ignore_index=ignored)]
    modules = [one.double() for one in modules]
    logits, first, second, share = numbers(2, mixed=mixed)
    first[:, 1], first[1, 2:4] = 2, ignored
    assert_each_its_own(modules, logits, first, second, share, mixed=mixed)


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
    """Count the torch operations that run."""

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
