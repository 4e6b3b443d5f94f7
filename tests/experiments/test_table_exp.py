"""The EXP table from records: the paper's column, cells by hand, what is missing."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from exp_factory import OVERRIDES, SEEDS, made_up_records, small_plan, trained_root, trainer
from longtail import InputError
from longtail.experiments import per_class, records, table_exp, tau_curves, weight_norms
from longtail.experiments.exp_runs import EXTRA, PLAIN
from longtail.experiments.table_exp import ERM, LOSS, ROWS, Study, posthoc

ONE = {"recipes": ["tuned"], "datasets": ["cifar10-lt"]}


@pytest.fixture(scope="module")
def study():
    """Small runs that were really trained."""
    found = records.read_all(trained_root() / "kept")
    return Study.of(found, seeds=SEEDS, overrides=OVERRIDES, **ONE)


@pytest.fixture(scope="module")
def both():
    """Made-up records of both data sets, the weight norms' runs among them."""
    plans = [small_plan(dataset=name, seeds=5) for name in ("cifar10-lt", "cifar100-lt")]
    found = [one for plan in plans for one in made_up_records(plan)]
    return Study.of(found, recipes=["tuned", "paper"])


def test_the_papers_column_is_the_papers():
    """Table 3's CIFAR columns, in its order; both bias modes stand beside one value."""
    column = {
        "cifar10-lt": [27.16, 24.02, 21.50, 26.65, 26.02, 22.60, 19.08, 22.33],
        "cifar100-lt": [61.64, 58.89, 58.76, 60.40, 57.26, 58.24, 57.90, 56.11],
    }
    rows = [row for row in ROWS if row.paper and row.variant != table_exp.DROP]
    for dataset, values in column.items():
        assert [row.paper_value(dataset) for row in rows] == values
    dropped = [row.paper for row in ROWS if row.paper and row.variant == table_exp.DROP]
    assert dropped == [row.paper for row in ROWS if row.paper and row.variant == table_exp.SCALE]


def test_every_post_hoc_method_has_three_taus():
    found = {(row.variant, row.source) for row in ROWS if row.variant}
    assert len(found) == 9
    assert {source for _, source in found} == {"fixed", "held-out", "oracle"}


def test_a_cell_is_its_records(study):
    (part,) = study.parts
    cell = part.cell(LOSS)
    errors = [one.per_class().mean() for one in part.records_of(LOSS.kind)]
    np.testing.assert_allclose(cell.errors, errors)
    assert cell.seeds == (0, 1)
    assert cell.mean == pytest.approx(np.mean(errors))
    assert cell.deviation == pytest.approx(abs(errors[0] - errors[1]) / np.sqrt(2))
    adjusted = part.cell(posthoc("posthoc-logit-adjusted", "held-out"))
    points = [one.point("posthoc-logit-adjusted", "held-out") for one in part.records_of(PLAIN)]
    np.testing.assert_allclose(adjusted.taus, [point.tau for point in points])
    np.testing.assert_allclose(adjusted.errors, [point.per_class.mean() for point in points])


def test_a_difference_is_paired_by_seed(both):
    part = both.parts[0]
    gaps = part.cell(ERM).errors - part.cell(LOSS).errors
    half = stats.t.ppf(0.975, 4) * gaps.std(ddof=1) / np.sqrt(5)
    found = part.difference(ERM, LOSS)
    assert (found.mean, found.low) == pytest.approx((gaps.mean(), gaps.mean() - half))
    assert found.seeds == 5


def test_only_common_seeds_are_paired():
    plan = small_plan(seeds=3)
    kept = [
        one
        for one in made_up_records(plan)
        if not (one.spec.method.name == "logit-adjusted" and one.spec.seed == 0)
    ]
    (part,) = Study.of(kept, seeds=3, **ONE).parts
    assert part.difference(ERM, LOSS).seeds == 2
    gaps = part.cell(ERM).errors[1:] - part.cell(LOSS).errors
    assert part.difference(ERM, LOSS).mean == pytest.approx(gaps.mean())


def test_missing_runs_are_named(both):
    assert both.complete is False  # nothing of the recipe `paper`
    assert [plan.recipe for plan in both.absent] == ["paper", "paper"]
    plan = small_plan(seeds=3)
    kept = [one for one in made_up_records(plan) if one.spec.method.name != "adaptive"]
    found = Study.of(kept, seeds=3, **ONE)
    assert found.parts[0].missing() == [f"adaptive, seed {seed}" for seed in range(3)]
    assert found.complete is False
    assert found.to_dict()["parts"][0]["missing"] == found.parts[0].missing()
    more = Study.of(made_up_records(plan), seeds=5, **ONE).parts[0]
    assert "softmax, 20% held out, seed 4" in more.missing()
    assert len(more.missing()) == 10


def test_no_records_at_all_name_the_commands():
    with pytest.raises(InputError) as caught:
        Study.of([]).require_parts()
    for recipe in ("tuned", "paper"):
        for dataset in ("cifar10-lt", "cifar100-lt"):
            assert f"--recipe {recipe} --dataset {dataset}" in str(caught.value)


