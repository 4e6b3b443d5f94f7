"""`longtail data`: describe data sets, check them, and freeze them into one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data
from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    from longtail.data.check import CheckResult

app = typer.Typer(
    help="Describe, check and freeze long-tailed data sets.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)

_SHOWN = 3  # problems of one kind; --out has them all


@app.command()
def describe(
    context: typer.Context,
    name: _data.Name,
    data_dir: _data.DataDir = None,
    profile: _data.ProfileOption = None,
    ratio: _data.Ratio = None,
    counts: _data.Counts = None,
    fit: _data.Fit = False,
    subset_seed: _data.SubsetSeed = 0,
    classes: Annotated[bool, option(None, "List every class.", "--classes")] = False,
    figure: Annotated[
        Path | None, option("STEM", "Draw profile and images; writes STEM.svg and STEM.png.")
    ] = None,
    force: _console.Force = False,
    json: _console.Json = False,
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
    from longtail.report.describe import description, summarize, summarize_counts, write

    written: tuple[Path, ...] = ()
    if figure is not None:  # refused first, since it would fail after the work
        _checks.require("matplotlib", extra="report")
        figure = figure.with_suffix("") if figure.suffix in (".svg", ".png") else figure
        for ending in ("svg", "png"):
            _console.refuse_overwrite(figure.with_name(f"{figure.name}.{ending}"), force)
    if name.endswith(".txt") and Path(name).is_file():
        if figure is not None:
            raise Failure(f"{name} holds class sizes and no images; --figure needs a data set.")
        title = f"{Path(name).name} (class sizes)"
        summary: dict[str, Any] = {"name": name, "train": summarize_counts(read_counts(name))}
    else:
        if _data.is_on_disk(name, "data describe"):
            idle = (*_data.SUBSET, "--figure")
            _data.refuse_idle(context, idle, on_disk=True)
            summary = summarize(load_listed(name, data_dir=data_dir, check_files=False))
            title = f"{summary['name']} (lists of images on disk)"
        else:
            data = _data.load(name, context.params)
            summary = summarize(data)
            title = f"{data.spec.name} ({_data.subset_words(data.spec)})"
            written = () if figure is None else write(data, figure)
        summary["figures"] = list(written)
    if json:
        _console.print_json(summary)
        return
    _console.line(title)
    for text in description(summary, classes=classes):
        _console.line(text.rstrip())
    if written:
        _console.line(f"\nWritten: {', '.join(map(str, written))}")


@app.command()
def freeze(
    context: typer.Context,
    name: _data.Name,
    out: Annotated[Path, option("FILE", "The file, NAME.parquet.", "--out", "-o")],
    dev: Annotated[
        int | None,
        option(
            "N",
            "Also a development set: up to N images a class that training leaves out; that of a "
            "frozen file goes along unless N is 0.",
            min=0,
        ),
    ] = None,
    data_dir: _data.DataDir = None,
    profile: _data.ProfileOption = None,
    ratio: _data.Ratio = None,
    counts: _data.Counts = None,
    fit: _data.Fit = False,
    subset_seed: _data.SubsetSeed = 0,
    force: _console.Force = False,
    json: _console.Json = False,
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
    from rich import filesize

    from longtail.data import DATASETS
    from longtail.data import freeze as freeze_data
    from longtail.data.check import SPLIT_WORDS

    # A frozen file's development set can't be drawn anew, so it is kept or left out as it is.
    again = name not in DATASETS and Path(name).is_file()
    _console.refuse_overwrite(out, force)  # refused first, since it would fail after the work
    out.parent.mkdir(parents=True, exist_ok=True)
    development = None if again and dev == 0 else dev
    data = _data.load(name, context.params, development=development)
    kept = data.dev is not None if again and dev is None else bool(dev)
    with _console.progress("freezing") as progress:
        path = freeze_data(data, out, dev=kept, force=force, progress=progress)
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
    *words, last = (f"{len(part):,} {SPLIT_WORDS[split]}" for split, part in parts.items())
    _console.line(
        f"{path}: {data.spec.name} ({_data.subset_words(data.spec)}), {', '.join(words)} and "
        f"{last} images, {filesize.decimal(size)}"
    )


@app.command()
def check(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="imagenet-lt, places-lt, inaturalist; a list, a competition file, or a folder "
            "of lists or images; or what describe takes.",
        ),
    ],
    data_dir: _data.DataDir = None,
    root: Annotated[
        Path | None,
        option("FOLDER", "What the lists' paths start from; the lists' folder if absent."),
    ] = None,
    workers: Annotated[
        int | None, option("N", "Threads that decode; all cores if absent.", min=1)
    ] = None,
    quick: Annotated[bool, option(None, "Read the images' headers only.", "--quick")] = False,
    out: Annotated[
        Path | None, option("FILE", "Write every problem into a file, one a line.", "--out", "-o")
    ] = None,
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Go through a whole data set: lists, labels, every image.

    Missing, truncated and unreadable files, labels with holes, files listed twice or in two
    splits are found before training stops at them; exit code 1 if there is any. Remarks, which
    are no problems, tell of classes that the test set lacks, of class folders with images of
    several sizes, grey beside colour or transparent, which training streams and crops, and of
    images that EXIF data ask to turn, which training does not.

    \b
    Examples:
      longtail data check imagenet-lt --data-dir lists --root /data/imagenet
      longtail data check photos --quick
      longtail data check train2018.json --root images --out problems.txt
    """
    from longtail.data.check import check_data, in_memory
    from longtail.runs.files import write_bytes

    _data.is_on_disk(name, "data check")  # refuses an unknown name
    if in_memory(name):
        idle = ("--root", "--workers", "--quick")
        _data.refuse_idle(context, idle, on_disk=False)
    if out is not None:  # refused first, since it would fail after the work
        _console.refuse_overwrite(out, force)
        out.parent.mkdir(parents=True, exist_ok=True)
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
        _show(result, out)
    if not result.ok:
        raise typer.Exit(1)


def _show(result: CheckResult, out: Path | None) -> None:
    """Print the result of a check; `out` is the file that has all problems."""
    from longtail.data.check import SPLIT_WORDS
    from longtail.data.large import KINDS
    from longtail.report.tables import plural

    images = f"{sum(result.images.values()):,}"
    if len(result.images) > 1:
        parts = (f"{count:,} {SPLIT_WORDS[split]}" for split, count in result.images.items())
        images = ", ".join(parts)
    _console.line(f"{result.name}: {images} images, {result.classes:,} classes")
    there = result.files - result.counts.get("missing", 0)
    read = "headers only" if result.quick else "every one decoded"
    read = f"{there:,} of {result.files:,} files there, {read}"
    if result.ok:
        _console.line(f"No problems ({read}, {_console.duration(result.seconds)}).")
        for remark in result.remarks:
            _console.line(remark, wrap=True)
        return
    for kind, count in result.counts.items():
        _console.line(f"\n{count:,} x {kind}: {KINDS[kind]}")
        for problem in [one for one in result.problems if one.kind == kind][:_SHOWN]:
            _console.line(f"  {problem.where}: {problem.detail}")
        if count > _SHOWN:
            _console.line(f"  and {count - _SHOWN:,} more")
    _console.line(f"\n{plural(len(result.problems), 'problem', 'problems')} ({read}).")
    if out is not None:
        _console.line(f"Written: {out}")
    elif max(result.counts.values()) > _SHOWN:
        _console.line("All of them: --out FILE or --json")
