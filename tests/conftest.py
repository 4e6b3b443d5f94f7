"""Fixtures of several folders: a finished run, and the command line.

The one conftest there is: two files of one name would be one module to pytest's doctests.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from longtail.cli import main
from run_factory import make_run


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def no_data_folder(monkeypatch):
    """As on a machine that names no folder of data."""
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)


@pytest.fixture
def one_thread():
    """Small networks train faster so, and do not crowd out tests beside them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def root(tmp_path):
    """The folder of runs of a test, not made yet."""
    return tmp_path / "runs"


@pytest.fixture
def run(root):
    """One finished run."""
    return make_run(root)


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Call the command line in an empty folder; its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("LONGTAIL_DEBUG", raising=False)

    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def ok(cli):
    """Call the command line, which must end well; paths and JSON aside, it keeps to 80 columns."""

    def call(*arguments, err=None):
        result = cli(*arguments)
        assert result.code == 0, result.err
        assert err in (None, result.err)
        plain = [line for line in result.out.splitlines() if "/" not in line]
        assert "--json" in arguments or max(map(len, plain), default=0) <= 80
        return result

    return call


@pytest.fixture
def refused(cli):
    """Call the command line, which must refuse in one line on stderr; that line."""

    def call(*arguments, code=1):
        result = cli(*arguments)
        assert (result.code, result.out) == (code, "")
        (line,) = result.err.splitlines()
        assert line.startswith("longtail: error: ")
        return line.removeprefix("longtail: error: ")

    return call


@pytest.fixture
def fresh(tmp_path):
    """The installed command in a process of its own."""

    def call(*arguments, code="from longtail.cli import main; import sys; sys.exit(main())", **env):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80", **env},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def two_processes():
    """Run a script in two processes under torchrun."""

    def call(script, *arguments):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run(
            [sys.executable, *words, script, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=200,
        )
        assert done.returncode == 0, done.stderr

    return call
