"""Recipes: how to train, as data. What to train on and with which loss is the spec's.

`Recipe` has the fields, `RECIPES` the values of the named recipes. A recipe's values are written
out in each run's record, and what differs from the named recipe is listed there as an override.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.runs.spec import DataSpec, Part, RecipeSpec, RunSpec, Settings
from longtail.train.methods import HEADS, THRESHOLD, THRESHOLDS, Method, unknown


def _milestones(value: Any, *, name: str) -> tuple[tuple[int, float], ...]:
    """Pairs of an epoch and a factor, in ascending order of the epochs."""
    pairs = []
    for pair in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError(
                f"`{name}` must be pairs of an epoch and a factor, such as "
                f"[[160, 0.1], [180, 0.01]]; got {pair!r}."
            )
        pairs.append((_checks.whole(pair[0], name=name), _checks.positive(pair[1], name=name)))
    if any(two <= one for (one, _), (two, _) in pairwise(pairs)):
        epochs = ", ".join(str(epoch) for epoch, _ in pairs)
        raise InputError(f"the epochs of `{name}` must ascend; got {epochs}.")
    return tuple(pairs)


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not data, method or seed.

    docs/train-images.md has a table of the values; `CHOICES` has those of texts.
    """

    name: str  # as the command line calls it
    model: str  # a key of `models.MODELS`
    epochs: int  # passes over the training set
    batch_size: int  # examples a step, of all processes together
    optimizer: str
    lr: float  # the largest learning rate
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0  # λ, adds λ·w to the gradient, as torch's optimisers do
    warmup_epochs: float = 0.0  # in which the rate grows linearly to `lr`
    schedule: str = "constant"  # after the warm-up: cosine to zero, or steps
    # With steps: (epoch, factor of `lr` from there on); epochs count from 0, and one after the last
    # is never reached.
    milestones: tuple[tuple[int, float], ...] = ()
    mean: tuple[float, ...] = (0.0,)  # by channel, or one for all, of pixels scaled to [0, 1]
    std: tuple[float, ...] = (1.0,)
    # Fields below came later. A record has them only where they differ from these defaults,
    # so that runs from before keep their hashes; the same goes for any that is added.
    warmup: str = "step"  # whether the rate grows at every step or only at every epoch
    decay: str = "all"  # which parameters: all, or all but batch norm's
    drop_last: bool = False  # leave out an epoch's last batch if it is smaller than the others
    crop_padding: int = 0  # pixels on each side before a random crop to the image's own size
    crop_fill: str = "black"  # the colour of the padding, or the mean, 0 after normalisation
    flip: bool = False  # mirror half of the images
    head: str = "linear"  # the last layer
    head_scale: float = 1.0  # multiplies the logits of a cosine head
    # Whose order, crops, augmentation and mixing a run sees; None for its own seed's.
    image_seed: int | None = None
    trivial_augment: bool = False  # one random operation of random strength, see `trivial`
    cutout: int = 0  # side in pixels of the square that is hidden in each image
    cutmix: float = 0.0  # the share of the examples that get a patch of another image
    mixup: float = 0.0  # the share that are blended with another one; one way for each at most
    mixup_alpha: float = 1.0  # α, the weight in a blend is drawn from Beta(α, α)
    mix_partner: str = "uniform"  # how the other image is drawn, see `mixing`
    sam_rho: float = 0.0  # how far sharpness-aware minimisation looks, see `sam`
    ema_decay: float = 0.0  # d of the weights' average that is judged and saved, see `averaging`
    distill_weight: float = 0.0  # w: the loss is (1 − w)·loss + w·T²·KL(teachers ‖ run)
    distill_temperature: float = 1.0  # T
    distill_adjusted: bool = False  # the divergence after log π is added to the logits of both
    # 0 for images that come in one size; else the pixels of a side to which photographs of any size
    # are cropped: a random part in training (`photos.RandomCrop`), the centre in evaluation.
    image_size: int = 0
    classifier: str = "whole"  # in every process; or each holds a slice of the classes
    sampled_classes: int = 0  # so many are drawn at each step for the loss to compare with
    head_lr: float = 1.0  # the last layer's learning rate as a multiple of the others'
    freeze_backbone: bool = False  # train the last layer only; batch norm keeps its statistics

    def __post_init__(self) -> None:
        try:
            for one in fields(self):
                name, value, check = one.name, getattr(self, one.name), _CHECKS.get(one.name)
                if value == one.default and type(value) is type(one.default):
                    continue
                if name in CHOICES:
                    _checks.choice(value, CHOICES[name], name=name)
                elif isinstance(one.default, bool) and not isinstance(value, bool):
                    raise InputError(f"`{name}` must be true or false; got {value!r}.")
                elif check is not None and name in ("mean", "std"):
                    each = value if isinstance(value, list | tuple) else [value]
                    object.__setattr__(self, name, tuple(check(v, name=name) for v in each))
                elif check is not None:
                    object.__setattr__(self, name, check(value, name=name))
        except InputError as error:
            raise InputError(f"recipe {self.name!r}: {error}") from None
        # Values that don't go together, and settings of an ingredient that is off.
        rules = [
            (
                self.image_size > 0 and self.crop_padding > 0,
                f"`crop_padding` belongs to images of one size, but `image_size` is "
                f"{self.image_size}: photographs are cropped to it without padding; set one to 0.",
            ),
            (
                self.optimizer == "nesterov" and self.momentum == 0,
                "`nesterov` needs a momentum above 0; use sgd without one.",
            ),
            (
                self.warmup == "epoch" and self.warmup_epochs != int(self.warmup_epochs),
                f"`warmup_epochs` must be whole where the rate grows by the epoch; got "
                f"{self.warmup_epochs}.",
            ),
            (
                (self.schedule == "steps") != bool(self.milestones),
                f"`milestones` belong to the schedule 'steps'; the schedule is {self.schedule!r} "
                f"and the milestones are {list(self.milestones)}. Override both together.",
            ),
            (
                len(self.mean) != len(self.std) and 1 not in (len(self.mean), len(self.std)),
                f"`mean` and `std` must have one value per channel, or one for all; they have "
                f"{len(self.mean)} and {len(self.std)}.",
            ),
            (
                self.cutmix + self.mixup > 1,
                f"an example is mixed in one way at most, so `cutmix` and `mixup` must add up to "
                f"at most 1; got {self.cutmix:g} and {self.mixup:g}.",
            ),
        ]
        for key, of, share in (
            ("mix_partner", "cutmix or mixup", self.cutmix + self.mixup),
            ("mixup_alpha", "mixup", self.mixup),
            ("distill_temperature", "distill_weight", self.distill_weight),
            ("distill_adjusted", "distill_weight", self.distill_weight),
        ):
            value = getattr(self, key)
            idle = f"`{key}` is {value!r} but {of} is 0, so it would do nothing"
            rules.append((share == 0 and value != _DEFAULTS[key], f"{idle}; override both."))
        for broken, message in rules:
            if broken:
                raise InputError(f"recipe {self.name!r}: {message}")

    @property
    def evaluation_resize(self) -> int:
        """Pixels of a photograph's shorter side before its centre is cut out: 256 for 224."""
        return round(self.image_size * 256 / 224)

    @classmethod
    def of(cls, spec: RunSpec) -> Recipe:
        """Return the recipe that a run's spec carries."""
        values = spec.recipe.values
        odd = [f"no {key}" for key in sorted(_REQUIRED - set(values))]
        odd += [f"the unknown {key}" for key in sorted(set(values) - _NAMES)]
        if odd:
            raise InputError(
                f"Recipe.of: the run's recipe, {spec.recipe.name!r}, has {', '.join(odd)}, as of a "
                f"training loop of one's own, which has to write its logits itself."
            )
        head = {key: v for key, v in spec.model.settings.items() if key in _OF_MODEL}
        return cls(name=spec.recipe.name, model=spec.model.name, **head, **values)


