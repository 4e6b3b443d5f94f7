"""What a page is made of, and how that becomes one HTML file that needs no other.

A page is a title, a lead and sections; a section is a heading, some text and blocks (charts,
tables, facts, commands, the slider). `render` knows nothing but these, so pages about anything
can be made of them: `page` makes the one about runs. The look is in `template.html.j2`,
`page.css` and `page.js` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import longtail
from longtail import _checks
from longtail.report import _plotly
from longtail.report._plotly import Chart


@dataclass(frozen=True)
class Tile:
    """A number worth a glance: what it is, the number, and a word on it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class Plot:
    """A chart with a line below it that says how to read it."""

    kind: ClassVar[str] = "plot"
    chart: Chart
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and what belongs to them."""

    kind: ClassVar[str] = "facts"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Body:
    """Some rows of a table under a heading of their own; one of them may stand out."""

    heading: str
    rows: Sequence[Sequence[str]]
    strong: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; the first column holds names, the others are aligned right.

    Attributes:
        caption: what it shows.
        header: column names.
        bodies: its rows, in groups.
        note: what a reader must know to read it.
        folded: whether it waits behind its caption until asked for.
    """

    kind: ClassVar[str] = "grid"
    caption: str
    header: Sequence[str]
    bodies: Sequence[Body]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Commands:
    """What to type."""

    kind: ClassVar[str] = "commands"
    lines: Sequence[str]


@dataclass(frozen=True, eq=False)
class Slider:
    """The slider for tau, with the two charts whose bars it moves.

    Attributes:
        values: what `tau_charts.slider_values` gives.
        groups: bars by group.
        classes: bars by class.
    """

    kind: ClassVar[str] = "slider"
    values: dict[str, Any]
    groups: Plot
    classes: Plot


@dataclass(frozen=True)
class Pair:
    """Two blocks side by side where the screen is wide enough."""

    kind: ClassVar[str] = "pair"
    left: Block
    right: Block


Block = Plot | Facts | Grid | Commands | Slider | Pair


@dataclass(frozen=True, eq=False)
class Section:
    """A part of the page.

    Attributes:
        id: for links.
        heading: its title.
        text: paragraphs that say what is to be seen.
        blocks: what is to be seen.
    """

    id: str
    heading: str
    text: Sequence[str]
    blocks: Sequence[Block]


@dataclass(frozen=True, eq=False)
class Page:
    """Everything a page shows.

    Attributes:
        title: of the page.
        lead: what happened, in two sentences.
        tiles: the main numbers.
        primer: a few sentences for whom all this is new.
        sections: the rest.
    """

    title: str
    lead: Sequence[str]
    tiles: Sequence[Tile]
    primer: Sequence[str]
    sections: Sequence[Section]


def render(page: Page) -> str:
    """The page as HTML; equal pages give equal text.

    Args:
        page: what it shows.

    Returns:
        The whole document, with its style, script and data inside.
    """
    jinja2 = _checks.require("jinja2", extra="report", caller="longtail report")
    offline = _checks.require("plotly.offline", extra="report", caller="longtail report")
    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    blocks = list(_all_blocks(page))
    sliders = [block for block in blocks if isinstance(block, Slider)]
    data = {
        "charts": {
            chart.id: {"data": chart.data, "layout": chart.layout} for chart in _charts(blocks)
        },
        "dark": _plotly.DARK,
        "slider": sliders[0].values if sliders else None,
    }
    text: str = environment.get_template("template.html.j2").render(
        page=page,
        style=(here / "page.css").read_text(),
        script=(here / "page.js").read_text(),
        plotly=offline.get_plotlyjs(),
        data=_script_json(data),
        version=longtail.__version__,
    )
    return text


def _all_blocks(page: Page) -> Iterator[Block]:
    waiting = [block for section in page.sections for block in section.blocks]
    while waiting:
        block = waiting.pop(0)
        if isinstance(block, Pair):
            waiting = [block.left, block.right, *waiting]
        else:
            yield block


def _charts(blocks: Iterable[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Plot):
            yield block.chart
        elif isinstance(block, Slider):
            yield block.groups.chart
            yield block.classes.chart


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element, whatever names the classes have."""
    text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
