"""A folder of runs, and one finished run in it."""

import pytest

from run_factory import make_run


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def run(root):
    return make_run(root)
