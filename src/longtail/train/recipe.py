"""Recipes: how to train, as data. What to train on and with which loss is the spec's.

`Recipe` has the fields, `RECIPES` the values of the named recipes. A recipe's values are written
out in each run's record, and what differs from the named recipe is listed there as an override.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args, get_type_hints

from longtail import _checks
from longtail._checks import InputError
from longtail.runs.spec import DataSpec, Part, RecipeSpec, RunSpec, Settings
from longtail.train.methods import HEADS, THRESHOLD, THRESHOLDS, Method, unknown


def _value(check: Callable[..., Any], default: Any) -> Any:
    """A field whose values are checked, and brought into one form, by a function."""
    return field(default=default, metadata={"check": check})


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


_COUNT = partial(_checks.whole, at_least=0)
_BELOW_ONE = partial(_checks.fraction, below_one=True)


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not data, method or seed.

    Attributes:
        name: what the command line calls it.
        model: a key of `models.MODELS`.
        epochs: passes over the training set.
        batch_size: examples a step, of all processes together.
        optimizer: `sgd`, `nesterov` or `adam`.
        lr: peak learning rate.
        momentum: of SGD.
        weight_decay: λ, adds λ·w to the gradient, as torch's optimisers do.
        warmup_epochs: linear warm-up to `lr`.
        schedule: after the warm-up, `constant` or `cosine` to zero, or `steps`.
        milestones: with `steps`: (epoch, factor of `lr` from there on) pairs, epochs counted
            from 0. One after the last epoch is never reached.
        mean: per channel, or one for all, subtracted from pixels scaled to [0, 1].
        std: likewise, divides them.
        warmup: whether the rate grows at every `step` or only at every `epoch`.
        decay: weight decay on `all` parameters, or on all but batch norm's, `not-norm`.
        drop_last: leave out an epoch's last batch if it is smaller than the others.
        crop_padding: pixels added on each side before a random crop to the image's own size;
            0 for no crops.
        crop_fill: what is added, `black` pixels or the `mean`, which is 0 after normalisation.
        flip: mirror half of the images.
        head: the network's last layer, `linear`, `cosine` or `unit-norm`.
        head_scale: multiplies the logits of a cosine head.
        image_seed: whose order, crops, augmentation and mixing a run sees; None for its own
            seed's. Runs with the same value see the same images.
        trivial_augment: one random operation of random strength on each image, see `trivial`.
        cutout: side in pixels of the square that is hidden in each image, 0 for none.
        cutmix: the share of the examples that get a patch of another image, in [0, 1].
        mixup: the share that are blended with another image; an example is mixed in one way at
            most, so the two shares add up to at most 1.
        mixup_alpha: α, the weight in a blend is drawn from Beta(α, α).
        mix_partner: how the other image is drawn, `uniform` or by inverse class frequency,
            `minority`; see `mixing`.
        sam_rho: how far sharpness-aware minimisation looks before it steps, see `sam`; 0 for
            plain steps.
        ema_decay: d, so that the weights judged and saved are an average over the steps in which
            the newest has the weight 1 − d, see `averaging`; 0 for the last step's.
        distill_weight: w, the loss is (1 − w)·loss + w·T²·KL(teachers ‖ run); above 0 the run
            needs teachers.
        distill_temperature: T.
        distill_adjusted: take the KL divergence after adding log π to the logits of both.
        image_size: 0 for images that come in one size; above it, for photographs of any size,
            the pixels of a side that a network sees. Training cuts out a part of random area
            and shape (`photos.RandomCrop`), evaluation the centre (`evaluation_resize`).
        classifier: `whole` in every process, or `sharded`: each holds a slice of the classes and
            none has all logits; see `sharded`.
        sampled_classes: m, so many classes are drawn at each step for the loss to compare with
            (sampled softmax); 0 for all of them.
        head_lr: the last layer's learning rate as a multiple of the others'.
        freeze_backbone: train the last layer only; the others get no gradients, and batch norm
            uses its running statistics.
    """

    name: str
    model: str
    epochs: int = field(metadata={"check": _checks.whole})
    batch_size: int = field(metadata={"check": _checks.whole})
    optimizer: Literal["sgd", "nesterov", "adam"]
    lr: float = field(metadata={"check": _checks.positive})
    momentum: float = _value(_BELOW_ONE, 0.9)
    weight_decay: float = _value(_checks.not_negative, 0.0)
    warmup_epochs: float = _value(_checks.not_negative, 0.0)
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    milestones: tuple[tuple[int, float], ...] = _value(_milestones, ())
    mean: tuple[float, ...] = _value(_checks.tau, (0.0,))
    std: tuple[float, ...] = _value(_checks.positive, (1.0,))
    # Fields below came later. A record has them only where they differ from these defaults,
    # so that runs from before keep their hashes; the same goes for any that is added.
    warmup: Literal["step", "epoch"] = "step"
    decay: Literal["all", "not-norm"] = "all"
    drop_last: bool = False
    crop_padding: int = _value(_COUNT, 0)
    crop_fill: Literal["black", "mean"] = "black"
    flip: bool = False
    head: Literal["linear", "cosine", "unit-norm"] = "linear"
    head_scale: float = _value(_checks.positive, 1.0)
    image_seed: int | None = _value(_COUNT, None)
    trivial_augment: bool = False
    cutout: int = _value(_COUNT, 0)
    cutmix: float = _value(_checks.fraction, 0.0)
    mixup: float = _value(_checks.fraction, 0.0)
    mixup_alpha: float = _value(_checks.positive, 1.0)
    mix_partner: Literal["uniform", "minority"] = "uniform"
    sam_rho: float = _value(_checks.not_negative, 0.0)
    ema_decay: float = _value(_BELOW_ONE, 0.0)
    distill_weight: float = _value(_checks.fraction, 0.0)
    distill_temperature: float = _value(_checks.positive, 1.0)
    distill_adjusted: bool = False
    image_size: int = _value(_COUNT, 0)
    classifier: Literal["whole", "sharded"] = "whole"
    sampled_classes: int = _value(_COUNT, 0)
    head_lr: float = _value(_checks.positive, 1.0)
    freeze_backbone: bool = False

    def __post_init__(self) -> None:
        try:
            for one in fields(self):
                name, value = one.name, getattr(self, one.name)
                check: Any = one.metadata.get("check")
                if value == one.default and type(value) is type(one.default):
                    continue
                if name in _CHOICES:
                    _checks.choice(value, _CHOICES[name], name=name)
                elif isinstance(one.default, bool) and not isinstance(value, bool):
                    raise InputError(f"`{name}` must be true or false; got {value!r}.")
                elif name in ("mean", "std"):
                    each = value if isinstance(value, list | tuple) else [value]
                    object.__setattr__(self, name, tuple(check(v, name=name) for v in each))
                elif check is not None:
                    object.__setattr__(self, name, check(value, name=name))
            for wrong, message in self._rules():
                if wrong:
                    raise InputError(message)
        except InputError as error:
            raise InputError(f"recipe {self.name!r}: {error}") from None

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """Values that don't go together, and settings of an ingredient that is off."""
        yield (
            self.image_size > 0 and self.crop_padding > 0,
            f"`crop_padding` belongs to images of one size, but `image_size` is "
            f"{self.image_size}: photographs are cropped to it without padding; set one to 0.",
        )
        yield (
            self.head_scale != 1 and self.head != "cosine",
            f"`head_scale` belongs to a cosine head, but the head is {self.head!r}; override "
            f"both together.",
        )
        yield (
            self.optimizer == "nesterov" and self.momentum == 0,
            "`nesterov` needs a momentum above 0; use sgd without one.",
        )
        yield (
            self.warmup == "epoch" and self.warmup_epochs != int(self.warmup_epochs),
            f"`warmup_epochs` must be whole where the rate grows by the epoch; got "
            f"{self.warmup_epochs}.",
        )
        yield (
            (self.schedule == "steps") != bool(self.milestones),
            f"`milestones` belong to the schedule 'steps'; the schedule is {self.schedule!r} "
            f"and the milestones are {list(self.milestones)}. Override both together.",
        )
        yield (
            len(self.mean) != len(self.std) and 1 not in (len(self.mean), len(self.std)),
            f"`mean` and `std` must have one value per channel, or one for all; they have "
            f"{len(self.mean)} and {len(self.std)}.",
        )
        yield (
            self.cutmix + self.mixup > 1,
            f"an example is mixed in one way at most, so `cutmix` and `mixup` must add up to "
            f"at most 1; got {self.cutmix:g} and {self.mixup:g}.",
        )
        for key, of, share in (
            ("mix_partner", "cutmix or mixup", self.cutmix + self.mixup),
            ("mixup_alpha", "mixup", self.mixup),
            ("distill_temperature", "distill_weight", self.distill_weight),
            ("distill_adjusted", "distill_weight", self.distill_weight),
        ):
            yield (
                share == 0 and getattr(self, key) != _DEFAULTS[key],
                f"`{key}` is {getattr(self, key)!r} but {of} is 0, so it would do nothing; "
                f"override both together.",
            )

    @property
    def stack_values(self) -> tuple[object, ...]:
        """Values that runs must have in common to step as one, see `loop.Training`.

        They may differ in what happens to their images; in how much weight decay they have, where
        all have some; in how far SAM looks, where all of them take its two passes; and in how
        they learn from teachers, where all do.
        """
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        for key in ("sam_rho", "weight_decay", "distill_weight"):
            own[key] = own[key] > 0
        free = ("name", "image_seed", "distill_temperature", "distill_adjusted", *OF_IMAGES)
        return tuple(value for key, value in own.items() if key not in free)

    @property
    def border(self) -> tuple[float, ...]:
        """The padding of crops after normalisation, per channel or one for all."""
        width = max(len(self.mean), len(self.std))
        if self.crop_fill == "mean":
            return (0.0,) * width
        means, stds = (v if len(v) == width else v * width for v in (self.mean, self.std))
        return tuple(-m / s for m, s in zip(means, stds, strict=True))

    @property
    def evaluation_resize(self) -> int:
        """Pixels of a photograph's shorter side before its centre is cut out: 256 for 224."""
        return round(self.image_size * 256 / 224)

    @classmethod
    def of(cls, spec: RunSpec) -> Recipe:
        """The recipe that a run's spec carries."""
        unread = sorted(set(spec.recipe.values) - _NAMES)
        if unread:
            raise InputError(
                f"Recipe.of: the run's recipe has {', '.join(unread)}, which this version does "
                f"not know; a newer longtail may."
            )
        lacking = sorted(_REQUIRED - set(spec.recipe.values))
        if lacking:
            raise InputError(
                f"Recipe.of: the run's recipe, {spec.recipe.name!r}, has no {', '.join(lacking)}, "
                f"as of a training loop of one's own, which has to write its logits itself."
            )
        head = {key: v for key, v in spec.model.settings.items() if key in _OF_MODEL}
        return cls(name=spec.recipe.name, model=spec.model.name, **head, **spec.recipe.values)