# The values that a text may have.
CHOICES = {
    "optimizer": ("sgd", "nesterov", "adam"),
    "schedule": ("constant", "cosine", "steps"),
    "warmup": ("step", "epoch"),
    "decay": ("all", "not-norm"),
    "crop_fill": ("black", "mean"),
    "head": ("linear", "cosine", "unit-norm"),
    "mix_partner": ("uniform", "minority"),
    "classifier": ("whole", "sharded"),
}
_CHECKS: dict[str, Callable[..., Any]] = {"milestones": _milestones, "mean": _checks.tau}
_CHECKS |= dict.fromkeys(("epochs", "batch_size"), _checks.whole)
_CHECKS |= dict.fromkeys(
    ("crop_padding", "image_seed", "cutout", "image_size", "sampled_classes"),
    partial(_checks.whole, at_least=0),
)
_CHECKS |= dict.fromkeys(
    ("lr", "std", "head_scale", "mixup_alpha", "distill_temperature", "head_lr"), _checks.positive
)
_CHECKS |= dict.fromkeys(("weight_decay", "warmup_epochs", "sam_rho"), _checks.not_negative)
_CHECKS |= dict.fromkeys(("cutmix", "mixup", "distill_weight"), _checks.fraction)
_CHECKS |= dict.fromkeys(("momentum", "ema_decay"), partial(_checks.fraction, below_one=True))

