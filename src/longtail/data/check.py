"""A whole data set gone through before training: lists, labels and every image file.

Training stops at the first bad file, which may come after hours; this finds all of them.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import Progress, _cores
from longtail.data.large import KINDS, LARGE, SPLITS, Sources, find_sources
from longtail.data.lists import Listing, Problem
from longtail.data.photos import Header, PhotoError, check_photo
from longtail.data.registry import DATASETS

_CHUNK = 32
_WAIT_SECONDS = 600.0  # for a chunk of files, which takes a moment
_Found = list[tuple[str, PhotoError | Header]]


@dataclass(frozen=True)
class CheckResult:
    """Findings of going through a data set.

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
        data_dir: see there.
        root: see there.
        workers: processes that decode; by default as many as there are cores. With 1 the
            images are decoded here.
        quick: read only the header of each image.
        progress: called with (images done, images in all, text).

    Returns:
        The result, with every problem there is.
    """
    started = time.monotonic()
    _checks.require("PIL", extra="train")
    workers = _cores() if workers is None else _checks.whole(workers, name="workers")
    sources = find_sources(name, data_dir=data_dir, root=root)
    trees = sources.are_trees
    if data_dir is not None and name not in LARGE:
        raise InputError(f"{name} is a path; data_dir (--data-dir) is where data sets by name are.")
    if root is not None and trees:
        raise InputError(
            f"{name} is a folder of images; root (--root) is what the paths of lists start from."
        )
    listings = sources.listings()
    # One list by itself needs no test set.
    problems = sources.problems(listings, splits=name in LARGE or not Path(name).is_file())
    for image in sources.stray():
        detail = "is in no class folder; move it into one, or remove it"
        problems.append(Problem("stray", str(image), detail))
    split_of: dict[str, str] = {}
    for split, listing in listings.items():
        for path in listing.paths:
            split_of.setdefault(os.path.join(listing.root, path), split)
    files = sorted(split_of)  # folder after folder, so that disks that turn needn't seek
    sizes: set[tuple[int, int]] = set()
    colored: dict[str, str] = {}
    transparent: dict[str, str] = {}
    turned = []
    done = 0
    for chunk in _chunks(files, workers, quick):
        for file, found in chunk:
            if isinstance(found, PhotoError):
                problems.append(Problem(found.kind, file, found.reason))
                continue
            if found.turned:
                turned.append(file)
            if trees:
                sizes.add((found.height, found.width))
                if not found.grey:
                    colored.setdefault(split_of[file], file)
                if found.transparent:
                    transparent.setdefault(split_of[file], file)
        done += len(chunk)
        if progress is not None:
            progress(done, len(files), "headers" if quick else "images")
    order = list(KINDS)
    main = listings.get("train") or next(iter(listings.values()))
    return CheckResult(
        sources.name,
        {split: len(listing.paths) for split, listing in listings.items()},
        len(set(main.labels.tolist())),
        sorted(problems, key=lambda problem: order.index(problem.kind)),
        _absent(sources, listings),
        len(files),
        sorted(sizes),
        colored,
        transparent,
        turned,
        quick,
        time.monotonic() - started,
    )


def _absent(sources: Sources, listings: dict[str, Listing]) -> dict[str, list[str]]:
    """Return the classes without images of each split that judges; a published one has them all."""
    names = sources.class_names(listings)
    if names is None or sources.known is not None:
        return {}
    found = {}
    for split in SPLITS[1:]:
        if split in listings:
            there = set(listings[split].labels.tolist())
            found[split] = [name for label, name in enumerate(names) if label not in there]
    return {split: lacking for split, lacking in found.items() if lacking}


def _chunks(files: list[str], workers: int, quick: bool) -> Iterator[_Found]:
    """Yield what is found in the files, some at a time, in their order."""
    chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
    if workers == 1 or len(chunks) < 2:
        yield from (_check_files(chunk, quick) for chunk in chunks)
        return
    # Processes, since a file may crash the decoder; not forked where there may be threads.
    method = multiprocessing.get_start_method()
    if method == "fork" and ("torch" in sys.modules or threading.active_count() > 1):
        method = "forkserver"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(min(workers, len(chunks)), mp_context=context)
    waiting: deque[tuple[list[str], Future[_Found]]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_check_files, chunk, quick)))
            if len(waiting) > 8 * workers:  # the pool's queue would hold every name once more
                yield waiting[0][1].result(_WAIT_SECONDS)
                waiting.popleft()
        while waiting:
            yield waiting[0][1].result(_WAIT_SECONDS)
            waiting.popleft()
    except TimeoutError as error:
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"no answer for {_WAIT_SECONDS:.0f} s about a file near {waiting[0][0][0]}; see if the "
            f"disk still answers",
        ) from error
    except BrokenProcessPool as error:
        near = waiting[0][0][0] if waiting else files[-1]
        raise ChildProcessError(
            errno.ECHILD,
            f"a worker process died while it checked a file near {near}; if the machine ran out of "
            f"memory, use fewer workers; with workers=1 (--workers 1) no process is started. A "
            f'script must keep what it does under `if __name__ == "__main__":`',
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check_files(files: list[str], quick: bool) -> _Found:
    return [(file, check_photo(file, quick=quick)) for file in files]


def is_read_whole(name: str | Path) -> bool:
    """Return whether `load` checks a data set by reading it, rather than files in folders.

    Examples:
        >>> is_read_whole("digits-lt"), is_read_whole("imagenet-lt")
        (True, False)
    """
    is_list = Path(name).suffix.lower() in (".txt", ".json")
    return name in DATASETS or (Path(name).is_file() and not is_list)
