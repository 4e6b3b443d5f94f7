"""`longtail explain`: the documentation's page of a method, or those of a composed one's parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import JsonOption, option

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_KINDS = {
    "loss": "Losses",
    "extra": "On top of a loss, as in ldam+drw",
    "posthoc": "After training with softmax",
}


def pages() -> dict[str, Path]:
    """Return the method pages by name, from the installed package or else the checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "_pages", package.parents[1] / "docs" / "methods"):
        found = {path.stem: path for path in folder.glob("*.md")}
        if found:
            return dict(sorted(found.items()))
    return {}


def kind(name: str) -> str:
    """Return ``loss``, ``extra`` (comes on top of one) or ``posthoc``."""
    from longtail.train.methods import EXTRAS

    if name in EXTRAS:
        return "extra"
    return "posthoc" if name.startswith("posthoc-") else "loss"


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
    plain: Annotated[bool, option(None, "The page's text as it is.", "--plain")] = False,
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
    found = {name: path.read_text(encoding="utf-8") for name, path in pages().items()}
    if method is None:
        _list(found, json)
        return
    names = _parts(method)
    if names[0] not in found:
        raise typer.BadParameter(
            f"there is no method {names[0]!r}; the methods are {', '.join(found)}"
        )
    texts = [found[name] for name in names]
    text = "\n".join(texts)
    if json:
        titles = " + ".join(map(_title, texts))
        _console.print_json({"name": "+".join(names), "title": titles, "page": text})
    elif plain:
        _console.line(text.rstrip("\n"))
    else:
        from rich.markdown import Markdown

        for position, one in enumerate(texts):
            if position:
                _console.line()
            # A terminal has no files to follow: links to other pages are their words alone.
            words = re.sub(r"\[([^][]+)\]\([\w./-]+\.md(?:#[\w-]+)?\)", r"\1", one)
            _console.show(Markdown(words, hyperlinks=False))


def _parts(text: str) -> list[str]:
    """Return the names in a method as `longtail train` takes it, without its settings.

    Examples:
        >>> _parts("LDAM + drw:start=120")
        ['ldam', 'drw']
    """
    from longtail._checks import InputError
    from longtail.train.methods import Method

    if "+" not in text:
        return [text.partition(":")[0].strip().lower().replace("_", "-")]
    try:
        return Method.of(text).part.name.split("+")
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ").strip()


def _list(texts: dict[str, str], json: bool) -> None:
    """Print every method with the first paragraph of its page, kind by kind."""
    from rich.table import Table
    from rich.text import Text

    listed = []
    for key, name in ((key, name) for key in _KINDS for name in texts if kind(name) == key):
        first = texts[name].partition("\n")[2].strip().partition("\n\n")[0]
        summary = " ".join(first.replace("*", "").replace("`", "").split())
        listed.append({"name": name, "kind": key, "title": _title(texts[name]), "summary": summary})
    if json:
        _console.print_json(listed)
        return
    for key, heading in _KINDS.items():
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True, min_width=max(map(len, texts), default=0))
        table.add_column()
        for entry in listed:
            if entry["kind"] == key:
                table.add_row(entry["name"], Text(entry["summary"]))
        if key != "loss":
            _console.line()
        _console.show(Text(heading, style="underline"), table)
