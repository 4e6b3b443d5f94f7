"""The ways to train behind `strong`: its ingredients, teachers, students and the ablation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from longtail.experiments.exp_runs import Kind
from longtail.train.recipe import recipe_values

METHOD = "logit-adjusted"
ABLATION_EPOCHS = 100  # of everything in it: a part of what the recipes take, for many more runs
# Of the first trial: teachers and what is taken away from `strong` have them, whatever the recipe.
TRIAL_EPOCHS = {"cifar10-lt": 300, "cifar100-lt": 400}
LONGER_EPOCHS = {"cifar10-lt": 500, "cifar100-lt": 800}  # of teachers that train longer than these

OFF: dict[str, Any] = {
    "trivial_augment": False,
    "cutout": 0,
    "cutmix": 0.0,
    "mixup": 0.0,
    "mix_partner": "uniform",
    "sam_rho": 0.0,
    "ema_decay": 0.0,
    "head": "linear",
    "head_scale": 1.0,
}
# What the ablation adds and takes away, one at a time.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "TrivialAugment": {"trivial_augment": True},
    "Cutout": {"cutout": 16},
    "CutMix, minority partner": {"cutmix": 0.5, "mix_partner": "minority"},
    "CutMix, uniform partner": {"cutmix": 0.5, "mix_partner": "uniform"},
    "mixup": {"mixup": 0.5, "mix_partner": "uniform"},
    "SAM": {"sam_rho": 0.1},
    "weight average": {"ema_decay": 0.999},
    "cosine head": {"head": "cosine", "head_scale": 16.0},
}
# The recipe's own augmentation, and nothing else of the ingredients.
_AUGMENTED = {key: value for key, value in OFF.items() if key not in ("trivial_augment", "cutout")}
_MINORITY = INGREDIENTS["CutMix, minority partner"]

STRONG = Kind("strong", METHOD)
# Classes are drawn equally often: before anything is mixed in, the prior of what a student sees is
# uniform, and the logit-adjusted loss of that is the softmax's. One stream of images for all.
STUDENT = Kind("student", "softmax+over-sampling", {"image_seed": 0})
PLAIN = Kind("plain", METHOD, OFF)
_WITHOUT = "strong − "


def _teacher(name: str, **changes: Any) -> Kind:
    return Kind(name, METHOD, _AUGMENTED | changes)


_BASE = _teacher("augmented")
_SAM, _SAM_FAR = _teacher("SAM 0.1", sam_rho=0.1), _teacher("SAM 0.2", sam_rho=0.2)
# Different ways rather than different seeds: their mean gains from their disagreement.
TEACHERS: dict[str, tuple[Kind, ...]] = {
    "cifar10-lt": (
        _BASE,
        _teacher("minority CutMix", **_MINORITY),
        _SAM,
        _SAM_FAR,
        _teacher("SAM 0.1 and minority CutMix", sam_rho=0.1, **_MINORITY),
    ),
    "cifar100-lt": (
        _BASE,
        _teacher("weight decay 1e-3", weight_decay=1e-3),
        _teacher("minority CutMix", **_MINORITY),
        _teacher("uniform CutMix", **INGREDIENTS["CutMix, uniform partner"]),
        _SAM,
        _SAM_FAR,
        _teacher("cosine head", **INGREDIENTS["cosine head"]),
    ),
}


def _wide(name: str = "", **changes: Any) -> Kind:
    return _teacher(f"wide{name}", **WIDE, **changes)


# Further ones, for students of more teachers: networks four times as wide, which only teach.
# STRONG stands for all its runs, which are there anyway.
WIDE: dict[str, Any] = {"model": "resnet32x4", "epochs": 200}
MORE_TEACHERS: dict[str, tuple[Kind, ...]] = {
    "cifar10-lt": (
        STRONG,
        _wide(", minority CutMix", **_MINORITY),
        _wide(", SAM 0.1", sam_rho=0.1),
        _wide(", SAM 0.1 and minority CutMix", sam_rho=0.1, **_MINORITY),
    ),
    "cifar100-lt": (
        _wide(),
        _wide(", minority CutMix", **_MINORITY),
        _wide(", uniform CutMix", **INGREDIENTS["CutMix, uniform partner"]),
        _wide(", SAM 0.1", sam_rho=0.1),
    ),
}


@cache
def ablation(dataset: str) -> tuple[Kind, ...]:
    """Plain and `strong`, each with every ingredient added, or taken away where it has it.

    Args:
        dataset: recipes may differ by it.

    Examples:
        >>> [kind.name for kind in ablation("cifar100-lt")][:3]
        ['plain', 'plain + TrivialAugment', 'plain + Cutout']
    """
    kinds = [PLAIN]
    kinds += [Kind(f"plain + {name}", METHOD, OFF | on) for name, on in INGREDIENTS.items()]
    values = OFF | recipe_values("strong", dataset=dataset)
    kinds += [STRONG, Kind(f"{_WITHOUT}logit adjustment", "softmax")]
    for name, on in INGREDIENTS.items():
        key = next(iter(on))
        if values[key] == OFF[key]:
            mixed = {k: v for k, v in on.items() if k != "mix_partner" or not _mixes(values)}
            kinds.append(Kind(f"strong + {name}", METHOD, mixed))
        elif not (_mixes(values) and on.get("mix_partner", "") not in ("", values["mix_partner"])):
            kinds.append(Kind(f"{_WITHOUT}{name}", METHOD, {k: OFF[k] for k in on}))
    return tuple(kinds)


def removal(dataset: str) -> list[Kind]:
    """`strong` without each of its parts.

    Args:
        dataset: recipes may differ by it.

    Examples:
        >>> [kind.name for kind in removal("cifar10-lt")][2:]
        ['strong − Cutout', 'strong − SAM']
    """
    return [kind for kind in ablation(dataset) if kind.name.startswith(_WITHOUT)]


def _mixes(values: Mapping[str, Any]) -> bool:
    return bool(values["cutmix"] or values["mixup"])


@cache
def student_ablation(dataset: str) -> tuple[Kind, ...]:
    """What a student is trained with, changed one at a time.

    Args:
        dataset: recipes may differ by it.
    """
    values = OFF | recipe_values("strong-student", dataset=dataset)
    adjusted = bool(values.get("distill_adjusted", False))
    changes: dict[str, dict[str, Any]] = {
        "the teachers alone": {"distill_weight": 1.0},
        "KL of logits as they are" if adjusted else "KL of prior-shifted logits": {
            "distill_adjusted": not adjusted
        },
    }
    if values.get("distill_temperature", 1.0) != 1.0:
        changes["temperature 1"] = {"distill_temperature": 1.0}
    if _mixes(values):
        other = "minority" if values["mix_partner"] == "uniform" else "uniform"
        changes[f"{other} partner"] = {"mix_partner": other}
        changes["without mixing"] = {key: OFF[key] for key in ("cutmix", "mixup", "mix_partner")}
    if not values["sam_rho"]:
        changes["with SAM"] = INGREDIENTS["SAM"]
    kinds = [
        Kind(f"student, {name}", STUDENT.method, {**STUDENT.overrides, **change})
        for name, change in changes.items()
    ]
    return (*kinds, Kind("student, examples drawn as they come", METHOD, STUDENT.overrides))