_HINTS = get_type_hints(Recipe)
_CHOICES = {f.name: get_args(_HINTS[f.name]) for f in fields(Recipe) if "Literal" in str(f.type)}
_NAMES = {f.name for f in fields(Recipe)} - {"name"}
_OF_MODEL = ("model", "head", "head_scale")  # recorded with the network
_REQUIRED = {f.name for f in fields(Recipe) if f.default is MISSING} - {"name", *_OF_MODEL}
# What happens to images before a network sees them, beside normalisation.
OF_IMAGES = (
    *("crop_padding", "crop_fill", "flip", "trivial_augment", "cutout"),
    *("cutmix", "mixup", "mixup_alpha", "mix_partner"),
)
_FROM_THE_START = {"epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay"}
_FROM_THE_START |= {"warmup_epochs", "schedule", "milestones", "mean", "std"}
_DEFAULTS = {f.name: f.default for f in fields(Recipe) if f.default is not MISSING}

_PAPER: dict[str, Any] = {
    "model": "resnet32",
    "epochs": 200,
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "warmup_epochs": 5,
    "schedule": "steps",
    "milestones": ((160, 0.1), (180, 0.01)),
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
    "crop_padding": 4,
    "flip": True,
}

# One network trained well: see docs/ingredients.md for what each part is.
_STRONG: dict[str, Any] = _PAPER | {
    "epochs": 400,
    "optimizer": "nesterov",
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "milestones": (),
    "trivial_augment": True,
    "cutout": 16,
}

