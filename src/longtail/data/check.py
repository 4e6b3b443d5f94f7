"""Check a whole data set before training: lists, labels and every image file.

Training stops at the first bad file, which may come after hours; this finds all of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from longtail import _checks
from longtail.data.decoding import PhotoError, Progress, in_threads
from longtail.data.large import KINDS, LARGE, Sources, find_sources
from longtail.data.lists import Problem
from longtail.data.photos import Header, check_photo
from longtail.data.registry import DATASETS, load

SPLIT_WORDS = {"train": "training", "test": "test", "val": "validation", "dev": "development"}
"""Splits, as they are called in texts, in the order of a description."""

_CHUNK = 32


@dataclass(frozen=True)
class CheckResult:
    """Findings of going through a data set.

    Attributes:
        name: of the data set.
        images: by split, number of sound entries in its list.
        classes: number of different labels in the training set.
        files: number of different files that the lists name, there or not.
        problems: in the order of `KINDS`, then as they were met.
        remarks: sentences on what stops no training but is worth knowing before it.
        turned: images whose EXIF data ask to show them turned or mirrored.
        quick: True if only the files' headers were read.
        seconds: time of the check.
    """

    name: str
    images: dict[str, int]
    classes: int
    files: int
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    turned: list[str] = field(default_factory=list)
    quick: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    @property
    def counts(self) -> dict[str, int]:
        """Problems by kind, those that occur."""
        found = Counter(problem.kind for problem in self.problems)
        return {kind: found[kind] for kind in KINDS if found[kind]}


def in_memory(name: str | Path) -> bool:
    """Return whether `load` reads a data set whole, by its name or from one file."""
    path = Path(name)
    return name in DATASETS or (path.is_file() and path.suffix.lower() not in (".txt", ".json"))


def check_data(
    name: str | Path,
    *,
    data_dir: Path | str | None = None,
    root: Path | str | None = None,
    workers: int | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> CheckResult:
    """Go through all lists and all images of a data set on disk, or read what `load` takes whole.

    `name`, `data_dir` and `root` are as in `large.find_sources`. By default as many threads as
    there are cores decode; `quick` reads only the header of each image.
    """
    started = time.monotonic()
    _checks.require("PIL", extra="train")
    path = Path(name)
    if in_memory(name):
        data = load(name, data_dir=data_dir, progress=progress)  # which refuses what is wrong
        images = {"train": len(data.train), "test": len(data.test)}
        taken, number = time.monotonic() - started, data.train.num_classes
        return CheckResult(data.spec.name, images, number, sum(images.values()), seconds=taken)
    sources = find_sources(name, data_dir=data_dir, root=root)
    # One list by itself needs no test set.
    problems = sources.problems(splits=name in LARGE or not path.is_file())
    astray = "is in no class folder; move it into one, or remove it"
    problems += [Problem("stray", str(image), astray) for image in sources.stray()]
    split_of: dict[str, str] = {}
    for split, listing in sources.listings.items():
        for entry in listing.paths:
            split_of.setdefault(os.path.join(listing.root, entry), split)
    listed = sorted(split_of)  # folder after folder, so that disks that turn needn't seek

    def check(start: int) -> list[tuple[str, PhotoError | Header]]:
        return [(file, check_photo(file, quick=quick)) for file in listed[start : start + _CHUNK]]

    done, good = 0, dict[str, Header]()
    for chunk in in_threads(check, range(0, len(listed), _CHUNK), threads=workers):
        for file, found in chunk:
            if isinstance(found, PhotoError):
                problems.append(Problem(found.kind, file, found.reason))
            else:
                good[file] = found
        done = min(done + _CHUNK, len(listed))
        if progress is not None:
            progress(done, len(listed), "headers" if quick else "images")
    turned = [file for file, header in good.items() if header.turned]
    train = sources.listings.get("train")
    return CheckResult(
        sources.name,
        images={split: len(listing.paths) for split, listing in sources.listings.items()},
        classes=0 if train is None else len(np.unique(train.labels)),
        files=len(listed),
        problems=sorted(problems, key=lambda problem: list(KINDS).index(problem.kind)),
        remarks=[] if problems else list(_remarks(sources, good, split_of, turned)),
        turned=turned,
        quick=quick,
        seconds=time.monotonic() - started,
    )


def _remarks(
    sources: Sources, good: Mapping[str, Header], split_of: Mapping[str, str], turned: list[str]
) -> Iterator[str]:
    """Yield sentences on what stops no training but is worth knowing before it."""
    for split, listing in sources.listings.items():
        there = set(listing.labels.tolist())
        absent = [each for label, each in enumerate(sources.class_names) if label not in there]
        if absent and sources.known is None:
            yield (
                f"The {SPLIT_WORDS[split]} set has no examples of class(es) "
                f"{_checks.listing(absent)}: its mean error will be that of the others."
            )
    if sources.are_trees:  # what is read into memory where a recipe doesn't crop
        who = "training streams and crops them; recipes without image_size, describe and freeze"
        sizes = sorted({(header.height, header.width) for header in good.values()})
        if len(sizes) > 1:
            small, large = (f"{h} x {w}" for h, w in (sizes[0], sizes[-1]))
            several = f"The images have {len(sizes):,} sizes, {small} to {large} pixels"
            yield f"{several} (height x width): {who} take images of one size only."
        judged = {file: header for file, header in good.items() if split_of[file] != "val"}
        colored = [file for file, header in judged.items() if not header.grey]
        for grey in {"train", "test"} - {split_of[file] for file in colored} if colored else ():
            odd = f"{colored[0]} is in colour, but all images of {grey} are grey"
            yield f"{odd}: {who} take all grey or all colour."
        for file in [file for file, header in judged.items() if header.transparent][:1]:
            yield f"{file} has transparency: {who} take images without it, grey or RGB."
    if turned:
        images = "1 image" if len(turned) == 1 else f"{len(turned):,} images"
        yield (
            f"EXIF data ask to turn or mirror {images}, such as {turned[0]}: training takes "
            f"pixels as they are stored, so turn the files themselves if they shall train upright."
        )
