"""The conditional risk, its minimiser and the way back, against loops written from equation 11."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, InputError, Margin, margins
from longtail.consistency import risk
from oracles import conditional_risk, minimizer


def random_margin(seed, *, dense, width=1.0, classes=None):
    rng = np.random.default_rng(seed)
    size = classes or int(rng.integers(2, 6))
    parts = {
        "alpha": rng.uniform(0.2, 4.0, size),
        "positive": width * rng.normal(size=size),
        "negative": width * rng.normal(size=size),
        "scale": float(rng.choice([0.5, 1.0, 3.0])),
    }
    if dense:
        parts |= {"positive": np.zeros(size), "negative": np.zeros(size)}
        parts["dense"] = width * rng.normal(size=(size, size))
    return Margin(**parts), rng


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_link_is_what_a_general_minimiser_finds(dense, seed):
    margin, rng = random_margin(100 + seed, dense=dense)
    eta = rng.dirichlet(np.full(margin.num_classes, 2.0))
    f = risk.link(margin, eta)
    np.testing.assert_allclose(f, minimizer(margin, eta), atol=2e-5)
    assert abs(f.sum()) < 1e-12


@pytest.mark.parametrize("dense", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.sampled_from([0.0, 0.3, 1.0, 3.0]))
def test_link_and_inverse_link_undo_each_other(dense, seed, width):
    margin, rng = random_margin(seed, dense=dense, width=width)
    eta = np.maximum(rng.dirichlet(np.full(margin.num_classes, 0.3)), 1e-9)
    eta /= eta.sum()
    f = risk.link(margin, eta)
    np.testing.assert_allclose(risk.inverse_link(margin, f), eta, rtol=1e-6)
    slope = risk.gradient(margin, eta, f) / (eta * margin.alpha)
    assert np.abs(slope).max() < 1e-6 * margin.scale


@pytest.mark.parametrize("dense", [False, True])
def test_gradient_is_the_derivative_of_the_risk(dense):
    margin, rng = random_margin(7, dense=dense, classes=4)
    eta, f, step = rng.dirichlet(np.ones(4)), rng.normal(size=4), 1e-6
    for k in range(4):
        up, down = f.copy(), f.copy()
        up[k] += step
        down[k] -= step
        values = [conditional_risk(margin, eta, x) for x in (up, down)]
        slope = (values[0] - values[1]) / (2 * step)
        assert risk.gradient(margin, eta, f)[k] == pytest.approx(slope, abs=1e-8)


def test_antisymmetric_margins_have_the_closed_form_of_theorem_1():
    rng = np.random.default_rng(3)
    b, alpha = rng.normal(size=5), rng.uniform(0.5, 2.0, 5)
    margin = Margin(alpha=alpha, positive=-b, negative=b, scale=2.0)
    eta = rng.dirichlet(np.ones(5))
    expected = np.log(alpha * eta) / 2.0 - b
    np.testing.assert_allclose(risk.link(margin, eta), expected - expected.mean(), atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 1000])
def test_large_positive_margins_are_solved_on_the_upper_root(size):
    """With c > log 2 and one dominant class the quadratic's larger root is the right one."""
    margin = Margin(np.ones(size), np.full(size, 5.0), np.zeros(size))
    eta = np.full(size, 0.001 / (size - 1))
    eta[0] = 0.999
    f = risk.link(margin, eta)
    u = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
    assert u[0] > 0.5 / (1 - math.exp(-5.0))
    assert np.abs(risk.gradient(margin, eta, f) / eta).max() < 1e-10


def test_extreme_probabilities_keep_their_digits():
    prior = ClassPrior.from_probs([1 - 1e-12 - 1e-9, 1e-9, 1e-12])
    for margin in (margins.adaptive(prior, constant=0.01), margins.equalized(prior)):
        f = risk.link(margin, prior.probs)
        np.testing.assert_allclose(risk.inverse_link(margin, f), prior.probs, rtol=1e-10)


MARGIN = margins.softmax(ClassPrior.uniform(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: risk.link(MARGIN, [0.5, 0.5, 0.0]), "`eta` must be positive"),
        (lambda: risk.link(MARGIN, [0.5, 0.4, 0.3]), "each row of `eta` must sum to 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
