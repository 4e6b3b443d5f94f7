"""Numbers, profile and sample images of a long-tailed data set."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import IntArray
from longtail.data.check import SPLIT_WORDS
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.large import ListedData
from longtail.priors import GROUPS, ClassPrior
from longtail.report import figures
from longtail.report.tables import GROUP_BOUNDS, plural, shortened

GROUP_COLORS = dict(zip(GROUPS, (figures.BLUE, figures.ORANGE, figures.VERMILION), strict=True))
_LONGEST_NAME, _ROWS = 16, 10
_FEW_CLASSES = 20  # a table of which still fits a screen
_WIDTH = 80
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def summarize_counts(counts: IntArray) -> dict[str, Any]:
    """Return totals, imbalance and groups of class sizes.

    Examples:
        >>> summary = summarize_counts(np.array([300, 60, 5]))
        >>> summary["examples"], summary["imbalance_ratio"], summary["groups"]["few"]
        (365, 60.0, {'classes': 1, 'examples': 5})
    """
    groups = ClassPrior.from_counts(counts).groups()
    return {
        "classes": len(counts),
        "examples": int(counts.sum()),
        "largest": int(counts.max()),
        "smallest": int(counts.min()),
        "imbalance_ratio": float(counts.max() / counts.min()),
        "groups": {
            name: {"classes": len(classes), "examples": int(counts[classes].sum())}
            for name, classes in groups.items()
        },
        "counts": counts.tolist(),
    }


def summarize(data: LongTailedData | ListedData) -> dict[str, Any]:
    """Return a data set's numbers, as plain values for JSON.

    `dev` is the development set of images in memory, `val` the validation set of lists, or None;
    images that stay on disk have no one shape.
    """
    train = data.train
    parts: dict[str, Any] = {"test": data.test}
    parts |= {"val": data.val} if isinstance(data, ListedData) else {"dev": data.dev}
    found: dict[str, Any] = {
        "name": data.spec.name,
        "spec": data.spec.to_json(),
        "image_shape": list(train.image_shape) if isinstance(train, ImageSet) else None,
        "class_names": list(train.class_names),
        "train": {**summarize_counts(train.counts), "fingerprint": train.fingerprint},
    }
    for split, part in parts.items():
        found[split] = (
            None
            if part is None
            else {
                "examples": len(part),
                "counts": part.counts.tolist(),
                "fingerprint": part.fingerprint,
            }
        )
    return found


def bars(values: Sequence[float] | NDArray[Any], *, width: int, height: int) -> list[str]:
    """Return a bar chart in lines of text: a column for each value, or for the largest of several.

    Values are not negative; one above zero is always seen.

    Examples:
        >>> print("\\n".join(bars([8, 4, 1, 0], width=8, height=2)))
        ██
        ████▂▂
    """
    array = np.asarray(values, dtype=np.float64)
    each = max(1, width // len(array))
    if len(array) > width:
        edges = np.linspace(0, len(array), width + 1).astype(int)
        array = np.array([array[a:b].max() for a, b in itertools.pairwise(edges)])
    eighths = np.rint(array / (array.max() or 1.0) * 8 * height).astype(int)
    eighths = np.maximum(eighths, array > 0)
    lines = []
    for row in reversed(range(height)):
        level = np.clip(eighths - 8 * row, 0, 8)
        lines.append("".join(_EIGHTHS[part] * each for part in level).rstrip())
    return lines


def description(summary: dict[str, Any], *, classes: bool = False) -> Iterator[str]:
    """Yield lines for a terminal about a data set, or about class sizes alone.

    Args:
        summary: from `summarize`, or its `train` alone.
        classes: list every class, also where they are many.
    """
    train, shape = summary["train"], summary.get("image_shape")
    pixels = "" if shape is None else f", {' x '.join(map(str, shape))}"
    sizes = f"{train['largest']:,} to {train['smallest']:,} a class"
    rows = [
        ("training", f"{train['examples']:,} images of {train['classes']:,} classes{pixels}"),
        ("", f"{sizes}, imbalance ratio {train['imbalance_ratio']:.4g}"),
    ]
    for group, of_group in train["groups"].items():
        sizes = plural(of_group["classes"], "class  ", "classes")
        words = f"{group:<7} {GROUP_BOUNDS[group]:<10}{sizes:>14}{of_group['examples']:>9,} images"
        rows.append(("groups" if group == "many" else "", words))
    parts = {split: summary[split] for split in SPLIT_WORDS if summary.get(split) is not None}
    for split, part in parts.items():
        if split != "train":
            ends = min(part["counts"]), max(part["counts"])
            each = " to ".join(dict.fromkeys(f"{n:,}" for n in ends))
            text = f"{part['examples']:,} images, {each} a class"
            text += ", left out of training" if split == "dev" else ""
            rows.append((SPLIT_WORDS[split], text))
    for split, part in parts.items():
        if "fingerprint" in part:
            label = "fingerprint" if split == "train" else ""
            rows.append((label, f"{part['fingerprint'][:16]} ({SPLIT_WORDS[split]})"))
    yield from (f"{label:<13}{text}" for label, text in rows)
    yield ""
    largest = f"{train['largest']:,}"
    margin = len(largest)
    lines = bars(sorted(train["counts"], reverse=True), width=_WIDTH - margin - 2, height=6)
    for label, text in zip([largest, "", "", "", "", "0"], lines, strict=True):
        yield f"{label:>{margin}} {text}"
    yield f"{'':>{margin}} classes, most frequent first"
    names = summary.get("class_names", ())
    if names and (classes or len(names) <= _FEW_CLASSES):
        width = min(max(map(len, [*names, "name"])), 40)
        yield f"\nclass  {'name':<{width}}  training   share      test"
        columns = (shortened(names, width), train["counts"], summary["test"]["counts"])
        for number, (name, count, tested) in enumerate(zip(*columns, strict=True)):
            share = f"{count / train['examples']:.2%}"
            yield f"{number:>5}  {name:<{width}}  {count:>8,}{share:>8}{tested:>10,}"


def mosaic(images: ImageSet, classes: IntArray, *, columns: int = _ROWS) -> NDArray[np.uint8]:
    """Return the first images of classes as one picture of shape (height, width, 3), a row each."""
    channels, height, width = images.image_shape
    gap = max(1, height // 16)
    rows = []
    for label in classes:
        shown = images.images[np.flatnonzero(images.labels == label)[:columns]]
        scaled = shown.astype(np.uint16) * 255 // images.pixel_range
        row = np.full((columns, 3, height + gap, width + gap), 255, np.uint8)
        row[: len(shown), :, :height, :width] = scaled[:, :3] if channels >= 3 else scaled[:, :1]
        rows.append(np.concatenate([*row], axis=2))
    return np.concatenate(rows, axis=1).transpose(1, 2, 0)[:-gap, :-gap]


def draw(data: LongTailedData) -> Any:
    """Return a matplotlib figure of the training set's profile, and images from head to tail."""
    train = data.train
    order = np.argsort(-train.counts, kind="stable")
    counts = train.counts[order]
    places = np.linspace(0, len(order) - 1, min(_ROWS, len(order)))
    classes = order[np.rint(places).astype(int)]
    with figures.style():
        figure, ((profile, samples),) = figures.panels(columns=2, height=3.0)
        for name, members in ClassPrior.from_counts(counts).groups().items():
            if len(members):
                size = plural(len(members), "class", "classes")
                label = f"{name} ({GROUP_BOUNDS[name]}): {size}"
                color = GROUP_COLORS[name]
                profile.bar(members, counts[members], width=1.0, color=color, label=label)
        if counts.max() >= 10 * counts.min():
            profile.set(yscale="log", ylim=(max(0.5, counts.min() / 2), None))
            profile.yaxis.set_major_formatter("{x:,.0f}")
        profile.margins(x=0.01)
        profile.grid(axis="x", visible=False)
        profile.set_xlabel("classes, most frequent first")
        profile.set_title(f"training images per class, {len(train):,} in all")
        profile.legend(loc="upper right")
        names = shortened([train.class_names[k] for k in classes], _LONGEST_NAME)
        picture = mosaic(train, classes)
        samples.imshow(picture, interpolation="nearest")
        step = picture.shape[0] / len(classes)
        labels = [f"{name}  {train.counts[k]:,}" for name, k in zip(names, classes, strict=True)]
        samples.set_yticks((np.arange(len(classes)) + 0.5) * step, labels)
        samples.set_xticks([])
        samples.tick_params(length=0)
        samples.grid(False)
        samples.spines[:].set_visible(False)
        samples.set_title("training images, and how many there are")
    return figure


def write(data: LongTailedData, stem: Path | str) -> tuple[Path, Path]:
    """Draw a data set and save the figure as SVG and PNG; return their paths."""
    title = f"{data.spec.name}: {len(data.train)} training images per class, and some of them"
    return figures.save(draw(data), stem, title=title)
