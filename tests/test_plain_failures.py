"""A failure in words: the error is all there, and nothing is asked of the values."""

import pytest

from plain_failures import plainly


class Untouchable:
    def __repr__(self):
        raise AssertionError("somebody printed it")


@plainly
def sevens(value, *, count):
    if count != 7:
        raise ValueError(f"{count} is not seven")
    return value


def test_the_error_is_told_without_the_values():
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)test_plain_failures.*6 is not seven"
    ) as e:
        sevens(Untouchable(), count=6)
    assert e.value.pytrace is False  # so pytest adds no traceback of its own


def test_what_passes_or_skips_is_left_alone():
    assert sevens("ok", count=7) == "ok"
    with pytest.raises(pytest.skip.Exception):
        plainly(pytest.skip)("not here")
