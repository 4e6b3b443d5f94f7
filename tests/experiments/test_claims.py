"""Verdicts by their intervals, and the marks that were set before training."""

import numpy as np
import pytest

from exp_factory import made_up, made_up_records, small_plan
from longtail.experiments import claims
from longtail.experiments.exp_runs import TABLE, adam
from longtail.experiments.table_exp import ERM, LOSS, Study, posthoc
from longtail.report.compare import mean_interval

ONE = {"recipes": ["tuned"], "datasets": ["cifar10-lt"]}


def part_of(plan, found):
    (part,) = Study.of(
        found, seeds=plan.seeds, recipes=[plan.recipe], datasets=[plan.dataset]
    ).parts
    return part


def by_text(part):
    return {claim.text: claim for claim in claims.claims(part)}


@pytest.fixture(scope="module")
def part():
    plan = small_plan(seeds=5)
    return part_of(plan, made_up_records(plan))


def test_the_verdict_is_what_the_interval_says(part):
    found = by_text(part)
    claim = found["ERM errs more than the logit-adjusted loss"]
    gaps = part.cell(ERM).errors - part.cell(LOSS).errors
    assert claim.interval == mean_interval(gaps)
    assert claim.verdict == "held"
    other = found[
        "weight normalisation (bias scaled) errs more than post-hoc logit adjustment, "
        "the former at its best τ, the latter at τ = 1"
    ]
    best = part.cell(posthoc("posthoc-weight-normalized/scale", "oracle")).errors
    one = part.cell(posthoc("posthoc-logit-adjusted", "fixed")).errors
    assert other.interval == mean_interval(best - one)
    assert (other.verdict == "held") == (other.interval.low > 0)


def swapped():
    """A world in which the loss is worse than ERM."""
    plan = small_plan(seeds=5)
    found = []
    for one in made_up_records(plan, kinds=TABLE):
        if one.spec.method.name == "logit-adjusted":
            one = made_up(one.spec, level=0.4, data=one.data)
        found.append(one)
    return part_of(plan, found)


def test_a_claim_can_fail():
    found = by_text(swapped())
    assert found["ERM errs more than the logit-adjusted loss"].verdict == "not held"
    assert found["post-hoc logit adjustment, τ = 1, errs more than the loss"].verdict == "not held"
    rare = "on the rarest three tenths of the classes, ERM errs more than the logit-adjusted loss"
    assert found[rare].verdict == "not held"


def test_gains_on_rare_classes_are_counted_on_the_rarest(part):
    text = "on the rarest three tenths of the classes, ERM errs more than the logit-adjusted loss"
    gaps = part.cell(ERM).per_class[:, 7:] - part.cell(LOSS).per_class[:, 7:]
    found, expected = by_text(part)[text].interval, mean_interval(gaps.mean(axis=1))
    assert (found.mean, found.low) == pytest.approx((expected.mean, expected.low))


def test_one_seed_decides_nothing():
    plan = small_plan(seeds=1)
    found = claims.claims(part_of(plan, made_up_records(plan)))
    assert {claim.verdict for claim in found} == {"undecided"}


@pytest.mark.parametrize(
    ("norms", "expected"),
    [(np.linspace(2, 1, 10), "not held"), (np.linspace(1, 2, 10), "held")],
)
def test_norms_under_adam(norms, expected):
    plan = small_plan(seeds=5)
    others = made_up_records(plan)
    found = []
    for one in others:
        if one.spec.recipe.values["optimizer"] == "adam" and not one.spec.dataset.held_out:
            one = made_up(one.spec, norms=norms + 0.01 * one.spec.seed, data=one.data)
        found.append(one)
    part = part_of(plan, found)
    assert part.adam() == adam(1e-3)
    assert part.adam(decay=False) == adam(3e-4, decay=False)
    for name in ("Adam", "Adam without weight decay"):
        claim = by_text(part)[f"under {name} the norms do not grow with class frequency"]
        assert claim.verdict == expected
    assert by_text(part)["under SGD the norms grow with class frequency"].verdict == "held"


def test_norms_without_a_trend_bear_the_claim_out():
    plan = small_plan(seeds=5)
    random = np.random.default_rng(3)
    found = []
    for one in made_up_records(plan):
        if one.spec.recipe.values["optimizer"] == "adam" and not one.spec.dataset.held_out:
            one = made_up(one.spec, norms=1 + random.normal(0, 0.1, 10), data=one.data)
        found.append(one)
    claim = by_text(part_of(plan, found))["under Adam the norms do not grow with class frequency"]
    assert claim.interval.low < 0 < claim.interval.high
    assert claim.verdict == "held"


def test_without_adam_there_is_no_verdict_on_it():
    plan = small_plan(seeds=2)
    found = by_text(part_of(plan, made_up_records(plan, adam_runs=False)))
    assert found["under Adam the norms do not grow with class frequency"].verdict == "no runs"


def test_marks_are_the_papers_value_plus_half_a_point(part):
    found = {one.row: one for one in claims.judged(part)}
    assert len(found) == 4
    for row, one in found.items():
        assert one.ours == pytest.approx(100 * part.cell(row).mean)
        assert one.reached == (one.ours <= row.paper_value("cifar10-lt") + 0.5)
    assert {one.reached for one in found.values()} == {True, False}
    plan = small_plan(seeds=2, recipe="paper")
    assert claims.judged(part_of(plan, made_up_records(plan))) == []


def test_effects_are_paired_by_seed():
    plans = [small_plan(seeds=3, recipe=recipe) for recipe in ("tuned", "paper")]
    found = [one for plan in plans for one in made_up_records(plan)]
    study = Study.of(found, recipes=["tuned", "paper"], datasets=["cifar10-lt"], seeds=3)
    tuned, paper = study.parts
    effects = {one.row: one for one in claims.recipe_effects(study, "cifar10-lt")}
    gaps = tuned.cell(LOSS).errors - paper.cell(LOSS).errors
    assert effects[LOSS].interval == mean_interval(gaps)
    assert effects[LOSS].what == "weight decay 5e-4 instead of 1e-4"
    chosen = claims.selection_effects(tuned)
    assert len(chosen) == 3
    assert all(one.interval.mean < 0.02 for one in chosen)


def test_what_precision_changes_is_paired_by_seed():
    plan = small_plan(seeds=5)
    mine = made_up_records(plan, adam_runs=False)
    others = made_up_records(plan, adam_runs=False, precision="float32", kinds=TABLE[:1])
    assert claims.precision_effects(part_of(plan, mine), []) == []
    found = claims.precision_effects(part_of(plan, mine), others)
    assert found[0].what == "bfloat16 instead of float32"
    assert found[0].row is ERM
    assert (found[0].interval.mean, found[0].interval.seeds) == (0.0, 5)  # the same numbers
    assert all(one.row.kind is ERM.kind for one in found)
