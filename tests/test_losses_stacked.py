"""The losses of several runs at once: each run's own, from the equation, in few operations."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longtail import losses, margins
from longtail.losses.stacked import SeparateLosses, StackedLoss
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


def margin_of(contract):
    return margins.by_name(contract.name, PRIOR, **contract.settings)


def assert_each_its_own(stacked, modules, logits, first, second, share, *, mixed, dropped=None):
    """Values and gradients of all runs at once are those of each by itself."""
    logits = logits.detach().requires_grad_()
    draws = dropped or {}
    found = stacked(
        logits,
        first,
        **two_labels(second, share, mixed=mixed),
        **({} if dropped is None else {"dropped": dropped}),
    )
    expected = torch.stack(
        [
            one.mixed(logits[n], first[n], second[n], share[n], dropped=draws.get(n))
            if mixed
            else one(logits[n], first[n], dropped=draws.get(n))
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
    has = [weighted and n % 2 == 1 for n in range(len(CONTRACTS))]
    parts = [margin_of(contract) for contract in CONTRACTS]
    stacked = StackedLoss(parts, weighted=has, dtype=torch.float64)
    modules = []
    for contract, weight in zip(CONTRACTS, stacked.weights, strict=True):
        assert (weight is None) is not has[len(modules)]
        if weight is not None:
            weight.copy_(torch.from_numpy(WEIGHT))
        more = {} if weight is None else {"weight": torch.from_numpy(WEIGHT)}
        modules.append(contract.module(**more, dtype=torch.float64))
    logits, first, second, share = numbers(len(CONTRACTS), mixed=mixed)
    scales = torch.tensor([contract.scale for contract in CONTRACTS]).double()
    logits = logits / scales[:, None, None]
    assert_each_its_own(stacked, modules, logits, first, second, share, mixed=mixed)


@pytest.mark.parametrize("mixed", [False, True], ids=["one label", "two labels"])
def test_losses_beyond_margins_are_each_their_own(mixed):
    """Label smoothing, competitors that drop out, a dense margin; and two additive ones."""
    matrix = np.arange(16.0).reshape(4, 4) / 10 * (1 - np.eye(4))
    weight, precise = torch.from_numpy(WEIGHT), {"dtype": torch.float64}
    modules = [
        losses.LogitAdjustedLoss(PRIOR, **precise),
        losses.SoftmaxLoss(PRIOR, label_smoothing=0.1, weight=weight, **precise),
        losses.EqualizedThresholdLoss(PRIOR, threshold=0.3, gamma=0.5, **precise),
        losses.PairwiseMarginLoss(margins.Margin.from_matrix(matrix), **precise),
        losses.AdaptiveLoss(PRIOR, weight=weight, **precise),
    ]
    stacked = SeparateLosses(modules)
    assert [part is not None for part in stacked.weights] == [False, True, False, False, True]
    logits, first, second, share = numbers(len(modules), mixed=mixed)
    dropped = {run: loss.draw(logits[run]) for run, loss in stacked.drawing.items()}
    assert int(dropped[2].sum()) > 0
    numbered = logits, first, second, share
    assert_each_its_own(stacked, modules, *numbered, mixed=mixed, dropped=dropped)


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
        stacked = StackedLoss([margin_of(contract) for contract in CONTRACTS * times])
        logits, first, second, share = numbers(times * len(CONTRACTS), mixed=mixed)
        logits = logits.float().requires_grad_()
        with Counted() as mode:
            stacked(logits, first, **two_labels(second, share, mixed=mixed)).sum().backward()
        counts.append(mode.count)
    assert counts[0] == counts[1] < 80
