"""A whole data set gone through before training: lists, labels and every image file.

Training stops at the first bad file, which may come after hours; this finds all of them.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import Progress, _cores
from longtail.data.folder import unknown_words
from longtail.data.large import LARGE, SPLITS, Sources, find_sources, scan
from longtail.data.lists import (
    Listing,
    Paths,
    Problem,
    label_problems,
    list_folder,
    overlap_problems,
)
from longtail.data.photos import PhotoError, check_photo
from longtail.data.registry import DATASETS

# Every kind of problem, in the order of a report.
KINDS = {
    "split": "no training set, or no test set, which training needs too",
    "size": "not the published number of images",
    "line": "lines that are not `path label`, or none at all",
    "path": "paths that leave the image root",
    "label": "labels that are no number, out of range, or with holes",
    "stray": "images beside the class folders",
    "duplicate": "files listed twice",
    "overlap": "files listed in two splits",
    "missing": "files that are not there",
    "truncated": "files that end too early",
    "unreadable": "files that can't be read or decoded",
    "format": "files that are no images",
}
_CHUNK = 32


class _Found(NamedTuple):
    """What there is in some files: problems; of images without any, sizes and kinds.

    Of each kind the first image of each class folder, and every one that is to be turned.
    """

    problems: list[Problem]
    sizes: set[tuple[int, int]]
    colored: dict[str, str]
    transparent: dict[str, str]
    turned: list[str]


@dataclass(frozen=True)
class CheckResult:
    """What going through a data set found.

    Attributes:
        name: of the data set.
        images: by split, how many entries its list has that can be used as such.
        classes: how many different labels the training set has.
        problems: in the order of `KINDS`, then as they were met.
        absent: by split that judges, the classes it has no images of: training takes it, and
            judges by the others. In a published data set that is a problem instead.
        files: how many different files the lists name, there or not.
        sizes: the (height, width) that occur, rising, in class folders without lists: where there
            are several, only training that crops can take them. Empty for lists.
        colored: in class folders without lists, the first image in colour of each split that has
            any: where one of train and test is all grey, only training that crops takes them.
        transparent: likewise the first with transparency, which only training that crops takes.
        turned: the images that are to be shown turned or mirrored, as their EXIF data say;
            training takes their pixels as they are stored.
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
        """Whether there is no problem."""
        return not self.problems

    @property
    def counts(self) -> dict[str, int]:
        """Problems by kind, those that occur."""
        found = Counter(problem.kind for problem in self.problems)
        return {kind: found[kind] for kind in KINDS if found[kind]}


