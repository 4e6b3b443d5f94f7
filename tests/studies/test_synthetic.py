"""Two Gaussians and the solver: against integrals, minimisers and published values."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from longtail import ClassPrior, margins
from longtail.posthoc import adjust_logits, normalize_weights
from studies import __main__, synthetic
from studies._records import ROOT


def draw(trials, samples, *, seed=0, rare=0.2):
    generator = np.random.default_rng(seed)
    target = (generator.random((trials, samples)) < rare).astype(np.int64)
    features = generator.standard_normal((trials, samples, 2))
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


@pytest.mark.parametrize("make", [*synthetic.LOSSES.values(), margins.ldam])
def test_the_gradient_of_the_written_out_loss_vanishes(make):
    features, target = draw(2, 120, seed=1)
    losses = [make(prior) for prior in priors_of(target)]
    solved = synthetic.fit(features, target, losses)
    for x, y, loss, separator in zip(features, target, losses, solved, strict=True):
        for axis in range(3):
            step = np.eye(3)[axis] * 1e-5 / loss.scale
            slope = risk(separator + step, x, y, loss) - risk(separator - step, x, y, loss)
            assert abs(slope) < 2e-5 / loss.scale * 1e-8 * loss.scale


def phi(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


def integrated_error(separator, *, sigma):
    """Balanced error by integrating over x1, where x2 alone decides."""
    first, second, bias = separator
    missed = []
    for center in (-1.0, 1.0):

        def wrong(x1, center=center):
            edge = -(first * x1 + bias) / second
            above = 1 - phi((edge - center) / sigma)  # P(x2 > edge)
            positive = above if second > 0 else 1 - above
            density = math.exp(-((x1 - center) ** 2) / (2 * sigma**2))
            density /= sigma * math.sqrt(2 * math.pi)
            return density * (positive if center < 0 else 1 - positive)

        missed.append(quad(wrong, center - 9 * sigma, center + 9 * sigma, epsabs=1e-11)[0])
    return sum(missed) / 2


@pytest.mark.parametrize("sigma", [1.0, 1.7])
def test_closed_form_error_against_the_integral(sigma):
    separators = np.array([[2.0, 2.0, 0.0], [1.0, -0.3, 0.4], [-1.0, 0.5, 2.0], [0.1, 0.2, -0.3]])
    closed = synthetic.separator_error(separators, sigma=sigma)
    for separator, error in zip(separators, closed, strict=True):
        assert error == pytest.approx(integrated_error(separator, sigma=sigma), abs=1e-9)


def test_nothing_is_below_bayes():
    assert pytest.approx(phi(-math.sqrt(2)), rel=1e-12) == synthetic.BAYES
    others = np.random.default_rng(0).standard_normal((500, 3))
    assert (synthetic.separator_error(others) >= synthetic.BAYES).all()


def test_a_corrected_separator_predicts_as_the_corrected_logits_do():
    generator = np.random.default_rng(2)
    separator, x = generator.standard_normal(3), generator.standard_normal((400, 2))
    prior, logits = ClassPrior.from_counts([19, 1]), synthetic.logits_of(separator, x)
    bias = separator[2] / 2 * np.array([-1.0, 1.0])
    norms = np.full(2, np.linalg.norm(separator[:2]) / 2)
    expected = {synthetic.ADJUSTED: adjust_logits(logits, prior, tau=0.7)}
    for mode, name in synthetic.NORMALIZED.items():
        expected[name] = normalize_weights(logits, norms=norms, tau=0.7, bias=bias, bias_mode=mode)
    for method, right in expected.items():
        row = synthetic.corrected(method, separator, prior, 0.7)
        np.testing.assert_allclose(np.diff(right)[:, 0], x @ row[:2] + row[2], atol=1e-12)


def test_the_paper_s_problem_and_its_page(tmp_path, capsys):
    """All 100 trials; the page comes out as it is in the checkout."""
    assert __main__.main(["synthetic", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "docs/synthetic.md").read_bytes()
    assert page == (ROOT / "docs/synthetic.md").read_bytes()
    assert (tmp_path / "docs/synthetic/synthetic.svg").exists()
    errors = {
        row[0]: row[1:] for row in map(str.split, capsys.readouterr().out.splitlines()) if row
    }
    expected = {"softmax": 18.1, "adaptive": 16.2, "equalized": 8.7}
    for name, error in expected.items():
        numbers = [float(cell) for cell in errors[name] if cell.replace(".", "").isdigit()]
        assert numbers[0] == pytest.approx(error, abs=0.2)
