"""Images that stay on disk: lists of `path label` lines, competition files and folder trees.

Only names and labels are held, 437,513 of them in about 40 MB. What a file looks like inside is
for `photos` and `check`; which lists a named data set has, for `large`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from longtail import _checks, runs
from longtail._checks import InputError, IntArray
from longtail.data.folder import counting_order, is_clutter, unknown_words
from longtail.data.images import Labeled
from longtail.runs.files import read_json

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

    __slots__ = ("_bounds", "content")

    def __init__(self, names: Iterable[bytes]) -> None:
        kept = list(names)
        lengths = np.fromiter((len(name) + 1 for name in kept), np.int64, len(kept))
        self._bounds = np.concatenate([[0], np.cumsum(lengths)])
        self.content = b"\n".join([*kept, b""])  # each path with a line end

    def raw(self, index: int) -> bytes:
        """Return one path as bytes; negative positions don't count from the end."""
        return self.content[self._bounds[index] : self._bounds[index + 1] - 1]

    def all_raw(self) -> list[bytes]:
        """Return every path as bytes."""
        return [self.content[start : end - 1] for start, end in pairwise(self._bounds.tolist())]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        place = range(len(self))[index]  # an IndexError beyond the ends
        if isinstance(place, range):
            return [os.fsdecode(self.raw(i)) for i in place]
        return os.fsdecode(self.raw(place))

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self.all_raw())

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
            object.__setattr__(self, "paths", Paths(map(os.fsencode, self.paths)))
        labels = _checks.labels(self.labels, name="labels", num_classes=self.num_classes)
        object.__setattr__(self, "labels", labels)
        if len(self.paths) != len(labels):
            raise InputError(f"there are {len(self.paths)} paths but {len(labels)} labels.")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over paths and labels: cheap, and blind to what is in the files."""
        return runs.fingerprint(np.frombuffer(self._packed.content, np.uint8), self.labels)

    @property
    def spec(self) -> runs.DataSpec:
        """How a run's record names these examples."""
        return runs.DataSpec(self.name, settings={"list": self.fingerprint[:16]})

    def file(self, index: int) -> str:
        """Return the path of an example's image."""
        return os.path.join(self.root, self.paths[index])

    def take(self, indices: IntArray) -> ListedImages:
        """Return the examples at these positions, in this order."""
        paths = Paths(self._packed.raw(index) for index in indices.tolist())
        return replace(self, paths=paths, labels=self.labels[indices])

    def missing_files(self) -> IntArray:
        """Return the positions whose file is not there, by one look into each folder."""
        inside: dict[bytes, set[bytes]] = {}
        missing = []
        for position, path in enumerate(self._packed.all_raw()):
            folder, _, name = path.rpartition(b"/")
            if folder not in inside:
                inside[folder] = _names_in(os.path.join(os.fsencode(self.root), folder))
            if name not in inside[folder]:
                missing.append(position)
        return np.array(missing, np.int64)

    @property
    def _packed(self) -> Paths:
        return cast(Paths, self.paths)  # made so when the object was


def _names_in(folder: bytes) -> set[bytes]:
    try:
        return set(os.listdir(folder))
    except (OSError, ValueError):
        return set()


@dataclass(frozen=True)
class Problem:
    """Something wrong with a data set.

    Attributes:
        kind: ``line``, ``label``, ``duplicate``, ``missing`` and so on; see `large.KINDS`.
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
        source: the list, competition file or folder.
        root: the folder that the paths start from.
        paths: one per entry.
        labels: shape (entries,).
        problems: in the order of the list.
        class_names: where the source has some.
    """

    source: Path
    root: Path
    paths: Paths
    labels: IntArray
    problems: list[Problem]
    class_names: tuple[str, ...] | None = None


def scan(path: Path, root: Path, class_names: Sequence[str] | None = None) -> Listing:
    """Read a list, a competition file (.json) or a folder ``<class>/<image>``.

    Faulty entries are named in the result instead of refused.

    Args:
        path: the file or folder.
        root: the folder that a list's paths start from.
        class_names: the classes that a folder may have; by default those that it has.
    """
    if path.is_dir():
        return _scan_folder(path, class_names)
    if not path.is_file():
        raise InputError(f"there is no list {path}.")
    return (_scan_competition if path.suffix.lower() == ".json" else _scan_lines)(path, root)