_LARGE: dict[str, Any] = {
    "model": "resnet50",
    "epochs": 90,
    "batch_size": 512,
    "optimizer": "sgd",
    "lr": 0.4,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "warmup_epochs": 5,
    "schedule": "cosine",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "flip": True,
    "image_size": 224,
}

RECIPES: dict[str, dict[str, Any]] = {
    # Settled by hand for the demo.
    "digits": {
        "model": "small-conv",
        "epochs": 30,
        "batch_size": 32,
        "optimizer": "nesterov",
        "lr": 0.05,
        "weight_decay": 5e-3,
        "warmup_epochs": 2,
        "schedule": "cosine",
        "mean": (0.305,),
        "std": (0.376,),
    },
    # The paper's appendix; what it leaves open is as usual for CIFAR.
    "paper": _PAPER,
    # The same with a weight decay that gives lower errors.
    "tuned": _PAPER | {"weight_decay": 5e-4},
    # The paper's authors' public code. Keras' l2(1e-4) has the gradient 2e-4 w. Images are
    # normalised, padded with zeros to 36 x 36 and cropped to 32 x 32; the 36 x 36 maps inside
    # the network come from its stem, whose 3 x 3 convolution pads by 3.
    "released": {
        "model": "resnet32-released",
        "batch_size": 128,
        "optimizer": "nesterov",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 2e-4,
        "decay": "not-norm",
        "schedule": "steps",
        "mean": (0.5,),
        "std": (1.0,),
        "crop_padding": 2,
        "crop_fill": "mean",
        "flip": True,
        "drop_last": True,
    },
    # Cao et al.'s code. Its cosine head goes with the method `ldam` only; see `make_spec`.
    "ldam": _PAPER
    | {"weight_decay": 2e-4, "warmup": "epoch", "milestones": ((160, 0.01), (180, 1e-4))},
    # A single network without teachers; and one that learns from them, which SAM did not help and
    # twice the epochs do. It goes with classes drawn equally often (softmax+over-sampling); what
    # is mixed in comes from all images alike.
    "strong": _STRONG | {"sam_rho": 0.1},
    "strong-student": _STRONG
    | {
        "epochs": 800,
        "cutout": 0,
        "cutmix": 0.5,
        "mix_partner": "uniform",
        "distill_weight": 0.8,
        "distill_temperature": 4.0,
        "distill_adjusted": False,
    },
    # The paper's appendix for photographs; its other columns are model=resnet152 and epochs=200.
    # The batch is that of all processes together.
    "imagenet-lt": _LARGE,
    "inaturalist": _LARGE | {"weight_decay": 1e-4},
    # For data of one's own, from pretrained weights and without; what `own_data` finds out about
    # the images takes the place of some values.
    "finetune": _LARGE
    | {
        "epochs": 10,
        "batch_size": 64,
        "optimizer": "nesterov",
        "lr": 0.01,
        "weight_decay": 1e-4,
        "warmup_epochs": 0.5,
        "head_lr": 10.0,
    },
    "scratch": _LARGE
    | {
        "model": "resnet18",
        "epochs": 200,
        "batch_size": 64,
        "optimizer": "nesterov",
        "lr": 0.05,
    },
    # Settled on digits' pixels and Gaussian classes of 400 to 20,000 examples with features of
    # length 1, of length √D and ten times that: a lower rate leaves small sets of unit length
    # unlearned, a higher one or weight decay costs accuracy on the others.
    "embeddings": {
        "model": "head",
        "epochs": 20,
        "batch_size": 256,
        "optimizer": "adam",
        "lr": 0.02,
        "schedule": "cosine",
    },
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
    """A named recipe as it stands for a data set; values that it lacks there are left out."""
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
    values = recipe_values(name, dataset=dataset)
    for key in overrides:
        if key not in _NAMES:
            raise InputError(f"recipe {name!r}: {unknown('value', key, sorted(_NAMES))}")
    values |= overrides
    by_dataset = PER_DATASET.get(name, {})
    lacking = sorted({key for part in by_dataset.values() for key in part} - set(values))
    if lacking:
        raise InputError(
            f"recipe {name!r}: {', '.join(lacking)} are settled for {' and '.join(by_dataset)} "
            f"only, not for {dataset or 'no data set'}; override them, or take the recipe 'paper'."
        )
    return Recipe(name=name, **values)


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Overrides as typed: ``lr=0.2``, ``flip=false``, ``milestones=[[60, 0.1], [80, 0.01]]``.

    Examples:
        >>> parse_overrides(["lr=0.2", "optimizer=adam"])
        {'lr': 0.2, 'optimizer': 'adam'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (piece.strip() for piece in text.partition("="))
        key = key.replace("-", "_")
        if not equals or not key or not value:
            raise InputError(f"overrides are written as name=value; got {text!r}.")
        if key not in _NAMES:
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
        how = {"delta": "NUMBER/NUMBER/..., one per class"}.get(key, "NUMBER")
        published = ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
        hint = f" Published results have {published}." if key == "threshold" else ""
        raise InputError(
            f"method {trained.loss!r} needs `{key}`: write {trained.loss}:{key}={how}.{hint}"
        )
    overrides, head = dict(overrides or {}), HEADS.get(trained.loss)
    if head is not None:
        overrides.setdefault("head", head)
    made = get_recipe(recipe, dataset=dataset.name, **overrides)
    if head is not None and (made.head != head or made.head_scale != 1):
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
    values = {key: value for key, value in asdict(made).items() if key != "name"}
    model = {key: values.pop(key) for key in _OF_MODEL}
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
        recipe=RecipeSpec(recipe, Settings(written), Settings(changed)),
        seed=seed,
    )


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step (counted from 0 over the whole training).

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
    """A warning of learning rates beyond the last epoch, or None.

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
    beyond = [str(epoch) for epoch, _ in recipe.milestones if epoch >= recipe.epochs]
    if recipe.warmup_epochs >= recipe.epochs:
        told, key = f"all {recipe.epochs} epochs are warm-up", "warmup_epochs"
    elif beyond:
        told = f"of {recipe.epochs} epochs none comes to milestones at {' and '.join(beyond)}"
        key = "milestones"
    else:
        return None
    return f"recipe {recipe.name}: {told}; override {key} to fit."
