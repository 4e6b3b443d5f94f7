"""Names, tables and sentences about a comparison, on numbers chosen for the purpose."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from longtail import ClassPrior
from longtail.margins import MARGINS
from longtail.report.compare import Comparison, Row, summary, tables

PRIOR = ClassPrior.from_counts([200, 50, 5])


def row(method, errors, *, source=None, detail="", taus=None):
    """Per-class errors of each seed, shape (seeds, 3)."""
    runs, results = [], []
    for seed, values in enumerate(np.asarray(errors)):
        runs.append(SimpleNamespace(members=(), spec=SimpleNamespace(seed=seed)))
        per_class = SimpleNamespace(values=values)
        results.append(SimpleNamespace(balanced_error=values.mean(), per_class=per_class))
    taus = None if taus is None else np.array(taus)
    return Row(method, source, detail, tuple(runs), tuple(results), taus)


def comparison(*rows, split="test"):
    spec = SimpleNamespace(dataset=SimpleNamespace(name="some-lt"))
    run = SimpleNamespace(spec=spec, prior=PRIOR)
    return Comparison(rows, np.arange(3), (run,), {}, {}, split)


SOFTMAX = row("softmax", [[0.0, 0.3, 0.6], [0.0, 0.24, 0.6], [0.06, 0.3, 0.6]])
BETTER = row("logit-adjusted", [[0.03, 0.2, 0.28], [0.03, 0.14, 0.25], [0.09, 0.2, 0.31]])
NOISY = row("balanced", [[0.0, 0.0, 0.0], [0.0, 0.3, 0.6], [0.1, 0.3, 0.62]])
ORACLE = row("posthoc-logit-adjusted", [[0.0, 0.0, 0.1]] * 3, source="oracle", taus=[1.0, 1.5, 2.0])


@pytest.mark.parametrize("others", [0, 3])
def test_the_interval_of_the_best_is_wider_the_more_it_was_picked_from(others):
    worse = [
        row(name, np.full((3, 3), 0.9)) for name in ("adaptive", "balanced", "equalized")[:others]
    ]
    first, second = summary(comparison(SOFTMAX, BETTER, *worse, ORACLE))
    assert "gets 30.0% of an average class wrong: 2.0% where" in first
    differences = BETTER.errors - SOFTMAX.errors
    level = 1 - 0.025 / (1 + others)
    half = stats.t.ppf(level, 2) * differences.std(ddof=1) / np.sqrt(3)
    low, high = (100 * (-differences.mean() + sign * half) for sign in (-1, 1))
    assert f"{low:.1f} to {high:.1f})" in second
    assert "13.0 points lower" in second
    assert ("picked among 4" in second) == (others == 3)
    assert second.endswith("that is more than the seeds' noise.")


def test_an_interval_with_zero_in_it_is_no_difference():
    worse = row("equalized", 0.1 + np.array([r.per_class.values for r in SOFTMAX.results]))
    _, second = summary(comparison(SOFTMAX, NOISY, worse))
    assert "balanced, with 21.3%: 8.7 points lower" in second
    assert second.endswith("as the interval includes zero, these seeds show no difference.")


@pytest.mark.parametrize("others", [1, 8])
def test_where_no_method_differs_the_best_is_seldom_called_better(others):
    rng = np.random.default_rng(others)
    names = [name for name in MARGINS if name != "softmax"][:others]
    claims = 0
    for _ in range(500):
        errors = 0.15 + 0.01 * rng.normal(size=(1 + others, 5, 1)).repeat(3, axis=2)
        rows = [row(name, of) for name, of in zip(("softmax", *names), errors, strict=True)]
        claims += "more than the seeds' noise" in summary(comparison(*rows))[1]
    assert claims / 500 <= 0.045


def test_two_seeds_are_too_few_for_an_interval():
    two = comparison(
        *(replace(r, runs=r.runs[:2], results=r.results[:2]) for r in (SOFTMAX, BETTER))
    )
    assert "two seeds are too few for an interval" in summary(two)[1]
    assert not any("±" in cell for line in tables(two)[0].rows for cell in line)


def test_methods_are_compared_over_the_seeds_that_all_have():
    """Where the second seed is a hard one, who was trained with the first alone seems to win."""
    base = row("softmax", np.array([0.30, 0.50, 0.40])[:, None].repeat(3, axis=1))
    three = row("equalized", np.array([0.10, 0.32, 0.20])[:, None].repeat(3, axis=1))
    one = row("adaptive", [[0.12] * 3])
    compared = comparison(base, three, one)
    assert compared.best is three
    said = summary(compared)[1]
    assert "equalized, with 10.0% (with the one seed that all share)" in said
    assert "19.3 points lower (95% interval over 3 paired seeds, " in said
    apart = replace(one, runs=(SimpleNamespace(members=(), spec=SimpleNamespace(seed=7)),))
    assert "they share no seed" in summary(comparison(base, three, apart))[1]


def test_an_ensemble_that_is_best_has_no_interval():
    mean = replace(NOISY, runs=(SimpleNamespace(members=("a", "b")),), results=BETTER.results[:1])
    said = summary(comparison(SOFTMAX, mean))[1]
    assert said.endswith("with 17.0%, but an ensemble has no interval, so this may be noise.")
