"""Methods by name: text in, `Part` for a run's spec out, with its loss, weights and sampling.

A method is a loss, then whatever else, joined by ``+``; settings follow a colon:

    softmax
    logit-adjusted:tau=1.5
    ldam:max_margin=0.4,scale=20+drw:start=120
    logit-adjusted+label-smoothing:epsilon=0.05
    softmax+over-sampling

The losses are those of `margins.MARGINS` and ``equalized-threshold``. Post-hoc methods are not
trained: they are computed from the saved logits of softmax runs.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail import _checks
from longtail._checks import FloatArray, InputError
from longtail.margins import MARGINS, Margin, softmax
from longtail.priors import ClassPrior
from longtail.runs.spec import Part, Settings

if TYPE_CHECKING:
    from longtail.losses import PairwiseMarginLoss

REQUIRED = inspect.Parameter.empty
THRESHOLD = "equalized-threshold"

# λ of the threshold form as its authors' public settings have it, by data set.
THRESHOLDS = {"cifar10-lt": 0.05, "cifar100-lt": 5e-3}

# Sampling by name, and its rule in `data.samplers.ClassSampler`.
SAMPLINGS = {
    "over-sampling": "class-balanced",
    "under-sampling": "under",
    "sqrt-sampling": "square-root",
}

# The losses that don't correct for class frequencies by weights or log-priors. Sampling goes
# with these alone: with any other the imbalance would be corrected twice.
SAMPLED_LOSSES = ("softmax", "adaptive", "ldam", THRESHOLD)


# The head that a loss needs. LDAM multiplies its logits by 30; only cosines stand that.
HEADS = {"ldam": "cosine"}


# What may follow a loss, in the order of a canonical name, with its settings: as typed, the key in
# a run's record and the default.
EXTRAS: dict[str, Mapping[str, tuple[str, Any]]] = {
    "drw": {"start": ("drw_start", None), "beta": ("drw_beta", 0.9999)},
    "label-smoothing": {"epsilon": ("epsilon", 0.1)},
    "over-sampling": {},
    "under-sampling": {},
    "sqrt-sampling": {},
}


@cache
def loss_settings(loss: str) -> Mapping[str, Any]:
    """Return the settings of a loss and their defaults, `REQUIRED` where there is none.

    Examples:
        >>> loss_settings("ldam")
        {'max_margin': 0.5, 'scale': 30.0}
    """
    if loss == THRESHOLD:
        return {"threshold": REQUIRED, "gamma": 0.9}
    found = inspect.signature(MARGINS[loss]).parameters.values()
    return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True)
class Method:
    """The loss, weights and sampling that a run trains with.

    Attributes:
        loss: a key of `margins.MARGINS`, or ``equalized-threshold``.
        settings: of the loss; those not given have its defaults.
        drw: whether class-balanced weights come in late in training.
        drw_start: the first epoch that has them, counted from 0; None: at 80% of the epochs.
        drw_beta: β of those weights.
        label_smoothing: ε, 0 for none.
        sampling: how batches are drawn, a rule of `data.samplers.ClassSampler`.

    Examples:
        >>> method = Method.of("logit-adjusted:tau=2+drw")
        >>> method.loss, dict(method.settings), method.drw, method.sampling
        ('logit-adjusted', {'tau': 2.0}, True, 'instance')
        >>> method.part
        Part(name='logit-adjusted+drw', settings={'tau': 2.0})
    """

    loss: str
    settings: Mapping[str, Any] = field(default_factory=Settings)
    drw: bool = False
    drw_start: int | None = None
    drw_beta: float = 0.9999
    label_smoothing: float = 0.0
    sampling: str = "instance"
    # The settings that the loss has no default for and that are not given.
    lacking: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", Settings(self.settings))
        known = loss_settings(self.loss)
        lacking = (key for key, d in known.items() if d is REQUIRED and key not in self.settings)
        object.__setattr__(self, "lacking", tuple(lacking))
        for key in self.settings:
            _check_known(key, known, self.loss)
        if self.label_smoothing != 0:
            _checks.fraction(self.label_smoothing, name="epsilon")
        if self.drw:
            _checks.fraction(self.drw_beta, name="beta of drw", below_one=True)
        if self.drw_start is not None:
            _checks.whole(self.drw_start, name="start of drw", at_least=0)
        if self.sampling != "instance" and (self.drw or self.loss not in SAMPLED_LOSSES):
            other = "drw" if self.drw else self.loss
            sampled = next(name for name, rule in SAMPLINGS.items() if rule == self.sampling)
            raise InputError(
                f"{other} and {sampled} both correct for class frequencies, and together would do "
                f"it twice; take one of them. {sampled} goes with the losses "
                f"{', '.join(SAMPLED_LOSSES)}."
            )
        # Values of the loss's settings: refused now, by the margin of a tiny prior, and not when
        # the data are there.
        if self.loss == THRESHOLD:
            for name, value in self.settings.items():
                _checks.fraction(value, name=name)
        elif self.settings and not self.lacking:
            classes = len(self.settings.get("delta", (1.0, 1.0)))
            MARGINS[self.loss](ClassPrior.from_counts([2] * classes), **self.settings)

    @classmethod
    def of(cls, method: Part | str) -> Method:
        """Return the method of a run's spec, or of a text (see the head of this file).

        Examples:
            >>> Method.of("ldam+drw:start=120").part
            Part(name='ldam+drw', settings={'drw_start': 120})
        """
        text, given = (method, {}) if isinstance(method, str) else (method.name, method.settings)
        try:
            parts = [
                (name.strip().lower().replace("_", "-"), rest.split(",") if colon else ())
                for name, colon, rest in (part.partition(":") for part in text.split("+"))
            ]
            names = [name for name, _ in parts]
            losses, sampled = (*MARGINS, THRESHOLD), [name for name in names if name in SAMPLINGS]
            if names[0] not in losses or any(name not in EXTRAS for name in names[1:]):
                raise _misplaced(names, losses)
            if len(sampled) > 1:
                raise InputError(
                    f"batches are drawn in one way, but {' and '.join(sampled)} are two."
                )
            own = {key: value for key, value in given.items() if key not in _EXTRA_KEYS}
            extra = {key: value for key, value in given.items() if key in _EXTRA_KEYS}
            for name, pairs in parts:
                if pairs and name in EXTRAS:
                    keys = {typed: key for typed, (key, _) in EXTRAS[name].items()}
                    extra |= _typed(name, pairs, keys)
                elif pairs:
                    own |= _typed(name, pairs, {key: key for key in loss_settings(name)})
            smooth = extra.pop("epsilon", EXTRAS["label-smoothing"]["epsilon"][1])
            return cls(
                loss=names[0],
                settings=own,
                drw="drw" in names,
                label_smoothing=smooth if "label-smoothing" in names else 0.0,
                sampling=SAMPLINGS[sampled[0]] if sampled else "instance",
                **extra,
            )
        except InputError as error:
            raise InputError(f"method {text!r}: {error}") from None

    @property
    def part(self) -> Part:
        """The form of a run's spec: extras in one order, and no setting at its default.

        So one method has one hash however it was typed, and a setting that a later version
        adds changes no existing one.
        """
        defaults = loss_settings(self.loss)
        settings = {key: v for key, v in self.settings.items() if v != defaults[key]}
        has = {"drw": self.drw, "label-smoothing": self.label_smoothing > 0}
        has |= {name: self.sampling == rule for name, rule in SAMPLINGS.items()}
        mine = {"drw_start": self.drw_start, "drw_beta": self.drw_beta}
        mine["epsilon"] = self.label_smoothing
        extras = [name for name in EXTRAS if has[name]]
        for key, default in (pair for name in extras for pair in EXTRAS[name].values()):
            if mine[key] != default:
                settings[key] = mine[key]
        return Part("+".join([self.loss, *extras]), Settings(settings))

    def margin(self, prior: ClassPrior) -> Margin | None:
        """Return the margin of the loss, or None for a loss that is more than an additive one."""
        if self.loss == THRESHOLD or self.label_smoothing > 0:
            return None
        margin = MARGINS[self.loss](prior, **self.settings)
        return margin if margin.dense is None else None

    def criterion(self, prior: ClassPrior) -> PairwiseMarginLoss:
        """Return the loss as a module of (logits, target), for the prior of the training examples.

        With DRW it has a `weight` buffer, ones at first, to be filled from `class_weights`.
        """
        import torch

        from longtail import losses

        options: losses.LossOptions = {"label_smoothing": self.label_smoothing}
        if self.drw:
            options["weight"] = torch.ones(prior.num_classes)
        if self.loss == THRESHOLD:
            return losses.EqualizedThresholdLoss(prior, **self.settings, **options)
        return losses.PairwiseMarginLoss(MARGINS[self.loss](prior, **self.settings), **options)

    def first_weighted_epoch(self, epochs: int) -> int:
        """Return the first epoch with DRW, from 0: `drw_start`, or 80% of them (160 of 200)."""
        if self.drw_start is None:
            return min(round(0.8 * epochs), epochs - 1)  # the last epoch at the latest
        return self.drw_start

    def class_weights(self, prior: ClassPrior, epoch: int, epochs: int) -> FloatArray | None:
        """Return the class weights of one epoch (counted from 0), or None where there are none.

            w_y = L · v_y / Σ v,   v_y = (1 − β) / (1 − β^{n_y})

        They have the meaning of torch's `weight`: Σ w_y ℓ / Σ w_y over the batch. `prior` is that
        of the training examples, made from counts.

        Examples:
            >>> prior = ClassPrior.from_counts([5000, 500, 50])
            >>> Method.of("softmax+drw").class_weights(prior, 160, 200).round(3)
            array([0.034, 0.275, 2.691])
        """
        if not self.drw or epoch < self.first_weighted_epoch(epochs):
            return None
        inverse = 1.0 / prior.effective_numbers(beta=self.drw_beta)
        weights: FloatArray = prior.num_classes * inverse / inverse.sum()
        return weights

    def residual_adjustment(self, prior: ClassPrior) -> FloatArray:
        """Return what is left to add to a trained network's logits, see `Margin`'s.

        −log π where nothing is known of the loss; `prior` is that of the training examples.

        Examples:
            >>> from longtail.posthoc import tau_left
            >>> prior = ClassPrior.from_counts([500, 50, 5])
            >>> names = "logit-adjusted", "logit-adjusted:tau=0.7", "softmax", "softmax+drw"
            >>> residuals = [Method.of(name).residual_adjustment(prior) for name in names]
            >>> [round(tau_left(residual, prior), 1) for residual in residuals]
            [0.0, 0.3, 1.0, 0.0]
        """
        if self.sampling in ("class-balanced", "under"):
            return np.zeros(prior.num_classes)
        margin = softmax(prior)
        if self.loss in MARGINS and not self.lacking:
            own = MARGINS[self.loss](prior, **self.settings)
            if own.is_antisymmetric:  # of others, such as LDAM's, it is not known how much is left
                margin = own
        residual = margin.residual_adjustment(prior)
        late = replace(self, drw_start=0).class_weights(prior, 0, 1)
        return residual if late is None else residual - np.log(late) / margin.scale

    @property
    def is_plain(self) -> bool:
        """True if nothing in it favours rare classes: the softmax, whose whole τ is left."""
        return self.loss == "softmax" and not self.drw and self.sampling == "instance"


_EXTRA_KEYS = {key for extra in EXTRAS.values() for key, _ in extra.values()}


def _typed(name: str, pairs: Sequence[str], keys: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a part as typed, by their keys in a record: numbers, or several with slashes."""
    found: dict[str, Any] = {}
    for pair in pairs:
        typed, equals, text = (piece.strip() for piece in pair.partition("="))
        typed = typed.lower().replace("-", "_")
        if not equals or not typed:
            raise InputError(f"settings are written as {name}:name=value,name=value; got {pair!r}.")
        _check_known(typed, keys, name)
        key = keys[typed]
        if key in found:
            raise InputError(f"{typed!r} of {name!r} is given twice.")
        kind: type[int] | type[float] = int if key == "drw_start" else float
        try:
            values = tuple(kind(piece) for piece in text.split("/"))
        except ValueError:
            whole = "whole " if kind is int else ""
            raise InputError(f"{typed} of {name} must be a {whole}number; got {text!r}.") from None
        found[key] = values if len(values) > 1 or key == "delta" else values[0]
    return found


