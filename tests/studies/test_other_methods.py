"""The studies `methods` and `settings` in small, on digits, and what their records keep."""

from dataclasses import replace

import numpy as np
import pytest
from test_records import digits, options_for

from longtail.runs import Run
from run_factory import class_errors
from studies import _records, methods, settings
from studies._records import ADJUSTED, BY_PRIOR, CRITERIA, Column, Shelf, cifar


def small(row):
    """A row for two epochs of digits, two seeds."""
    changed = {
        "recipe": "digits",
        "seeds": (0, 1),
        "tau_from": row.tau_from and small(row.tau_from),
    }
    return replace(row, overrides={**row.overrides, "epochs": 2}, **changed)


@pytest.fixture(scope="module")
def column(tmp_path_factory):
    folder = tmp_path_factory.mktemp("methods")
    skipped = ("LDAM", "LDAM + DRW", "under-sampling")
    rows = [small(r) for r in methods.runs_of(cifar("digits-lt")) if r.name not in skipped]
    shelf, _ = _records.train_missing(options_for(folder), rows, load=digits)
    return folder, Column.of("digits-lt", "digits", rows, shelf)


def test_every_table_has_every_method_that_was_trained(column):
    _, found = column
    assert not found.missing()
    table, *others, calibration = methods.tables_of([found])
    for one in others:
        assert "–" not in {cell for row in one.rows for cell in row}
    lacking = {row[0] for row in table.rows if row[1] == "–"}
    assert lacking == {"LDAM", "LDAM + DRW", "under-sampling"}
    rows = {row[0]: row[1:] for row in calibration.rows}
    assert rows["softmax (ERM)"][0] != "–"


def test_records_follow_the_equations(column):
    folder, found = column
    plain = found.records_of("softmax")[0]
    run = Run.open(folder / "runs" / plain.spec.folder)
    logits, target, _ = run.logits("test")
    for source in ("fixed", "held-out", "oracle", *CRITERIA):
        tau, wrong = plain.point(ADJUSTED, source)
        scores = np.float64(logits) - tau * np.log(run.prior.probs)
        np.testing.assert_allclose(wrong, class_errors(scores, target))
    tau, wrong = plain.point(BY_PRIOR, "held-out")
    np.testing.assert_allclose(wrong, class_errors(logits / run.prior.probs**tau, target))
    # Calibration error of fifteen equal bins, by a loop.
    probs = np.exp(np.float64(logits) - np.float64(logits).max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    top, right = probs.max(axis=1), probs.argmax(axis=1) == target
    gaps = [
        abs(right[some].sum() - top[some].sum())
        for low in range(15)
        if (some := np.minimum((15 * top).astype(int), 14) == low).any()
    ]
    assert plain.document["ece"]["all"] == pytest.approx(sum(gaps) / len(target), abs=1e-6)


def test_settings_divide_the_spread_into_seeds_and_subsets(monkeypatch):
    rng = np.random.default_rng(0)
    shift = {f"subset {k}": s for k, s in enumerate(rng.normal(0, 0.03, 4))}

    class Fake:
        title = "digits"

        def __init__(self, name):
            self.errors = 0.5 + shift[name] + rng.normal(0, 0.01, 3)

        def cell(self, _):
            return self

    columns = {name: Fake(name) for name in shift}
    table = settings.spread_table({"digits-lt": columns})
    errors = np.array([columns[name].errors for name in shift])
    within = errors.var(axis=1, ddof=1).mean()
    between = errors.mean(axis=1).var(ddof=1) - within / 3
    assert table.rows[0][1:] == [f"{100 * v:.2f}" for v in np.sqrt([within, between])]


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
def test_every_run_has_a_spec_of_its_own(dataset):
    shelf = Shelf()
    rows = methods.runs_of(cifar(dataset))
    rows += [one for runs in settings.definition(dataset).values() for one in runs]
    specs = [shelf.spec(one, seed).folder for one in rows for seed in one.seeds]
    assert len(set(specs)) == len(specs) > 100
