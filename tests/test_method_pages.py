"""The pages of methods: one each, the same headings, and what they say about consistency is so.

That their examples run is in `test_docs`.
"""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
METHODS = sorted((ROOT / "docs" / "methods").glob("*.md"))
HEADINGS = [
    "Equation",
    "When to use it",
    "When not to",
    "Settings",
    "In code",
    "Consistent for the balanced error?",
    "Reference",
]


OUTSIDE = {"average-top-k", "cost-sensitive-hinge"}  # losses that the trainer does not offer


@pytest.mark.parametrize("page", METHODS, ids=lambda p: p.stem)
def test_method_pages_have_the_same_headings(page):
    assert re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE) == HEADINGS


def test_every_method_has_a_page():
    from longtail.train.methods import method_help

    others = {"posthoc-logit-adjusted", "posthoc-weight-normalized", *OUTSIDE}
    assert {page.stem for page in METHODS} == {line.name for line in method_help()} | others


def test_every_method_page_is_in_the_site_s_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert all(menu.count(f": methods/{page.name}\n") == 1 for page in METHODS)


COUNTS = [900, 90, 10]


def judged(name, prior):
    """What `check_consistency` can judge: a margin or rule, the latter for resampled data too."""
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


STEP = [500, 500, 5, 5]
PLAIN = ["softmax", "class-balanced", "adaptive", "ldam", "logit-adjusted-adaptive", "equalized"]


def is_consistent(name, counts, **settings):
    from longtail import ClassPrior, check_consistency, margins

    prior = ClassPrior.from_counts(counts)
    return check_consistency(margins.by_name(name, prior, **settings), prior).consistent


@pytest.mark.parametrize("name", [*PLAIN, "two-parameter"])
def test_a_uniform_prior_is_named_where_it_makes_a_loss_consistent(name):
    settings = {"tau1": 0.3, "tau2": 1.7} if name == "two-parameter" else {}
    assert is_consistent(name, [40, 40, 40], **settings)
    assert not is_consistent(name, STEP, **settings)
    text = verdict_of(ROOT / "docs" / "methods" / f"{name}.md")
    assert "except" in text or "special priors" in text.lower()
    assert re.search("under a uniform prior|a uniform one", text)


@pytest.mark.parametrize("page", METHODS, ids=lambda p: p.stem)
def test_no_page_says_no_without_the_uniform_prior(page):
    # With equal frequencies the balanced error is the ordinary one, and all of these minimise it.
    text = verdict_of(page)
    assert text.startswith("**Yes**") or "uniform" in text


def fitted(name, counts, setting, bounds, **others):
    """The value of a setting at which the loss favours no class at η = π."""
    from scipy.optimize import brentq

    from longtail import ClassPrior, margins
    from longtail.consistency import risk

    prior = ClassPrior.from_counts(counts)

    def slope(value):
        margin = margins.by_name(name, prior, **{setting: value}, **others)
        return risk.gradient(margin, prior.probs, np.zeros(len(counts)))[0]

    return brentq(slope, *bounds, xtol=1e-14)


@pytest.mark.parametrize(
    ("name", "counts", "setting", "bounds", "others"),
    [
        ("equalized", [900, 100], "tau", (0.5, 2.0), {}),
        ("logit-adjusted-adaptive", [900, 100], "tau", (0.5, 2.0), {"constant": 1.0}),
        ("two-parameter", [900, 100], "tau1", (0.0, 1.0), {"tau2": 1.2}),
        ("two-parameter", STEP, "tau1", (0.0, 0.5), {"tau2": 1.0}),
    ],
)
def test_the_pages_name_the_special_priors_with_their_settings(
    name, counts, setting, bounds, others
):
    value = fitted(name, counts, setting, bounds, **others)
    assert is_consistent(name, counts, **{setting: value}, **others)
    assert f"{value:.3f}" in verdict_of(ROOT / "docs" / "methods" / f"{name}.md")


