"""A schedule that a training never comes to the end of is told of, with values that fit."""

import pytest

from longtail.runs import DataSpec
from longtail.train.recipe import RECIPES, Recipe, make_spec, parse_overrides, unreached_rates


def spec(recipe="paper", dataset="cifar10-lt", method="softmax", **overrides):
    data = DataSpec(dataset)
    return make_spec(data, method=method, recipe=recipe, seed=0, overrides=overrides)


def as_typed(told):
    """The overrides behind each --set of a message."""
    texts = [part.strip(" '.") for part in told.partition(" add ")[2].split("--set ")[1:]]
    return parse_overrides(texts)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_named_recipes_come_to_their_end(recipe):
    assert unreached_rates(spec(recipe)) is None


def test_milestones_beyond_the_end_are_told_with_scaled_ones():
    told = unreached_rates(spec("ldam", method="ldam+drw", epochs=100))
    assert told == (
        "recipe ldam: the milestones at 160 and 180 lie beyond the last of 100 epochs, so that the "
        "learning rate never falls; for the recipe's course in 100 epochs add "
        "--set 'milestones=[[80, 0.01], [90, 0.0001]]'."
    )
    assert "at 180 lie" in unreached_rates(spec(epochs=180))
    assert "falls no further" in unreached_rates(spec(epochs=170))
    assert unreached_rates(spec(epochs=181)) is None


def test_a_training_that_is_all_warm_up_is_told():
    told = unreached_rates(spec("imagenet-lt", epochs=4))
    assert told == (
        "recipe imagenet-lt: all of the 4 epochs are warm-up (warmup_epochs=5), so that the "
        "learning rate only grows; for the recipe's course in 4 epochs add --set "
        "warmup_epochs=0.22."
    )
    assert unreached_rates(spec("imagenet-lt", epochs=6)) is None


@pytest.mark.parametrize("epochs", [1, 2, 4, 10, 50, 100, 160, 175])
@pytest.mark.parametrize("recipe", ["paper", "ldam", "released", "strong", "imagenet-lt"])
def test_what_is_advised_helps(recipe, epochs):
    """It is a recipe, and leaves nothing to say."""
    told = unreached_rates(spec(recipe, epochs=epochs))
    if told is not None:
        better = spec(recipe, epochs=epochs, **as_typed(told))
        assert unreached_rates(better) is None
        assert Recipe.of(better).warmup_epochs < epochs