def _scan_lines(path: Path, root: Path) -> Listing:
    """Read lines ``path label``.

    The label is what follows the last blank, so a path may have blanks in it. Of lines that name
    one file twice the first counts.
    """
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} is not a text in UTF-8 (line {line}); a list has lines `path label`."
        ) from error
    names: dict[bytes, tuple[int, int]] = {}  # -> label, line
    problems = []
    for number, text in enumerate(content.split(b"\n"), start=1):
        fields = text.rsplit(None, 1)
        if not fields:
            continue
        fault = _line_fault(fields)
        if fault is None:
            name, label = fields[0].lstrip(), int(fields[1])
            first, earlier = names.setdefault(_plain_path(name), (label, number))
            if earlier != number:
                other = f", and {first} there" if label != first else ""
                words = f"{name.decode()!r} is on line {earlier} already (label {label}{other})"
                fault = "duplicate", words
        if fault is not None:
            problems.append(Problem(fault[0], f"{path}:{number}", fault[1]))
    labels = np.fromiter((label for label, _ in names.values()), np.int64, len(names))
    return Listing(path, root, Paths(names), labels, problems)


def _line_fault(fields: list[bytes]) -> tuple[str, str] | None:
    """Return what is wrong with the (path, label) of a line, as kind and detail, or None."""
    if len(fields) == 1:
        return "line", f"a line is `path label`; got {fields[0].decode()!r} alone"
    name, label = fields
    if not label.isdigit() or len(label) > _LONGEST_LABEL:
        return "label", f"the label must be a whole number, 0 or more; got {label.decode()!r}"
    return _path_fault(name.lstrip())


def _path_fault(name: bytes) -> tuple[str, str] | None:
    """Return why a path can't be one below the image root, as kind and detail, or None."""
    text = name.decode()
    if name.startswith((b"/", b"\\")) or (b":" in name and _DRIVE.match(name)):
        return "path", f"a path must be relative to the image root; {text!r} is absolute"
    if b".." in name and b".." in name.split(b"/"):
        return "path", f"a path must stay below the image root; {text!r} has '..' in it"
    if name.endswith((b"/", b"/.")) or name in (b"", b"."):
        return "path", f"a path must name a file; {text!r} is a folder"
    return None


def _plain_path(name: bytes) -> bytes:
    """Return a path in its plain spelling, so that one file has one name.

    Examples:
        >>> _plain_path(b"./a//1.jpg"), _plain_path(b"a/1.jpg")
        (b'a/1.jpg', b'a/1.jpg')
    """
    # Most are plain, of which there may be a million.
    if b"//" in name or b"/." in name or name.startswith(b"./"):
        return posixpath.normpath(name)
    return name


