"""The documentation's page on the EXP table and the README's table, made from records alone.

    python -m longtail.report.reproduction [ROOT]

reads ``ROOT/results/exp`` and writes ``ROOT/docs/reproduction.md``, its figures beside it,
and the part of ``ROOT/README.md`` between the two marks. The same records give the same bytes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from longtail._checks import InputError
from longtail.experiments import records
from longtail.experiments.exp_runs import PLAIN
from longtail.experiments.records import Record
from longtail.experiments.table_exp import ROWS, Part, Row, Study
from longtail.report import table_exp
from longtail.report.claims import claims_table, effects_table, marks_table
from longtail.report.exp_rows import row_name
from longtail.report.exp_summary import summary
from longtail.report.tables import Table, percent
from longtail.runs import files

RECORDS = Path("results/exp")
FLOAT32 = Path("results/exp-float32")  # some of the runs again, for what precision changes
PAGE = Path("docs/reproduction.md")
FIGURES = Path("docs/reproduction")
README = Path("README.md")
BEGIN, END = "<!-- reproduction: begin -->", "<!-- reproduction: end -->"
RECIPES = ("tuned", "paper", "released")
_RECIPE_WORDS = {
    "tuned": "the paper's schedule with a weight decay of 5e-4",
    "paper": "the paper's appendix, with a weight decay of 1e-4",
    "released": "the settings of the authors' public code",
}

logger = logging.getLogger("longtail")


def study_of(found: list[Record]) -> Study:
    """The table of the recipes that there are records of."""
    study = Study.of(found, recipes=RECIPES)
    study.require_parts()
    return study


def overview(study: Study) -> Table:
    """The paper's rows beside ours, all data sets and recipes: the README's table.

    Args:
        study: of any recipes.
    """
    header = ["method"]
    for dataset in study.datasets:
        recipes = [part.recipe for part in study.parts if part.dataset == dataset]
        header += [f"{dataset}, published", *(f"`{recipe}`" for recipe in recipes)]
    rows = [
        (row_name(row), *_overview_cells(study, row))
        for row in ROWS
        if any(part.cell(row) for part in study.parts)
    ]
    return Table(
        "Balanced test error in percent, imbalance ratio 100", header, rows, note=_note(study)
    )


def _overview_cells(study: Study, row: Row) -> list[str]:
    cells = []
    for dataset in study.datasets:
        paper = row.paper_value(dataset)
        cells.append("" if paper is None else f"{paper:.2f}")
        cells += [
            table_exp.mean_deviation(part, row) for part in study.parts if part.dataset == dataset
        ]
    return cells


def _note(study: Study) -> str:
    seeds = max(part.plan.seeds for part in study.parts)
    recipes = "; ".join(f"`{name}`: {_RECIPE_WORDS.get(name, name)}" for name in study.recipes)
    over = table_exp.spread_words(seeds)
    text = (
        f"{over[0].upper()}{over[1:]}. {recipes}. "
        f"τ held-out is chosen on data held out of a second run; oracle τ* on the test set "
        f"itself, as in the paper."
    )
    lacking = [part for part in study.parts if part.missing()]
    if lacking:
        text += " Fewer seeds than asked: " + "; ".join(
            f"{part.dataset}, `{part.recipe}` lacks {len(part.missing())} runs" for part in lacking
        )
        text += "."
    return text


def page(study: Study, *, other_precision: Sequence[Record] = ()) -> str:
    """The page as Markdown.

    Args:
        study: of any recipes.
        other_precision: records of some of its runs in another precision.
    """
    minutes = sum(part.minutes for part in study.parts)
    runs = sum(len(part.records) for part in study.parts)
    blocks = [
        "# The paper's CIFAR table, trained again",
        "This page is made from the records in `results/exp` by "
        "`python -m longtail.report.reproduction`; nothing on it is typed by hand, and only the "
        "columns headed *paper* or *published* are the paper's (Menon et al., ICLR 2021, its table "
        f"of results on real-world data). {runs} runs, {minutes:.0f} minutes of training on "
        f"{_devices(study)}. To train them anew, with CIFAR's own files in a folder `data`:",
        "```sh\n" + "\n".join(_commands(study)) + "\n```",
        overview(study).markdown(),
        "## In short",
        *summary(study, other_precision=other_precision),
    ]
    for recipe in study.recipes:
        blocks += _recipe_blocks(study, recipe)
    effects = [
        effects_table(study, dataset, other_precision=other_precision) for dataset in study.datasets
    ]
    if any(effects):
        blocks.append("## Where the numbers differ from the paper's")
        blocks += [table.markdown() for table in effects if table is not None]
    return "\n\n".join(blocks) + "\n"


def _devices(study: Study) -> str:
    found = {str(one.document["device"]) for part in study.parts for one in part.records}
    return " and ".join(sorted(found)) or "any device"


def _commands(study: Study) -> list[str]:
    """What trains the runs that the page has, and no others, in a new folder of records."""
    commands = []
    for recipe in study.recipes:
        parts = [part for part in study.parts if part.recipe == recipe]
        rows = "" if all(map(_has_adam, parts)) else " --rows table"
        commands.append(
            f"longtail reproduce table-exp --recipe {recipe}{rows} --data-dir data --records new"
        )
    return commands


def _has_adam(part: Part) -> bool:
    """Whether there are the runs of the weight norms under Adam, which only a figure needs."""
    kinds = [part.adam(decay=way) for way in part.plan.adam_ways]
    return all(kind is not None and part.records_of(kind) for kind in kinds)


def _recipe_blocks(study: Study, recipe: str) -> list[str]:
    parts = [part for part in study.parts if part.recipe == recipe]
    words = _RECIPE_WORDS.get(recipe)
    blocks = [f"## Recipe `{recipe}`" + (f": {words}" if words else "")]
    for part in parts:
        blocks += [
            f"### {part.dataset}",
            table_exp.cells_table(part).markdown(),
            *_sentence(part),
        ]
        found = (marks_table(part), claims_table(part))
        blocks += [table.markdown() for table in found if table is not None]
    if any(part.records_of(PLAIN) for part in parts):
        blocks.append(f"### Figures, recipe `{recipe}`")
        captions = table_exp.figure_captions(parts)
        for name, (_, title) in table_exp.FIGURES.items():
            path = f"{FIGURES.name}/{recipe}-{name}.svg"
            blocks += [f"![{title}]({path})", captions[name]]
    return blocks


def _sentence(part: Part) -> list[str]:
    """What stands out, in one plain sentence made from the numbers; none without runs."""
    cells = [(row, cell) for row in ROWS if row.source != "oracle" and (cell := part.cell(row))]
    if not cells:
        return []
    row, best = min(cells, key=lambda pair: pair[1].mean)
    return [
        f"Of the rows that never saw the test set, {row_name(row)} has the lowest balanced error, "
        f"{percent(best.mean, digits=2)}%."
    ]


def readme_block(study: Study) -> str:
    """What stands between the two marks in the README."""
    return f"{BEGIN}\n{overview(study).markdown()}\n{END}"


def with_block(
    text: str, block: str, *, begin: str = BEGIN, end: str = END, page: str = "README"
) -> str:
    """A page's text with the block in the place of the old one.

    Args:
        text: has the two marks, each once.
        block: begins and ends with them.
        begin: the first mark.
        end: the last one.
        page: what to call it in a message.
    """
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise InputError(
            f"reproduction: the {page} must have the lines {begin} and {end}, each once and in "
            f"this order, where the table goes."
        )
    return text[: text.index(begin)] + block + text[text.index(end) + len(end) :]


def in_float32(root: Path) -> list[Record]:
    """The runs that were trained in float32 too; none where there are no such records."""
    return records.read_all(root / FLOAT32) if (root / FLOAT32).exists() else []


def write(root: Path | str, *, study: Study | None = None) -> list[Path]:
    """Write the page, its figures and the README's table below a root.

    Args:
        root: the repository.
        study: the table, from the records below `root` if absent.

    Returns:
        The paths written.
    """
    root = Path(root)
    study = study_of(records.read_all(root / RECORDS)) if study is None else study
    readme = with_block((root / README).read_text(encoding="utf-8"), readme_block(study))
    (root / FIGURES).mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    for recipe in study.recipes:
        parts = [part for part in study.parts if part.recipe == recipe]
        for path in table_exp.draw(parts, root / FIGURES / recipe):
            if path.suffix == ".png":
                path.unlink()  # the page shows the SVG
            else:
                drawn.append(path)
    files.write_bytes(root / PAGE, page(study, other_precision=in_float32(root)).encode())
    files.write_bytes(root / README, readme.encode())
    return [root / PAGE, root / README, *drawn]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for written in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")):
        logger.info("wrote %s", written)
