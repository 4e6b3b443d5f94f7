"""Every example in the README and the documentation runs and prints what the page says.

On a page, all ``python`` blocks run in order in one namespace, in an empty folder; a ``text``
block right after one is what it prints. In a ``console`` block each line that starts with ``$ ``
is run by the shell and the lines up to the next one are its output (``...`` skips text).
"""

import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKER = doctest.OutputChecker()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m[1], m[2], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]


def expect(wanted: str, got: str, where: str) -> None:
    if not CHECKER.check_output(wanted, got, FLAGS):
        pytest.fail(f"{where}: expected\n{wanted}\ngot\n{got}")


def commands_of(text: str):
    """(command, expected output) pairs of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = command[:-1] + more.removeprefix(">")
        yield command, output


def run_console(block: Block, folder: Path, where: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, output in commands_of(block.text):
        if command.startswith(("pip ", "make ", "git ")):
            continue  # installing is what made this test run
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
        expect(output or "...", done.stdout + done.stderr, f"{where}: $ {command}")


@pytest.fixture
def torch_warns_every_time():
    """torch gives some of its warnings once in a process, to the first page that has them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.usefixtures("torch_warns_every_time")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    blocks = blocks_of(page)
    for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=False):
        where = f"{page.name}:{block.line}"
        if block.language == "console":
            run_console(block, tmp_path, where)
        elif block.language == "python":
            printed = io.StringIO()
            code = compile("\n" * block.line + block.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            if after.language == "text":
                expect(after.text, printed.getvalue(), where)
    if page.parent.name == "methods":
        assert any(b.language == "python" for b in blocks), "a method page shows code"


def test_readme_opens_with_sentence_install_and_example():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "pip install ." in head
    example = next(b for b in blocks_of(ROOT / "README.md") if b.language == "python")
    assert example.text in head
    assert len(example.text.strip().splitlines()) <= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    ("plain", "html"),
    [
        ("m_y ∝ n_y^{−1/4}", "m<sub>y</sub> ∝ n<sub>y</sub><sup>−1/4</sup>"),
        ("e^{s Δ_{yy'}} = e^−z", "e<sup>s Δ<sub>yy'</sub></sup> = e<sup>−z</sup>"),
        ("num_classes, y_true, to_df, sum_", "num_classes, y_true, to_df, sum_"),
        ("<pre>f_y</pre> <code>f_y</code>", "<pre>f_y</pre> <code>f_y</code>"),
        ('<a title="f_y">f_y</a>', '<a title="f_y">f<sub>y</sub></a>'),
    ],
)
def test_formulas_have_subscripts_on_the_site(plain, html):
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.formulas(plain) == html


# On a line of its own, perhaps after `$ ` or behind torchrun; or within a line, in backticks.
COMMAND = re.compile(
    r"^(?:\$ )?(?:torchrun .*-m )?longtail (.+)$|`longtail ([^`\n]+)`", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_and_options_exist(page):
    import click
    import typer

    from longtail.cli import app

    text = re.sub(r"\\\n>?\s*", "", page.read_text())
    for words in (" ".join(found).split() for found in COMMAND.findall(text)):
        command = typer.main.get_command(app)
        context = click.Context(command)
        rest = [word for word in words if word != "-h"]
        while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"{page.name}: there is no command {name} ({words})"
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for option in (word for word in rest if re.match(r"--?[a-z]", word)):
            assert option in {*known, "--help"}, f"{page.name}: {option} of {words}"
