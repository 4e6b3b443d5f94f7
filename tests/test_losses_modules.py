"""The losses as modules: checkpoints, weights that correct twice, signatures, kernel stand-ins."""

import inspect
from dataclasses import InitVar
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import ClassPrior, InputError, Margin, losses, margins
from loss_contract import CONTRACTS, MODULES, NUM_CLASSES
from test_margins import PRIOR

LOGITS, TARGET = torch.zeros(2, NUM_CLASSES), torch.tensor([0, 3])


def inside(loss):
    return nn.ModuleDict({"body": nn.Linear(2, 2), "criterion": loss})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "loss",
    [
        *(contract.module() for contract in CONTRACTS),
        losses.EqualizedThresholdLoss(PRIOR, threshold=0.1),
        losses.PairwiseMarginLoss(Margin.from_matrix(np.arange(16.0).reshape(4, 4))),
        losses.SampledSoftmaxLoss(PRIOR, num_sampled=3, margin=margins.logit_adjusted(PRIOR)),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_cross_entropy_checkpoint_loads_and_the_reverse(loss):
    plain, ours = inside(nn.CrossEntropyLoss()), inside(loss)
    ours.load_state_dict(plain.state_dict())
    plain.load_state_dict(ours.state_dict())
    weighted = inside(nn.CrossEntropyLoss(weight=torch.arange(1.0, 5.0)))
    ours = inside(losses.LDAMLoss(PRIOR, weight=torch.ones(4)))
    ours.load_state_dict(weighted.state_dict())
    assert torch.equal(ours["criterion"].weight, torch.arange(1.0, 5.0))


# --- weights that correct once more ---------------------------------------------------------------


def inverse(power=1.0):
    return torch.tensor(PRIOR.probs**-power, dtype=torch.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda: losses.LogitAdjustedLoss(PRIOR, weight=inverse()),
        lambda: losses.logit_adjusted_loss(LOGITS, TARGET, PRIOR, weight=1000 * inverse()),
        lambda: losses.BalancedLoss(PRIOR, weight=inverse()),
        lambda: losses.WeightedLogitAdjustedLoss(PRIOR, weight=inverse()),
    ],
)
def test_weights_that_correct_for_the_prior_a_second_time_are_refused(make):
    with pytest.raises(InputError, match=r"favour rare classes twice\. Leave `weight` out"):
        make()


def test_weights_that_are_no_second_correction_are_taken():
    losses.SoftmaxLoss(PRIOR, weight=inverse())
    losses.LogitAdjustedLoss(PRIOR, tau=0.5, weight=inverse(0.5))  # together they are consistent
    losses.LogitAdjustedLoss(PRIOR, tau=-1.0, weight=inverse())
    losses.LogitAdjustedLoss(PRIOR, weight=torch.tensor([1.0, 2.0, 1.0, 0.0]))
    losses.LDAMLoss(PRIOR, weight=inverse())
    losses.LogitAdjustedLoss(ClassPrior.uniform(4), weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    losses.PairwiseMarginLoss(margins.logit_adjusted(PRIOR), weight=inverse())


# --- signatures ----------------------------------------------------------------------------------


def declared(module):
    """Return the settings that type checkers read in the class."""
    found = {}
    for name, kind in inspect.get_annotations(module, eval_str=True).items():
        kind = kind.type if isinstance(kind, InitVar) else (*get_args(kind), kind)[0]
        found[name] = (vars(module).get(name, inspect.Parameter.empty), kind)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_margin_module_and_function_have_the_same_settings(name):
    module = MODULES[name]
    function = getattr(losses, f"{name.replace('-', '_')}_loss")

    def settings(call):
        parameters = inspect.signature(call, eval_str=True).parameters.values()
        return {
            p.name: (p.default, p.annotation)
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("logits", "target")
        }

    assert settings(margins.MARGINS[name]) == settings(module) == settings(function)
    assert settings(module) == declared(module)
    assert list(inspect.signature(function).parameters)[:3] == ["logits", "target", "prior"]
    assert function.__name__ in losses.__all__
    assert "ℓ(y, f) = " in module.__doc__


# --- the kernels, by stand-ins --------------------------------------------------------------------


def slow_kernel(
    logits, target, *, bias, lower, weight, divisor, scale, ignore_index, label_smoothing, reduce,
):  # fmt: skip
    """Compute what `kernels.cross_entropy.cross_entropy` promises, in torch operations."""
    z = scale * (logits + (0.0 if bias is None else bias))
    if lower is not None:
        assert label_smoothing == 0
        z = z - scale * F.one_hot(target.clamp_min(0), z.shape[1]) * lower
    losses = F.cross_entropy(
        z, target, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip
    losses = losses if divisor is None else losses / divisor
    return losses.sum() if reduce else losses


@pytest.fixture
def kernel(monkeypatch):
    """The kernel's stand-in wherever there would be a GPU; counts its calls."""
    calls = []

    def counted(*args, **options):
        calls.append(options)
        return slow_kernel(*args, **options)

    class OnGPU(torch.Tensor):
        is_cuda = True
        __torch_function__ = torch._C._disabled_torch_function_impl

    place = "longtail.losses.pairwise"
    monkeypatch.setattr(f"{place}.kernel.worthwhile", lambda logits: logits.ndim == 2)
    monkeypatch.setattr(f"{place}.kernel.cross_entropy", counted, raising=False)
    return calls, lambda t: t.as_subclass(OnGPU)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_the_kernel_is_called_with_what_gives_the_same_loss(contract, reduction, epsilon, kernel):
    calls, on_gpu = kernel
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) / contract.scale
    target = torch.tensor([0, 1, 2, 3, -100, 0])
    for weight in (None, torch.tensor([1.0, 2.0, 0.5, 1.0])):
        options = {"weight": weight, "label_smoothing": epsilon, "reduction": reduction}
        loss = contract.module(**options)
        expected = loss(logits, target)
        calls.clear()
        found = loss(on_gpu(logits), target).as_subclass(torch.Tensor)
        torch.testing.assert_close(found, expected)
        moves = contract.name in (
            "adaptive", "ldam", "equalized", "logit-adjusted-adaptive", "two-parameter"
        )  # fmt: skip
        weighs = weight is not None or contract.name in (
            "balanced", "class-balanced", "consistent", "weighted-logit-adjusted"
        )  # fmt: skip
        expected_calls = 0 if epsilon and (moves or weighs) else 1
        assert len(calls) == expected_calls
        without = contract.module(**options, impl="torch")
        without(on_gpu(logits), target)
        loss(on_gpu(logits), torch.full((6, 4), 0.25))
        assert len(calls) == expected_calls
