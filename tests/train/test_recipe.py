import json
import math
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from longtail import InputError
from longtail.models import MODELS
from longtail.runs import DataSpec, RunSpec
from longtail.runs.spec import Part
from longtail.train.recipe import (
    CHOICES,
    RECIPES,
    Recipe,
    get_recipe,
    learning_rate,
    make_spec,
    parse_overrides,
    unreached_rates,
)

DIGITS = DataSpec("digits-lt", profile="exp", imbalance_ratio=50.0)
CIFAR10 = DataSpec("cifar10-lt", profile="exp", imbalance_ratio=100.0)


def spec(method="softmax", recipe="digits", data=DIGITS, seed=0, **overrides):
    return make_spec(data, method=method, recipe=recipe, seed=seed, overrides=overrides)


def test_cosine_after_a_linear_warm_up():
    recipe = get_recipe("digits", lr=0.4, epochs=10, warmup_epochs=2, schedule="cosine")
    rates = [learning_rate(recipe, step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([0.4 * (k + 1) / 10 for k in range(10)])
    assert rates[10:] == pytest.approx([0.2 * (1 + math.cos(math.pi * k / 40)) for k in range(40)])


# What the papers say of each recipe; the rates are tested above.
SGD = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 128, "flip": True}
PAPER = SGD | {"epochs": 200, "weight_decay": 1e-4, "decay": "all", "crop_padding": 4}
LARGE = SGD | {"model": "resnet50", "epochs": 90, "batch_size": 512, "lr": 0.4}
LARGE |= {"schedule": "cosine", "image_size": 224, "mean": (0.485, 0.456, 0.406)}
PUBLISHED = {
    "paper": PAPER | {"model": "resnet32", "mean": (0.4914, 0.4822, 0.4465), "drop_last": False},
    "ldam": PAPER | {"weight_decay": 2e-4},
    "tuned": PAPER | {"weight_decay": 5e-4},
    "released": SGD
    | {"optimizer": "nesterov", "weight_decay": 2e-4, "decay": "not-norm", "crop_padding": 2}
    | {"model": "resnet32-released", "mean": (0.5,), "std": (1.0,), "crop_fill": "mean"},
    "imagenet-lt": LARGE | {"weight_decay": 5e-4},
    "inaturalist": LARGE | {"weight_decay": 1e-4},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_are_as_published(name):
    recipe = get_recipe(name, dataset="cifar10-lt")
    assert {key: getattr(recipe, key) for key in PUBLISHED[name]} == PUBLISHED[name]


# 0.1 after five epochs of warm-up, by steps in the paper and by epochs in Cao's code; then
# factors from 160 and 180 epochs on.
RATES = {
    "paper": (lambda step, steps: (step + 1) / (5 * steps), 0.1, 0.01),
    "ldam": (lambda step, steps: (step // steps + 1) / 5, 0.01, 1e-4),
}


@pytest.mark.parametrize("name", RATES)
def test_the_papers_rates(name):
    recipe, steps = get_recipe(name), 97  # 12,406 examples in batches of 128
    warm, *down = RATES[name]
    for step in range(200 * steps):
        factor = down[1] if step >= 180 * steps else down[0] if step >= 160 * steps else 1.0
        expected = 0.1 * min(1.0, warm(step, steps)) * factor
        assert learning_rate(recipe, step, steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dataset", "examples", "epochs", "total", "bounds"),
    [
        ("cifar10-lt", 12_406, 1241, 119_136, (20, 604, 926, 1128)),
        ("cifar100-lt", 10_847, 1419, 119_196, (22, 691, 1059, 1290)),
    ],
)
def test_the_released_schedule_has_the_published_number_of_steps(
    dataset, examples, epochs, total, bounds
):
    recipe = get_recipe("released", dataset=dataset)
    assert recipe.drop_last
    steps = examples // recipe.batch_size
    assert (recipe.epochs, recipe.epochs * steps) == (epochs, total)
    warm, *down = (bound * steps for bound in bounds)
    assert learning_rate(recipe, warm // 2 - 1, steps) == pytest.approx(0.05)
    assert learning_rate(recipe, warm, steps) == pytest.approx(0.1)
    for power, start in enumerate(down, 1):
        assert learning_rate(recipe, start - 1, steps) == pytest.approx(0.1 * 0.1 ** (power - 1))
        assert learning_rate(recipe, start, steps) == pytest.approx(0.1 * 0.1**power)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_the_record(name):
    made = spec(recipe=name, data=CIFAR10)
    read = RunSpec.from_json(json.loads(json.dumps(made.to_json())))
    assert Recipe.of(read) == get_recipe(name, dataset="cifar10-lt")
    assert read.hash8 == made.hash8
    assert read.recipe.overrides == {}


def test_hashes_of_earlier_runs_stay():
    """As recorded before recipes had crops, heads and the rest, and methods had parts."""
    assert spec().hash8 == "b60e98f5"
    assert spec("logit-adjusted").hash8 == "cf98f9c5"
    assert spec("adaptive", epochs=2).hash8 == "a602740e"
    tuned = spec("logit-adjusted:tau=1.5", data=DataSpec("digits-lt"), seed=3)
    assert tuned.hash8 == "def476f5"


def test_ldam_brings_its_cosine_head():
    for method in ("ldam", "ldam:scale=20+drw"):
        made = spec(method, recipe="ldam", data=CIFAR10)
        assert made.model == Part("resnet32", {"head": "cosine"})
    assert spec("adaptive", recipe="ldam", data=CIFAR10).model == Part("resnet32")
    with pytest.raises(InputError, match=r"needs a cosine head of scale 1.*got head 'linear'"):
        spec("ldam", recipe="ldam", data=CIFAR10, head="linear")


def test_the_published_threshold_is_filled_in_where_it_is_known():
    published = spec("equalized-threshold", "paper", CIFAR10)
    assert dict(published.method.settings) == {"threshold": 0.05}
    mine = spec("equalized-threshold:threshold=0.2", "paper", CIFAR10)
    assert dict(mine.method.settings) == {"threshold": 0.2}
    with pytest.raises(InputError, match=r"needs `threshold`: write equalized-threshold:threshold"):
        spec("equalized-threshold")
    with pytest.raises(InputError, match=r"needs `delta`: write consistent:delta=NUMBER/NUMBER"):
        spec("consistent")


def test_drw_must_come_before_the_end():
    assert dict(spec("softmax+drw:start=29").method.settings) == {"drw_start": 29}
    with pytest.raises(InputError, match="start at epoch 30, but training has 30 epochs"):
        spec("softmax+drw:start=30")
    spec("softmax+drw", epochs=1)


def test_overrides_as_typed():
    texts = ["lr=0.2", "flip=false", "optimizer=adam", "crop-padding=0", "milestones=[[60,0.1]]"]
    found = parse_overrides(texts)
    assert found["optimizer"] == "adam"
    assert (found["lr"], found["flip"], found["crop_padding"]) == (0.2, False, 0)
    assert get_recipe("paper", **found).milestones == ((60, 0.1),)


def test_an_ingredient_at_its_default_leaves_the_hash_alone():
    plain = spec(recipe="tuned", data=CIFAR10)
    off = {"image_seed": None, "cutout": 0, "cutmix": 0.0, "sam_rho": 0, "trivial_augment": False}
    off |= {"head_lr": 1, "freeze_backbone": False}
    assert spec(recipe="tuned", data=CIFAR10, **off).hash8 == plain.hash8
    for on in ({"cutout": 16}, {"image_seed": 0}):
        assert spec(recipe="tuned", data=CIFAR10, **on).hash8 != plain.hash8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lr": -0.1}, "recipe 'paper': `lr` must be above zero; got -0.1"),
        ({"milestones": [160, 180]}, "pairs of an epoch and a factor.*got 160"),
        ({"schedule": "cosine"}, "the schedule is 'cosine'.*Override both together"),
        ({"mean": [0.1, 0.2]}, "one value per channel, or one for all; they have 2 and 3"),
        ({"cutmix": 0.6, "mixup": 0.6}, "mixed in one way at most, .* got 0.6 and 0.6"),
        ({"mixup_alpha": 0.2}, "`mixup_alpha` is 0.2 but mixup is 0, so it would do nothing"),
        ({"epoch": 3}, "recipe 'paper': there is no value 'epoch'; did you mean epochs"),
        ({"name": "papper"}, r"no recipe 'papper'; did you mean paper\?"),
    ],
)
def test_bad_values_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        get_recipe(**{"name": "paper"} | overrides)


def test_the_page_lists_every_value_with_its_default_and_its_choices():
    """The table on docs/train-images.md: what `--set` takes."""
    text = (Path(__file__).parents[2] / "docs" / "train-images.md").read_text()
    table = text.partition("### Recipe values")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    values = [field for field in fields(Recipe) if field.name != "name"]
    assert list(rows) == [field.name for field in values]
    choices = CHOICES | {"model": tuple(MODELS)}
    for field in values:
        shown, _, words = rows[field.name].partition("|")
        if field.default is MISSING:
            assert shown.strip() == ""
        else:
            typed = parse_overrides([f"{field.name}={shown.strip(' `')}"])[field.name]
            default = json.loads(json.dumps(field.default))  # tuples are lists there
            assert (typed, type(typed)) == (default, type(default)), field.name
        assert set(choices.get(field.name, ())) <= set(re.findall(r"`([^`]+)`", words)), field.name


def test_rates_that_a_training_never_comes_to_are_told():
    assert unreached_rates(spec(recipe="paper", data=CIFAR10)) is None
    short = unreached_rates(spec(recipe="paper", data=CIFAR10, epochs=100))
    assert "of 100 epochs none comes to milestones at 160 and 180" in short
