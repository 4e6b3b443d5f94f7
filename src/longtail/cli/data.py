"""`longtail data`: describe data sets, check them, and freeze them into one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data
from longtail.cli._console import ForceOption, JsonOption
from longtail.cli._groups import CommandGroup
from longtail.cli._training import is_on_disk, refuse_unknown

if TYPE_CHECKING:
    from longtail.data.check import CheckResult

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Describe, check and freeze long-tailed data sets.",
)

_FEW_CLASSES = 20  # a table of which still fits a screen
_WIDTH = 80
_CHART_HEIGHT = 6
_SHOWN = 3  # problems of one kind; --out has them all
_SPLITS = {"train": "training", "val": "validation", "test": "test", "dev": "development"}


@app.command()
def describe(
    name: _data.NameArgument,
    data_dir: _data.DataDirOption = None,
    profile: _data.ProfileOption = None,
    ratio: _data.RatioOption = None,
    counts: _data.CountsOption = None,
    fit: _data.FitOption = False,
    subset_seed: _data.SubsetSeedOption = 0,
    classes: Annotated[bool, typer.Option("--classes", help="List every class.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="STEM", help="Draw profile and images; writes STEM.svg and STEM.png."),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Show class sizes, groups, profile and images of a data set.

    NAME may also be imagenet-lt, places-lt, inaturalist or a folder of lists, of which only the
    lists are read; or a text file of class sizes, one a line.

    \b
    Examples:
      longtail data describe digits-lt
      longtail data describe cifar100-lt --data-dir data --figure cifar100
      longtail data describe cifar10-lt --profile step --ratio 50 --json
      longtail data describe cifar100-lt --counts imagenet_lt.txt --fit
      longtail data describe imagenet_lt.txt
      longtail data describe imagenet-lt --data-dir lists
    """
    from longtail import _checks
    from longtail.data.large import load_listed
    from longtail.data.profiles import read_counts
    from longtail.report.describe import summarize, summarize_counts, write

    stem = figure
    if figure is not None:  # refused first, since it would fail after the work
        _checks.require("matplotlib", extra="report")
        stem = figure.with_suffix("") if figure.suffix in (".svg", ".png") else figure
        for ending in ("svg", "png"):
            _console.refuse_overwrite(stem.with_name(f"{stem.name}.{ending}"), force)
    subset: dict[str, Any] = {"profile": profile, "ratio": ratio, "counts": counts}
    subset |= {"fit": fit, "subset_seed": subset_seed}
    written: tuple[Path, ...] = ()
    if Path(name).suffix == ".txt" and Path(name).is_file():
        if figure is not None:
            raise _checks.InputError(
                f"{name} holds class sizes and no images; --figure needs a data set."
            )
        summary = summarize_counts(read_counts(name))
        if json:
            _console.print_json({"name": name, "train": summary})
            return
        _console.line(f"{Path(name).name} (class sizes)")
        _show_sizes(summary, None)
        _show_chart(summary)
        return
    refuse_unknown(name, "data describe")
    if is_on_disk(name):
        for option in (option for option, value in {**subset, "figure": figure}.items() if value):
            raise typer.BadParameter(
                f"--{option.replace('_', '-')} does nothing here: the images of this data set "
                f"stay on disk"
            )
        summary = summarize(load_listed(name, data_dir=data_dir, check_files=False))
        words = "lists of images on disk"
    else:
        data = _data.load(name, data_dir=data_dir, **subset)
        summary, words = summarize(data), _data.subset_words(data.spec)
        written = () if stem is None else write(data, stem)
    if json:
        _console.print_json({**summary, "figures": list(written)})
        return
    _console.line(f"{summary['name']} ({words})")
    _show_summary(summary, classes)
    if written:
        _console.line()
        _console.line(f"Written: {', '.join(map(str, written))}")


def _show_summary(summary: dict[str, Any], classes: bool) -> None:
    _show_sizes(summary["train"], summary["image_shape"])
    parts = {s: summary[s] for s in ("test", "val", "dev") if summary.get(s) is not None}
    for split, part in parts.items():
        low, high = min(part["counts"]), max(part["counts"])
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        left_out = ", left out of training" if split == "dev" else ""
        _row(_SPLITS[split], f"{part['examples']:,} images, {each} a class{left_out}")
    _row("fingerprint", f"{summary['train']['fingerprint'][:16]} (training)")
    for split, part in parts.items():
        _row("", f"{part['fingerprint'][:16]} ({_SPLITS[split]})")
    _show_chart(summary["train"])
    if classes or len(summary["class_names"]) <= _FEW_CLASSES:
        _show_classes(summary)


def _row(label: str, text: str) -> None:
    _console.line(f"{label:<13}{text}".rstrip())


