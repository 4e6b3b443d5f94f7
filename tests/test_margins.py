"""Each named margin against its row of the table, written out per pair of classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail import ClassPrior, InputError, Margin, margins

PRIOR = ClassPrior.from_counts([700, 250, 45, 5])
PI, N = PRIOR.probs, PRIOR.counts
LOG = np.log
DELTA = np.array([0.3, 2.0, 1.0, 0.01])
ONE = np.ones(4)

# name -> (settings, α before normalising, Δ as a function of target y and competitor k)
ROWS = {
    "softmax": ({}, ONE, lambda y, k: 0.0),
    "balanced": ({}, 1 / PI, lambda y, k: 0.0),
    "class-balanced": ({"beta": 0.99}, (1 - 0.99) / (1 - 0.99**N), lambda y, k: 0.0),
    "adaptive": ({"constant": 0.7}, ONE, lambda y, k: 0.7 * PI[y] ** -0.25),
    "ldam": ({"max_margin": 0.4, "scale": 20.0}, ONE, lambda y, k: 0.4 * N[y] ** -0.25 / 5**-0.25),
    "equalized": ({"tau": 1.3}, ONE, lambda y, k: LOG(PI[k] ** 1.3)),
    "logit-adjusted": ({"tau": 0.8}, ONE, lambda y, k: 0.8 * LOG(PI[k] / PI[y])),
    "logit-adjusted-adaptive": (
        {"tau": 0.8, "constant": 2.0},
        ONE,
        lambda y, k: 0.8 * LOG(PI[k] / PI[y]) + 2.0 * PI[y] ** -0.25,
    ),
    "two-parameter": (
        {"tau1": 0.3, "tau2": 1.7},
        ONE,
        lambda y, k: 1.7 * LOG(PI[k]) - 0.3 * LOG(PI[y]),
    ),
    "consistent": ({"delta": DELTA}, DELTA / PI, lambda y, k: LOG(DELTA[k] / DELTA[y])),
    "weighted-logit-adjusted": (
        {"tau": 0.5},
        PI ** (0.5 - 1),
        lambda y, k: 0.5 * LOG(PI[k] / PI[y]),
    ),
}


@pytest.mark.parametrize("name", margins.MARGINS)
def test_margin_matches_its_row_of_the_table(name):
    settings, alpha, delta = ROWS[name]
    margin = margins.by_name(name, PRIOR, **settings)
    expected = np.array([[0.0 if y == k else delta(y, k) for k in range(4)] for y in range(4)])
    np.testing.assert_allclose(margin.matrix(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(margin.alpha, alpha / (PI @ alpha), rtol=1e-12)
    assert margin.scale == settings.get("scale", 1.0)
    assert margin.name == name
    assert margin.dense is None


def test_margins_add_and_weights_multiply():
    total = margins.logit_adjusted(PRIOR) + margins.balanced(PRIOR) + margins.adaptive(PRIOR)
    np.testing.assert_allclose(
        total.matrix(),
        margins.logit_adjusted(PRIOR).matrix() + margins.adaptive(PRIOR).matrix(),
        rtol=1e-12,
    )
    np.testing.assert_allclose(total.alpha, margins.balanced(PRIOR).alpha)
    dense = Margin.from_matrix(np.arange(16.0).reshape(4, 4)) + margins.equalized(PRIOR)
    expected = np.arange(16.0).reshape(4, 4) + LOG(PI)[None, :]
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(dense.matrix(), expected)


def test_scaled_margins_take_weights_but_not_other_margins():
    deferred = margins.ldam(PRIOR) + margins.class_balanced(PRIOR)
    assert deferred.scale == 30.0
    with pytest.raises(InputError, match="scale 30 and 'logit-adjusted' has 1"):
        margins.ldam(PRIOR) + margins.logit_adjusted(PRIOR)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=6), st.floats(-2, 3))
def test_residual_adjustment_restores_the_bayes_rule(weights, tau):
    """At the risk's minimiser f = log(αη)/s − b, adding the residual leaves log(η/π) + C."""
    prior = ClassPrior.from_weights(weights)
    margin = margins.balanced(prior) + margins.logit_adjusted(prior, tau=tau)
    eta = np.random.default_rng(0).dirichlet(np.ones(len(weights)))
    minimiser = np.log(margin.alpha * eta) - margin.negative
    corrected = minimiser + margin.residual_adjustment(prior)
    difference = corrected - np.log(eta / prior.probs)
    np.testing.assert_allclose(difference - difference[0], 0.0, atol=1e-9)


