"""Columns and plans of the large tables."""

import pytest

from large_factory import DATA, OVERRIDES, made_up_column
from longtail._checks import InputError
from longtail.experiments.exp_runs import PARTNER, PLAIN, Plan
from longtail.experiments.large_runs import COLUMNS, KINDS, Column, LargePlan, columns, data_of
from longtail.train.recipe import Recipe


def plan(column=COLUMNS[0], **changes):
    return LargePlan.of(column, DATA[column.dataset], **changes)


def test_the_papers_columns_and_others_when_asked():
    assert columns() == COLUMNS
    assert columns(datasets=["imagenet-lt"]) == COLUMNS[:2]
    assert columns(models=["resnet152"], epochs=[90]) == (COLUMNS[1], COLUMNS[3])
    assert columns(epochs=[200]) == (COLUMNS[4],)
    asked = columns(datasets=["imagenet-lt"], models=["resnet50"], epochs=[90, 200])
    assert [one.epochs for one in asked] == [90, 200]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"datasets": ["places-lt"]}, "`dataset` must be one of"),
        ({"models": ["resnet32"]}, "`model` must be one of"),
        ({"epochs": [100]}, "`epochs` must be one of 90, 200"),
    ],
)
def test_columns_that_are_none(asked, message):
    with pytest.raises(InputError, match=message):
        columns(**asked)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.title)
def test_a_columns_runs_are_the_papers(column):
    for kind in KINDS:
        spec = plan(column).spec(kind, 3)
        recipe = Recipe.of(spec)
        assert (recipe.model, recipe.epochs, spec.seed) == (column.model, column.epochs, 3)
        assert (recipe.batch_size, recipe.lr, recipe.schedule) == (512, 0.4, "cosine")
        decay = 5e-4 if column.dataset == "imagenet-lt" else 1e-4
        assert (recipe.weight_decay, recipe.warmup_epochs, recipe.momentum) == (decay, 5, 0.9)
        assert spec.dataset.settings == DATA[column.dataset].settings
        assert spec.dataset.held_out == kind.held_out


def test_the_methods_are_the_papers_rows():
    methods = [plan().spec(kind, 0).method for kind in KINDS]
    assert [m.name for m in methods] == [
        "softmax",
        "adaptive",
        "equalized-threshold",
        "logit-adjusted",
        "logit-adjusted-adaptive",
        "softmax",
    ]
    # Half of the mean frequency, as in the public settings of the CIFARs.
    assert methods[2].settings["threshold"] == pytest.approx(0.5 / 1000)
    many = plan(COLUMNS[2]).spec(KINDS[2], 0).method
    assert many.settings["threshold"] == pytest.approx(0.5 / 8142, rel=1e-4)
    assert KINDS[-1] is PARTNER
    for name, frequency in (("cifar10-lt", 0.05), ("cifar100-lt", 0.005)):
        published = Plan(name, "tuned").spec(KINDS[2], 0).method.settings["threshold"]
        assert published == frequency == 0.5 / int(name.removeprefix("cifar").removesuffix("-lt"))


def test_overrides_come_after_the_columns_own_values():
    small = Recipe.of(plan(overrides=OVERRIDES).spec(PLAIN, 0))
    assert (small.model, small.epochs) == ("small-conv", 2)


def test_without_a_list_no_run_has_a_name():
    with pytest.raises(InputError, match="the list must be there, or a record"):
        LargePlan.of(COLUMNS[0], None).spec(PLAIN, 0)


def test_the_command_that_trains_a_column():
    column = Column("imagenet-lt", "resnet50", 200)
    said = plan(column, seeds=3).command()
    assert said == (
        "longtail reproduce table-large --dataset imagenet-lt --model resnet50 --epochs 200 "
        "--seeds 3"
    )


def test_records_say_which_list_they_are_of():
    found = made_up_column(COLUMNS[0], seeds=1)
    assert data_of(found) == {"imagenet-lt": DATA["imagenet-lt"]}
    mixed = [*found, *made_up_column(COLUMNS[2], seeds=1)]
    assert set(data_of(mixed)) == {"imagenet-lt", "inaturalist"}