def _show_sizes(train: dict[str, Any], shape: list[int] | None) -> None:
    from longtail.report.tables import GROUP_BOUNDS, plural

    pixels = f", {' x '.join(map(str, shape))}" if shape is not None else ""
    _row("training", f"{train['examples']:,} images of {train['classes']:,} classes{pixels}")
    ratio = f"imbalance ratio {train['imbalance_ratio']:.4g}"
    _row("", f"{train['largest']:,} to {train['smallest']:,} a class, {ratio}")
    for name, group in train["groups"].items():
        sizes = plural(group["classes"], "class  ", "classes")
        words = f"{name:<7} {GROUP_BOUNDS[name]:<10}{sizes:>14}{group['examples']:>9,} images"
        _row("groups" if name == "many" else "", words)


def _show_chart(train: dict[str, Any]) -> None:
    from longtail.report.describe import bars

    largest = f"{train['largest']:,}"
    margin = len(largest) + 1
    ordered = sorted(train["counts"], reverse=True)
    lines = bars(ordered, width=_WIDTH - margin - 1, height=_CHART_HEIGHT)
    _console.line()
    for row, text in enumerate(lines):
        label = largest if row == 0 else "0" if row == len(lines) - 1 else ""
        _console.line(f"{label:>{margin - 1}} {text}".rstrip())
    _console.line(f"{'':>{margin}}classes, most frequent first")


def _show_classes(summary: dict[str, Any]) -> None:
    counts, names = summary["train"]["counts"], summary["class_names"]
    test, total = summary["test"]["counts"], summary["train"]["examples"]
    width = min(max(map(len, [*names, "name"])), 40)
    _console.line()
    _console.line(f"class  {'name':<{width}}  training   share      test")
    for label, (name, count) in enumerate(zip(names, counts, strict=True)):
        shown = name if len(name) <= width else name[: width - 1] + "…"
        share = f"{count / total:.2%}"
        _console.line(f"{label:>5}  {shown:<{width}}  {count:>8,}{share:>8}{test[label]:>10,}")


@app.command()
def freeze(
    name: _data.NameArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file, NAME.parquet.")
    ],
    dev: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Also a development set: up to N images a class that training leaves out; "
            "that of a frozen file goes along unless N is 0.",
        ),
    ] = None,
    data_dir: _data.DataDirOption = None,
    profile: _data.ProfileOption = None,
    ratio: _data.RatioOption = None,
    counts: _data.CountsOption = None,
    fit: _data.FitOption = False,
    subset_seed: _data.SubsetSeedOption = 0,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a data set into one small file, without loss.

    It holds the long-tailed training set and the test set that belongs to it. Wherever a data
    set is named, the file can be named instead; in the folder that LONGTAIL_DATA names, it is
    found by the data set's own name, if it ends in .parquet.

    \b
    Examples:
      longtail data freeze cifar100-lt --out cifar100-lt.parquet
      longtail data freeze cifar10-lt --profile step --out step.parquet
      longtail data freeze cifar100-lt --dev 50 --out both.parquet
    """
    from longtail.data import DATASETS, hub_parquet

    # A frozen file's development set can't be drawn anew, so it is kept or left out as it is.
    again = name not in DATASETS and Path(name).is_file()
    subset: dict[str, Any] = {"profile": profile, "ratio": ratio, "counts": counts}
    subset |= {"fit": fit, "subset_seed": subset_seed}
    hub_parquet.check_destination(out, force=force)
    development = None if again and dev == 0 else dev
    data = _data.load(name, data_dir=data_dir, development=development, **subset)
    kept = data.dev is not None if again and dev is None else bool(dev)
    with _console.progress("freezing") as progress:
        path = hub_parquet.freeze(data, out, dev=kept, force=force, progress=progress)
    parts = {"train": data.train, "test": data.test}
    if kept and data.dev is not None:
        parts["dev"] = data.dev
    size = path.stat().st_size
    if json:
        document = {"file": path, "bytes": size, "spec": data.spec.to_json()}
        for split, part in parts.items():
            document[split] = {"examples": len(part), "fingerprint": part.fingerprint}
        _console.print_json(document)
        return
    *words, last = (f"{len(part):,} {_SPLITS[split]}" for split, part in parts.items())
    _console.line(
        f"{path}: {data.spec.name} ({_data.subset_words(data.spec)}), {', '.join(words)} and "
        f"{last} images, {_console.size(size)}"
    )


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="imagenet-lt, places-lt, inaturalist; a list, a competition file, or a folder "
            "of lists or images; or what describe takes.",
        ),
    ],
    data_dir: _data.DataDirOption = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="What the lists' paths start from; the lists' folder if absent.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Threads that decode; all cores if absent."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read the images' headers only.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write every problem into a file, one a line."
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Go through a whole data set: lists, labels, every image.

    Missing, truncated and unreadable files, labels with holes, files listed twice or in two
    splits are found before training stops at them. Exit code 1 if there is any. Classes that the
    test set lacks are no problem, but told of; and so are images of several sizes in class
    folders, in colour beside a split all in grey, or with transparency, which training
    streams from disk and crops. So are images that EXIF data ask to turn, as training does not.

    \b
    Examples:
      longtail data check imagenet-lt --data-dir lists --root /data/imagenet
      longtail data check photos --quick
      longtail data check train2018.json --root images --out problems.txt
    """
    from longtail._checks import InputError
    from longtail.data.check import check_data
    from longtail.runs.files import write_bytes

    refuse_unknown(name, "data check")
    if out is not None:
        _console.refuse_overwrite(out, force)
        if out.is_dir() or not out.parent.is_dir():
            raise InputError(f"--out names {out}, which can't be a file there.")
    with _console.progress(f"checking {Path(name).name}") as progress:
        result = check_data(
            name, data_dir=data_dir, root=root, workers=workers, quick=quick, progress=progress
        )
    if out is not None:
        lines = (f"{p.kind}\t{p.where}\t{p.detail}" for p in result.problems)
        text = "".join(_console.printable(line).replace("\n", "\\n") + "\n" for line in lines)
        write_bytes(out, text.encode())
    if json:
        _console.print_json({"ok": result.ok, "counts": result.counts, **asdict(result)})
    else:
        _show_check(result, out)
    if not result.ok:
        raise typer.Exit(1)


