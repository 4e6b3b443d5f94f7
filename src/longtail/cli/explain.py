"""`longtail explain`: the documentation's page of a method, or those of a composed one's parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import JsonOption

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def pages() -> dict[str, Path]:
    """The method pages by name: those in the installed package, or else the checkout's."""
    package = Path(__file__).parents[1]
    for folder in (package / "_pages", package.parents[1] / "docs" / "methods"):
        found = {path.stem: path for path in folder.glob("*.md")}
        if found:
            return dict(sorted(found.items()))
    return {}


def title(text: str) -> str:
    """A page's heading."""
    return text.partition("\n")[0].lstrip("# ").strip()


def summary(text: str) -> str:
    """A page's first sentence below its heading."""
    body = text.partition("\n")[2].strip()
    return " ".join(body.partition("\n\n")[0].translate({ord("*"): None, ord("`"): None}).split())


def kind(name: str) -> str:
    """Where a method stands: ``loss``, ``extra`` (comes on top of one) or ``posthoc``."""
    from longtail.train.methods import EXTRAS

    if name in EXTRAS:
        return "extra"
    return "posthoc" if name.startswith("posthoc-") else "loss"


def parts(text: str) -> list[str]:
    """The names in a method as `longtail train` takes it, without its settings.

    Raises:
        InputError: if they don't go together.

    Examples:
        >>> parts("LDAM + drw:start=120")
        ['ldam', 'drw']
    """
    from longtail.train.methods import parse_method

    if "+" in text:
        return parse_method(text).name.split("+")
    return [text.partition(":")[0].strip().lower().replace("_", "-")]


def _complete(incomplete: str) -> list[str]:
    first, plus, last = incomplete.rpartition("+")
    return [
        first + plus + name
        for name in pages()
        if name.startswith(last) and (not plus or kind(name) == "extra")
    ]


@app.command()
def explain(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="A method's name, or several joined by +; without one they are all listed.",
            autocompletion=_complete,
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="The page's text as it is.")] = False,
    json: JsonOption = False,
) -> None:
    """Explain a method: its equation, when to use it, and when not.

    \b
    Examples:
      longtail explain
      longtail explain logit-adjusted
      longtail explain ldam+drw
      longtail explain equalized --plain
    """
    found = pages()
    if method is None:
        _list({name: path.read_text(encoding="utf-8") for name, path in found.items()}, json)
        return
    names = _known(method, found)
    texts = [found[name].read_text(encoding="utf-8") for name in names]
    text = "\n".join(texts)
    if json:
        titles = " + ".join(map(title, texts))
        _console.print_json({"name": "+".join(names), "title": titles, "page": text})
    elif plain:
        _console.line(text.rstrip("\n"))
    else:
        from rich.markdown import Markdown

        for position, one in enumerate(texts):
            if position:
                _console.line()
            _console.show(Markdown(_without_pages(one), hyperlinks=False))


def _without_pages(text: str) -> str:
    """A page whose links to others are their words alone: a terminal has no files to follow.

    Examples:
        >>> _without_pages("use [LDAM](ldam.md), see [what is proved](../theory.md#links)")
        'use LDAM, see what is proved'
    """
    return re.sub(r"\[([^][]+)\]\([\w./-]+\.md(?:#[\w-]+)?\)", r"\1", text)


def _known(method: str, found: dict[str, Path]) -> list[str]:
    from longtail._checks import InputError

    try:
        names = parts(method)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    if names[0] not in found:
        raise typer.BadParameter(
            f"there is no method {names[0]!r}; the methods are {', '.join(found)}"
        )
    return names


_KINDS = {
    "loss": "Losses",
    "extra": "On top of a loss, as in ldam+drw",
    "posthoc": "After training with softmax",
}


def _list(texts: dict[str, str], json: bool) -> None:
    groups = {key: [name for name in texts if kind(name) == key] for key in _KINDS}
    if json:
        document = [
            {
                "name": name,
                "kind": key,
                "title": title(texts[name]),
                "summary": summary(texts[name]),
            }
            for key, names in groups.items()
            for name in names
        ]
        _console.print_json(document)
        return
    from rich.table import Table
    from rich.text import Text

    width = max(map(len, texts), default=0)
    for key, names in groups.items():
        if not names:
            continue
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True, min_width=width)
        table.add_column()
        for name in names:
            table.add_row(name, Text(summary(texts[name])))
        if key != "loss":
            _console.line()
        _console.show(Text(_KINDS[key], style="underline"), table)
