"""A whole data set gone through before training: lists, labels and every image file.

Training stops at the first bad file, which may come after hours; this finds all of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from longtail import _checks
from longtail.data.decoding import PhotoError, Progress, in_threads
from longtail.data.large import KINDS, LARGE, find_sources
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
        images: by split, how many entries its list has that can be used as such.
        classes: how many different labels the training set has.
        problems: in the order of `KINDS`, then as they were met.
        absent: by split that judges, the classes it has no images of.
        files: how many different files the lists name, there or not.
        sizes: the (height, width) that occur, rising; this and the next two of class folders only.
        colored: by split, the first image in colour.
        transparent: by split, the first image with transparency.
        turned: the images that are to be shown turned or mirrored, as their EXIF data say.
        quick: whether only the files' headers were read.
        seconds: how long it took.
    """

    name: str
    images: dict[str, int]
    classes: int
    problems: list[Problem] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)
    files: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    colored: dict[str, str] = field(default_factory=dict)
    transparent: dict[str, str] = field(default_factory=dict)
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

    def remarks(self) -> Iterator[str]:
        """Yield sentences on what stops no training but is worth knowing before it."""
        for split, classes in self.absent.items():
            yield (
                f"The {SPLIT_WORDS[split]} set has no examples of class(es) "
                f"{_checks.listing(classes)}: its mean error will be that of the others."
            )
        who = "training streams and crops them; recipes without image_size, describe and freeze"
        if len(self.sizes) > 1:
            small, large = (f"{h} x {w}" for h, w in (self.sizes[0], self.sizes[-1]))
            several = f"The images have {len(self.sizes):,} sizes, {small} to {large} pixels"
            yield f"{several} (height x width): {who} take images of one size only."
        halves = {"train", "test"} & self.images.keys()
        colored = halves & self.colored.keys()
        if len(halves) == 2 and len(colored) == 1:
            (one,), (grey,) = colored, halves - colored
            odd = f"{self.colored[one]} is in colour, but all images of {grey} are grey"
            yield f"{odd}: {who} take all grey or all colour."
        for file in [file for split, file in self.transparent.items() if split in halves][:1]:
            yield f"{file} has transparency: {who} take images without it, grey or RGB."
        if self.turned:
            images = "1 image" if len(self.turned) == 1 else f"{len(self.turned):,} images"
            yield (
                f"EXIF data ask to turn or mirror {images}, such as {self.turned[0]}: training "
                f"takes pixels as they are stored, so turn the files themselves if they shall "
                f"train upright."
            )


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
        return CheckResult(
            data.spec.name, images, number, files=sum(images.values()), seconds=taken
        )
    sources = find_sources(name, data_dir=data_dir, root=root)
    listings = sources.listings
    # One list by itself needs no test set.
    problems = sources.problems(splits=name in LARGE or not path.is_file())
    labels = {split: set(listing.labels.tolist()) for split, listing in listings.items()}
    absent = {}
    if not problems and sources.known is None:  # in a published data set that is a problem
        for split in [split for split in labels if split != "train"]:
            lacking = enumerate(sources.class_names)
            absent[split] = [each for label, each in lacking if label not in labels[split]]
    astray = "is in no class folder; move it into one, or remove it"
    problems += [Problem("stray", str(image), astray) for image in sources.stray()]
    split_of: dict[str, str] = {}
    for split, listing in listings.items():
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
    headers = good if sources.are_trees else {}
    first_of = [(split_of[file], file, header) for file, header in reversed(headers.items())]
    return CheckResult(
        sources.name,
        images={split: len(listing.paths) for split, listing in listings.items()},
        classes=len(labels.get("train", ())),
        problems=sorted(problems, key=lambda problem: list(KINDS).index(problem.kind)),
        absent={split: lacking for split, lacking in absent.items() if lacking},
        files=len(listed),
        sizes=sorted({(header.height, header.width) for header in headers.values()}),
        colored={split: file for split, file, header in first_of if not header.grey},
        transparent={split: file for split, file, header in first_of if header.transparent},
        turned=turned,
        quick=quick,
        seconds=time.monotonic() - started,
    )
