"""Loading a state into a loss: the saved margins win, and whoever made others is told."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from longtail import ClassPrior, Margin, losses, margins
from longtail.losses import LoadedMarginsWarning
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

OTHER_PRIOR = ClassPrior.from_counts([5, 10, 100, 900])
LOGITS, TARGET = torch.zeros(2, NUM_CLASSES), torch.tensor([0, 3])


def inside(loss):
    return nn.ModuleDict({"body": nn.Linear(2, 2), "criterion": loss})


def sampled(prior):
    return losses.SampledSoftmaxLoss(prior, num_sampled=3, margin=margins.logit_adjusted(prior))


def matrix(seed):
    size = (NUM_CLASSES, NUM_CLASSES)
    return losses.PairwiseMarginLoss(
        Margin.from_matrix(np.random.default_rng(seed).normal(size=size))
    )


def test_other_margins_win_and_the_warning_names_what_to_do():
    net = inside(losses.LogitAdjustedLoss(PRIOR, tau=0.5))
    old = losses.LogitAdjustedLoss(OTHER_PRIOR)
    with pytest.warns(LoadedMarginsWarning) as found:
        net.load_state_dict(inside(old).state_dict())
    assert str(found[0].message) == (
        "LogitAdjustedLoss: the state that is loaded (criterion.positive, criterion.negative) has "
        "other margins than the loss was made with, as of another prior or other settings; the "
        "loaded ones hold from now on. To train with the others, make the loss again after loading."
    )
    assert found[0].filename == __file__
    assert net["criterion"](LOGITS, TARGET) == old(LOGITS, TARGET)
    assert repr(net["criterion"]) == (
        "LogitAdjustedLoss('logit-adjusted', num_classes=4, margins='loaded', reduction='mean')"
    )


def test_settings_that_are_no_margins_stay_in_the_repr():
    for made, kept in (
        (lambda prior: losses.LDAMLoss(prior, max_margin=0.3), "scale=30.0, margins='loaded'"),
        (
            lambda prior: losses.EqualizedThresholdLoss(prior, threshold=0.1),
            "gamma=0.9, margins='loaded'",
        ),
        (sampled, "num_sampled=3, margins='loaded'"),
    ):
        loss = made(PRIOR)
        with pytest.warns(LoadedMarginsWarning, match="has other margins"):
            loss.load_state_dict(made(OTHER_PRIOR).state_dict())
        assert kept in repr(loss)
        assert "max_margin" not in repr(loss)
        assert "threshold=" not in repr(loss)


MADE = {contract.name: contract.module for contract in CONTRACTS}
MADE["threshold"] = lambda prior: losses.EqualizedThresholdLoss(prior, threshold=0.1)
MADE["dense"] = lambda _: matrix(0)
MADE["sampled"] = sampled


@pytest.mark.parametrize("how", ["copied", "assigned", "float64", "bfloat16"])
@pytest.mark.parametrize("name", MADE)
def test_the_same_margins_load_in_silence(name, how):
    made = MADE[name]
    net, state = inside(made(PRIOR)), inside(made(PRIOR)).state_dict()
    if how in ("float64", "bfloat16"):
        cast = getattr(torch, how)
        state = {k: v.to(cast) if v.is_floating_point() else v for k, v in state.items()}
    text = repr(net["criterion"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            net.load_state_dict(state, assign=how == "assigned")
    assert repr(net["criterion"]) == text


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("softmax", "dense")])
def test_margins_of_another_prior_are_noticed(name):
    loss = MADE[name](PRIOR)
    with pytest.warns(LoadedMarginsWarning):
        loss.load_state_dict(MADE[name](OTHER_PRIOR).state_dict(), assign=True)
    with warnings.catch_warnings():  # a second time nothing changes
        warnings.simplefilter("error")
        loss.load_state_dict(MADE[name](OTHER_PRIOR).state_dict())


def test_another_matrix_is_noticed():
    with pytest.warns(LoadedMarginsWarning, match=r"\(dense\)"):
        matrix(0).load_state_dict(matrix(1).state_dict())


def test_class_weights_change_in_training_and_load_in_silence():
    """As those of deferred re-weighting do."""
    state = losses.LDAMLoss(PRIOR, weight=torch.arange(1.0, 5.0)).state_dict()
    loss = losses.LDAMLoss(PRIOR, weight=torch.ones(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.load_state_dict(state)
    assert torch.equal(loss.weight, torch.arange(1.0, 5.0))


def test_what_can_not_be_compared_loads_in_silence():
    state = inside(losses.LogitAdjustedLoss(PRIOR)).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.device("meta"):
            net = inside(losses.LogitAdjustedLoss(PRIOR))
        net.load_state_dict(state, assign=True)
        assert torch.equal(net["criterion"].negative, state["criterion.negative"])
        body = {name: value for name, value in state.items() if name.startswith("body")}
        fresh = inside(losses.LogitAdjustedLoss(OTHER_PRIOR))
        fresh.load_state_dict(body, strict=False)
        assert "tau=1.0" in repr(fresh["criterion"])
        narrow = losses.LogitAdjustedLoss(ClassPrior.uniform(3)).state_dict()
        with pytest.raises(RuntimeError, match="size mismatch for alpha"):
            losses.LogitAdjustedLoss(PRIOR).load_state_dict(narrow)
