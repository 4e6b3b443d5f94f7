"""The binary theory against direct minimisation of the conditional risk as the paper writes it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from longtail import ClassPrior, Margin, check_consistency
from longtail.consistency.binary import BinaryLoss, CostSensitiveSVM, examples, tent

GRID = np.array([0.001, 0.05, 0.2, 0.35, 0.5, 0.8, 0.95, 0.999])


def oracle_loss(loss, f):
    """Equation 13, for moderate numbers."""
    g = loss.gamma
    plus = loss.omega_pos / g * math.log1p(math.exp(g * loss.delta_pos) * math.exp(-g * f))
    minus = loss.omega_neg / g * math.log1p(math.exp(g * loss.delta_neg) * math.exp(g * f))
    return plus, minus


def oracle_risk(loss, p, f):
    plus, minus = oracle_loss(loss, f)
    return p * plus + (1 - p) * minus


def oracle_minimum(loss, p):
    found = minimize_scalar(
        lambda f: oracle_risk(loss, p, f),
        bounds=(-25, 25),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return found.x, found.fun


losses = st.builds(
    BinaryLoss,
    omega_pos=st.floats(0.1, 10),
    omega_neg=st.floats(0.1, 10),
    delta_pos=st.floats(-1.5, 1.5),
    delta_neg=st.floats(-1.5, 1.5),
    gamma=st.sampled_from([0.5, 1.0, 3.0, 8.0]),
)


@settings(max_examples=30, deadline=None)
@given(loss=losses, f=st.floats(-3, 3))
def test_the_losses_are_equation_13(loss, f):
    np.testing.assert_allclose(loss.loss(f), oracle_loss(loss, f), rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(loss=losses, p=st.sampled_from(GRID))
def test_link_and_bayes_risk_are_the_minimiser_and_minimum(loss, p):
    score, value = oracle_minimum(loss, p)
    assert float(loss.bayes_risk(p)) == pytest.approx(value, rel=1e-9, abs=1e-12)
    # A minimiser found by comparing values is only as sharp as the valley: judge it there.
    assert oracle_risk(loss, p, float(loss.link(p))) <= value * (1 + 1e-12)
    slope = [oracle_risk(loss, p, score + h) for h in (-1e-3, 1e-3)]
    curvature = (sum(slope) - 2 * value) / 1e-6
    if curvature > 1e-3:
        assert float(loss.link(p)) == pytest.approx(score, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(loss=losses, log_odds=st.floats(-600, 30))
def test_link_and_inverse_link_undo_each_other_down_to_tiny_probabilities(loss, log_odds):
    p = 1 / (1 + math.exp(-log_odds))
    back = float(loss.inverse_link(loss.link(p)))
    assert back == pytest.approx(p, rel=1e-9)
    assert 1 - back == pytest.approx(1 - p, rel=1e-3)


def test_extreme_parameters_neither_overflow_nor_cancel():
    loss = BinaryLoss(omega_pos=1e6, delta_pos=40.0, delta_neg=-35.0, gamma=50.0)
    p = np.array([1e-300, 1e-12, 0.2, 0.5, 1 - 1e-12])
    f = loss.link(p)
    assert np.all(np.isfinite(f))
    assert np.all(np.diff(f) > 0)
    np.testing.assert_allclose(loss.inverse_link(f), p, rtol=1e-9)


def test_the_ends_are_infinite_scores_and_no_risk():
    loss = BinaryLoss(omega_pos=3.0, delta_pos=0.7, gamma=2.0)
    assert loss.link([0.0, 1.0]).tolist() == [-math.inf, math.inf]
    assert loss.inverse_link([-math.inf, math.inf]).tolist() == [0.0, 1.0]
    assert loss.bayes_risk([0.0, 1.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("pi", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 8.0])
def test_the_papers_admissible_and_inadmissible_choices(pi, gamma):
    losses = examples(pi, gamma=gamma)
    found = {name: np.isclose(*loss.lemma(pi), rtol=1e-9) for name, loss in losses.items()}
    assert found["balanced"]
    assert found["unequal-margin"]
    for name in ("logistic", "both", "small-margin", "balanced-margin"):
        assert found[name] == (pi == 0.5), name
    assert not found["balanced-margin-pi"]


@settings(max_examples=30, deadline=None)
@given(loss=losses, pi=st.floats(0.01, 0.99))
def test_lemma_2_says_where_the_best_score_changes_sign(loss, pi):
    """The lemma's ratio is (1 − c)/c, c the p above which the best score is positive."""
    left, right = loss.lemma(pi)
    assert right == pytest.approx((1 - pi) / pi)
    c = 1 / (1 + left)
    assert loss.threshold == pytest.approx(c, rel=1e-9)
    step = 1e-4 * c * (1 - c)
    assert oracle_minimum(loss, c + step)[0] > -1e-4
    assert float(loss.link(c - step)) < 0 < float(loss.link(c + step))


