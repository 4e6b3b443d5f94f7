"""The numbers of a comparison against slow oracles, on small real runs."""

import numpy as np
import pytest
from scipy import stats

from longtail import InputError
from longtail.report.compare import compare, mean_interval
from longtail.runs import DataSpec, RecipeSpec, ensemble
from page_factory import digits_runs
from run_factory import class_errors, make_run, make_spec, make_writer


@pytest.fixture(scope="module")
def compared():
    return compare(digits_runs())


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
