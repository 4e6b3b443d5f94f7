"""A recipe in, what of its learning rates lies beyond its last epoch out.

Nothing is refused, since a short run to try things out is honest, and nothing is scaled, since a
recipe's values are what a run's record says. It is told, with the values that would fit.
"""

from __future__ import annotations

import json
from itertools import pairwise

from longtail.runs import RunSpec
from longtail.train.named_recipes import PER_DATASET, RECIPES
from longtail.train.recipe import Recipe


def unreached(spec: RunSpec) -> str | None:
    """What of a run's learning rates its epochs never come to, and what to override; or None.

    Examples:
        >>> from longtail.runs import DataSpec
        >>> from longtail.train.recipe import make_spec
        >>> spec = make_spec(
        ...     DataSpec("cifar10-lt"), method="softmax", recipe="paper", seed=0,
        ...     overrides={"epochs": 100},
        ... )
        >>> print(unreached(spec).partition(";")[2].strip())
        for the recipe's course in 100 epochs add --set 'milestones=[[80, 0.1], [90, 0.01]]'.
    """
    recipe = Recipe.of(spec)
    named = RECIPES.get(recipe.name, {})
    named = named | PER_DATASET.get(recipe.name, {}).get(spec.dataset.name, {})
    share = recipe.epochs / named.get("epochs", recipe.epochs)
    told, fitting = [], []
    if recipe.warmup_epochs >= recipe.epochs:
        told.append(
            f"all of the {recipe.epochs} epochs are warm-up (warmup_epochs="
            f"{recipe.warmup_epochs:g}), so that the learning rate only grows"
        )
        scaled = recipe.warmup_epochs * share
        fits = scaled < recipe.epochs
        scaled = round(scaled) if recipe.warmup == "epoch" else round(scaled, 2)
        fitting.append(f"warmup_epochs={scaled if fits else 0:g}")
    beyond = [epoch for epoch, _ in recipe.milestones if epoch >= recipe.epochs]
    if beyond:
        falls = "never falls" if len(beyond) == len(recipe.milestones) else "falls no further"
        told.append(
            f"the milestones at {' and '.join(map(str, beyond))} lie beyond the last of "
            f"{recipe.epochs} epochs, so that the learning rate {falls}"
        )
        fitting += _scaled_milestones(recipe, share)
    if not told:
        return None
    typed = " ".join(f"--set '{text}'" if "[" in text else f"--set {text}" for text in fitting)
    return (
        f"recipe {recipe.name}: {'; and '.join(told)}; for the recipe's course in "
        f"{recipe.epochs} epochs add {typed}."
    )


def _scaled_milestones(recipe: Recipe, share: float) -> list[str]:
    """The milestones at the same shares of the training; a cosine where they would coincide."""
    scaled = [(round(epoch * share), factor) for epoch, factor in recipe.milestones]
    epochs = [0, *(epoch for epoch, _ in scaled), recipe.epochs]
    if all(one < two for one, two in pairwise(epochs)):
        return [f"milestones={json.dumps(scaled)}"]
    return ["schedule=cosine", "milestones=[]"]
