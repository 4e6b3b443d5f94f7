"""Single values: numbers, names to choose from, keyword arguments, the prior."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longtail._checks._errors import InputError, _by

if TYPE_CHECKING:
    from longtail.priors import ClassPrior


def tau(value: Any, caller: str = "", *, name: str = "tau") -> float:
    """A finite real number; true and false are none."""
    if isinstance(value, bool):
        raise InputError(f"{_by(caller)}`{name}` must be a number; got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{_by(caller)}`{name}` must be a number; got {value!r}.") from error
    if not -math.inf < number < math.inf:  # as a comparison, torch.compile can trace it
        raise InputError(f"{_by(caller)}`{name}` must be finite; got {number}.")
    return number


def positive(value: Any, caller: str = "", *, name: str) -> float:
    """A finite number above zero."""
    number = tau(value, caller, name=name)
    if number <= 0:
        raise InputError(f"{_by(caller)}`{name}` must be above zero; got {number:g}.")
    return number


def whole(value: Any, caller: str = "", *, name: str, at_least: int = 1) -> int:
    """A whole number, at least `at_least` (1: a count that can't be zero)."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise InputError(
            f"{_by(caller)}`{name}` must be a whole number, at least {at_least}; got {value!r}."
        )
    return number


def fraction(value: Any, caller: str = "", *, name: str, below_one: bool = False) -> float:
    """A number in [0, 1], or in [0, 1) with `below_one`."""
    number = tau(value, caller, name=name)
    if number < 0 or number > 1 or (below_one and number == 1):
        raise InputError(
            f"{_by(caller)}`{name}` must lie in [0, 1{')' if below_one else ']'}; got {number:g}."
        )
    return number


def choice(value: Any, options: Sequence[str], caller: str = "", *, name: str) -> str:
    """One of the listed names."""
    if value not in options:
        raise InputError(
            f"{_by(caller)}`{name}` must be one of {', '.join(repr(o) for o in options)}; "
            f"got {value!r}."
        )
    return str(value)


def settings(
    given: Mapping[str, Any], function: Callable[..., Any], caller: str = "", *, of: str
) -> None:
    """Names of keyword-only arguments that `function` takes, all those without default among them.

    `of` is what the function makes, for the message.
    """
    parameters = inspect.signature(function).parameters.values()
    takes = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    listed = " and ".join(f"`{name}`" for name in takes) or "no settings"
    for name in given:
        if name not in takes:
            raise InputError(f"{_by(caller)}{of} has no setting `{name}`; it takes {listed}.")
    for name, required in takes.items():
        if required and name not in given:
            raise InputError(
                f"{_by(caller)}{of} needs `{name}`, which is missing; it takes {listed}."
            )


def prior(
    value: Any,
    caller: str = "",
    *,
    num_classes: int | None = None,
    shape: tuple[int, ...] | None = None,
    name: str = "prior",
    of: str | None = None,
) -> ClassPrior:
    """A ClassPrior, as wide as the logits, or as the argument `of`, where a width is given."""
    from longtail.priors import ClassPrior

    if not isinstance(value, ClassPrior):
        raise InputError(
            f"{_by(caller)}`{name}` must be a ClassPrior; got {type(value).__name__}. "
            f"Counts and probabilities are easily mistaken for each other, so say which: "
            f"ClassPrior.from_counts(...), .from_probs(...) or .from_labels(...)."
        )
    if num_classes is not None and value.num_classes != num_classes:
        shaped = f", shape {tuple(shape)}" if shape is not None else ""
        raise InputError(
            f"{_by(caller)}`{name}` has {value.num_classes} classes but "
            f"{'the logits have' if of is None else f'`{of}` has'} {num_classes} columns{shaped}; "
            f"{ClassPrior._advice_on_width(value.num_classes, num_classes, shape)}."
        )
    return value
