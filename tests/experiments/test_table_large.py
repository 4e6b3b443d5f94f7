"""The large tables: the paper's values, records to study, and training from disk in small."""

from dataclasses import replace

import numpy as np
import pytest

from large_factory import COUNTS, HERE, OVERRIDES, load, made_up_column, trained
from longtail._checks import InputError
from longtail.experiments import records, table_large
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.large_hours import Hours, Rate
from longtail.experiments.large_runs import COLUMNS, KINDS, data_of
from longtail.experiments.per_class import by_size
from longtail.experiments.records import LOGIT_ADJUSTMENT
from longtail.experiments.table_exp import DROP, SCALE, posthoc
from longtail.experiments.table_large import ROWS, study_of
from longtail.experiments.tau_curves import tau_curves

# Row by row as the paper prints them, its columns from left to right.
PAPER = {
    ("softmax", None): (53.11, 53.30, 38.66, 35.88, 34.38),
    (SCALE, "fixed"): (52.00, 51.49, 48.05, 45.17, 45.33),
    (DROP, "oracle"): (49.37, 48.97, 34.10, 31.85, 30.34),
    ("adaptive", None): (52.15, 53.34, 35.42, 31.18, 29.46),
    ("equalized-threshold", None): (54.02, 51.38, 38.37, 35.86, 34.53),
    (LOGIT_ADJUSTMENT, "fixed"): (49.66, 49.25, 33.98, 31.46, 30.15),
    (LOGIT_ADJUSTMENT, "oracle"): (49.56, 49.15, 33.80, 31.08, 29.74),
    ("logit-adjusted", None): (48.89, 47.86, 33.64, 31.15, 30.12),
    ("logit-adjusted-adaptive", None): (51.25, 50.46, 31.56, 29.22, 28.02),
}


@pytest.mark.parametrize("key", PAPER, ids=str)
def test_the_papers_values(key):
    (row,) = [row for row in ROWS if (row.method, row.source) == key]
    assert tuple(row.paper_value(column.title) for column in COLUMNS) == PAPER[key]


def test_a_tau_from_held_out_data_is_not_the_papers():
    assert all(not row.paper for row in ROWS if row.source == "held-out")
    assert len(ROWS) == 14


def test_the_study_of_records():
    found = [*made_up_column(COLUMNS[0]), *made_up_column(COLUMNS[4])]
    study = study_of(found, seeds=2)
    assert [part.column for part in study.parts] == [COLUMNS[0].title, COLUMNS[4].title]
    assert [plan.column for plan in study.absent] == [c.title for c in COLUMNS[1:4]]
    assert not study.complete
    assert study_of(found, columns=(COLUMNS[0], COLUMNS[4]), seeds=2).complete
    document = study.to_dict()
    assert [part["epochs"] for part in document["parts"]] == [90, 200]
    rows = document["parts"][0]["rows"]
    assert len(rows) == len(ROWS)
    adjusted = next(row for row in rows if row["method"] == "logit-adjusted")
    assert adjusted["paper"] == 48.89
    assert adjusted["difference"] == pytest.approx(adjusted["mean"] - 48.89, abs=1e-3)


def test_missing_runs_are_named():
    kinds = tuple(kind for kind in KINDS if kind.name != "adaptive")
    study = study_of(made_up_column(COLUMNS[0], kinds=kinds), columns=COLUMNS[:1], seeds=2)
    assert study.parts[0].missing() == ["adaptive, seed 0", "adaptive, seed 1"]


def test_without_records_the_commands_are_named(tmp_path):
    with pytest.raises(InputError, match="table-large: there is no record") as caught:
        table_large.run(folder=tmp_path, columns=COLUMNS[:1])
    assert "--dataset imagenet-lt --model resnet50 --epochs 90" in str(caught.value)


def test_records_of_two_lists_are_refused():
    one, *others = made_up_column(COLUMNS[0], seeds=1)
    data = replace(one.spec.dataset, settings={"list": "z" * 16})
    other = replace(one, spec=replace(one.spec, dataset=data))
    with pytest.raises(InputError, match="different lists of ImageNet-LT"):
        data_of([other, *others])


