"""A comparison: its numbers against slow oracles on small real runs, and what it says of them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from longtail import ClassPrior, InputError
from longtail.margins import MARGINS
from longtail.report.compare import Comparison, Row, compare, mean_interval, summary, tables
from longtail.runs import DataSpec, RecipeSpec, ensemble
from page_factory import digits_comparison
from run_factory import class_errors, make_run, make_spec, make_writer


@pytest.fixture
def compared():
    return digits_comparison()


def row_of(compared, method, source=None):
    return next(r for r in compared.rows if (r.method, r.tau_source) == (method, source))


def test_a_trained_row_is_counted_from_its_logits(compared):
    row = row_of(compared, "logit-adjusted")
    for result, run in zip(row.results, row.runs, strict=True):
        logits, target, _ = run.logits("test")
        np.testing.assert_allclose(result.per_class.values, class_errors(logits, target))


@pytest.mark.parametrize("source", ["fixed", "held-out", "oracle"])
def test_a_post_hoc_row_adjusts_the_softmax_logits_by_its_tau(compared, source):
    for method in ("posthoc-logit-adjusted", "posthoc-weight-normalized"):
        row = row_of(compared, method, source)
        for result, tau, run in zip(row.results, row.taus, row.runs, strict=True):
            logits, target, _ = run.logits("test")
            adjusted = logits.astype(np.float64) - tau * run.prior.log_probs
            if method == "posthoc-weight-normalized":
                adjusted = logits.astype(np.float64) / run.head.norms.astype(np.float64) ** tau
            np.testing.assert_allclose(result.per_class.values, class_errors(adjusted, target))
            assert run.spec.method.name == "softmax"
            assert not run.spec.dataset.held_out


def test_no_tau_beats_the_oracle_and_the_curves_are_the_rows(compared):
    for method, curves in compared.curves.items():
        oracle = row_of(compared, method, "oracle")
        for error, curve in zip(oracle.errors, curves, strict=True):
            assert error == pytest.approx(curve.min_value)
            assert error <= min(curve(tau) for tau in np.linspace(0, 4, 41)) + 1e-12
        fixed = row_of(compared, method, "fixed")
        np.testing.assert_allclose(fixed.errors, [c(1.0) for c in curves])


def test_the_held_out_tau_comes_from_the_run_with_a_held_out_part(compared):
    row = row_of(compared, "posthoc-logit-adjusted", "held-out")
    for seed, chosen in zip(row.seeds, row.taus, strict=True):
        run = compared.held_out[seed]
        logits, target, _ = run.logits("held-out")
        errors = [
            class_errors(logits.astype(np.float64) - tau * run.prior.log_probs, target).mean()
            for tau in (chosen, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0)
        ]
        assert errors[0] == min(errors)


def test_the_difference_is_paired_by_seed(compared):
    row, base = row_of(compared, "logit-adjusted"), row_of(compared, "softmax")
    difference = compared.against_softmax(row)
    assert difference.mean == pytest.approx(np.mean(row.errors - base.errors))
    assert np.isnan([difference.low, difference.high]).all()  # two seeds are too few
    three = mean_interval([0.1, 0.2, 0.4])
    half = stats.t.ppf(0.975, 2) * np.std([0.1, 0.2, 0.4], ddof=1) / np.sqrt(3)
    assert (three.low, three.high) == pytest.approx((three.mean - half, three.mean + half))
    assert compared.baseline is base


def test_the_numbers_as_json(compared):
    document = compared.to_dict()
    assert document["split"] == "test"
    first = document["rows"][0]
    assert first["method"] == "softmax"
    assert first["errors"] == row_of(compared, "softmax").errors.tolist()
    assert first["difference_to_softmax"]["mean"] == 0.0
    assert [row["tau_source"] for row in document["rows"][2:5]] == ["fixed", "held-out", "oracle"]


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        (({"recipe": RecipeSpec("one")}, {"recipe": RecipeSpec("two", {"lr": 0.2})}), "one; two"),
        (({}, {"settings": {"teachers": ["digits-lt/softmax-s1-0a1b2c3d"]}}), "plain; 1 teacher"),
    ],
)
def test_two_kinds_of_softmax_are_refused(tmp_path, ways, words):
    made = (make_spec(dataset="digits-lt", method="softmax", **way) for way in ways)
    runs = [make_run(tmp_path, spec) for spec in made]
    with pytest.raises(InputError, match=rf"'softmax' was run in 2 ways \({words}\)"):
        compare(runs)


def test_an_ensemble_is_one_result_without_a_paired_difference(tmp_path):
    members = [softmax_run(tmp_path, seed) for seed in (1, 2, 3)]
    compared = compare([*members, ensemble(members, root=tmp_path)])
    row = row_of(compared, "ensemble")
    logits = np.mean([run.logits("test").logits for run in members], axis=0)
    assert row.errors == pytest.approx([class_errors(logits, np.arange(60) % 3).mean()])
    assert compared.against_softmax(row) is None
    assert compared.shared_seeds == [1, 2, 3]
    document = next(row for row in compared.to_dict()["rows"] if row["method"] == "ensemble")
    assert document["members"] == [run.name for run in members]


def softmax_run(root, seed, *, held_out=0.0, epochs=6, method="softmax"):
    """A run of plain softmax, with logits of its held-out part where it has one."""
    recipe = RecipeSpec("digits", {"epochs": epochs})
    data = DataSpec("digits-lt", held_out=held_out)
    spec = make_spec(dataset=data, method=method, recipe=recipe, seed=seed)
    writer = make_writer(root, spec)
    logits = np.random.default_rng(seed).normal(size=(60, 3)).astype(np.float32)
    for split in ("test", *(["held-out"] if held_out else [])):
        writer.write_logits(split, logits, np.arange(60) % 3, norms=[1.0, 2.0, 3.0])
    return writer.finish(seconds=1.0)


def test_a_held_out_run_of_another_training_chooses_no_tau(tmp_path):
    full = [softmax_run(tmp_path, seed) for seed in range(2)]
    alike = softmax_run(tmp_path, 0, held_out=0.2)
    others = [softmax_run(tmp_path, seed, held_out=0.2, epochs=1) for seed in range(2)]
    compared = compare([*full, *others, alike])
    assert compared.held_out == {0: alike}
    assert row_of(compared, "posthoc-logit-adjusted", "held-out").seeds == (0,)
    why = "not trained like the softmax run on the whole training set: epochs: 1 against 6"
    assert compared.left_out == {why: others}
    assert compared.to_dict()["left_out"] == [{"run": run.folder, "why": why} for run in others]
    lonely = softmax_run(tmp_path, 7, held_out=0.2)
    another = softmax_run(tmp_path, 0, held_out=0.2, method="balanced")
    compared = compare([*full, lonely, another])
    assert compared.held_out == {}
    assert list(compared.left_out.values()) == [[lonely], [another]]


# Names, tables and sentences, on numbers chosen for the purpose.

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
