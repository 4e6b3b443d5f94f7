"""Images that stay on disk: lists of `path label` lines beside an image root, and folder trees.

Only names and labels are held, 437,513 of them in about 40 MB. What a file looks like inside is
for `photos` and `check`; which lists a named data set has, for `large`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast, overload

import numpy as np

from longtail import _checks, runs
from longtail._checks import InputError, IntArray
from longtail.data.folder import counting_order, is_clutter, refuse_unknown
from longtail.data.images import Labeled

_LONGEST_LABEL = 9  # digits; more than any label space has
_DRIVE = re.compile(rb"[A-Za-z]:[\\/]")


class Paths(Sequence[str]):
    """Relative paths in one block of bytes.

    Half a million text objects would take three times the memory, and worker processes would
    copy them all, since counting references writes to them.

    Examples:
        >>> paths = Paths([b"a/1.jpg", b"b/2.jpg"])
        >>> paths[1], len(paths)
        ('b/2.jpg', 2)
    """

    __slots__ = ("_bounds", "_text")

    def __init__(self, names: Iterable[bytes]) -> None:
        kept = list(names)
        lengths = np.fromiter((len(name) + 1 for name in kept), np.int64, len(kept))
        self._bounds = np.concatenate([[0], np.cumsum(lengths)])
        self._text = b"\n".join([*kept, b""])

    def raw(self, index: int) -> bytes:
        """One path, undecoded."""
        return self._text[self._bounds[index] : self._bounds[index + 1] - 1]

    def all_raw(self) -> list[bytes]:
        """Every path, undecoded."""
        return self._text.split(b"\n")[:-1]

    @property
    def content(self) -> bytes:
        """All paths, each with a line end."""
        return self._text

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.raw(i).decode() for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} paths")
        return self.raw(int(index) % len(self)).decode()

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self.all_raw())

    def __len__(self) -> int:
        return len(self._bounds) - 1


@dataclass(frozen=True, eq=False)
class ListedImages(Labeled):
    """Labelled images in files: where they are and what they show, no pixels.

    Attributes:
        root: the folder that the paths start from.
        paths: one relative path per example, with forward slashes.
        labels: int64, shape (examples,).
        class_names: one name per class, in label order.
        name: what a run's record calls the data.

    Examples:
        >>> data = ListedImages(Path("photos"), ["a/1.jpg", "a/2.jpg", "b/1.jpg"],
        ...                     np.array([0, 0, 1]), ("a", "b"))
        >>> data.counts, data.file(2)
        (array([2, 1]), 'photos/b/1.jpg')
    """

    root: Path
    paths: Sequence[str]
    labels: IntArray
    class_names: tuple[str, ...]
    name: str = "images"

    def __post_init__(self) -> None:
        if not isinstance(self.paths, Paths):
            object.__setattr__(self, "paths", Paths(path.encode() for path in self.paths))
        labels = _checks.labels(
            self.labels, caller="ListedImages", name="labels", num_classes=self.num_classes
        )
        object.__setattr__(self, "labels", labels)
        if len(self.paths) != len(labels):
            raise InputError(f"ListedImages: {len(self.paths)} paths but {len(labels)} labels.")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over paths and labels: cheap, and blind to what is in the files."""
        return runs.fingerprint(np.frombuffer(self._packed.content, np.uint8), self.labels)

    @property
    def spec(self) -> runs.DataSpec:
        """How a run's record names these examples."""
        return runs.DataSpec(self.name, settings={"list": self.fingerprint[:16]})

    def file(self, index: int) -> str:
        """Where an example's image is."""
        return os.path.join(self.root, self.paths[index])

    def take(self, indices: IntArray) -> ListedImages:
        """The examples at these positions, in this order."""
        paths = Paths(self._packed.raw(index) for index in indices.tolist())
        return replace(self, paths=paths, labels=self.labels[indices])

    def missing_files(self) -> IntArray:
        """Positions whose file is not there, by one look into each folder."""
        inside: dict[bytes, set[bytes]] = {}
        root = os.fsencode(self.root)
        missing = []
        for position, path in enumerate(self._packed.all_raw()):
            folder, _, name = path.rpartition(b"/")
            there = inside.get(folder)
            if there is None:
                there = inside[folder] = _names_in(os.path.join(root, folder))
            if name not in there:
                missing.append(position)
        return np.array(missing, np.int64)

    @property
    def _packed(self) -> Paths:
        return cast(Paths, self.paths)  # made so when the object was


def _names_in(folder: bytes) -> set[bytes]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


@dataclass(frozen=True)
class Problem:
    """Something wrong with a data set.

    Attributes:
        kind: ``line``, ``label``, ``duplicate``, ``missing`` and so on; see `check.KINDS`.
        where: the file, or the list and its line.
        detail: the rule, and what came instead.
    """

    kind: str
    where: str
    detail: str