@pytest.mark.parametrize("name", list(examples(0.2)))
@pytest.mark.parametrize("gamma", [1.0, 8.0])
def test_peak_is_the_largest_bayes_risk(name, gamma):
    loss = examples(0.2, gamma=gamma)[name]
    p, value = loss.peak()
    grid = np.linspace(0, 1, 20_001)
    risks = loss.bayes_risk(grid)
    assert value >= risks.max() * (1 - 1e-14)
    assert value == pytest.approx(risks.max(), rel=1e-6)
    assert p == pytest.approx(grid[risks.argmax()], abs=1e-3)


@pytest.mark.parametrize("name", ["balanced", "balanced-margin", "balanced-margin-pi"])
def test_gamma_to_infinity_is_the_hinge_loss(name):
    p, f = np.linspace(0.01, 0.99, 99), np.linspace(-3, 3, 61)
    for gamma in (10.0, 1e3, 1e5):
        loss = examples(0.2, gamma=gamma)[name]
        hinge = loss.limit()
        for soft, hard, omega in zip(
            loss.loss(f), hinge.loss(f), (loss.omega_pos, loss.omega_neg), strict=True
        ):
            assert np.all(soft >= hard - 1e-12)
            assert np.all(soft - hard <= omega * math.log(2) / gamma + 1e-12)
        excess = loss.bayes_risk(p) - hinge.bayes_risk(p)
        bound = (p * loss.omega_pos + (1 - p) * loss.omega_neg) * math.log(2) / gamma
        assert np.all((excess >= -1e-12) & (excess <= bound + 1e-12))
    assert hinge.threshold == pytest.approx(0.2)
    # At p apart from the threshold the scores come to the margins.
    np.testing.assert_allclose(loss.link([0.1, 0.4]), hinge.link([0.1, 0.4]), atol=1e-3)
    assert loss.threshold == pytest.approx(0.2, rel=1e-6)


svms = st.builds(
    CostSensitiveSVM,
    omega_pos=st.floats(0.1, 10),
    omega_neg=st.floats(0.1, 10),
    delta_pos=st.floats(0.0, 2.0),
    delta_neg=st.floats(0.1, 2.0),
)


@settings(max_examples=30, deadline=None)
@given(svm=svms, p=st.floats(0.0, 1.0))
def test_the_svms_bayes_risk_is_the_minimum_over_all_scores(svm, p):
    """A convex piecewise linear function is least at a kink; a fine grid adds nothing."""
    f = np.concatenate([np.linspace(-4, 4, 801), [svm.delta_pos, -svm.delta_neg]])
    risks = [
        p * svm.omega_pos * max(svm.delta_pos - x, 0)
        + (1 - p) * svm.omega_neg * max(svm.delta_neg + x, 0)
        for x in f
    ]
    assert float(svm.bayes_risk(p)) == pytest.approx(min(risks), abs=1e-12)
    at_link = float(svm.conditional_risk(p, svm.link(p)))
    assert at_link == pytest.approx(min(risks), abs=1e-12)


def test_a_consistent_hinge_loss_has_the_tent_for_its_bayes_risk():
    """ω₋ = ω₊ π/(1 − π) is consistent, and δ₋ + δ₊ = 1/(π ω₊) makes the maximum 1."""
    p = np.linspace(0, 1, 51)
    # The lesser balanced error of "always +1" and "always −1", of maximum 1 (slip 5).
    np.testing.assert_allclose(tent(p, 0.2), np.minimum(p / 0.2, (1 - p) / 0.8))
    for omega in (0.5, 2.0, 4.9):
        svm = CostSensitiveSVM(omega, omega / 4, 1.0, 5 / omega - 1)
        assert svm.peak() == (pytest.approx(0.2), pytest.approx(1.0))
        assert check_consistency(svm, ClassPrior.from_probs([0.8, 0.2])).consistent
        assert check_consistency(svm, ClassPrior.from_probs([0.7, 0.3])).consistent is False
        np.testing.assert_allclose(svm.bayes_risk(p), tent(p, 0.2), atol=1e-12)


@pytest.mark.parametrize("positive", [0, 1])
def test_from_margin_is_the_two_class_loss(positive):
    margin = Margin([0.5, 2.0], [0.7, -0.2], [0.1, 0.3], scale=3.0)
    loss, f = BinaryLoss.from_margin(margin, positive=positive), 0.9
    negative, delta = 1 - positive, margin.matrix()
    plus = margin.alpha[positive] * math.log1p(math.exp(3 * (delta[positive, negative] - f)))
    minus = margin.alpha[negative] * math.log1p(math.exp(3 * (delta[negative, positive] + f)))
    np.testing.assert_allclose(loss.loss(f), (plus, minus), rtol=1e-12)
