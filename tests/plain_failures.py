"""Failures told in words alone, for tests on a GPU.

pytest shows the arguments of the function that raised. To print a tensor, torch asks the device;
and one that has just failed may take the process with it, and the message too.
"""

import functools
import traceback

import pytest


def plainly(test):
    """A test whose failure is its traceback as text, without the values in it.

    Args:
        test: a test function; its fixtures stay as they are.

    Returns:
        The test to collect in its place.
    """

    @functools.wraps(test)
    def run(*args, **kwargs):
        try:
            return test(*args, **kwargs)
        except Exception as error:
            said = "".join(traceback.format_exception(error))
        pytest.fail(said, pytrace=False)

    return run
