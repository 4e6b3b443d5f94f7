"""Recipes by name: how to train, as data. What to train on and with which loss is the spec's.

A recipe's values are written out in each run's record, and what differs from the named recipe
is listed there as an override.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from longtail import _checks
from longtail._checks import InputError
from longtail.margins import MARGINS
from longtail.runs.spec import DataSpec, Part, RecipeSpec, RunSpec, Settings


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not data, method or seed.

    Attributes:
        name: what the command line calls it.
        model: a key of `models.MODELS`.
        epochs: passes over the training set.
        batch_size: examples a step; the last, smaller batch of an epoch is used too.
        optimizer: `sgd`, `nesterov` or `adam`.
        lr: peak learning rate.
        momentum: of SGD.
        weight_decay: on every parameter.
        warmup_epochs: linear per-step warm-up to `lr`.
        schedule: after the warm-up, `constant` or `cosine` to zero, or `steps`.
        milestones: with `steps`: (epoch, factor of `lr` from there on) pairs.
        mean: per channel, subtracted from pixels scaled to [0, 1].
        std: per channel, divides them.
    """

    name: str
    model: str
    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "nesterov", "adam"]
    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup_epochs: float = 0.0
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    milestones: tuple[tuple[int, float], ...] = ()
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, spec: RunSpec) -> Recipe:
        """The recipe that a run's spec carries."""
        return cls(name=spec.recipe.name, model=spec.model.name, **spec.recipe.values)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits",
            model="small-conv",
            epochs=30,
            batch_size=32,
            optimizer="nesterov",
            lr=0.05,
            weight_decay=5e-3,
            warmup_epochs=2,
            schedule="cosine",
            mean=(0.305,),
            std=(0.376,),
        ),
    )
}


def get_recipe(name: str, **overrides: Any) -> Recipe:
    """A named recipe with some values changed.

    Examples:
        >>> get_recipe("digits", epochs=3).epochs
        3
    """
    _checks.choice(name, list(RECIPES), "get_recipe", name="name")
    known = {field.name for field in fields(Recipe)} - {"name"}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise InputError(
            f"get_recipe: a recipe has no {', '.join(unknown)}; it has {', '.join(sorted(known))}."
        )
    return replace(RECIPES[name], **overrides)


def make_spec(
    dataset: DataSpec,
    *,
    method: str,
    recipe: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The spec of one run: data, method, a named recipe and what differs from it.

    Args:
        dataset: which examples.
        method: a key of `margins.MARGINS`.
        recipe: a key of `RECIPES`.
        seed: of the run's own randomness.
        settings: of the method, such as ``{"tau": 1.0}``.
        overrides: recipe values to change.

    Examples:
        >>> spec = make_spec(DataSpec("digits-lt"), method="softmax", recipe="digits", seed=3)
        >>> Recipe.of(spec) == get_recipe("digits")
        True
    """
    _checks.choice(method, list(MARGINS), "make_spec", name="method")
    overrides = dict(overrides or {})
    values = asdict(get_recipe(recipe, **overrides))
    model = values.pop("model")
    overrides.pop("model", None)
    del values["name"]
    return RunSpec(
        dataset=dataset,
        model=Part(model),
        method=Part(method, Settings(settings)),
        recipe=RecipeSpec(recipe, Settings(values), Settings(overrides)),
        seed=seed,
    )


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step (counted from 0 over the whole training).

    Warm-up grows linearly from lr / warm-up steps to lr; `cosine` then falls to 0 at the end.

    Examples:
        >>> recipe = get_recipe("digits", lr=1.0, epochs=4, warmup_epochs=1)
        >>> [round(learning_rate(recipe, step, 2), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    """
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    if recipe.schedule == "cosine":
        total = recipe.epochs * steps_per_epoch
        done = (step - warmup) / max(total - warmup, 1)
        return recipe.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    factor = 1.0
    for epoch, value in recipe.milestones if recipe.schedule == "steps" else ():
        if step >= epoch * steps_per_epoch:
            factor = value
    return recipe.lr * factor
