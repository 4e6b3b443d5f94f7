"""How a TauResult reads: its choice, its uncertainty and what to beware of, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from longtail.tuning import TauResult


def landmarks(result: TauResult) -> list[float]:
    """The taus that everybody asks about, as far as they were searched: 0 and 1."""
    low, high = result.curve.bounds
    return [tau for tau in (0.0, 1.0) if low <= tau <= high]


def describe(result: TauResult, class_names: Sequence[str] | None) -> str:
    """A result in a few lines; classes by their numbers where they have no names."""
    counts = result.counts
    others = ", ".join(f"{result.error_at(t):.4g} at tau = {t:g}" for t in landmarks(result))
    name = result.criterion.replace("_", " ")
    fewest = int(np.argmin(counts))
    lines = [
        *_choice(result),
        f"  {name} {result.error:.4g} ± {result.standard_error:.2g} (standard error)",
        *([f"  {others}"] if others else []),
        f"  {int(counts.sum())} held-out examples of {len(counts)} classes, "
        f"fewest {int(counts[fewest])} ({_class(fewest, class_names)})",
        *_stand_ins(result, class_names),
        *_too_few(result),
        *_doubts(result),
    ]
    return "\n".join(lines)


def _class(index: int, names: Sequence[str] | None) -> str:
    return f"class {index if names is None else names[index]}"


def _choice(result: TauResult) -> list[str]:
    method = result.method.replace("_", " ")
    if result.bias_mode is not None:
        method += f", bias_mode={result.bias_mode!r}"
    lines = [f"tau = {result.tau:.4g} ({method})"]
    if result.confidence is not None:
        low, high = result.confidence
        lines.append(f"  {result.confidence_level:.0%} bootstrap interval {low:.4g} to {high:.4g}")
    return lines


def _stand_ins(result: TauResult, class_names: Sequence[str] | None) -> list[str]:
    """What the balanced error makes of classes without examples, if there are any."""
    missing = np.flatnonzero(result.counts == 0)
    if not len(missing) or result.criterion != "balanced_error":
        return []
    one = len(missing) == 1
    which = f"{_class(missing[0], class_names)} has" if one else f"{len(missing)} classes have"
    who = "it" if one else "each of them"
    return [f"  {which} none: the nearest class in size counts for {who} too"]


def _too_few(result: TauResult) -> list[str]:
    """What few examples of rare classes make of the interval."""
    if result.confidence is None or not result.few_decide:
        return []
    number = f"{result.deciding_examples:.0f}"
    return [f"  in effect {number} of them decide: the interval is likely too narrow"]


def _doubts(result: TauResult) -> list[str]:
    """What a tau at an end of its bounds, or anywhere within them, may mean."""
    if result.indifferent:
        return [f"  every tau within the bounds {result.bounds} is equally good"]
    if result.at_zero:
        return [
            "  any adjustment makes it worse: are the counts in the order of the score",
            "  columns, and were the logits not adjusted already?",
        ]
    if result.at_bound:
        return [f"  the best tau touches the bounds {result.bounds}: consider wider ones"]
    return []