def test_residual_adjustment_accounts_for_the_scale():
    prior = ClassPrior.from_probs([0.8, 0.2])
    scaled = Margin(alpha=[1, 1], positive=[0, 0], negative=[0, 0], scale=4.0)
    expected = -np.log(prior.probs) / 4.0
    got = scaled.residual_adjustment(prior)
    assert got[1] - got[0] == pytest.approx(expected[1] - expected[0])


@pytest.mark.parametrize("name", ["logit-adjusted", "balanced", "weighted-logit-adjusted"])
def test_nothing_is_left_to_correct_after_a_consistent_loss(name):
    np.testing.assert_array_equal(margins.by_name(name, PRIOR).residual_adjustment(PRIOR), 0.0)


TWO = ClassPrior.from_probs([0.95, 0.05])


@pytest.mark.parametrize(
    ("margin", "added"),
    [
        (margins.adaptive(TWO), 3.906),
        (margins.equalized(TWO), 0.436),
        (margins.ldam(TWO), 0.336),
        (Margin.from_matrix([[0.0, 0.3], [-1.2, 0.0]], alpha=[2.0, 0.7]), None),
        (margins.adaptive(TWO) + margins.balanced(TWO), None),
    ],
    ids=str,
)
def test_two_classes_always_have_a_constant_that_restores_the_bayes_rule(margin, added):
    """At η = π, where both classes are equally right, the minimiser's scores plus it are equal."""
    found = np.diff(margin.residual_adjustment(TWO))[0]
    if added is not None:
        assert found == pytest.approx(added, abs=5e-4)
    delta, s, w = margin.matrix(), margin.scale, margin.alpha * TWO.probs

    def slope(d):  # of the risk, in d = f_1 − f_0
        return w[0] / (1 + np.exp(-s * (delta[0, 1] + d))) - w[1] / (
            1 + np.exp(-s * (delta[1, 0] - d))
        )

    assert slope(-found - 1e-6) < 0 < slope(-found + 1e-6)


def test_the_consistent_bounded_margin_needs_no_correction():
    """a = −log(π + κ), b = log π: not antisymmetric, and consistent for any κ."""
    bounded = Margin(ONE, -LOG(PI + 0.1), LOG(PI))
    assert not bounded.is_antisymmetric
    np.testing.assert_array_equal(bounded.residual_adjustment(PRIOR), 0.0)
    moved = Margin(ONE, -LOG(PI + 0.1) - N / 100, LOG(PI) + N / 100)  # as is every f moved by −n
    np.testing.assert_allclose(moved.residual_adjustment(PRIOR), N / 100 - N.mean() / 100)


def test_antisymmetry_is_judged_on_the_margins_themselves():
    assert margins.logit_adjusted(PRIOR).is_antisymmetric
    assert not margins.adaptive(PRIOR).is_antisymmetric
    assert Margin.from_matrix(margins.logit_adjusted(PRIOR).matrix()).is_antisymmetric
    cyclic = [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]  # antisymmetric, yet no b_{y'} − b_y
    assert not Margin.from_matrix(cyclic).is_antisymmetric


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: margins.by_name("ce", PRIOR), "must be one of 'softmax', 'balanced'.*got 'ce'"),
        (lambda: margins.by_name("consistent", PRIOR), "needs `delta`, which is missing"),
        (lambda: margins.by_name("adaptive", PRIOR, foo=1), "has no setting `foo`"),
        (lambda: margins.consistent(PRIOR, delta=[1, 0, 1, 1]), "`delta` must be positive"),
        (lambda: margins.class_balanced(ClassPrior.uniform(3)), "made from probabilities"),
        (lambda: Margin(alpha=[1, 0], positive=[0, 0], negative=[0, 0]), "`alpha` must be posit"),
        (
            lambda: margins.softmax(PRIOR) + margins.softmax(ClassPrior.uniform(3)),
            "has 4 classes and 'softmax' has 3",
        ),
        (lambda: margins.adaptive(PRIOR).residual_adjustment(PRIOR), "no constant .* corrects"),
    ],
)
def test_bad_input_gets_one_clear_error(make, message):
    with pytest.raises(InputError, match=message):
        make()