def test_from_photographs_to_every_row():
    root, study = trained()
    assert study.complete
    assert len(records.read_all(root / "kept")) == 2 * len(KINDS)
    for part, name in zip(study.parts, COUNTS, strict=True):
        for row in ROWS:
            cell = part.cell(row)
            assert cell is not None, row
            assert cell.per_class.shape == (1, len(COUNTS[name]))
        (softmax,) = part.records_of(PLAIN)
        np.testing.assert_array_equal(softmax.prior.counts, COUNTS[name])
        np.testing.assert_array_equal(softmax.examples(), 3)
        held = softmax.point(LOGIT_ADJUSTMENT, "held-out")
        curve = next(c for c in tau_curves(part) if c.variant == LOGIT_ADJUSTMENT)
        fixed = part.cell(posthoc(LOGIT_ADJUSTMENT, "fixed"))
        assert fixed.mean == pytest.approx(
            curve.errors[0, np.argmin(abs(curve.taus - 1))], abs=1e-6
        )
        assert held is not None
        assert by_size(part).names


def test_nothing_is_trained_twice(monkeypatch):
    root, study = trained()
    monkeypatch.setattr("longtail.train.engine.train_cohort", lambda *_, **__: pytest.fail("again"))
    again = table_large.run(
        load=load,
        runs=root / "runs",
        folder=root / "kept",
        columns=(COLUMNS[0], COLUMNS[4]),
        seeds=1,
        overrides=OVERRIDES,
    )
    assert again.to_dict() == study.to_dict()
    alone = table_large.run(
        folder=root / "kept", columns=(COLUMNS[0], COLUMNS[4]), seeds=1, overrides=OVERRIDES
    )
    assert alone.to_dict() == study.to_dict()


def test_every_data_set_is_there_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setattr("longtail.train.engine.train_cohort", lambda *_, **__: pytest.fail("began"))

    def only_one(name):
        if name == "inaturalist":
            raise InputError("not there")
        return load(name)

    with pytest.raises(InputError, match="not there"):
        table_large.run(load=only_one, folder=tmp_path, overrides=OVERRIDES)


def test_hours_are_images_over_rate():
    rates = {
        ("imagenet-lt", "resnet50"): Rate(1000.0, 1, 50, "GPU"),
        ("inaturalist", "resnet152"): Rate(4000.0, 8, 50, "8 x GPU"),
    }
    chosen = (COLUMNS[0], COLUMNS[4])
    hours = Hours.of(chosen, rates, {"imagenet-lt": 36_000, "inaturalist": 72_000}, seeds=2)
    assert hours.of_run(COLUMNS[0]) == pytest.approx(90 * 36_000 / 1000 / 3600)
    # Eight GPUs are busy all that time.
    assert hours.of_run(COLUMNS[4]) == pytest.approx(8 * 200 * 72_000 / 4000 / 3600)
    assert hours.of_run(COLUMNS[0], KINDS[-1]) == pytest.approx(0.8 * hours.of_run(COLUMNS[0]))
    assert hours.of_column(COLUMNS[0]) == pytest.approx(2 * 5.8 * hours.of_run(COLUMNS[0]))
    assert hours.total == pytest.approx(sum(map(hours.of_column, chosen)))
    assert hours.to_dict()["columns"][0]["gpu_hours_of_a_run"]["softmax"] == pytest.approx(0.9)


def test_a_trial_measures_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    hours = table_large.estimate(
        load=load,
        columns=COLUMNS[:3],
        seeds=1,
        overrides=OVERRIDES,
        streaming=HERE,
        seconds=0.3,
        progress=lambda done, total, what: told.append((done, total)),
    )
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert list(tmp_path.iterdir()) == []
    assert hours.epochs == (2, 2, 2)
    for rate in hours.rates.values():
        assert rate.images_per_second > 1
        assert rate.steps >= 1
