"""Runs in, one self-contained HTML page out: what it says, section by section.

What a page is made of is in `blocks`, the charts' data come from `arrange`, the charts from
`charts` and `tau_charts`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from longtail._checks import InputError
from longtail.report import arrange, charts, tau_charts
from longtail.report import comparison as texts
from longtail.report.blocks import (
    Body,
    Commands,
    Facts,
    Grid,
    Page,
    Pair,
    Plot,
    Section,
    Tile,
    render,
)
from longtail.report.compare import Comparison, compare
from longtail.report.tables import GROUP_BOUNDS
from longtail.runs import Run, files

_PRIMER = (
    "In most real data a few classes are common and many are rare. A classifier trained the "
    "usual way (softmax cross-entropy) learns the common ones and hardly ever predicts the rare "
    "ones, which the ordinary error rate does not show.",
    "The balanced error does: it is the error of each class, averaged over classes, so that "
    "every class counts the same however rare it is.",
    "Logit adjustment subtracts τ times the logarithm of a class's training frequency from its "
    "score. Done after training (post-hoc) it costs nothing and needs no second training; done "
    "inside the loss, the model learns with it. τ = 0 changes nothing, τ = 1 is what theory "
    "says, and more than 1 favours rare classes further.",
)


def build(
    runs: Iterable[Run] | Comparison,
    *,
    split: str = "test",
    title: str | None = None,
    command: str | None = None,
    trains: bool = False,
) -> str:
    """One page about runs of one data set, from what their folders hold.

    Args:
        runs: finished runs with logits of the split, or a Comparison of them; which serve for
            what is in `compare`.
        split: which split judges; a Comparison has its own.
        title: of the page; made from the data's name if absent.
        command: what to type to make this page again.
        trains: whether that trains the runs as well.

    Returns:
        The whole HTML document.
    """
    compared = runs if isinstance(runs, Comparison) else compare(runs, split=split)
    return render(page_of(compared, title=title, command=command, trains=trains))


def write(
    runs: Iterable[Run] | Comparison,
    path: str | Path,
    *,
    split: str = "test",
    title: str | None = None,
    command: str | None = None,
    trains: bool = False,
    force: bool = False,
) -> Path:
    """Write the page that `build` makes.

    Args:
        runs: as in `build`.
        path: the file; its folder is made if need be.
        split: as in `build`.
        title: as in `build`.
        command: as in `build`.
        trains: as in `build`.
        force: replace a file that is there.

    Returns:
        The path.
    """
    path = Path(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; pass --force (force=True) to replace it.")
    text = build(runs, split=split, title=title, command=command, trains=trains)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, text.encode())
    return path


def page_of(
    comparison: Comparison,
    *,
    title: str | None = None,
    command: str | None = None,
    trains: bool = False,
) -> Page:
    """The page about a comparison of runs.

    Args:
        comparison: what to show.
        title: of the page; made from the data's name if absent.
        command: what to type to make it again.
        trains: whether that trains the runs as well.
    """
    data = comparison.runs[0].spec.dataset.name
    sections = [
        _trained(comparison),
        _results(comparison),
        _tau(comparison),
        _classes(comparison),
        _groups(comparison),
        _calibration(comparison),
        _norms(comparison),
        _again(comparison, command, trains),
    ]
    return Page(
        title=title or f"Long-tailed classification on {data}",
        lead=texts.summary(comparison),
        tiles=_tiles(comparison),
        primer=_PRIMER,
        sections=[section for section in sections if section is not None],
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    base, winner = comparison.baseline, texts.best(comparison)
    seeds = texts.which_seeds(comparison)
    tiles = [
        Tile(
            texts.name(row),
            f"{texts.percent(texts.mean_error(comparison, row))}%",
            f"balanced error ({seeds})" if seeds else "balanced error",
        )
        for row in dict.fromkeys((base, winner))
        if row is not None
    ]
    found = texts.against_softmax(comparison, winner, picked=True)
    if found is not None:
        mean, _, ends = texts.change(found).partition(" ")
        interval = f", 95% interval {ends.strip('[]').replace(', ', ' to ')}" if ends else ""
        rivals = texts.rivals(comparison)
        picked = f" as the best of {rivals}" if interval and rivals > 1 else ""
        tiles.append(Tile("difference", mean, f"percentage points{interval}{picked}"))
    return tiles


def _trained(comparison: Comparison) -> Section:
    prior = comparison.runs[0].prior
    counts = prior.counts if prior.counts is not None else prior.probs
    return Section(
        "trained",
        "What was trained on what",
        (
            f"The training set has {prior.num_classes:,} classes; the most frequent has "
            f"{prior.imbalance_ratio:,.0f} times as many examples as the rarest "
            f"({counts.max():,} against {counts.min():,}).",
        ),
        [
            Pair(
                Facts(_facts(comparison)),
                Plot(
                    charts.frequencies(arrange.frequencies(comparison)),
                    f"Training examples of each {arrange.class_axis(comparison).each}.",
                ),
            ),
            Pair(Facts(_recipe(comparison)), Facts(_machine(comparison))),
        ],
    )


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    runs = comparison.runs
    prior, data = runs[0].prior, runs[0].spec.dataset
    asked = {"profile": data.profile, "ratio": data.imbalance_ratio, **data.settings}
    total = 0 if prior.counts is None else int(prior.counts.sum())
    judged = np.bincount(comparison.target, minlength=prior.num_classes)
    least, most = int(judged.min()), int(judged.max())
    each = f"{least}" if least == most else f"{least} to {most}"
    trained = [texts.name(row) for row in comparison.rows if row.tau_source is None]
    facts = [
        ("Data", _with(data.name, asked)),
        ("Trained on", f"{total:,} examples of {prior.num_classes:,} classes"),
        ("Judged on", f"{len(comparison.target):,} {comparison.split} examples, {each} per class"),
        ("Model", _unique(_model(run) for run in runs)),
        ("Trained with", ", ".join(trained)),
        ("Seeds", _seeds(comparison)),
        ("Choice of τ", _choice_of_tau(comparison)),
    ]
    return [(name, text) for name, text in facts if text]


def _recipe(comparison: Comparison) -> list[tuple[str, str]]:
    specs = [run.spec for run in comparison.runs]
    facts = [
        ("Recipe", _unique(_with(spec.recipe.name, spec.recipe.values) for spec in specs)),
        ("Changed in it", _unique(_pairs(spec.recipe.overrides) for spec in specs)),
        ("Other settings", _unique(_pairs(spec.settings) for spec in specs)),
        ("Data fingerprint", comparison.runs[0].data[:16]),
    ]
    return [(name, text) for name, text in facts if text]


def _machine(comparison: Comparison) -> list[tuple[str, str]]:
    records = [run.record for run in comparison.runs]
    return [
        ("Device", _unique(record["device"] for record in records)),
        ("Training time", _training_time(comparison)),
        ("Versions", _unique(_versions(record["versions"]) for record in records)),
    ]


def _with(name: str, settings: Any) -> str:
    pairs = _pairs(settings)
    return f"{name} ({pairs})" if pairs else name


def _pairs(settings: Any) -> str:
    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(
        f"{key.replace('_', ' ')} {text(value)}"
        for key, value in settings.items()
        if value not in (None, "", (), {})
    )


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _model(run: Any) -> str:
    text = _with(run.spec.model.name, run.spec.model.settings)
    parameters = run.record.get("facts", {}).get("parameters")
    return text if parameters is None else f"{text}, {parameters:,} parameters"


def _seeds(comparison: Comparison) -> str:
    seeds = sorted({seed for row in comparison.rows for seed in row.seeds})
    return f"{len(seeds)} ({', '.join(map(str, seeds))})"


def _choice_of_tau(comparison: Comparison) -> str:
    if not comparison.held_out:
        return ""
    parts = sorted({run.spec.dataset.held_out for run in comparison.held_out.values()})
    share = " and ".join(f"{part:.0%}" for part in parts)
    return f"on {share} of each class, held out of a second softmax run per seed"


def _training_time(comparison: Comparison) -> str:
    runs = [*comparison.runs, *comparison.held_out.values()]
    seconds = [run.record["seconds"] or 0.0 for run in runs]
    total = sum(seconds)
    text = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"
    if total >= 7200:
        text = f"{total / 3600:.1f} h"
    return f"{text} in all, {len(runs)} runs"


def _versions(versions: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _results(comparison: Comparison) -> Section:
    rows = comparison.rows
    winner, seeds = texts.best(comparison), texts.which_seeds(comparison)
    bodies = []
    for heading, note, wanted in (
        ("Trained with", "", lambda row: row.tau_source is None),
        (
            "After training, from the softmax model's logits",
            "",
            lambda row: row.tau_source in ("fixed", "held-out"),
        ),
        (
            f"Oracle: τ chosen on the {comparison.split} set itself",
            "A bound on what a better choice of τ could give; nobody has it in use.",
            lambda row: row.tau_source == "oracle",
        ),
    ):
        some = [row for row in rows if wanted(row)]
        if some:
            place = some.index(winner) if winner in some else None
            bodies.append(Body(heading, texts.headline(comparison, some).rows, place, note))
    table = texts.headline(comparison, rows)
    return Section(
        "results",
        "Results",
        (
            "The balanced error of every method, lower being better. The best one is picked "
            f"here by the very error shown{f' ({seeds})' if seeds else ''}, so its lead is "
            "flattered a little; the intervals are each method's own.",
        ),
        [
            Plot(
                charts.method_errors(arrange.method_errors(comparison)),
                "Dots: means over seeds; bars: 95% intervals; dotted: softmax; hollow: oracle.",
            ),
            Grid(f"{table.title}.", table.header, bodies, table.note),
        ],
    )


def _tau(comparison: Comparison) -> Section | None:
    curves, slider = arrange.tau_curves(comparison), arrange.tau_slider(comparison)
    if curves is None or slider is None:
        return None
    return Section(
        "tau",
        "What τ does",
        (
            "Post-hoc methods have one knob, τ. Each curve is exact: it is computed from the "
            "saved logits, example by example, without training anything again. Move the slider "
            "and watch common classes pay for rare ones.",
        ),
        [
            Plot(
                tau_charts.tau_curves(curves, start=slider.start),
                "Lines: mean over seeds; shaded: range over seeds; dashed: trained losses, which "
                "have no slider; upright: where the slider stands.",
            ),
            tau_charts.slider_block(slider),
        ],
    )


def _classes(comparison: Comparison) -> Section:
    section = arrange.class_errors(comparison)
    many = f"Each point is the mean of a {section.axis.each}. " if section.axis.binned else ""
    return Section(
        "classes",
        f"Error of each {section.axis.each}",
        (
            f"{many}Classes stand in order of frequency; names in the legend are buttons that "
            "show and hide a method.",
        ),
        charts.class_blocks(section, "Mean over seeds.", note=texts.bias_note(comparison)),
    )


def _groups(comparison: Comparison) -> Section:
    bounds = ", ".join(f"{name} {bound}" for name, bound in GROUP_BOUNDS.items())
    return Section(
        "groups",
        "Many, medium, few",
        (f"The same errors, averaged over groups of classes by training examples: {bounds}.",),
        [Plot(charts.group_errors(arrange.group_errors(comparison)), "Mean over seeds.")],
    )


def _calibration(comparison: Comparison) -> Section:
    return Section(
        "calibration",
        "Can its confidence be trusted?",
        (
            f"Predictions on the {comparison.split} set, sorted by how sure the model was of them. "
            "On the diagonal it is right as often as it says; below, it is overconfident.",
        ),
        [
            Plot(
                charts.calibration(arrange.calibration(comparison)),
                f"15 bins, seeds together, those with fewer than {charts.FEWEST} predictions left "
                "out; a larger mark holds more. ECE: expected calibration error, mean over seeds.",
            )
        ],
    )


def _norms(comparison: Comparison) -> Section | None:
    section = arrange.weight_norms(comparison)
    if section is None:
        return None
    return Section(
        "norms",
        "Weight norms",
        (
            "Weight normalisation assumes that frequent classes get larger weights in the last "
            "layer, and divides by their norms. Where norms do not follow frequency, it has "
            "nothing to correct.",
        ),
        [
            Plot(
                charts.weight_norms(section),
                "Mean over seeds; r: correlation of the norm with the logarithm of the frequency.",
            )
        ],
    )


def _again(comparison: Comparison, command: str | None, trains: bool) -> Section:
    runs = [*comparison.runs, *comparison.held_out.values()]
    typed = list(dict.fromkeys(c for run in runs if (c := run.record.get("command"))))
    first = "command trains" if len(typed) == 1 else f"{len(typed)} commands train"
    text = f"The first {first} the runs; the last makes this page from their folders."
    if trains:
        typed, text = [], "This trains the runs and makes this page from them:"
    elif not typed:
        text = (
            "The runs do not record how they were started; run.json in each folder holds every "
            "setting. This makes the page from their folders again:"
        )
    listed = Grid(
        f"The {len(runs)} runs behind this page",
        ("run", "held out", "seconds"),
        [
            Body(
                "",
                [
                    (
                        run.name,
                        f"{run.spec.dataset.held_out:.0%}" if run.spec.dataset.held_out else "",
                        f"{run.record['seconds'] or 0:.1f}",
                    )
                    for run in runs
                ],
            )
        ],
        folded=True,
    )
    return Section(
        "again",
        "How to run it again",
        (text,),
        [Commands([*typed, command or _report_command(comparison)]), listed],
    )


def _report_command(comparison: Comparison) -> str:
    folders = [run.folder for run in (*comparison.runs, *comparison.held_out.values())]
    if len({folder.is_absolute() for folder in folders}) == 1:
        folders = [Path(os.path.commonpath(folders))]
    split = [] if comparison.split == "test" else ["--split", comparison.split]
    names = [folder.as_posix() for folder in folders]
    return shlex.join(["longtail", "report", *names, *split, "--out", "report.html"])
