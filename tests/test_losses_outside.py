"""Losses outside the family, against loops: the average of the k largest, and hinge losses."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from longtail import ClassPrior, InputError, check_consistency, losses
from longtail.consistency.binary import CostSensitiveSVM
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

RANDOM = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(7, NUM_CLASSES, generator=RANDOM, dtype=torch.float64)
TARGET = torch.tensor([0, 1, 2, 3, 3, 0, 2])


@pytest.mark.parametrize("k", [1, 3, 7, 100])
@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_average_top_k_of_any_loss(contract, k):
    logits = (LOGITS / contract.scale).requires_grad_()
    loss = losses.AverageTopKLoss(contract.module(reduction="none"), k=k)
    each = contract.module(reduction="none")(logits, TARGET)
    largest = sorted(each.tolist(), reverse=True)[:k]
    found = loss(logits, TARGET)
    assert found.item() == pytest.approx(sum(largest) / len(largest))
    # Fan et al.: the same as the least λ + Σ [ℓ − λ]₊ / k, which is least at one of the losses.
    values = each.detach().numpy()
    by_lambda = min(c + np.maximum(values - c, 0).sum() / min(k, 7) for c in values)
    assert found.item() == pytest.approx(by_lambda)
    (grad,) = torch.autograd.grad(found, logits)
    weights = torch.tensor([(value in largest) / len(largest) for value in values.tolist()])
    (wanted,) = torch.autograd.grad((weights * each).sum(), logits)
    torch.testing.assert_close(grad, wanted)


def hinge(f, y, omega_pos, omega_neg, delta_pos, delta_neg):
    """ω₊_y·[δ₊_y − f_y]₊ + Σ_{y'≠y} ω₋_{y'}·[δ₋_{y'} + f_{y'}]₊."""
    total = omega_pos[y] * max(delta_pos[y] - f[y], 0.0)
    for k in range(len(f)):
        if k != y:
            total += omega_neg[k] * max(delta_neg[k] + f[k], 0.0)
    return total


@pytest.mark.parametrize("usual", [True, False])
def test_hinge_losses_match_the_equation(usual):
    pi, draw = PRIOR.probs, np.random.default_rng(0)
    given, parts = {}, [1 / pi, 1 / (1 - pi), np.ones(4), np.ones(4)]
    if not usual:
        parts = list(draw.uniform(0.1, 2.0, (4, 4)))
        given = dict(zip(("omega_pos", "omega_neg", "delta_pos", "delta_neg"), parts, strict=True))
    logits = LOGITS.clone().requires_grad_()
    found = losses.CostSensitiveHingeLoss(PRIOR, **given, reduction="none").double()(logits, TARGET)
    wanted = [hinge(f, y, *parts) for f, y in zip(LOGITS.tolist(), TARGET.tolist(), strict=True)]
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-6)
    for reduction, value in (("mean", np.mean(wanted)), ("sum", np.sum(wanted))):
        loss = losses.CostSensitiveHingeLoss(PRIOR, **given, reduction=reduction)
        assert loss(LOGITS, TARGET).item() == pytest.approx(value)
    assert torch.autograd.gradcheck(losses.CostSensitiveHingeLoss(PRIOR).double(), (logits, TARGET))


def test_one_score_of_two_classes_is_the_paper_s_binary_loss():
    """Its best score at every η is that of `CostSensitiveSVM`: δ₊ above the threshold, else −δ₋."""
    svm = CostSensitiveSVM(4.0, 1.0, delta_pos=0.5, delta_neg=2.0)
    loss = losses.CostSensitiveHingeLoss(
        ClassPrior.from_probs([0.8, 0.2]),
        omega_pos=4.0, omega_neg=1.0, delta_pos=0.5, delta_neg=2.0, reduction="none",
    )  # fmt: skip
    f = torch.linspace(-3, 3, 13)
    minus, plus = (loss(f, torch.full((13,), y)) for y in (0, 1))
    np.testing.assert_allclose(np.stack([plus, minus]), svm.loss(f.numpy()), rtol=1e-6)
    for eta in (0.1, 0.19, 0.21, 0.6):

        def risk(score, eta=eta):
            both = (loss(torch.tensor([score]), torch.tensor([y])).item() for y in (1, 0))
            return eta * next(both) + (1 - eta) * next(both)

        best = minimize_scalar(risk, bounds=(-4, 4), method="bounded").x
        assert best == pytest.approx(float(svm.link(eta)), abs=1e-3)


@pytest.mark.parametrize("pi", [0.05, 0.4])
def test_the_verdict_on_hinge_losses(pi):
    prior = ClassPrior.from_probs([1 - pi, pi])
    usual = losses.CostSensitiveHingeLoss(prior)
    weights = usual.omega_pos[1].double().item(), usual.omega_neg[1].double().item()
    assert check_consistency(CostSensitiveSVM(*weights), prior, tolerance=1e-6).consistent
    verdict = check_consistency(CostSensitiveSVM(1.0, 1.0, 0.3, 0.7), prior)
    assert verdict.consistent is False
    witness = verdict.witness
    assert np.argmax(witness.eta / prior.probs) == witness.should_win != witness.wins
    assert witness.wins == int(witness.eta[1] > 0.5) == int(np.argmax(witness.scores))
    assert witness.scores[1] - witness.scores[0] == (0.3 if witness.wins else -0.7)
    undecided = check_consistency(CostSensitiveSVM(1 / pi, 1 / (1 - pi), delta_pos=0.0), prior)
    assert undecided.consistent is None


def test_bad_input():
    with pytest.raises(InputError, match=r'make LogitAdjustedLoss with reduction="none"'):
        losses.AverageTopKLoss(losses.LogitAdjustedLoss(PRIOR), k=2)
    with pytest.raises(InputError, match="`delta_neg` must not be negative; got -1"):
        losses.CostSensitiveHingeLoss(PRIOR, delta_neg=-1.0)
    with pytest.raises(InputError, match="has two classes; `prior` has 4"):
        check_consistency(CostSensitiveSVM(1.0, 1.0), PRIOR)
