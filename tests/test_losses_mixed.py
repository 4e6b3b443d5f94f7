"""Examples of two labels: the loss is linear in the class probabilities, for every margin."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail import InputError, losses
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

contracts = pytest.mark.parametrize("contract", CONTRACTS, ids=str)
FIRST, SECOND = torch.tensor([0, 1, 2, 3, 3, 0]), torch.tensor([1, 1, 3, 0, 2, 0])
SHARE = torch.tensor([1.0, 0.4, 0.0, 0.75, 0.3, 0.6], dtype=torch.float64)
LOGITS = 2 * torch.randn(
    6, NUM_CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.7], dtype=torch.float64)


def logits_for(contract):
    return (LOGITS / contract.scale).requires_grad_()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@contracts
def test_it_is_the_loss_with_class_probabilities(contract, epsilon, reduction):
    loss = contract.module(reduction=reduction, label_smoothing=epsilon).double()
    q = SHARE[:, None] * F.one_hot(FIRST, NUM_CLASSES)
    q = q + (1 - SHARE)[:, None] * F.one_hot(SECOND, NUM_CLASSES)
    logits = logits_for(contract)
    torch.testing.assert_close(loss.mixed(logits, FIRST, SECOND, SHARE), loss(logits, q))


@contracts
def test_class_weights_divide_the_mean_as_for_one_label(contract):
    """A deferred re-weighting must not change the size of the loss, mixed or not."""
    module = contract.module(weight=WEIGHT).double()
    each = contract.module(reduction="none").double()
    logits = logits_for(contract)
    one, two = each(logits, FIRST), each(logits, SECOND)
    w, v = SHARE * WEIGHT[FIRST], (1 - SHARE) * WEIGHT[SECOND]
    expected = (w * one + v * two).sum() / (w + v).sum()
    torch.testing.assert_close(module.mixed(logits, FIRST, SECOND, SHARE), expected)
    whole = torch.ones_like(SHARE)
    torch.testing.assert_close(module.mixed(logits, FIRST, SECOND, whole), module(logits, FIRST))


@pytest.mark.parametrize("share", [np.float64(0.3), 1])
@contracts
def test_one_share_for_all_is_a_number(contract, share):
    """As mixup draws it: ``numpy.random.beta(alpha, alpha)``."""
    loss, logits = contract.module(weight=WEIGHT), logits_for(contract)
    each = torch.full((6,), float(share), dtype=torch.float64)
    expected = loss.mixed(logits, FIRST, SECOND, each)
    for given in (share, torch.tensor(float(share), dtype=torch.float64)):  # also of Beta.sample()
        found = loss.mixed(logits, first=FIRST, second=SECOND, share=given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_ignored_label_counts_for_nothing():
    loss = losses.LogitAdjustedLoss(PRIOR).double()
    gone = SECOND.clone()
    gone[1] = -100
    share = torch.full_like(SHARE, 0.25)
    each = losses.LogitAdjustedLoss(PRIOR, reduction="none").double()
    one, two = each(LOGITS, FIRST), each(LOGITS, SECOND)
    two[1] = 0.0
    expected = (0.25 * one + 0.75 * two).sum() / (0.25 * 6 + 0.75 * 5)
    torch.testing.assert_close(loss.mixed(LOGITS, FIRST, gone, share), expected)


def test_the_threshold_form_has_one_draw_for_both_labels():
    loss = losses.EqualizedThresholdLoss(PRIOR, threshold=0.3, gamma=0.5, reduction="none").double()
    loss.generator = torch.Generator().manual_seed(4)
    dropped = loss.draw(LOGITS)
    assert 0 < int(dropped.sum()) < dropped.numel()
    expected = SHARE * loss(LOGITS, FIRST, dropped=dropped)
    expected = expected + (1 - SHARE) * loss(LOGITS, SECOND, dropped=dropped)
    given = loss.mixed(LOGITS, FIRST, SECOND, SHARE, dropped=dropped)
    torch.testing.assert_close(given, expected)
    loss.generator.manual_seed(4)
    torch.testing.assert_close(loss.mixed(LOGITS, FIRST, SECOND, SHARE), expected)


@pytest.mark.parametrize("share", [FIRST, 1.5], ids=["integers", "above 1"])
def test_bad_shares_are_refused(share):
    with pytest.raises(InputError, match="`share` must"):
        losses.LogitAdjustedLoss(PRIOR).mixed(LOGITS, FIRST, SECOND, share)
