"""The errors of this package, and words that their messages share."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence, Sized
from itertools import islice
from types import ModuleType


class InputError(ValueError):
    """A value that the caller passed breaks a rule; the message says which and what to do."""

    __module__ = "longtail"  # where people find it, and what a traceback should say


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message is the command that installs it."""

    __module__ = "longtail"


def _by(caller: str) -> str:
    """Prefix of a message, where a caller is named."""
    return f"{caller}: " if caller else ""


def require(module: str, *, extra: str, caller: str = "") -> ModuleType:
    """Import `module`, or say in one line how to install the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A broken import inside an installed package is not a missing extra.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{caller or 'this'} needs {module.split('.')[0]}, which is not installed; "
            f"run: pip install 'longtail[{extra}]'"
        ) from error


def listing(items: Iterable[object], *, most: int = 10) -> str:
    """A short, readable enumeration for messages: ``3, 7, 9 and 4 more``."""
    items = items if isinstance(items, Sized) else list(items)
    shown = ", ".join(str(item) for item in islice(items, most))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def class_words(classes: Iterable[int], names: Sequence[str] | None) -> str:
    """Some classes in words, by name where they have names; nothing if there are none.

    Examples:
        >>> class_words([0, 2], None), class_words([1], ["cat", "dog"]), class_words([], None)
        ('class(es) 0, 2', 'class(es) dog', '')
    """
    found = [str(k) if names is None else names[k] for k in classes]
    return f"class(es) {listing(found)}" if found else ""