_OF_MODEL = ("model", "head", "head_scale")  # recorded with the network
_NAMES = {f.name for f in fields(Recipe)} - {"name"}
_DEFAULTS = {f.name: f.default for f in fields(Recipe) if f.default is not MISSING}
_REQUIRED = _NAMES - _DEFAULTS.keys() - {"model"}
# What every record has.
_FROM_THE_START = {"epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay"}
_FROM_THE_START |= {"warmup_epochs", "schedule", "milestones", "mean", "std"}

_Values = dict[str, Any]
_SGD: _Values = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 128}
_CIFAR: _Values = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
_IMAGENET: _Values = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_STEPS: _Values = {"schedule": "steps", "milestones": ((160, 0.1), (180, 0.01))}

_PAPER = {"model": "resnet32", "epochs": 200, "weight_decay": 1e-4, "warmup_epochs": 5}
_PAPER |= _SGD | _STEPS | _CIFAR | {"crop_padding": 4, "flip": True}

# One network trained well: see docs/ingredients.md for what each part is.
_STRONG = _PAPER | {"epochs": 400, "optimizer": "nesterov", "weight_decay": 5e-4}
_STRONG |= {"schedule": "cosine", "milestones": (), "trivial_augment": True, "cutout": 16}

_LARGE = {"model": "resnet50", "epochs": 90, "weight_decay": 5e-4, "warmup_epochs": 5}
_LARGE |= _SGD | _IMAGENET | {"batch_size": 512, "lr": 0.4, "schedule": "cosine"}
_LARGE |= {"flip": True, "image_size": 224}

# For data of one's own: what `own_data` finds out about the images takes the place of some values.
_OWN = _LARGE | {"batch_size": 64, "optimizer": "nesterov"}

RECIPES: dict[str, dict[str, Any]] = {
    # Settled by hand for the demo.
    "digits": {"model": "small-conv", "epochs": 30, "batch_size": 32, "weight_decay": 5e-3}
    | {"optimizer": "nesterov", "lr": 0.05, "warmup_epochs": 2, "schedule": "cosine"}
    | {"mean": (0.305,), "std": (0.376,)},
    # The paper's appendix; what it leaves open is as usual for CIFAR.
    "paper": _PAPER,
    # The same with a weight decay that gives lower errors.
    "tuned": _PAPER | {"weight_decay": 5e-4},
    # The paper's authors' public code. Keras' l2(1e-4) has the gradient 2e-4 w. Images are
    # normalised, padded with zeros to 36 x 36 and cropped to 32 x 32; the 36 x 36 maps inside
    # the network come from its stem, whose 3 x 3 convolution pads by 3.
    "released": _SGD
    | {"model": "resnet32-released", "optimizer": "nesterov", "schedule": "steps"}
    | {"weight_decay": 2e-4, "decay": "not-norm", "mean": (0.5,), "std": (1.0,)}
    | {"crop_padding": 2, "crop_fill": "mean", "flip": True, "drop_last": True},
    # Cao et al.'s code. Its cosine head goes with the method `ldam` only; see `make_spec`.
    "ldam": _PAPER
    | {"weight_decay": 2e-4, "warmup": "epoch", "milestones": ((160, 0.01), (180, 1e-4))},
    # A single network without teachers; and one that learns from them, which SAM did not help and
    # twice the epochs do. It goes with classes drawn equally often (softmax+over-sampling); what
    # is mixed in comes from all images alike.
    "strong": _STRONG | {"sam_rho": 0.1},
    "strong-student": _STRONG
    | {"epochs": 800, "cutout": 0, "cutmix": 0.5, "mix_partner": "uniform"}
    | {"distill_weight": 0.8, "distill_temperature": 4.0, "distill_adjusted": False},
    # The paper's appendix for photographs; its other columns are model=resnet152 and epochs=200.
    # The batch is that of all processes together.
    "imagenet-lt": _LARGE,
    "inaturalist": _LARGE | {"weight_decay": 1e-4},
    # From pretrained weights, and without.
    "finetune": _OWN
    | {"epochs": 10, "lr": 0.01, "weight_decay": 1e-4, "warmup_epochs": 0.5, "head_lr": 10.0},
    "scratch": _OWN | {"model": "resnet18", "epochs": 200, "lr": 0.05},
    # Settled on digits' pixels and Gaussian classes of 400 to 20,000 examples with features of
    # length 1, of length √D and ten times that: a lower rate leaves small sets of unit length
    # unlearned, a higher one or weight decay costs accuracy on the others.
    "embeddings": {"model": "head", "epochs": 20, "batch_size": 256, "optimizer": "adam"}
    | {"lr": 0.02, "schedule": "cosine"},
}