def _scan_competition(path: Path, root: Path) -> Listing:
    """Read iNaturalist's json: images, annotations and categories, joined by their ids.

    A label is a category's id; those of 2018 are 0 .. 8141, the same as in the list files.
    """
    document = read_json(path)
    try:
        categories = {entry["id"]: str(entry["name"]) for entry in document["categories"]}
        pairs = Counter((e["image_id"], e["category_id"]) for e in document["annotations"])
        images = Counter((e["id"], str(e["file_name"])) for e in document["images"])
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no competition file with labels, {{images: [{{id, file_name}}], "
            f"annotations: [{{image_id, category_id}}], categories: [{{id, name}}]}} "
            f"({type(error).__name__}: {error}). The competition's test set has no annotations; "
            f"results are reported on its validation set (val2018.json)."
        ) from error
    count = len(document["categories"])
    if not count or categories.keys() != set(range(count)):
        raise InputError(
            f"{path}: category ids must be 0 .. L - 1, each once, since they are the labels; got "
            f"{count} categories with other ids."
        )
    names = tuple(categories[label] for label in range(len(categories)))
    problems: list[Problem] = []

    def problem(kind: str, detail: str) -> None:
        problems.append(Problem(kind, str(path), detail))

    label_of: dict[Any, int] = {}
    for image, label in pairs:
        if label not in categories:
            known = f"0 .. {len(names) - 1}"
            problem("label", f"`category_id` must lie in {known}; that of image {image} is {label}")
        elif label_of.setdefault(image, int(label)) != label:
            problem("label", f"image {image} has two labels, {label_of[image]} and {label}")
    found: dict[bytes, int] = {}
    for image, text in images.elements():
        name = text.encode(errors="replace")
        of_image, fault = label_of.pop(image, None), _path_fault(name)
        if of_image is None:
            problem("label", f"image {image}, {text!r}, has no annotation")
        elif fault is not None:
            problem(*fault)
        elif (plain := _plain_path(name)) in found:
            problem("duplicate", f"{text!r} is in `images` twice")
        else:
            found[plain] = of_image
    if label_of:
        lost = next(iter(label_of))
        problem("label", f"{len(label_of):,} annotations are of no image; the first, of {lost}")
    labels = np.fromiter(found.values(), np.int64, len(found))
    return Listing(path, root, Paths(found), labels, problems, names)


def _scan_folder(path: Path, class_names: Sequence[str] | None) -> Listing:
    """List a tree ``PATH/<class>/<image>`` in the order people count in, without clutter."""
    entries = (entry for entry in os.scandir(path) if not is_clutter(entry.name))
    folders = sorted((entry.name for entry in entries if entry.is_dir()), key=counting_order)
    known = folders if class_names is None else list(class_names)
    unknown = unknown_words(folders, known)
    names = known + [folder for folder in folders if folder not in set(known)]
    label_of = {name: label for label, name in enumerate(names)}
    paths: list[bytes] = []
    labels: list[int] = []
    for folder in folders:
        inside = [file for file in os.listdir(path / folder) if not is_clutter(file)]
        paths += [os.fsencode(f"{folder}/{file}") for file in sorted(inside, key=counting_order)]
        labels += [label_of[folder]] * len(inside)
    if not paths:
        raise InputError(f"there are no images {path}/<class>/<image>.")
    problems = [Problem("label", str(path), unknown)] if unknown else []
    return Listing(path, path, Paths(paths), np.array(labels, np.int64), problems, tuple(names))


def label_problems(
    listing: Listing, class_names: Sequence[str] | None, *, every_class: bool
) -> list[Problem]:
    """Return what is wrong with the labels of a listing as a whole.

    Args:
        listing: with entries or without.
        class_names: the classes that there are; up to the largest label if None.
        every_class: whether a class without examples is wrong.
    """
    source = str(listing.source)
    if not len(listing.labels):
        return [Problem("line", source, "the list is empty; it needs lines `path label`")]
    present = np.unique(listing.labels)
    high = int(present[-1])
    count = high + 1 if class_names is None else len(class_names)
    if high >= count:
        where = listing.paths[int(np.argmax(listing.labels == high))]
        detail = f"labels must lie in 0 .. {count - 1}, but {where!r} has {high}"
        return [Problem("label", source, detail)]
    holes = count - len(present)
    if not holes or not every_class:
        return []
    known = set(present.tolist())
    lacking = (label for label in range(count) if label not in known)
    if listing.source.is_dir() and class_names is not None:
        empty = _checks.listing([class_names[label] for label in lacking])
        detail = f"the class folder(s) {empty} hold no images; fill or remove them"
        return [Problem("label", source, detail)]
    first = list(islice(lacking, 3))
    more = f" and {holes - len(first):,} more" if holes > len(first) else ""
    detail = (
        f"labels must be 0 .. {count - 1} without holes, but no image has label "
        f"{', '.join(map(str, first))}{more}"
    )
    return [Problem("label", source, detail)]


def record_name(text: str) -> str:
    """Return a name that a run's record can carry, from that of a file or folder.

    Examples:
        >>> record_name("my photos (2)")
        'my-photos-2'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-").lstrip("._+-") or "images"
