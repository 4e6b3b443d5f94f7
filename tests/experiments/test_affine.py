"""The batched Newton solver against gradients, minimisers and scikit-learn, one trial at a time."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from longtail import ClassPrior, InputError, Margin, margins
from longtail.experiments import affine


def draw(trials, samples, *, seed=0, dimensions=2, rare=0.2):
    generator = np.random.default_rng(seed)
    target = (generator.random((trials, samples)) < rare).astype(np.int64)
    features = generator.standard_normal((trials, samples, dimensions))
    return features + (2 * target - 1)[..., None] * 0.7, target


def priors_of(target):
    return [ClassPrior.from_labels(row, num_classes=2) for row in target]


def risk(separator, features, target, margin):
    """Equation 11 for two logits (−g/2, g/2), sample by sample."""
    delta, total = margin.matrix(), 0.0
    for x, y in zip(features, target, strict=True):
        g = float(np.dot(separator[:-1], x) + separator[-1])
        logits = (-g / 2, g / 2)
        z = margin.scale * (delta[y, 1 - y] + logits[1 - y] - logits[y])
        total += margin.alpha[y] * (max(z, 0.0) + math.log1p(math.exp(-abs(z))))
    return total / len(target)


NAMES = ["softmax", "balanced", "adaptive", "equalized", "logit-adjusted", "class-balanced", "ldam"]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_the_written_out_loss_vanishes(name):
    features, target = draw(3, 150, seed=1)
    losses = [margins.by_name(name, prior) for prior in priors_of(target)]
    solved = affine.fit(features, target, losses)
    for x, y, loss, separator in zip(features, target, losses, solved, strict=True):
        scale = 1e-5 / loss.scale
        for axis in range(3):
            step = np.eye(3)[axis] * scale
            slope = (risk(separator + step, x, y, loss) - risk(separator - step, x, y, loss)) / (
                2 * scale
            )
            assert abs(slope) < 1e-8 * loss.scale


@pytest.mark.parametrize("name", ["softmax", "equalized", "ldam"])
def test_it_finds_the_minimiser_that_scipy_finds(name):
    features, target = draw(2, 80, seed=2, rare=0.35)
    losses = [margins.by_name(name, prior) for prior in priors_of(target)]
    solved = affine.fit(features, target, losses)
    for x, y, loss, separator in zip(features, target, losses, solved, strict=True):
        found = minimize(risk, np.zeros(3), args=(x, y, loss), method="BFGS", tol=1e-9)
        assert risk(separator, x, y, loss) <= found.fun + 1e-12
        np.testing.assert_allclose(separator, found.x, atol=2e-4)


def test_softmax_is_logistic_regression_without_penalty():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, target = draw(4, 2000, seed=3, rare=0.05)
    solved = affine.fit(features, target, [margins.softmax(p) for p in priors_of(target)])
    for x, y, separator in zip(features, target, solved, strict=True):
        model = linear_model.LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(x, y)
        np.testing.assert_allclose(
            separator, [*model.coef_[0], model.intercept_[0]], rtol=1e-5, atol=1e-5
        )


def test_the_other_trials_do_not_matter(monkeypatch):
    monkeypatch.setattr(affine, "_BLOCK", 600)  # blocks of two trials
    features, target = draw(5, 300, seed=4)
    losses = [margins.adaptive(prior) for prior in priors_of(target)]
    together = affine.fit(features, target, losses)
    for trial in range(5):
        alone = affine.fit(features[[trial]], target[[trial]], [losses[trial]])
        np.testing.assert_allclose(together[trial], alone[0], atol=1e-9)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda p: margins.logit_adjusted(p), lambda p: margins.consistent(p, delta=p.probs)),
        (lambda p: margins.balanced(p), lambda p: margins.weighted_logit_adjusted(p, tau=0.0)),
        (lambda p: margins.equalized(p), lambda p: margins.two_parameter(p, tau1=0.0)),
        (lambda p: margins.adaptive(p), lambda p: Margin.from_matrix(margins.adaptive(p).matrix())),
    ],
    ids=["logit-adjusted", "balanced", "equalized", "dense"],
)
def test_names_of_one_loss_have_one_minimiser(one, two):
    features, target = draw(3, 400, seed=5)
    priors = priors_of(target)
    first = affine.fit(features, target, [one(p) for p in priors])
    second = affine.fit(features, target, [two(p) for p in priors])
    np.testing.assert_allclose(first, second, atol=1e-8)


def test_the_logit_adjusted_minimiser_is_the_softmax_one_with_another_bias():
    features, target = draw(3, 400, seed=6)
    priors = priors_of(target)
    plain = affine.fit(features, target, [margins.softmax(p) for p in priors])
    for tau in (-1.0, 0.5, 2.0):
        moved = affine.fit(features, target, [margins.logit_adjusted(p, tau=tau) for p in priors])
        shift = [tau * (p.log_probs[0] - p.log_probs[1]) for p in priors]
        np.testing.assert_allclose(moved[:, :2], plain[:, :2], atol=1e-8)
        np.testing.assert_allclose(moved[:, 2], plain[:, 2] + shift, atol=1e-8)


@pytest.mark.parametrize("dimensions", [1, 4])
def test_any_number_of_features(dimensions):
    features, target = draw(2, 300, seed=7, dimensions=dimensions)
    solved = affine.fit(features, target, [margins.softmax(p) for p in priors_of(target)])
    assert solved.shape == (2, dimensions + 1)


def test_steps_are_shortened_where_newton_overshoots():
    # Outliers of the wrong class with a huge feature make undamped Newton diverge.
    x = np.concatenate([np.linspace(-1, 1, 40), [60.0, -60.0]])[None, :, None]
    y = np.concatenate([(np.linspace(-1, 1, 40) > 0.1), [False, True]]).astype(np.int64)[None]
    loss = Margin.from_matrix([[0.0, -8.0], [9.0, 0.0]], alpha=[1.0, 30.0])
    separator = affine.fit(x, y, [loss])[0]
    found = minimize(risk, separator, args=(x[0], y[0], loss), method="Nelder-Mead", tol=1e-12)
    assert risk(separator, x[0], y[0], loss) <= found.fun + 1e-12


@pytest.mark.parametrize("reach", [1e-6, 1e-2, 1.0, 3.0, 10.0, 1e3, 1e6])
def test_the_bound_on_a_step_is_below_zero(reach):
    least = math.log1p(reach)
    part = min(reach, least + 0.5 * math.log1p(least))
    assert (math.expm1(part) - part) / reach**2 - part / reach < -0.2 * least / reach


def test_far_features_do_not_overflow():
    features = np.array([[[-5000.0], [4000.0], [-3000.0], [6000.0], [1.0], [-1.0]]])
    target = np.array([[0, 1, 0, 1, 0, 1]])
    with np.errstate(all="raise", over="warn", under="ignore"):
        separator = affine.fit(features, target, [margins.softmax(ClassPrior.uniform(2))])[0]
    assert np.isfinite(separator).all()


def test_separable_classes_are_refused_by_trial():
    features, target = draw(3, 40, seed=8)
    features[1] += 20.0 * (2 * target[1] - 1)[:, None]
    losses = [margins.softmax(ClassPrior.uniform(2))] * 3
    with pytest.raises(InputError, match=r"separates the classes of trial\(s\) 1, so the loss"):
        affine.fit(features, target, losses)


def test_collinear_features_are_refused():
    features, target = draw(1, 40, seed=9)
    features[..., 1] = 2 * features[..., 0]
    with pytest.raises(InputError, match="may be collinear"):
        affine.fit(features, target, [margins.softmax(ClassPrior.uniform(2))], tolerance=1e-14)


def test_one_margin_of_two_classes_per_trial():
    features, target = draw(2, 30)
    with pytest.raises(InputError, match="each of the 2 trials; it holds 1, of 2 classes"):
        affine.fit(features, target, [margins.softmax(ClassPrior.uniform(2))])
    with pytest.raises(InputError, match="it holds 2, of 3 classes"):
        affine.fit(features, target, [margins.softmax(ClassPrior.uniform(3))] * 2)
