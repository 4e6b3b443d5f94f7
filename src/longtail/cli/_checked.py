"""What `longtail data check` says of its result, to people and to programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli import _console

if TYPE_CHECKING:
    from longtail.data.check import CheckResult

_SPLITS = {"train": "training", "val": "validation", "test": "test"}
# Problems of one kind that are shown; --out has them all.
_SHOWN = 3


def document(result: CheckResult) -> dict[str, Any]:
    """What a check found, for a program."""
    return {
        "name": result.name,
        "ok": result.ok,
        "images": result.images,
        "classes": result.classes,
        "absent": result.absent,
        "num_sizes": len(result.sizes) if result.sizes else None,
        "colored": result.colored,
        "transparent": result.transparent,
        "num_turned": len(result.turned),
        "counts": result.counts,
        "problems": [
            {"kind": p.kind, "where": p.where, "detail": p.detail} for p in result.problems
        ],
        "quick": result.quick,
        "seconds": round(result.seconds, 3),
    }


def split_words(images: dict[str, int]) -> str:
    """How many images the splits have: ``10 training, 3 test images``."""
    if len(images) == 1:
        return f"{sum(images.values()):,} images"
    return ", ".join(f"{count:,} {_SPLITS[split]}" for split, count in images.items()) + " images"


def _depth(result: CheckResult) -> str:
    """How far the check went."""
    there = result.files - result.counts.get("missing", 0)
    if not there:
        return f"none of the {result.files:,} files is there" if result.files else "no files listed"
    if there == result.files:
        return "headers only" if result.quick else "every image decoded"
    how = "headers only" if result.quick else "every one decoded"
    return f"{there:,} of {result.files:,} files there, {how}"


def _remarks(result: CheckResult) -> Iterator[str]:
    """What is no problem, but good to know before training."""
    from longtail._checks import listing
    from longtail.report.tables import plural

    for split, classes in result.absent.items():
        absent = f"no examples of class(es) {listing(classes)}"
        yield f"The {_SPLITS[split]} set has {absent}: its mean error will be that of the others."
    yield from _only_cropped(result)
    if result.turned:
        some = f"{plural(len(result.turned), 'image', 'images')}, such as {result.turned[0]}"
        yield (
            f"EXIF data ask to turn or mirror {some}: training takes pixels as they are stored, so "
            f"turn the files themselves if they shall train upright."
        )


def _only_cropped(result: CheckResult) -> Iterator[str]:
    """What is no problem of photographs, but keeps recipes that don't crop from them."""
    who = "training needs a recipe that crops, such as imagenet-lt; the others, describe and freeze"
    if len(result.sizes) > 1:
        ends = (result.sizes[0], result.sizes[-1])
        small, large = (f"{height} x {width}" for height, width in ends)
        several = f"The images have {len(result.sizes):,} sizes, {small} to {large} pixels"
        yield f"{several} (height x width): {who} take images of one size only."
    halves = {"train", "test"} & set(result.images)
    colored = sorted(halves & set(result.colored))
    if len(halves) == 2 and len(colored) == 1:
        first, grey = result.colored[colored[0]], (halves - set(colored)).pop()
        odd = f"{first} is in colour, but all images of {grey} are grey"
        yield f"{odd}: {who} take all grey or all colour."
    transparent = [file for split, file in result.transparent.items() if split in halves]
    if transparent:
        yield f"{transparent[0]} has transparency: {who} take images without it, grey or RGB."


def show(result: CheckResult, out: Path | None) -> None:
    """What a check found, for people.

    Args:
        result: of the check.
        out: the file that every problem was written into, if there is one.
    """
    from longtail.data.large import KINDS
    from longtail.report.tables import plural

    _console.line(f"{result.name}: {split_words(result.images)}, {result.classes:,} classes")
    depth = _depth(result)
    if result.ok:
        _console.line(f"No problems ({depth}, {_console.duration(result.seconds)}).")
        for text in _remarks(result):
            _console.line(_console.wrapped(text))
        return
    hidden = False
    for kind, count in result.counts.items():
        _console.line()
        _console.line(f"{count:,} x {kind}: {KINDS[kind]}")
        shown = [problem for problem in result.problems if problem.kind == kind][:_SHOWN]
        for problem in shown:
            _console.line(f"  {problem.where}: {problem.detail}")
        if count > len(shown):
            hidden = True
            _console.line(f"  and {count - len(shown):,} more")
    _console.line()
    found = plural(sum(result.counts.values()), "problem", "problems")
    _console.line(f"{found} ({depth}).")
    if out is not None:
        _console.line(f"Written: {out}")
    elif hidden:
        _console.line("All of them: --out FILE or --json")
