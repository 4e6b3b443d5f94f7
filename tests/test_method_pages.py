"""The pages of methods: one each, and what they say about consistency is so.

That their examples run is in `test_docs`.
"""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
METHODS = sorted((ROOT / "docs" / "methods").glob("*.md"))


OUTSIDE = {"average-top-k", "cost-sensitive-hinge"}  # losses that the trainer does not offer


def test_every_method_has_a_page():
    from longtail.margins import MARGINS
    from longtail.train.methods import EXTRAS, THRESHOLD

    others = {"posthoc-logit-adjusted", "posthoc-weight-normalized", *OUTSIDE}
    assert {page.stem for page in METHODS} == {*MARGINS, THRESHOLD, *EXTRAS} | others


def test_every_method_page_is_in_the_site_s_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert all(menu.count(f"- methods/{page.name}\n") == 1 for page in METHODS)


COUNTS = [900, 90, 10]


def judged(name, prior):
    """Return a margin or rule that `check_consistency` can judge, for resampled data too."""
    from longtail import consistency, margins
    from longtail.data import ClassSampler
    from longtail.train.methods import EXTRAS, SAMPLINGS, Method

    settings = {"consistent": {"delta": [1.0, 0.5, 0.1]}, "two-parameter": {"tau1": 0.5}}
    if name == "posthoc-logit-adjusted":
        return consistency.PosthocLogitAdjustment()
    if name == "posthoc-weight-normalized":
        return consistency.PosthocWeightNormalization()
    if name not in EXTRAS:
        return margins.by_name(name, prior, **settings.get(name, {}))
    if name in SAMPLINGS:  # drawing y with p_y instead of π_y weights its loss by p_y / π_y
        labels = np.repeat(np.arange(len(COUNTS)), COUNTS)
        shares = ClassSampler(labels, rule=SAMPLINGS[name]).class_weights(0)
        alpha = shares / prior.probs
    else:
        alpha = Method.of(f"softmax+{name}").class_weights(prior, 199, 200)
    zeros = np.zeros(len(COUNTS))
    return margins.Margin(alpha=alpha, positive=zeros, negative=zeros)


def verdict_of(page):
    return page.read_text().split("## Consistent for the balanced error?\n")[1].partition("\n\n")[0]


NOT_MARGINS = {"equalized-threshold", "label-smoothing", *OUTSIDE}


@pytest.mark.parametrize(
    "page", [page for page in METHODS if page.stem not in NOT_MARGINS], ids=lambda p: p.stem
)
def test_the_pages_verdict_is_the_proved_one(page):
    from longtail import ClassPrior, check_consistency

    prior = ClassPrior.from_counts(COUNTS)
    found = check_consistency(judged(page.stem, prior), prior).consistent
    assert verdict_of(page).startswith({True: "**Yes**", False: "**No**"}[found])


def least(risk):
    """The scores, with sum 0, that minimise a convex risk of three scores."""
    from scipy.optimize import minimize

    found = minimize(lambda f: risk(np.append(f, -f.sum())), np.zeros(2), tol=1e-10)
    return np.append(found.x, -found.x.sum())


def cross_entropy(f, y, competing):
    return np.log1p(sum(np.exp(f[k] - f[y]) for k in competing if k != y))


def witness_of(page):
    """P(y | x) as the page states it, and the prior of its counts."""
    eta = re.search(r"P\(y \| x\) = \(([\d., ]+)\)", verdict_of(page))[1]
    return np.array([float(value) for value in eta.split(",")]), np.array(COUNTS) / sum(COUNTS)


def test_the_threshold_form_s_witness_is_one():
    page = ROOT / "docs" / "methods" / "equalized-threshold.md"
    eta, pi = witness_of(page)
    assert np.argmax(eta / pi) == 2
    assert eta[2] / pi[2] == pytest.approx(3)

    def risk(f, gamma=0.9):  # only class 2 is rarer than 0.05
        dropped = [cross_entropy(f, y, {0, 1, 2} - ({2} - {y})) for y in range(3)]
        kept = [cross_entropy(f, y, {0, 1, 2}) for y in range(3)]
        return eta @ (gamma * np.array(dropped) + (1 - gamma) * np.array(kept))

    scores = least(risk)
    assert np.argmax(scores) == 0
    assert verdict_of(page).startswith("**No**")
    assert f"gives it {scores[0] - scores[2]:.2f} less than class 0" in verdict_of(page)


@pytest.mark.parametrize("loss", ["logit-adjusted", "balanced"])
def test_label_smoothing_s_witness_is_one(loss):
    page = ROOT / "docs" / "methods" / "label-smoothing.md"
    eta, pi = witness_of(page)
    smooth = 0.9 * eta + 0.1 / 3

    def risk(f, q):
        if loss == "balanced":
            return sum(q[y] / (3 * pi[y]) * cross_entropy(f, y, range(3)) for y in range(3))
        return sum(q[y] * cross_entropy(f + np.log(pi), y, range(3)) for y in range(3))

    assert np.argmax(eta / pi) == np.argmax(least(lambda f: risk(f, eta))) == 0
    scores = least(lambda f: risk(f, smooth))
    np.testing.assert_allclose(
        scores - scores[0], np.log(smooth / pi) - np.log(smooth / pi)[0], atol=1e-4
    )
    assert np.argmax(scores) == 2
    assert verdict_of(page).startswith("**No**")
    assert f"class 2 does, by {scores[2] - scores[0]:.2f}" in verdict_of(page)
