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
    _CHOICES,
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


def test_steps_hold_until_their_milestones():
    recipe = get_recipe(
        "digits",
        lr=1.0,
        epochs=6,
        warmup_epochs=0,
        schedule="steps",
        milestones=((2, 0.1), (4, 0.01)),
    )
    rates = [learning_rate(recipe, epoch * 3, 3) for epoch in range(6)]
    assert rates == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["paper", "tuned"])
def test_the_papers_rates(name):
    """0.1 after five epochs of per-step warm-up, a tenth at 160, a hundredth at 180."""
    recipe = get_recipe(name)
    steps = 97  # 12,406 examples in batches of 128
    for step in (0, 1, 100, 484):
        assert learning_rate(recipe, step, steps) == pytest.approx(0.1 * (step + 1) / (5 * steps))
    for step, rate in (
        (485, 0.1),
        (160 * steps - 1, 0.1),
        (160 * steps, 0.01),
        (180 * steps - 1, 0.01),
        (180 * steps, 0.001),
        (200 * steps - 1, 0.001),
    ):
        assert learning_rate(recipe, step, steps) == pytest.approx(rate)


def test_caos_rates():
    """With e counted from 1: lr e/5 up to 5, then lr; lr/100 above 160, lr/10,000 above 180."""
    recipe = get_recipe("ldam")
    for e in range(1, 201):
        factor = e / 5 if e <= 5 else 1e-4 if e > 180 else 1e-2 if e > 160 else 1.0
        for step in ((e - 1) * 10, e * 10 - 1):  # first and last step of the epoch
            assert learning_rate(recipe, step, 10) == pytest.approx(0.1 * factor)


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


# The notes' table, column by column; the rates are tested above.
TABLE = {
    "paper": {
        "epochs": 200,
        "optimizer": "sgd",
        "weight_decay": 1e-4,
        "decay": "all",
        "crop_padding": 4,
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (0.2023, 0.1994, 0.2010),
        "model": "resnet32",
        "drop_last": False,
        "crop_fill": "black",
    },
    "released": {
        "optimizer": "nesterov",
        "weight_decay": 2e-4,
        "decay": "not-norm",
        "crop_padding": 2,
        "mean": (0.5,),
        "std": (1.0,),
        "model": "resnet32-released",
        "drop_last": True,
        "crop_fill": "mean",
    },
}
TABLE["tuned"] = TABLE["paper"] | {"weight_decay": 5e-4}
TABLE["strong"] = TABLE["tuned"] | {
    "epochs": 500,
    "optimizer": "nesterov",
    "schedule": "cosine",
    "warmup_epochs": 5,
    "trivial_augment": True,
    "cutout": 16,
    "sam_rho": 0.1,
    "cutmix": 0.0,
    "distill_weight": 0.0,
}
TABLE["strong-student"] = TABLE["strong"] | {
    "epochs": 600,
    "sam_rho": 0.0,
    "cutout": 0,
    "cutmix": 0.5,
    "mix_partner": "uniform",
    "distill_weight": 0.8,
    "distill_temperature": 4.0,
    "distill_adjusted": False,
}
TABLE["ldam"] = TABLE["paper"] | {"weight_decay": 2e-4}


@pytest.mark.parametrize("name", TABLE)
def test_recipes_are_as_tabulated(name):
    recipe = get_recipe(name, dataset="cifar10-lt")
    expected = {"lr": 0.1, "momentum": 0.9, "batch_size": 128, "flip": True, **TABLE[name]}
    assert {key: getattr(recipe, key) for key in expected} == expected
    assert (recipe.head, recipe.head_scale) == ("linear", 1.0)