def test_records_of_other_settings_play_no_part():
    """Trials in small, or of another weight decay, are not the table's runs."""
    found = records.read_all(trained_root() / "kept")
    assert Study.of(found, seeds=SEEDS, **ONE).parts == ()
    assert Study.of(found, seeds=SEEDS, overrides={**OVERRIDES, "lr": 0.5}, **ONE).parts == ()


def test_minutes_add_up(both):
    part = both.parts[0]
    assert len(part.records) == 25 + 2 * (3 + 5)
    assert part.minutes == pytest.approx(41 * 30 / 60)


def test_optional_rows_are_shown_where_there_are_runs():
    plan = small_plan(seeds=2)
    found = Study.of(made_up_records(plan, extra=EXTRA[:1]), seeds=2, **ONE)
    assert [row.kind.name for row in found.rows()][-1] == "balanced"
    assert len(found.rows()) == len(ROWS) + 1


def test_run_trains_nothing_without_data(tmp_path):
    root = trained_root()
    found = table_exp.run(folder=root / "kept", seeds=SEEDS, overrides=OVERRIDES, **_one())
    assert found.complete
    with pytest.raises(InputError, match="there is no record of any of its runs"):
        table_exp.run(folder=tmp_path, **_one())


def _one():
    return {"recipe": "tuned", "datasets": ["cifar10-lt"]}


def test_run_out_of_time_is_told(tmp_path):
    found = table_exp.run(
        load=trainer(tmp_path).load,
        runs=tmp_path / "runs",
        folder=tmp_path / "kept",
        seeds=1,
        overrides=OVERRIDES,
        minutes=1e-9,
        **_one(),
    )
    assert found.stopped
    assert not found.complete
    assert found.parts == ()


def test_norms_are_sorted_by_frequency_and_correlated(both):
    for part in both.parts:
        found = weight_norms.weight_norms(part)
        assert list(found) == ["sgd", "adam", "adam-no-decay"]
        record = part.records_of(PLAIN)[0]
        counts = record.prior.counts
        assert np.all(np.diff(counts[weight_norms.by_frequency(counts)]) <= 0)
        expected = stats.pearsonr(np.log(counts), record.norms).statistic
        assert found["sgd"].correlations[0] == pytest.approx(expected)
        assert found["sgd"].correlation.low > 0.9
        assert found["adam"].correlation.high < -0.9
        assert found["adam"].optimizer == "Adam, lr 0.001"
        assert found["adam-no-decay"].optimizer == "Adam without weight decay, lr 0.0003"


def test_a_correlations_interval_stays_within_one():
    norms = weight_norms.Norms("x", (0, 1), np.ones((2, 3)), np.array([0.99, 0.2]), 0.3)
    found = norms.correlation
    assert -1 <= found.low < found.mean < found.high <= 1


def test_norms_that_do_not_vary_follow_nothing(both):
    part = both.parts[0]
    flat = [replace(one, document={**one.document, "norms": [1.0] * 10}) for one in part.records]
    found = Study.of(flat, seeds=5, **ONE)
    assert weight_norms.weight_norms(found.parts[0])["sgd"].correlations.tolist() == [0.0] * 5


def test_frequency_groups_are_ten_of_many_classes(both):
    ten, hundred = both.parts
    assert per_class.by_frequency_group(ten).names == tuple(map(str, range(10)))
    found = per_class.by_frequency_group(hundred)
    assert [len(classes) for classes in found.members] == [10] * 10
    assert sorted(np.concatenate(found.members)) == list(range(100))
    row = found.rows.index(LOSS)
    expected = hundred.cell(LOSS).per_class[:, :10].mean(axis=1)
    np.testing.assert_allclose(found.errors[row][:, 0], expected)
    sizes = per_class.by_size(hundred)
    assert dict(zip(sizes.names, map(len, sizes.members), strict=True)) == {
        "many": 35,
        "medium": 35,
        "few": 30,
    }
    assert per_class.by_size(ten).names == ("many", "medium")


def test_tau_curves_start_at_erm(study):
    (part,) = study.parts
    for curve in tau_curves.tau_curves(part):
        if curve.variant != table_exp.DROP:  # without its bias, tau = 0 is not ERM
            np.testing.assert_allclose(curve.errors[:, 0], part.cell(ERM).errors, atol=1e-6)
        assert curve.oracle.mean <= curve.errors.min(axis=1).mean() + 1e-6


def test_the_numbers_as_json(both):
    document = both.to_dict()
    assert document["parts"][0]["rows"][0]["paper"] == 27.16
    row = document["parts"][0]["rows"][0]
    assert row["difference"] == pytest.approx(row["mean"] - 27.16, abs=1e-3)
    text = Path(table_exp.__file__).read_text()
    assert len(re.findall(r"_paper\(\d", text)) == 8  # nothing else is copied
