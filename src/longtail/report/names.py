"""Names of classes where there is little room: cut, but still told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names, those that are too long cut to `width` characters and, if possible, distinct.

    Names of one beginning lose their middle rather than their end, and where that still leaves
    some alike, what they have in common.

    Examples:
        >>> shortened(["tabby cat", "dog"], 6)
        ['tabby…', 'dog']
        >>> shortened(["Felidae/Panthera leo", "Felidae/Panthera onca"], 12)
        ['Feli…era leo', 'Feli…ra onca']
        >>> shortened(["product 1 in a long row", "product 2 in a long row"], 8)
        ['…1 in a…', '…2 in a…']
    """
    found = [_end_cut(name, width) for name in names]
    ways: tuple[Callable[[str, int], str], ...] = (_middle_cut, _beginning_cut(names))
    for way in ways:
        often = Counter(found)
        found = [
            way(name, width) if often[short] > 1 and short != name else short
            for name, short in zip(names, found, strict=True)
        ]
    return found


def _end_cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _middle_cut(name: str, width: int) -> str:
    tail = 2 * (width - 1) // 3
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def _beginning_cut(names: Sequence[str]) -> Callable[[str, int], str]:
    """Starts at the word in which a name begins to differ from the one that is most like it."""

    def cut(name: str, width: int) -> str:
        differs = max((_shared(name, other) for other in names if other != name), default=0)
        start = max(name.rfind(" ", 0, differs) + 1, differs - width // 3)
        return _end_cut(f"…{name[start:]}", width)

    return cut


def _shared(one: str, other: str) -> int:
    """How many characters two names begin with together."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