def _misplaced(names: Sequence[str], losses: Sequence[str]) -> InputError:
    """Return the error for the first of a method's names that doesn't exist or stand there."""
    loss, *extras = names
    if loss.startswith("posthoc-"):
        return InputError(
            "a post-hoc method is not trained; train softmax, and the comparison of its "
            "evaluated runs computes the post-hoc methods from their logits."
        )
    if loss in EXTRAS:
        return InputError(
            f"{loss!r} comes on top of a loss, which stands first, such as softmax+{loss}."
        )
    if loss not in losses:
        return unknown("loss", loss, losses)
    extra = next(extra for extra in extras if extra not in EXTRAS)
    if extra in losses:
        return InputError(
            f"a method has one loss, but {loss!r} and {extra!r} are two; after the loss may come "
            f"{', '.join(EXTRAS)}."
        )
    return unknown("part", extra, list(EXTRAS))


def _check_known(key: str, known: Mapping[str, Any], name: str) -> None:
    if key not in known:
        has = f"it has {', '.join(known)}." if known else "it has none."
        raise InputError(f"{name!r} has no setting {key!r}; {has}")


def unknown(what: str, value: object, options: Sequence[str], *, alike: float = 0.5) -> InputError:
    """Return the error for an unknown name: the nearest names, at least so alike, then all."""
    near = difflib.get_close_matches(str(value), options, n=3, cutoff=alike)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return InputError(f"there is no {what} {value!r}{hint} There are {', '.join(options)}.")