@pytest.mark.parametrize(("name", "decay"), [("imagenet-lt", 5e-4), ("inaturalist", 1e-4)])
def test_recipes_of_photographs_are_the_papers(name, decay):
    recipe = get_recipe(name)
    expected = {
        "model": "resnet50",
        "epochs": 90,
        "batch_size": 512,
        "optimizer": "sgd",
        "lr": 0.4,
        "momentum": 0.9,
        "weight_decay": decay,
        "decay": "all",
        "schedule": "cosine",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "flip": True,
        "image_size": 224,
        "drop_last": False,
    }
    assert {key: getattr(recipe, key) for key in expected} == expected
    assert recipe.evaluation_resize == 256
    rates = [learning_rate(recipe, step, 10) for step in (0, 49, 50, 475, 899)]
    tail = [0.2 * (1 + math.cos(math.pi * k / 850)) for k in (0, 425, 849)]
    assert rates == pytest.approx([0.4 / 50, 0.4, *tail])
    other = get_recipe(name, model="resnet152", epochs=200)
    assert (other.model, other.epochs) == ("resnet152", 200)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_the_record(name):
    made = spec(recipe=name, data=CIFAR10)
    read = RunSpec.from_json(json.loads(json.dumps(made.to_json())))
    assert Recipe.of(read) == get_recipe(name, dataset="cifar10-lt")
    assert read.hash8 == made.hash8
    assert read.recipe.overrides == {}


def test_the_padding_after_normalisation():
    assert get_recipe("paper").border == pytest.approx((-2.42906, -2.41825, -2.22139), abs=1e-5)
    assert get_recipe("released", dataset="cifar10-lt").border == (0.0,)
    assert get_recipe("paper", std=[0.5]).border == pytest.approx((-0.9828, -0.9644, -0.893))
    assert get_recipe("paper", mean=[0.5], std=[0.5, 1.0]).border == pytest.approx((-1.0, -0.5))
    assert get_recipe("paper", mean=0.5, std=1) == get_recipe("paper", mean=[0.5], std=[1.0])


def test_hashes_of_earlier_runs_stay():
    """As recorded before recipes had crops, heads and the rest, and methods had parts."""
    assert spec().hash8 == "b60e98f5"
    assert spec("logit-adjusted").hash8 == "cf98f9c5"
    assert spec("adaptive", epochs=2).hash8 == "a602740e"
    tuned = spec("logit-adjusted:tau=1.5", data=DataSpec("digits-lt"), seed=3)
    assert tuned.hash8 == "def476f5"


def test_overrides_show_in_the_spec_and_in_its_hash():
    plain = spec()
    longer = spec(epochs=99)
    assert plain.recipe.overrides == {}
    assert dict(longer.recipe.overrides) == {"epochs": 99}
    assert Recipe.of(longer).epochs == 99
    assert plain.hash8 != longer.hash8


def test_network_and_head_are_recorded_with_the_model():
    made = spec(recipe="paper", data=CIFAR10, model="resnet56", head="cosine", head_scale=16)
    assert made.model == Part("resnet56", {"head": "cosine", "head_scale": 16.0})
    assert made.recipe.overrides == {}
    recipe = Recipe.of(made)
    assert (recipe.model, recipe.head, recipe.head_scale) == ("resnet56", "cosine", 16.0)
    assert spec(recipe="paper", data=CIFAR10).model == Part("resnet32")


def test_ldam_brings_its_cosine_head():
    for method in ("ldam", "ldam:scale=20+drw"):
        made = spec(method, recipe="ldam", data=CIFAR10)
        assert made.model == Part("resnet32", {"head": "cosine"})
    assert spec("adaptive", recipe="ldam", data=CIFAR10).model == Part("resnet32")
    with pytest.raises(InputError, match=r"needs a cosine head of scale 1.*got head 'linear'"):
        spec("ldam", recipe="ldam", data=CIFAR10, head="linear")
    with pytest.raises(InputError, match=r"head_scale 16.*'adaptive'"):
        spec("ldam", recipe="ldam", data=CIFAR10, head_scale=16.0)


