"""`longtail explain`: the documentation's page of a method."""

from __future__ import annotations

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
    return " ".join(body.partition("\n\n")[0].replace("*", "").split())


def _complete(incomplete: str) -> list[str]:
    return [name for name in pages() if name.startswith(incomplete)]


@app.command()
def explain(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="A method's name; without one they are all listed.",
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
      longtail explain equalized --plain
    """
    found = pages()
    if method is None:
        _list({name: path.read_text(encoding="utf-8") for name, path in found.items()}, json)
        return
    name = method.lower().replace("_", "-")
    if name not in found:
        raise typer.BadParameter(
            f"there is no method {method!r}; the methods are {', '.join(found)}"
        )
    text = found[name].read_text(encoding="utf-8")
    if json:
        _console.print_json({"name": name, "title": title(text), "page": text})
    elif plain:
        _console.line(text.rstrip("\n"))
    else:
        from rich.markdown import Markdown

        _console.show(Markdown(text, hyperlinks=False))


def _list(texts: dict[str, str], json: bool) -> None:
    if json:
        document = [
            {"name": name, "title": title(text), "summary": summary(text)}
            for name, text in texts.items()
        ]
        _console.print_json(document)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in texts.items():
        table.add_row(name, Text(summary(text)))
    _console.show(table)