def check_data(
    name: str | Path,
    *,
    data_dir: Path | str | None = None,
    root: Path | str | None = None,
    workers: int | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> CheckResult:
    """Go through all lists and all images of a data set on disk.

    Args:
        name: see `large.find_sources`.
        data_dir: likewise.
        root: likewise.
        workers: processes that decode; by default as many as there are cores. With 1 the
            images are decoded here.
        quick: read only the header of each image.
        progress: called with (images done, images in all, text).

    Returns:
        The result, with every problem there is.
    """
    caller, started = "check_data", time.monotonic()
    _checks.require("PIL", extra="train")
    workers = _cores() if workers is None else _checks.whole(workers, caller, name="workers")
    sources = find_sources(name, data_dir=data_dir, root=root)
    _refuse_idle(name, sources, data_dir=data_dir, root=root)
    listings = {split: _listing(sources.files[split]) for split in SPLITS if split in sources.files}
    problems = [] if _is_file(name) else _split_problems(sources)
    problems += _list_problems(sources, listings)
    files = _all_files(sources, listings)
    sizes: set[tuple[int, int]] = set()
    colored: dict[str, str] = {}
    transparent: dict[str, str] = {}
    turned: list[str] = []
    for found in _results(files, workers=workers, quick=quick, progress=progress):
        problems += found.problems
        sizes |= found.sizes
        colored = found.colored | colored
        transparent = found.transparent | transparent
        turned += found.turned
    order = list(KINDS)
    problems.sort(key=lambda problem: order.index(problem.kind))  # stable
    main = listings.get("train") or next(iter(listings.values()))
    return CheckResult(
        sources.name,
        {split: len(listing.paths) for split, listing in listings.items()},
        len(set(main.labels.tolist())),
        problems,
        _absent(sources, listings),
        len(files),
        sorted(sizes) if sources.are_trees else [],
        _by_split(colored, sources) if sources.are_trees else {},
        _by_split(transparent, sources) if sources.are_trees else {},
        turned,
        quick,
        time.monotonic() - started,
    )


def _is_file(name: str | Path) -> bool:
    """Whether one list was named, which has a single split by its nature."""
    return name not in LARGE and Path(name).is_file()


def _refuse_idle(
    name: str | Path, sources: Sources, *, data_dir: Path | str | None, root: Path | str | None
) -> None:
    if data_dir is not None and name not in LARGE:
        raise InputError(
            f"check_data: {name} is a path; data_dir (--data-dir) is where data sets by name are."
        )
    if root is not None and sources.are_trees:
        raise InputError(
            f"check_data: {name} is a folder of images; root (--root) is what the paths of lists "
            f"start from."
        )


def _split_problems(sources: Sources) -> list[Problem]:
    place = next(iter(sources.files.values())).parent
    return [
        Problem("split", str(place), f"has no {split} set ({wanted}), which training needs")
        for split, wanted in sources.lacking().items()
    ]


def _listing(path: Path) -> Listing:
    if path.is_file():
        return scan(path)
    data = list_folder(path)
    return Listing(path, Paths(p.encode() for p in data.paths), data.labels, [], data.class_names)


def _list_problems(sources: Sources, listings: dict[str, Listing]) -> list[Problem]:
    """What the lists alone show to be wrong."""
    problems: list[Problem] = []
    known, names = sources.known, _classes(sources, listings)
    if not sources.root.is_dir():
        raise InputError(
            f"check_data: there is no folder {sources.root}, the image root of {sources.name}; "
            f"pass root= (--root), the folder that the lists' paths start from."
        )
    for split in SPLITS:
        listing = listings.get(split)
        if listing is None:
            continue
        problems += listing.problems
        unknown = ""
        if listing.source.is_dir():
            unknown = unknown_words(listing.class_names or (), names or ())
        if unknown:
            problems.append(Problem("label", str(listing.source), unknown))
        else:
            every = split == "train" or known is not None  # as training has it
            problems += label_problems(listing, names, every_class=every)
        if known is not None and len(listing.paths) != known.sizes[split]:
            detail = (
                f"has {len(listing.paths):,} images; the {split} set of {known.title} has "
                f"{known.sizes[split]:,}"
            )
            problems.append(Problem("size", str(listing.source), detail))
    problems += [
        Problem("stray", str(image), "is in no class folder; move it into one, or remove it")
        for image in sources.stray()
    ]
    if not sources.are_trees:  # which have a folder for each split
        packed = {split: (part.source, part.paths) for split, part in listings.items()}
        problems += overlap_problems(packed)
    return problems


def _classes(sources: Sources, listings: dict[str, Listing]) -> Sequence[str] | None:
    """The classes that there are; every one must have training images."""
    if sources.known is not None:
        return [str(label) for label in range(sources.known.num_classes)]
    train = listings.get("train")
    if train is not None and train.class_names is not None:
        return train.class_names
    sizes = [int(part.labels.max()) + 1 for part in listings.values() if len(part.labels)]
    # A mistyped label of nine digits would be as many names; its own list is told of it.
    if not sizes or max(sizes) > 10 * sum(len(part.labels) for part in listings.values()):
        return None
    return [str(label) for label in range(max(sizes))]


def _absent(sources: Sources, listings: dict[str, Listing]) -> dict[str, list[str]]:
    """By split that judges, the classes without images there; a published one has them all."""
    names = _classes(sources, listings)
    if names is None or sources.known is not None:
        return {}
    found = {}
    for split in listings.keys() - {"train"}:
        listing = listings[split]
        labels = set(listing.labels.tolist())
        if listing.source.is_dir():  # whose labels count its own folders
            own = listing.class_names or ()
            there = {own[label] for label in labels}
            found[split] = [name for name in names if name not in there]
        else:
            found[split] = [name for label, name in enumerate(names) if label not in labels]
    return {split: found[split] for split in SPLITS if found.get(split)}


def _all_files(sources: Sources, listings: dict[str, Listing]) -> list[str]:
    """Every file once, folder after folder, so that disks that turn needn't seek."""
    files = {
        os.path.join(listing.source if listing.source.is_dir() else sources.root, path)
        for listing in listings.values()
        for path in listing.paths
    }
    return sorted(files)


def _results(
    files: list[str], *, workers: int, quick: bool, progress: Progress | None
) -> Iterator[_Found]:
    """What is found in the files, chunk by chunk in their order."""
    chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
    done = 0
    for found in _in_processes(chunks, workers, partial(_check_files, quick=quick)):
        done = min(done + _CHUNK, len(files))
        if progress is not None:
            progress(done, len(files), "headers" if quick else "images")
        yield found


def _in_processes(
    chunks: list[list[str]], workers: int, work: Callable[[list[str]], _Found]
) -> Iterator[_Found]:
    if workers == 1 or len(chunks) < 2:
        yield from map(work, chunks)
        return
    pool = ProcessPoolExecutor(min(workers, len(chunks)))
    try:
        position = 0
        # A few chunks at a time: the pool's queue would hold every name of the data set again.
        while ahead := list(islice(chunks, position, position + 64 * workers)):
            for found in pool.map(work, ahead):
                position += 1
                yield found
    except BrokenProcessPool as error:
        raise ChildProcessError(
            errno.ECHILD,
            f"a worker process died while it checked a file near {chunks[position][0]}; if the "
            f"machine ran out of memory, use fewer workers; with workers=1 (--workers 1) no "
            f"process is started",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _by_split(by_folder: dict[str, str], sources: Sources) -> dict[str, str]:
    """Of files by their class folder, the first in each split."""
    found: dict[str, str] = {}
    for split, place in sources.files.items():
        inside = [file for file in by_folder.values() if Path(file).is_relative_to(place)]
        if inside:
            found[split] = min(inside)
    return found


def _check_files(files: list[str], *, quick: bool) -> _Found:
    found = _Found([], set(), {}, {}, [])
    for file in files:
        photo = check_photo(file, quick=quick)
        if isinstance(photo, PhotoError):
            found.problems.append(Problem(photo.kind, file, photo.reason))
            continue
        found.sizes.add((photo.height, photo.width))
        if not photo.grey:
            found.colored.setdefault(os.path.dirname(file), file)
        if photo.transparent:
            found.transparent.setdefault(os.path.dirname(file), file)
        if photo.turned:
            found.turned.append(file)
    return found


def is_read_whole(name: str | Path) -> bool:
    """Whether a data set is one that `load` checks by reading it, not one of files in folders.

    Examples:
        >>> is_read_whole("digits-lt"), is_read_whole("imagenet-lt")
        (True, False)
    """
    is_list = Path(name).suffix.lower() in (".txt", ".json")
    return name in DATASETS or (Path(name).is_file() and not is_list)