def _split_words(images: dict[str, int]) -> str:
    """Return the sizes of the splits for people: ``10 training, 3 test images``."""
    if len(images) == 1:
        return f"{sum(images.values()):,} images"
    return ", ".join(f"{count:,} {_SPLITS[split]}" for split, count in images.items()) + " images"


def _show_check(result: CheckResult, out: Path | None) -> None:
    from longtail.data.large import KINDS
    from longtail.report.tables import plural

    _console.line(f"{result.name}: {_split_words(result.images)}, {result.classes:,} classes")
    depth = _depth(result)
    if result.ok:
        _console.line(f"No problems ({depth}, {_console.duration(result.seconds)}).")
        for text in _remarks(result):
            _console.line(_console.wrapped(text))
        return
    for kind, count in result.counts.items():
        _console.line()
        _console.line(f"{count:,} x {kind}: {KINDS[kind]}")
        for problem in [one for one in result.problems if one.kind == kind][:_SHOWN]:
            _console.line(f"  {problem.where}: {problem.detail}")
        if count > _SHOWN:
            _console.line(f"  and {count - _SHOWN:,} more")
    _console.line()
    _console.line(f"{plural(len(result.problems), 'problem', 'problems')} ({depth}).")
    if out is not None:
        _console.line(f"Written: {out}")
    elif max(result.counts.values()) > _SHOWN:
        _console.line("All of them: --out FILE or --json")


def _depth(result: CheckResult) -> str:
    """Return how far the check went."""
    there = result.files - result.counts.get("missing", 0)
    if not there:
        return f"none of the {result.files:,} files is there" if result.files else "no files listed"
    if there == result.files:
        return "headers only" if result.quick else "every image decoded"
    how = "headers only" if result.quick else "every one decoded"
    return f"{there:,} of {result.files:,} files there, {how}"


def _remarks(result: CheckResult) -> Iterator[str]:
    """Yield what is no problem, but good to know before training."""
    from longtail._checks import listing
    from longtail.report.tables import plural

    for split, classes in result.absent.items():
        absent = f"no examples of class(es) {listing(classes)}"
        yield f"The {_SPLITS[split]} set has {absent}: its mean error will be that of the others."
    # What can't be read into memory.
    who = "training streams and crops them; recipes without image_size, describe and freeze"
    if len(result.sizes) > 1:
        small, large = (f"{h} x {w}" for h, w in (result.sizes[0], result.sizes[-1]))
        several = f"The images have {len(result.sizes):,} sizes, {small} to {large} pixels"
        yield f"{several} (height x width): {who} take images of one size only."
    halves = {"train", "test"} & result.images.keys()
    colored = halves & result.colored.keys()
    if len(halves) == 2 and len(colored) == 1:
        (one,), (grey,) = colored, halves - colored
        odd = f"{result.colored[one]} is in colour, but all images of {grey} are grey"
        yield f"{odd}: {who} take all grey or all colour."
    for file in [file for split, file in result.transparent.items() if split in halves][:1]:
        yield f"{file} has transparency: {who} take images without it, grey or RGB."
    if result.turned:
        some = f"{plural(len(result.turned), 'image', 'images')}, such as {result.turned[0]}"
        yield (
            f"EXIF data ask to turn or mirror {some}: training takes pixels as they are stored, so "
            f"turn the files themselves if they shall train upright."
        )