# Values that depend on the data set. Of `released` the training was fixed in steps, 119,136 of
# 96 an epoch and 119,196 of 84, with the exponential profile of ratio 100.
PER_DATASET: dict[str, dict[str, dict[str, Any]]] = {
    "strong": {"cifar10-lt": {"epochs": 500}, "cifar100-lt": {"sam_rho": 0.2}},
    "strong-student": {"cifar10-lt": {"epochs": 600}},
    "released": {
        "cifar10-lt": {
            "epochs": 1241,
            "warmup_epochs": 20,
            "milestones": ((604, 0.1), (926, 0.01), (1128, 0.001)),
        },
        "cifar100-lt": {
            "epochs": 1419,
            "warmup_epochs": 22,
            "milestones": ((691, 0.1), (1059, 0.01), (1290, 0.001)),
        },
    },
}


def recipe_values(name: str, *, dataset: str | None = None) -> dict[str, Any]:
    """Return a named recipe's values for a data set, as far as it has them there."""
    if name not in RECIPES:
        raise unknown("recipe", name, list(RECIPES))
    return RECIPES[name] | PER_DATASET.get(name, {}).get(dataset or "", {})


def get_recipe(name: str, *, dataset: str | None = None, **overrides: Any) -> Recipe:
    """Return a named recipe with some values changed.

    Args:
        name: a key of `RECIPES`.
        dataset: for a recipe of which some values depend on it, see `PER_DATASET`.
        **overrides: values to change.

    Examples:
        >>> get_recipe("digits", epochs=3).epochs
        3
        >>> get_recipe("released", dataset="cifar10-lt").epochs
        1241
    """
    values = recipe_values(name, dataset=dataset) | overrides
    for key in overrides.keys() - _NAMES:
        raise InputError(f"recipe {name!r}: {unknown('value', key, sorted(_NAMES))}")
    by_dataset = PER_DATASET.get(name, {})
    lacking = sorted({key for part in by_dataset.values() for key in part} - set(values))
    if lacking:
        raise InputError(
            f"recipe {name!r}: {', '.join(lacking)} are settled for {' and '.join(by_dataset)} "
            f"only, not for {dataset or 'no data set'}; override them, or take the recipe 'paper'."
        )
    return Recipe(name=name, **values)


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Return overrides as typed, such as ``lr=0.2``, ``flip=false`` or ``milestones=[[60, 0.1]]``.

    Examples:
        >>> parse_overrides(["lr=0.2", "optimizer=adam"])
        {'lr': 0.2, 'optimizer': 'adam'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = (piece.strip() for piece in text.partition("="))
        key = key.replace("-", "_")
        if not key or not value:
            raise InputError(f"overrides are written as name=value; got {text!r}.")
        if key not in _NAMES:  # said before data are read
            raise InputError(f"override {text!r}: {unknown('value', key, sorted(_NAMES))}")
        if key in found:
            raise InputError(f"overrides: {key!r} is given twice.")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def make_spec(
    dataset: DataSpec,
    *,
    method: str | Part,
    recipe: str,
    seed: int,
    overrides: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Return the spec of one run: data, method, a named recipe and what differs from it.

    A method that needs a certain head gets it: `ldam` a cosine head. A threshold that a method
    needs comes from `methods.THRESHOLDS` where the data set is there. Both show in the spec.

    Args:
        dataset: which examples.
        method: as typed, such as ``logit-adjusted:tau=1.5+drw``, or the Part of another spec.
        recipe: a key of `RECIPES`.
        seed: of the run's own randomness.
        overrides: recipe values to change.

    Examples:
        >>> spec = make_spec(DataSpec("digits-lt"), method="softmax", recipe="digits", seed=3)
        >>> Recipe.of(spec) == get_recipe("digits")
        True
        >>> spec = make_spec(DataSpec("cifar10-lt"), method="ldam+drw", recipe="ldam", seed=0)
        >>> spec.model
        Part(name='resnet32', settings={'head': 'cosine'})
    """
    trained = Method.of(method)
    if trained.loss == THRESHOLD and trained.lacking and dataset.name in THRESHOLDS:
        threshold = {"threshold": THRESHOLDS[dataset.name]}
        trained = replace(trained, settings={**trained.settings, **threshold})
    for key in trained.lacking:
        how = "NUMBER/NUMBER/..., one per class" if key == "delta" else "NUMBER"
        published = ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
        hint = f" Published results have {published}." if key == "threshold" else ""
        raise InputError(
            f"method {trained.loss!r} needs `{key}`: write {trained.loss}:{key}={how}.{hint}"
        )
    head = HEADS.get(trained.loss)
    made = get_recipe(
        recipe, dataset=dataset.name, **({"head": head} if head else {}) | dict(overrides or {})
    )
    if head and (made.head != head or made.head_scale != 1):
        raise InputError(
            f"method {trained.loss!r} multiplies the logits itself and needs a {head} head "
            f"of scale 1, since others make training diverge; got head {made.head!r} and "
            f"head_scale {made.head_scale:g}. Leave both out, or train 'adaptive', the same "
            f"margin for a linear head."
        )
    if trained.drw and trained.first_weighted_epoch(made.epochs) >= made.epochs:
        raise InputError(
            f"method {trained.part.name!r}: drw would start at epoch {trained.drw_start}, but "
            f"training has {made.epochs} epochs; give an earlier start, or leave it out."
        )
    values = asdict(made)
    name, model = values.pop("name"), {key: values.pop(key) for key in _OF_MODEL}
    named = _DEFAULTS | recipe_values(recipe, dataset=dataset.name)
    changed = {key: v for key, v in values.items() if key not in named or v != named[key]}
    written = {
        key: value
        for key, value in values.items()
        if key in _FROM_THE_START or key in changed or value != _DEFAULTS[key]
    }
    own_head = {key: v for key, v in model.items() if key != "model" and v != _DEFAULTS[key]}
    return RunSpec(
        dataset=dataset,
        model=Part(made.model, Settings(own_head)),
        method=trained.part,
        recipe=RecipeSpec(name, Settings(written), Settings(changed)),
        seed=seed,
    )


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of one step (counted from 0 over the whole training).

    Warm-up by the step grows linearly from lr / warm-up steps to lr; by the epoch, epoch e of E
    (counted from 1) has lr · e / E. `cosine` then falls to 0 at the end.

    Examples:
        >>> recipe = get_recipe("digits", lr=1.0, epochs=4, warmup_epochs=1)
        >>> [round(learning_rate(recipe, step, 2), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    """
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if step < warmup:
        if recipe.warmup == "epoch":
            return recipe.lr * (step // steps_per_epoch + 1) / recipe.warmup_epochs
        return recipe.lr * (step + 1) / warmup
    if recipe.schedule == "cosine":
        total = recipe.epochs * steps_per_epoch
        done = (step - warmup) / max(total - warmup, 1)
        return recipe.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    factor = 1.0
    for epoch, value in recipe.milestones:
        if step >= epoch * steps_per_epoch:
            factor = value
    return recipe.lr * factor


def unreached_rates(spec: RunSpec) -> str | None:
    """Return a warning of learning rates beyond the last epoch, or None.

    Such a run is not refused, since a short run to try things out is honest, and nothing is
    scaled, since a recipe's values are what a run's record says.

    Examples:
        >>> spec = make_spec(
        ...     DataSpec("cifar10-lt"), method="softmax", recipe="paper", seed=0,
        ...     overrides={"epochs": 170},
        ... )
        >>> print(unreached_rates(spec))
        recipe paper: of 170 epochs none comes to milestones at 180; override milestones to fit.
    """
    recipe = Recipe.of(spec)
    start = f"recipe {recipe.name}: "
    if recipe.warmup_epochs >= recipe.epochs:
        return start + f"all {recipe.epochs} epochs are warm-up; override warmup_epochs to fit."
    beyond = [str(epoch) for epoch, _ in recipe.milestones if epoch >= recipe.epochs]
    if not beyond:
        return None
    return start + (
        f"of {recipe.epochs} epochs none comes to milestones at {' and '.join(beyond)}; override "
        f"milestones to fit."
    )
