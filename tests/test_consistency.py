"""Verdicts against the paper's Table 1, and every witness against an independent minimiser."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, InputError, Margin, margins
from longtail.consistency import (
    PosthocLogitAdjustment,
    PosthocWeightNormalization,
    check_consistency,
)
from oracles import minimizer

TWO, THREE = ClassPrior.from_probs([0.95, 0.05]), ClassPrior.from_probs([0.7, 0.25, 0.05])
PRIORS = pytest.mark.parametrize("prior", [TWO, THREE], ids=["two", "three"])


def assert_refutes(verdict, prior, margin, rule=lambda f, prior: f):
    """The witness holds for scores found by a general-purpose optimiser."""
    assert verdict.consistent is False
    witness = verdict.witness
    assert witness.eta.sum() == pytest.approx(1.0)
    assert witness.eta.min() > 0
    f = minimizer(margin, witness.eta)
    np.testing.assert_allclose(witness.trained_scores, f, atol=1e-4)
    scores = rule(f, prior)
    should_win = int(np.argmax(witness.eta / prior.probs))
    assert witness.should_win == should_win
    assert witness.wins == int(np.argmax(scores)) != should_win
    np.testing.assert_allclose(witness.ratio, witness.eta / prior.probs)


def adjusted(tau):
    return lambda f, prior: f - tau * np.log(prior.probs)


# The paper's Table 1.


@PRIORS
def test_table_1_weight_normalization_is_not_consistent(prior):
    verdict = check_consistency(PosthocWeightNormalization(), prior)
    softmax = margins.softmax(prior)
    for tau in (0.1, 3.0):
        for norms in (prior.probs, np.ones(len(prior.probs)), 1 / prior.probs):
            assert_refutes(
                verdict, prior, softmax, lambda f, _, n=norms, t=tau: f / n**t
            )  # one witness for all norms
            given = PosthocWeightNormalization(tau=tau, norms=norms)
            if np.ptp(norms) > 0:
                assert_refutes(
                    check_consistency(given, prior),
                    prior,
                    softmax,
                    lambda f, _, n=norms, t=tau: f / n**t,
                )


@PRIORS
@pytest.mark.parametrize(
    "make",
    [
        lambda prior: PosthocLogitAdjustment(),  # Table 1
        margins.logit_adjusted,  # Table 1
        margins.balanced,
        margins.weighted_logit_adjusted,
        lambda prior: margins.weighted_logit_adjusted(prior, tau=-2.0),
        lambda prior: margins.consistent(prior, delta=np.arange(1.0, 1 + prior.num_classes)),
        lambda prior: margins.two_parameter(prior, tau1=1.0, tau2=1.0),
    ],
)
def test_the_consistent_family_of_theorem_1(prior, make):
    verdict = check_consistency(make(prior), prior)
    assert verdict.consistent is True
    assert verdict.witness is None


@PRIORS
@pytest.mark.parametrize(
    "make",
    [
        margins.softmax,
        margins.adaptive,  # Table 1
        margins.equalized,  # Table 1
        lambda prior: margins.logit_adjusted(prior, tau=0.5),
        lambda prior: margins.logit_adjusted(prior, tau=2.0),
        lambda prior: margins.logit_adjusted(prior, tau=-1.0),
        margins.logit_adjusted_adaptive,
        lambda prior: margins.two_parameter(prior, tau1=0.5),
        lambda prior: margins.logit_adjusted(prior) + margins.balanced(prior),
        lambda prior: margins.equalized(prior, tau=0.3),
        lambda prior: margins.ldam(prior, scale=5.0),
        lambda prior: margins.class_balanced(
            ClassPrior.from_counts(np.round(1000 * prior.probs).astype(int)), beta=0.99
        ),
    ],
)
def test_everything_else_is_refuted(prior, make):
    assert_refutes(check_consistency(make(prior), prior), prior, make(prior))


@PRIORS
def test_post_hoc_adjustment_after_other_losses(prior):
    twice = PosthocLogitAdjustment(trained_with=margins.logit_adjusted(prior))
    assert_refutes(
        check_consistency(twice, prior), prior, margins.logit_adjusted(prior), adjusted(1.0)
    )
    half = PosthocLogitAdjustment(tau=0.5, trained_with=margins.logit_adjusted(prior, tau=0.5))
    assert check_consistency(half, prior).consistent is True
    dense = Margin.from_matrix(margins.adaptive(prior).matrix())
    after = PosthocLogitAdjustment(tau=0.7, trained_with=dense)
    assert_refutes(check_consistency(after, prior), prior, dense, adjusted(0.7))


# The exact condition e^{s Δ_{yy'}} = δ_{y'} / (δ_y + κ), δ = α π.


def family(prior, alpha, kappa, *, scale=1.0, dense=False):
    delta = alpha * prior.probs
    b, a = np.log(delta) / scale, -np.log(delta + kappa) / scale
    margin = Margin(alpha, a + 0.4, b - 0.4, scale=scale)
    if dense:
        zeros = np.zeros(len(alpha))
        return Margin(alpha, zeros, zeros, dense=margin.matrix(), scale=scale)
    return margin


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 6),
    where=st.sampled_from([-0.99, -0.3, 0.0, 0.5, 20.0]),
    dense=st.booleans(),
    scale=st.sampled_from([1.0, 0.3, 30.0]),
)
def test_the_whole_family_is_proved_consistent(seed, classes, where, dense, scale):
    rng = np.random.default_rng(seed)
    prior = ClassPrior.from_weights(rng.uniform(0.02, 1.0, classes))
    alpha = rng.uniform(0.3, 3.0, classes)
    kappa = where * (alpha * prior.probs).min()
    margin = family(prior, alpha, kappa, dense=dense, scale=scale)
    assert check_consistency(margin, prior).consistent is True


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 5), dense=st.booleans())
def test_any_other_margin_is_refuted(seed, classes, dense):
    rng = np.random.default_rng(seed)
    prior = ClassPrior.from_weights(rng.uniform(0.05, 1.0, classes))
    alpha = rng.uniform(0.5, 2.0, classes)
    if dense:
        margin = Margin.from_matrix(rng.normal(size=(classes, classes)), alpha=alpha)
    else:
        margin = Margin(alpha, rng.normal(size=classes), rng.normal(size=classes))
    assert_refutes(check_consistency(margin, prior), prior, margin)


def tied_at_the_prior():
    """At η = π = 1/4 each class has w = u(1 + (e^−c − 1) u) with u = e^b: choose b, solve for c."""
    u = np.array([0.2, 0.22, 0.28, 0.3])
    b, c = np.log(u), -np.log(1 + (0.25 / u - 1) / u)
    return Margin(np.ones(4), c - b, b)


@pytest.mark.parametrize(
    "margin",
    [
        Margin.from_matrix([[0, 1, 0], [0, 0, 1], [1, 0, 0]]),  # cyclic: all classes alike
        tied_at_the_prior(),
        Margin.from_matrix(tied_at_the_prior().matrix()),
    ],
    ids=["cyclic", "additive", "dense"],
)
def test_no_gradient_at_the_prior_is_not_enough_for_three_classes(margin):
    prior = ClassPrior.uniform(margin.num_classes)
    verdict = check_consistency(margin, prior)
    assert_refutes(verdict, prior, margin)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("make", [margins.adaptive, margins.equalized, margins.softmax])
def test_under_a_uniform_prior_the_usual_margins_are_consistent(size, make):
    prior = ClassPrior.uniform(size)
    assert check_consistency(make(prior), prior).consistent is True


# How fine the judgement is.


@pytest.mark.parametrize("deviation", [1e-4, 1e-6, 1e-8])
@PRIORS
def test_small_deviations_are_still_refuted(deviation, prior):
    margin = margins.logit_adjusted(prior, tau=1 + deviation)
    verdict = check_consistency(margin, prior)
    assert verdict.consistent is False
    witness = verdict.witness
    f = np.log(witness.eta) - (1 + deviation) * prior.log_probs  # its closed form
    assert np.argmax(f) == witness.wins != witness.should_win


def test_a_tolerance_takes_a_deviation_for_rounding():
    rounded = margins.logit_adjusted(THREE, tau=1 + 1e-7)
    assert check_consistency(rounded, THREE).consistent is False
    assert check_consistency(rounded, THREE, tolerance=1e-6).consistent is True


def test_a_deviation_below_double_precision_is_undecided():
    margin = margins.logit_adjusted(THREE, tau=1 + 1e-13)
    verdict = check_consistency(margin, THREE, tolerance=1e-14)
    assert verdict.consistent is None
    assert verdict.witness is None
    assert "undecided" in str(verdict)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("rare", [1e-12, 1e-10, 1e-9])
def test_two_classes_that_are_next_to_never_there_count_as_well(rare, dense):
    """Class 1 or 2 wins wrongly by a clear margin where both lead and the third is far below."""
    prior = ClassPrior.from_probs([1 - 2.5 * rare, rare, 1.5 * rare])
    # Theorem 1's margins, but for 0.3 on the last class.
    margin = Margin(np.ones(3), [0, 0, 0.3] - prior.log_probs, prior.log_probs)
    if dense:
        margin = Margin.from_matrix(margin.matrix())
    verdict = check_consistency(margin, prior)
    assert_refutes(verdict, prior, margin)
    ratio = verdict.witness.ratio
    assert ratio[verdict.witness.should_win] > 1.05 * ratio[verdict.witness.wins]


@pytest.mark.parametrize("size", [1000, 20_000])
def test_many_classes(size):
    prior = ClassPrior.from_weights(1.0 / np.arange(1, size + 1))
    assert check_consistency(margins.logit_adjusted(prior), prior).consistent is True
    assert check_consistency(PosthocLogitAdjustment(), prior).consistent is True
    for subject in (margins.equalized(prior), margins.adaptive(prior, constant=0.1)):
        verdict = check_consistency(subject, prior)
        assert verdict.consistent is False
        eta, f = verdict.witness.eta, verdict.witness.scores
        # Stationarity, from the equation in O(L): w_y ∝ u_y (1 + (e^−c_y − 1) u_y).
        z = f + subject.negative
        u = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        w = u * (1 + np.expm1(-(subject.positive + subject.negative)) * u)
        np.testing.assert_allclose(w / w.sum(), eta, rtol=1e-8)
        assert np.argmax(f) == verdict.witness.wins != np.argmax(eta / prior.probs)
        assert len(str(verdict)) < 800
    verdict = check_consistency(PosthocWeightNormalization(norms=prior), prior)
    f = np.log(verdict.witness.eta)
    f -= f.mean()
    assert f[verdict.witness.should_win] < 0 < f.max()


# Weight normalisation of scores that are right before it.


def test_weight_normalization_can_change_nothing():
    uniform = ClassPrior.uniform(3)
    depends = check_consistency(PosthocWeightNormalization(), uniform)
    assert depends.consistent is None
    assert "pass norms=" in depends.reason
    equal = PosthocWeightNormalization(norms=[2.0, 2.0, 2.0])
    assert check_consistency(equal, uniform).consistent is True
    assert check_consistency(PosthocWeightNormalization(tau=0.0), THREE).consistent is False
    after = PosthocWeightNormalization(norms=[1.0, 9.0], trained_with=margins.logit_adjusted(TWO))
    verdict = check_consistency(after, TWO)
    assert verdict.consistent is True
    assert "opposite signs" in verdict.reason


@pytest.mark.parametrize("tau", [0.2, 1.0, -1.0])
def test_unequal_norms_spoil_scores_that_were_right(tau):
    norms, loss = np.array([3.0, 1.0, 0.5]), margins.logit_adjusted(THREE)
    rule = PosthocWeightNormalization(norms=norms, tau=tau, trained_with=loss)
    assert_refutes(check_consistency(rule, THREE), THREE, loss, lambda f, _: f / norms**tau)


# The object.


def test_a_verdict_has_no_truth_value():
    verdict = check_consistency(margins.adaptive(TWO), TWO)
    with pytest.raises(TypeError, match=r"ask for verdict\.consistent"):
        bool(verdict)
    assert verdict.witness.eta.tolist() == [0.76, 0.24]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_consistency("adaptive", TWO), "got str; for a named loss pass margins"),
        (lambda: check_consistency(margins.adaptive(TWO), THREE), "`prior` has 3 classes but"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