@pytest.mark.parametrize("name", ["equalized", "logit-adjusted-adaptive"])
def test_from_three_classes_on_no_tau_is_consistent(name):
    # The one τ at which nothing is favoured at η = π is refuted elsewhere.
    for counts in (COUNTS, STEP, [500, 5, 5]):
        assert is_consistent(name, counts, tau=fitted(name, counts, "tau", (0.5, 2.0))) is False


def test_the_consistent_family_does_not_claim_to_be_all():
    from longtail import ClassPrior, Margin, check_consistency

    prior = ClassPrior.from_counts(COUNTS)
    bounded = Margin(np.ones(3), -np.log(prior.probs + 0.1), prior.log_probs)  # κ = 0.1
    assert check_consistency(bounded, prior).consistent
    assert not bounded.is_antisymmetric
    page = ROOT / "docs" / "methods" / "consistent.md"
    assert "Every loss" not in page.read_text()
    assert "outside this family" in verdict_of(page)


@pytest.mark.parametrize("eta", [(0.5, 0.44, 0.06), (0.46, 0.5, 0.04), (0.2, 0.3, 0.5)])
def test_the_threshold_form_is_consistent_for_a_fitting_step(eta):
    # Classes 0 and 1 are 1 / (1 − γ) = 10 times as frequent as class 2, the only one below λ.
    eta, pi = np.array(eta), np.array([10, 10, 1]) / 21

    def risk(f, gamma=0.9):
        dropped = [cross_entropy(f, y, {0, 1} | {y}) for y in range(3)]
        kept = [cross_entropy(f, y, range(3)) for y in range(3)]
        return eta @ (gamma * np.array(dropped) + (1 - gamma) * np.array(kept))

    scores, right = least(risk), np.log(eta / pi)
    np.testing.assert_allclose(scores - scores[0], right - right[0], atol=1e-4)
    assert "1 / (1 − γ) times" in verdict_of(ROOT / "docs" / "methods" / "equalized-threshold.md")


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


def test_the_numbers_of_drw_and_square_root_sampling_are_computed():
    def spread(counts):
        n = np.array(counts, dtype=float)
        shares = n / (1 - 0.9999**n)  # w_y π_y up to a constant
        return shares.max() / shares.min()

    text = verdict_of(ROOT / "docs" / "methods" / "drw.md")
    cifar = [int(5000 * 100 ** (-i / 9)) for i in range(10)]
    assert f"{spread(COUNTS):.2f} times the smallest" in text
    assert f"{spread(cifar):.2f} times for CIFAR-10-LT" in text
    text = verdict_of(ROOT / "docs" / "methods" / "sqrt-sampling.md")
    assert f"{np.sqrt(COUNTS[0] / COUNTS[2]):.1f} to 1 over class 2" in text


def test_average_top_k_s_witness_is_one():
    """The logit-adjusted loss where losses below λ don't count, minimised over one score."""
    from scipy.optimize import minimize_scalar

    text = verdict_of(ROOT / "docs" / "methods" / "average-top-k.md")
    pi, level = np.array([0.9, 0.1]), 0.3
    eta = np.array(
        [float(v) for v in re.search(r"P\(y \| x\) = \(([\d., ]+)\)", text)[1].split(",")]
    )

    def risk(f):
        log_u = np.log(pi) + np.array([0.0, f])
        return eta @ np.maximum(np.logaddexp.reduce(log_u) - log_u - level, 0.0)

    lead = minimize_scalar(risk, bounds=(-8, 8), method="bounded", options={"xatol": 1e-9}).x
    assert np.argmax(eta / pi) == 0
    assert f"gives it {lead:.2f} less than class 1" in text


def test_hinge_losses_of_three_classes_have_equal_best_scores():
    from longtail.consistency.binary import CostSensitiveSVM

    pi, eta = np.array(COUNTS) / sum(COUNTS), np.array([0.5, 0.3, 0.2])
    scores = [
        float(CostSensitiveSVM(1 / p, 1 / (1 - p)).link(q)) for p, q in zip(pi, eta, strict=True)
    ]
    assert scores == [-1.0, 1.0, 1.0]
    assert len(set(eta[1:] / pi[1:])) == 2  # but only one of them is right
