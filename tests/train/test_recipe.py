import math

import pytest

from longtail import InputError
from longtail.runs import DataSpec
from longtail.train.recipe import Recipe, get_recipe, learning_rate, make_spec


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


def test_overrides_show_in_the_spec_and_in_its_hash():
    data = DataSpec("digits-lt")
    plain = make_spec(data, method="softmax", recipe="digits", seed=0)
    longer = make_spec(data, method="softmax", recipe="digits", seed=0, overrides={"epochs": 99})
    assert plain.recipe.overrides == {}
    assert dict(longer.recipe.overrides) == {"epochs": 99}
    assert Recipe.of(longer).epochs == 99
    assert plain.hash8 != longer.hash8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_recipe("papper"), "must be one of 'digits'"),
        (lambda: get_recipe("digits", epoch=3), "a recipe has no epoch; it has batch_size"),
        (
            lambda: make_spec(DataSpec("x"), method="la", recipe="digits", seed=0),
            "`method` must be one of 'softmax'",
        ),
    ],
)
def test_unknown_names_are_listed(call, message):
    with pytest.raises(InputError, match=message):
        call()
