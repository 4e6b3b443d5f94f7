"""`longtail explain`: the documentation's page of a method, or those of a composed one's parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli import _console
from longtail.cli._console import option

_HEADINGS = {
    "loss": "Losses",
    "extra": "On top of a loss, as in ldam+drw",
    "posthoc": "After training with softmax",
}


def explain(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="A method's name, or several joined by +; without one they are all listed.",
        ),
    ] = None,
    plain: Annotated[bool, option(None, "The page's text as it is.", "--plain")] = False,
    json: _console.Json = False,
) -> None:
    """Explain a method: its equation, when to use it, and when not.

    \b
    Examples:
      longtail explain
      longtail explain logit-adjusted
      longtail explain ldam+drw
      longtail explain equalized --plain
    """
    from longtail._checks import InputError
    from longtail.train.methods import Method

    found = pages()
    if method is None:
        _list(found, json)
        return
    names = [method.partition(":")[0].strip().lower().replace("_", "-")]
    if "+" in method:  # as `longtail train` takes it, whose settings have no pages
        try:
            names = Method.of(method).part.name.split("+")
        except InputError as error:
            raise typer.BadParameter(str(error)) from error
    elif names[0] not in found:
        raise typer.BadParameter(
            f"there is no method {names[0]!r}; the methods are {', '.join(found)}"
        )
    texts = [found[name] for name in names]
    if json:
        titles = " + ".join(map(_title, texts))
        page = "\n".join(texts)
        _console.print_json({"name": "+".join(names), "title": titles, "page": page})
    elif plain:
        _console.line("\n".join(texts).rstrip("\n"))
    else:
        from rich.markdown import Markdown

        # A terminal has no files to follow: links to other pages are their words alone.
        link = re.compile(r"\[([^][]+)\]\([\w./-]+\.md(?:#[\w-]+)?\)")
        words = link.sub(r"\1", "\n".join(texts))
        _console.console().print(Markdown(words, hyperlinks=False))


def pages() -> dict[str, str]:
    """Return the method pages by name, from the installed package or else the checkout."""
    package = Path(__file__).parents[1]
    files = list((package / "_pages").glob("*.md"))
    files = files or list((package.parents[1] / "docs" / "methods").glob("*.md"))
    return dict(sorted((path.stem, path.read_text(encoding="utf-8")) for path in files))


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ").strip()


def _list(texts: dict[str, str], json: bool) -> None:
    """Print every method with the first paragraph of its page, kind by kind."""
    from rich.table import Table
    from rich.text import Text

    from longtail.train.methods import EXTRAS

    listed: dict[str, list[dict[str, str]]] = {kind: [] for kind in _HEADINGS}
    for name, text in texts.items():
        kind = "posthoc" if name.startswith("posthoc-") else "extra" if name in EXTRAS else "loss"
        first = text.partition("\n")[2].strip().partition("\n\n")[0]
        summary = " ".join(first.replace("*", "").replace("`", "").split())
        entry = {"name": name, "kind": kind, "title": _title(text), "summary": summary}
        listed[kind].append(entry)
    if json:
        _console.print_json([entry for entries in listed.values() for entry in entries])
        return
    for kind, entries in listed.items():
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True, min_width=max(map(len, texts), default=0))
        for entry in entries:
            table.add_row(entry["name"], Text(entry["summary"]))
        blank = "" if kind == "loss" else "\n"
        _console.console().print(f"{blank}[u]{_HEADINGS[kind]}[/u]", table, sep="\n")
