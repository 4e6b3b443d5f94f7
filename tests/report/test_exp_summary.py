"""The sentences on the EXP table say what its numbers say."""

import re

from exp_factory import made_up_records, small_plan
from longtail.experiments.exp_runs import TABLE
from longtail.experiments.table_exp import Study
from longtail.report.exp_summary import summary


def study_of(*recipes, seeds=5, **options):
    plans = [small_plan(recipe=recipe, seeds=seeds) for recipe in recipes]
    found = [one for plan in plans for one in made_up_records(plan, **options)]
    return Study.of(found, recipes=recipes, datasets=["cifar10-lt"], seeds=seeds)


def test_a_missed_mark_is_named_with_how_much_is_missing():
    study = study_of("tuned")
    text = summary(study)[0]
    reached = re.search(r"(\d) of 4 cells are", text)
    missed = re.findall(r"missed by ([\d.]+) points", text)
    assert int(reached[1]) + len(missed) == 4
    assert all(float(one) > 0 for one in missed)


def test_verdicts_that_are_not_held_are_quoted_with_their_interval():
    text = next(one for one in summary(study_of("tuned")) if "claims on cifar10-lt" in one)
    held = int(re.search(r"(\d+) held", text)[1])
    assert held + text.count("[") == 13


def test_weight_decay_is_spoken_of_only_where_both_recipes_are_there():
    assert not any("Weight decay" in one for one in summary(study_of("tuned")))
    (text,) = [one for one in summary(study_of("tuned", "paper")) if "Weight decay" in one]
    assert "on cifar10-lt by 1.9 to 2.1 points" in text  # 2 points are made up, and noise
    assert re.search(r"Of the paper's 10 numbers \d+ lie between", text)


def test_precision_is_spoken_of_where_there_are_runs_in_another():
    plan = small_plan(recipe="tuned", seeds=5)
    others = made_up_records(plan, adam_runs=False, precision="float32", kinds=TABLE[:1])
    texts = summary(study_of("tuned"), other_precision=others)
    assert "bfloat16 instead of float32 changes the error on cifar10-lt" in texts[-1]
    assert not any("Precision" in one for one in summary(study_of("tuned")))