@dataclass(frozen=True, eq=False)
class Listing:
    """The sound entries of a list, and what is wrong with the others.

    Attributes:
        source: the list.
        paths: one per entry.
        labels: shape (entries,).
        problems: in the order of the list.
        class_names: where the source has some.
    """

    source: Path
    paths: Paths
    labels: IntArray
    problems: list[Problem]
    class_names: tuple[str, ...] | None = None


def scan_list(path: Path | str) -> Listing:
    """Every line ``path label`` of a list, with the faulty ones named instead of refused.

    The label is what follows the last blank, so a path may have blanks in it. Paths are spelt
    plainly: ``./a//1.jpg`` is the file ``a/1.jpg``, wherever it is listed.

    Args:
        path: a text file.

    Returns:
        The entries; of lines that name one file twice, the first.
    """
    path = Path(path)
    names: dict[bytes, tuple[int, int]] = {}  # -> label, line
    problems = []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.rsplit(None, 1)
        if not fields:
            continue
        fault = _line_fault(fields)
        if fault is None:
            name, label = fields[0].lstrip(), int(fields[1])
            earlier = names.setdefault(plain_path(name), (label, number))
            if earlier[1] != number:
                fault = "duplicate", _repeated(name, label, earlier)
        if fault is not None:
            problems.append(Problem(fault[0], f"{path}:{number}", fault[1]))
    labels = np.fromiter((label for label, _ in names.values()), np.int64, len(names))
    return Listing(path, Paths(names), labels, problems)


def _lines(path: Path) -> list[bytes]:
    if not path.is_file():
        raise InputError(f"scan_list: there is no list {path}.")
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"scan_list: {path} is not a text in UTF-8 (line {line}); a list has lines "
            f"`path label`."
        ) from error
    return content.split(b"\n")


def _line_fault(fields: list[bytes]) -> tuple[str, str] | None:
    """What is wrong with the (path, label) of a line, as a kind and in words."""
    if len(fields) == 1:
        return "line", f"a line is `path label`; got {fields[0].decode()!r} alone"
    name, label = fields
    if not label.isdigit() or len(label) > _LONGEST_LABEL:
        return "label", f"the label must be a whole number, 0 or more; got {label.decode()!r}"
    return path_fault(name.lstrip())


def path_fault(name: bytes) -> tuple[str, str] | None:
    """Why a path can't be one below the image root, as a kind and in words; or None."""
    text = name.decode()
    if name.startswith((b"/", b"\\")) or (b":" in name and _DRIVE.match(name)):
        return "path", f"a path must be relative to the image root; {text!r} is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return "path", f"a path must stay below the image root; {text!r} has '..' in it"
    if name.endswith((b"/", b"/.")) or name == b".":
        return "path", f"a path must name a file; {text!r} is a folder"
    return None


def plain_path(name: bytes) -> bytes:
    """A sound path as it is spelt plainly, so that one file has one name.

    Examples:
        >>> plain_path(b"./a//1.jpg"), plain_path(b"a/1.jpg")
        (b'a/1.jpg', b'a/1.jpg')
    """
    # Most are plain, of which there may be a million.
    if b"//" in name or b"/." in name or name.startswith(b"./"):
        return posixpath.normpath(name)
    return name


def _repeated(name: bytes, label: int, earlier: tuple[int, int]) -> str:
    which = f"label {label}, and {earlier[0]} there" if label != earlier[0] else f"label {label}"
    return f"{name.decode()!r} is on line {earlier[1]} already ({which})"


def listed(
    listing: Listing,
    *,
    root: Path,
    name: str,
    class_names: Sequence[str] | None,
    every_class: bool,
    check_files: bool,
    caller: str,
) -> ListedImages:
    """The images of a list or a competition file, which may have no faults.

    Args:
        listing: its entries, see `scan_list` and `inaturalist.scan_inaturalist`.
        root: the folder that its paths start from.
        name: what records call the data.
        class_names: one per class; if None those of the listing, or else the labels' own numbers,
            with L one more than the largest.
        every_class: refuse a list in which a class has no example.
        check_files: refuse a list that names files which are not there.
        caller: for messages.

    Returns:
        The entries in the order of the list.
    """
    source = listing.source
    refuse(listing.problems, caller=caller)
    if not root.is_dir():
        raise InputError(
            f"{caller}: there is no folder {root}, the image root of {source}; pass root= "
            f"(--root), the folder that the list's paths start from."
        )
    names = class_names if class_names is not None else listing.class_names
    refuse(label_problems(listing, names, every_class=every_class), caller=caller)
    if names is None:
        names = [str(label) for label in range(int(listing.labels.max()) + 1)]
    data = ListedImages(root, listing.paths, listing.labels, tuple(names), name)
    if check_files:
        _refuse_missing(data, source, caller)
    return data


