"""Every command: help, errors, exit codes, a light start."""

import json
import logging
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import typer

import longtail
from longtail import InputError
from longtail import cli as package
from longtail.cli import _console


def command_paths():
    """Every command and subcommand, as the words that call it."""
    root = typer.main.get_command(package.app)
    context = type("Context", (), {"resilient_parsing": True})()

    def walk(command, path):
        yield path
        for name in getattr(command, "list_commands", lambda _: [])(context):
            yield from walk(command.get_command(context, name), (*path, name))

    return list(walk(root, ()))


PATHS = command_paths()


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_fits_80_columns_and_shows_examples(cli, path, ok):
    result = ok(*path, "--help")
    assert result.err == ""
    is_group = "Commands:" in result.out
    assert "Example" in result.out or (is_group and path)
    assert "..." not in re.sub(r".*Usage.*|\S*,\.\.\.\S*", "", result.out), "a help text is cut"
    if path:
        assert cli(*path, "-h").out == result.out


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_examples_in_the_help_parse(cli, path):
    text = cli(*path, "--help").out
    for line in re.findall(r"^    (longtail .*?)(?:  .*)?$", text, flags=re.MULTILINE):
        words = line.split()[1:]
        command = typer.main.get_command(package.app)
        with command.make_context("longtail", words, resilient_parsing=True):
            pass
        while words and hasattr(command, "get_command"):
            found = command.get_command(None, words[0])
            assert found is not None, f"no command {words[0]!r} in {line!r}"
            command, words = found, words[1:]
        if "--help" not in words:
            command.make_context(command.name, words).close()  # wrong usage would raise


def test_help_imports_nothing_heavy_and_starts_quickly(fresh):
    code = (
        "import sys; from longtail.cli import main; main(['--help']);"
        "print([m for m in ('numpy', 'scipy', 'sklearn', 'torch', 'safetensors')"
        " if m in sys.modules])"
    )
    assert fresh(code=code).out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tun"], ["no such command 'tun'", "see: longtail --help"]),
        (["--foo"], ["no such option: --foo", "see: longtail --help"]),
        (["tune"], ["missing argument 'FILE'; see: longtail tune --help"]),
        (["tune", "x", "--criterion", "y"], ["'y' is not one of 'balanced-error', 'log-loss'"]),
        (["runs", "pack", "x"], ["missing option '--out'"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(refused, arguments, words):
    line = refused(*arguments, code=2)
    for word in words:
        assert word in line


def failing(monkeypatch, error):
    def explode(*args, **keywords):
        raise error

    monkeypatch.setattr("longtail.runs.run_folders", explode)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("first\n  second"), "first second"),
        (longtail.MissingExtraError("run: pip install 'longtail[torch]'"), "longtail[torch]"),
        (OSError(28, "No space left on device", "a.txt"), "No space left on device: a.txt"),
        (KeyError("x"), "KeyError: 'x' (a bug in longtail? --debug shows the traceback)"),
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(refused, monkeypatch, error, message):
    failing(monkeypatch, error)
    assert message in refused("runs", "list", "--json")


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_debug_shows_the_traceback(cli, monkeypatch, where):
    failing(monkeypatch, KeyError("x"))
    words = {"before": ["--debug", "runs", "list"], "after": ["runs", "list", "--debug"]}
    if where == "environment":
        monkeypatch.setenv("LONGTAIL_DEBUG", "1")
    with pytest.raises(KeyError):
        cli(*words.get(where, ["runs", "list"]))


def test_json_has_no_nan(capsys):
    document = {"a": float("nan"), "b": [np.float32(np.inf), np.arange(2)], "c": np.int64(3)}
    _console.print_json(document)
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, [0, 1]], "c": 3}


def test_warnings_and_log_messages_are_one_line_on_stderr(cli, monkeypatch):
    def warn(_):
        warnings.warn("careful:\n twice, say `force=True`", stacklevel=1)
        logging.getLogger("longtail").warning("left out %d", 3)
        logging.getLogger("longtail").info("not worth a line")
        return []

    monkeypatch.setattr("longtail.runs.run_folders", warn)
    assert cli("runs", "list").err == (
        "longtail: warning: careful: twice, say --force\nlongtail: warning: left out 3\n"
    )


# The world outside.


def test_control_characters_of_names_are_shown(cli):
    np.savez("p.npz", logits=2 * np.eye(3), target=["a", "b", "c"], classes=["a", "b", "\x1b[31mc"])
    result = cli("adjust", "p.npz", "--counts", "9,1,1")
    assert "\x1b" not in result.out + result.err
    assert "\\x1b[31m" in result.err


def shell(command, **settings):
    """Run a command line with `longtail` in it as a person's shell would."""
    command = command.replace("longtail", f"{sys.executable} -m longtail")
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, **settings)


@pytest.mark.slow
def test_output_does_not_fail_for_its_terminal(tmp_path):
    np.savez(
        tmp_path / "p.npz", logits=np.tile(2 * np.eye(3), (9, 1)), target=np.tile(np.arange(3), 9)
    )
    adjust = "longtail adjust p.npz --counts 9,1,1 --tau 1"
    narrow = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    assert shell(adjust, cwd=tmp_path, env=narrow).returncode == 0
    cut = shell(f"{adjust} | head -c 10", cwd=tmp_path)
    assert (cut.returncode, cut.stderr) == (0, b"")
    assert shell(f"{adjust} >&-", cwd=tmp_path).returncode == 0
