"""Baking a torch module or state dict that holds the loss it was trained with."""

import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from longtail import (
    AdjustedTwiceWarning,
    ClassPrior,
    bake_logit_adjustment,
    bake_weight_normalization,
    losses,
    margins,
)

COUNTS = np.array([5000, 1200, 300, 70, 9])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)).eval()


def holding(loss):
    """As a LightningModule holds its loss."""
    model = network()
    model.add_module("criterion", loss)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    return model


@pytest.mark.parametrize(
    "loss",
    [
        losses.LogitAdjustedLoss(PRIOR),
        losses.LogitAdjustedLoss(ClassPrior.from_counts(COUNTS, smoothing=1)),
        losses.LogitAdjustedLoss(PRIOR).double(),
        losses.BalancedLoss(PRIOR),
        losses.PairwiseMarginLoss(
            margins.Margin.from_matrix(margins.logit_adjusted(PRIOR).matrix())
        ),
        losses.SampledSoftmaxLoss(PRIOR, num_sampled=3, margin=margins.logit_adjusted(PRIOR)),
    ],
    ids=["logit-adjusted", "smoothed", "float64", "balanced", "matrix", "sampled"],
)
def test_a_module_that_holds_a_loss_for_the_balanced_error_warns(loss):
    model = holding(loss)
    with pytest.warns(AdjustedTwiceWarning) as found:
        baked = bake_logit_adjustment(model, PRIOR)
    assert [str(one.message) for one in found] == [
        "bake_logit_adjustment: the model holds a loss (criterion) that already aims at the "
        "balanced error. If it was trained with that, adjusting its logits favours the rare "
        "classes twice; use them as they are, or at most with a small tau that held-out data ask "
        "for."
    ]
    assert found[0].filename == __file__
    shift = (baked[2].bias - model[2].bias).detach()
    np.testing.assert_allclose(shift, -LOG_PI, atol=1e-5)


@pytest.mark.parametrize("name", ["target_prior", "costs", "the training prior"])
def test_a_module_balanced_by_its_loss_is_baked_for_another_target_from_the_uniform_prior(name):
    model, numbers = holding(losses.LogitAdjustedLoss(PRIOR)), np.arange(1.0, len(COUNTS) + 1)
    aim = {name: numbers if name == "costs" else ClassPrior.from_weights(numbers)}
    if name == "the training prior":  # where nothing would be baked in
        aim = {"target_prior": PRIOR}
    uniform = ClassPrior.uniform(len(COUNTS))
    with pytest.warns(AdjustedTwiceWarning, match=rf"pass ClassPrior.uniform\({len(COUNTS)}\)"):
        bake_logit_adjustment(model, PRIOR, **aim)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bake_logit_adjustment(model, uniform, **aim)


class Other(nn.Module):
    """Buffers of the same names that are no margins."""

    def __init__(self):
        super().__init__()
        for name in ("alpha", "positive", "negative"):
            self.register_buffer(name, torch.zeros(5))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "loss",
    [
        losses.SoftmaxLoss(PRIOR),
        losses.LogitAdjustedLoss(PRIOR, tau=0.5),
        losses.AdaptiveLoss(PRIOR),
        losses.LDAMLoss(PRIOR),
        losses.EqualizedLoss(PRIOR),
        losses.LogitAdjustedLoss(ClassPrior.from_counts([9, 1])),
        Other(),
    ],
    ids=["softmax", "half", "adaptive", "ldam", "equalized", "other classes", "no loss"],
)
def test_a_module_whose_loss_leaves_something_to_adjust_does_not(loss, tmp_path):
    model, path = holding(loss), tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    bake_logit_adjustment(model, PRIOR)
    bake_logit_adjustment(path, PRIOR, out=tmp_path / "baked.safetensors")


@pytest.mark.filterwarnings("error")
def test_what_does_not_adjust_does_not_adjust_twice():
    model = holding(losses.LogitAdjustedLoss(PRIOR))
    bake_logit_adjustment(model, PRIOR, tau=0)
    bake_logit_adjustment(model, PRIOR, tau=-1)  # back to the frequencies of the training data
    bake_logit_adjustment(model, PRIOR, tau=0.1)  # small, as the warning itself allows
    bake_logit_adjustment(model, ClassPrior.uniform(5))
    bake_weight_normalization(model, layer="2")