def label_problems(
    listing: Listing, class_names: Sequence[str] | None = None, *, every_class: bool = True
) -> list[Problem]:
    """What is wrong with the labels of a listing as a whole.

    Args:
        listing: with entries or without.
        class_names: the classes that there are; by default up to the largest label.
        every_class: whether a class without examples is wrong.
    """
    source = str(listing.source)
    if not len(listing.labels):
        return [Problem("line", source, "the list is empty; it needs lines `path label`")]
    present = np.unique(listing.labels)
    high = int(present[-1])
    count = high + 1 if class_names is None else len(class_names)
    if high >= count:
        where = listing.paths[int(np.flatnonzero(listing.labels == high)[0])]
        detail = f"labels must lie in 0 .. {count - 1}, but {where!r} has {high}"
        return [Problem("label", source, detail)]
    holes = count - len(present)
    if not holes or not every_class:
        return []
    known = set(present.tolist())
    if listing.source.is_dir() and class_names is not None:
        empty = [name for label, name in enumerate(class_names) if label not in known]
        words = f"the class folder(s) {_checks.listing(empty)} hold no images; fill or remove them"
        return [Problem("label", source, words)]
    first = list(islice((label for label in range(count) if label not in known), 3))
    more = f" and {holes - len(first):,} more" if holes > len(first) else ""
    detail = (
        f"labels must be 0 .. {count - 1} without holes, but no image has label "
        f"{', '.join(map(str, first))}{more}"
    )
    return [Problem("label", source, detail)]


def overlap_problems(listings: Mapping[str, tuple[Path, Paths]]) -> list[Problem]:
    """Every file that two splits list: what is trained on can't judge.

    Args:
        listings: by split, its list and the paths there, spelt plainly.
    """
    problems, first_in = [], dict[bytes, str]()
    for split, (source, paths) in listings.items():
        for path in paths.all_raw():
            other = first_in.setdefault(path, split)
            if other != split:
                detail = f"{path.decode()!r} is in the {other} set as well"
                problems.append(Problem("overlap", str(source), detail))
    return problems


def refuse(problems: Sequence[Problem], *, caller: str) -> None:
    """Stop at the first of some problems, and say how many there are."""
    if problems:
        first, others = problems[0], len(problems) - 1
        more = f" (and {others:,} more; `longtail data check` lists them)" if others else ""
        raise InputError(f"{caller}: {first.where}: {first.detail}{more}.")


def _refuse_missing(data: ListedImages, source: Path, caller: str) -> None:
    missing = data.missing_files()
    if len(missing):
        raise InputError(
            f"{caller}: {len(missing):,} of the {len(data):,} files that {source} names are not "
            f"in {data.root}; the first is {data.paths[int(missing[0])]!r}. If the images are "
            f"elsewhere, pass root= (--root); `longtail data check` lists all that are missing."
        )


def list_folder(
    path: Path | str, *, class_names: Sequence[str] | None = None, name: str | None = None
) -> ListedImages:
    """The files of a tree ``PATH/<class>/<image>``, of any sizes, in the order people count in.

    Args:
        path: the folder; what `folder.is_clutter` names in it plays no part.
        class_names: the classes that there are, such as the training set's; by default those
            of the folder.
        name: what records call the data; by default after the folder.
    """
    caller, path = "list_folder", Path(path)
    if not path.is_dir():
        raise InputError(f"{caller}: there is no folder {path}.")
    entries = (entry for entry in os.scandir(path) if not is_clutter(entry.name))
    folders = sorted((entry.name for entry in entries if entry.is_dir()), key=counting_order)
    names = tuple(folders if class_names is None else class_names)
    refuse_unknown(folders, names, path=path)
    label_of = {folder: label for label, folder in enumerate(names)}
    paths: list[bytes] = []
    labels: list[int] = []
    for folder in folders:
        inside = [file for file in os.listdir(path / folder) if not is_clutter(file)]
        paths += [f"{folder}/{file}".encode() for file in sorted(inside, key=counting_order)]
        labels += [label_of[folder]] * len(inside)
    if not paths:
        raise InputError(f"{caller}: there are no images {path}/<class>/<image>.")
    return ListedImages(
        path, Paths(paths), np.array(labels, np.int64), names, record_name(name or path.name)
    )


def record_name(text: str) -> str:
    """A name that a run's record can carry, from that of a file or folder.

    Examples:
        >>> record_name("my photos (2)")
        'my-photos-2'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-").lstrip("._+-") or "images"