def test_the_published_threshold_is_filled_in_where_it_is_known():
    assert dict(spec("equalized-threshold", "paper", CIFAR10).method.settings) == {
        "threshold": 0.05
    }
    large = spec("equalized-threshold:gamma=0.5", "paper", DataSpec("cifar100-lt"))
    assert dict(large.method.settings) == {"threshold": 0.005, "gamma": 0.5}
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
    assert parse_overrides(texts) == {
        "lr": 0.2,
        "flip": False,
        "optimizer": "adam",
        "crop_padding": 0,
        "milestones": [[60, 0.1]],
    }
    assert get_recipe("paper", **parse_overrides(texts)).milestones == ((60, 0.1),)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lr": -0.1}, "recipe 'paper': `lr` must be above zero; got -0.1"),
        ({"epochs": 2.5}, "`epochs` must be a whole number, at least 1; got 2.5"),
        ({"optimizer": "adamw"}, "`optimizer` must be one of 'sgd', 'nesterov', 'adam'"),
        ({"optimizer": "nesterov", "momentum": 0}, "`nesterov` needs a momentum above 0"),
        ({"warmup": "epoch", "warmup_epochs": 2.5}, "`warmup_epochs` must be whole where"),
        ({"milestones": [[180, 0.1], [160, 0.01]]}, "must ascend; got 180, 160"),
        ({"milestones": [160, 180]}, "pairs of an epoch and a factor.*got 160"),
        ({"schedule": "cosine"}, "the schedule is 'cosine'.*Override both together"),
        ({"image_size": 64}, "`crop_padding` belongs to images of one size, but `image_size` is 6"),
        ({"flip": 1}, "`flip` must be true or false; got 1"),
        ({"mean": [0.1, 0.2]}, "one value per channel, or one for all; they have 2 and 3"),
        ({"head_scale": 9}, "`head_scale` belongs to a cosine head, but the head is 'linear'"),
        ({"epoch": 3}, "recipe 'paper': there is no value 'epoch'; did you mean epochs"),
    ],
)
def test_bad_values_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        get_recipe("paper", **overrides)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: get_recipe("papper"),
            r"no recipe 'papper'; did you mean paper\? There are digits, paper",
        ),
        (lambda: spec("la"), "there is no loss 'la'; did you mean ldam"),
        (lambda: parse_overrides(["lr"]), "written as name=value; got 'lr'"),
        (lambda: parse_overrides(["lr=1", "lr=2"]), "'lr' is given twice"),
        (lambda: parse_overrides(["rl=1"]), "there is no value 'rl'; did you mean lr"),
    ],
)
def test_unknown_names_are_listed(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_record_of_a_newer_version_is_refused():
    document = spec().to_json()
    document["recipe"]["values"]["mixdown"] = 0.2
    with pytest.raises(InputError, match="has mixdown, which this version does not know"):
        Recipe.of(RunSpec.from_json(document))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cutmix": 1.5}, r"`cutmix` must lie in \[0, 1\]; got 1.5"),
        ({"epochs": True}, "`epochs` must be a whole number, at least 1; got True"),
        ({"cutmix": 0.6, "mixup": 0.6}, "mixed in one way at most, .* got 0.6 and 0.6"),
        ({"mix_partner": "minority"}, "`mix_partner` is 'minority' but cutmix or mixup is 0, so"),
        ({"mixup_alpha": 0.2}, "`mixup_alpha` is 0.2 but mixup is 0, so it would do nothing"),
        ({"distill_temperature": 2.0}, "`distill_temperature` is 2.0 but distill_weight is 0"),
    ],
)
def test_ingredients_that_cannot_be_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        get_recipe("tuned", **overrides)


def test_an_ingredient_at_its_default_leaves_the_hash_alone():
    plain = spec(recipe="tuned", data=CIFAR10)
    off = {"image_seed": None, "cutout": 0, "cutmix": 0.0, "sam_rho": 0, "trivial_augment": False}
    off |= {"head_lr": 1, "freeze_backbone": False}
    assert spec(recipe="tuned", data=CIFAR10, **off).hash8 == plain.hash8
    assert spec(recipe="tuned", data=CIFAR10, cutout=16).hash8 != plain.hash8
    assert spec(recipe="tuned", data=CIFAR10, image_seed=0).hash8 != plain.hash8


def test_the_page_lists_every_value_with_its_default_and_its_choices():
    """The table on docs/train-images.md: what `--set` takes."""
    text = (Path(__file__).parents[2] / "docs" / "train-images.md").read_text()
    table = text.partition("### Recipe values")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    values = [field for field in fields(Recipe) if field.name != "name"]
    assert list(rows) == [field.name for field in values]
    choices = _CHOICES | {"model": tuple(MODELS)}
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
    for name in RECIPES:
        assert unreached_rates(spec(recipe=name, data=CIFAR10)) is None
    short = unreached_rates(spec(recipe="paper", data=CIFAR10, epochs=100))
    assert "of 100 epochs none comes to milestones at 160 and 180" in short
    warm = unreached_rates(spec(recipe="imagenet-lt", epochs=4))
    assert "all 4 epochs are warm-up; override warmup_epochs" in warm
