"""The sentences on the EXP table say what its numbers say."""

import re

import numpy as np

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


def test_a_missed_mark_is_followed_by_the_same_runs_in_another_precision():
    plan = small_plan(recipe="tuned", seeds=5)
    others = made_up_records(plan, adam_runs=False, precision="float32")
    text = summary(study_of("tuned"), other_precision=others)[0]
    wanted = len(re.findall("is missed by", text))
    found = re.findall(r"The same runs in float32 have ([\d.]+) ± [\d.]+, which (\w+) it", text)
    assert wanted > 0  # else this shows nothing
    assert len(found) == wanted
    plain = [one for one in others if one.spec.method.name == "softmax"]
    plain = [one for one in plain if one.data_of("held-out") is None]
    erm = np.mean([one.per_class().mean() for one in plain])
    assert len(plain) == 5
    assert found[0][0] == f"{100 * erm:.2f}"
    assert found[0][1] == ("reaches" if 100 * erm <= 27.66 else "misses")


def test_adam_is_spoken_of_where_it_ran_both_ways():
    (text,) = [one for one in summary(study_of("tuned")) if "Norms under Adam" in one]
    assert re.search(
        r"on cifar10-lt [+−]\d\.\d+ \[.*\] with it and [+−]\d\.\d+ \[.*\] without", text
    )
    assert not any("under Adam." in one for one in summary(study_of("tuned", adam_runs=False)))
