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
    found = pages()
    if method is None:
        _list(found, json)
        return
    if "+" in method:  # as `longtail train` takes it, whose settings have no pages
        from longtail._checks import InputError
        from longtail.train.methods import Method

        try:
            names = Method.of(method).part.name.split("+")
        except InputError as error:
            raise typer.BadParameter(str(error)) from error
    else:
        names = [method.partition(":")[0].strip().lower().replace("_", "-")]
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

    listed = []
    for name, text in texts.items():
        kind = "posthoc" if name.startswith("posthoc-") else "loss"
        kind = "extra" if name in EXTRAS else kind
        first = text.partition("\n")[2].strip().partition("\n\n")[0]
        summary = " ".join(first.replace("*", "").replace("`", "").split())
        listed.append({"name": name, "kind": kind, "title": _title(text), "summary": summary})
    listed.sort(key=lambda entry: list(_HEADINGS).index(entry["kind"]))
    if json:
        _console.print_json(listed)
        return
    for kind, heading in _HEADINGS.items():
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True, min_width=max(map(len, texts), default=0))
        table.add_column()
        for entry in listed:
            if entry["kind"] == kind:
                table.add_row(entry["name"], Text(entry["summary"]))
        if kind != "loss":
            _console.line()
        _console.console().print(Text(heading, style="underline"), table, sep="\n")
