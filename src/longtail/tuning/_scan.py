"""One pass over held-out logits, in NumPy: the ends of the interval of tau of every example.

This is the hot loop of `tune_tau`, written for memory bandwidth; the equations are with
`TauIntervals` in `_intervals`, which also checks everything but the logits' values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, IntArray

# Rows whose examples are grouped by class; long enough that even with 1000 classes a group is
# worth a NumPy call, and of a memory map only the pages are touched.
_WINDOW_ROWS = 1 << 16
# Elements of the work buffer: 1 MB in float64, about an L2 cache.
_BLOCK_ELEMENTS = 1 << 17
# Up to this many classes the buffer is stored class by class: reductions over so few numbers
# would cost more to start than to do.
_NARROW = 128


class TauScan:
    """Classes sorted by l, examples grouped by class, blocks that fit a cache.

    For examples of one class y the classes with l_j > l_y, l_j = l_y and l_j < l_y are the same,
    and contiguous once the classes are sorted by l; so a block of such examples costs one
    subtraction, one multiplication by 1 / (l_j − l_y), and a maximum and a minimum.

    Args:
        direction: l, shape (num_classes,).
        signed: whether the scores are f / ν^τ, which keeps their sign, rather than f − τ l.
        caller: for messages.
    """

    def __init__(self, direction: FloatArray, *, signed: bool, caller: str) -> None:
        self.caller = caller
        self.signed = signed
        steps = np.diff(direction)
        monotone = bool(np.all(steps >= 0) or np.all(steps <= 0))
        # A stable sort keeps classes of equal l in index order, which breaks their ties.
        self.order = None if monotone else np.argsort(direction, kind="stable")
        self.direction = direction if self.order is None else direction[self.order]
        self.place = np.arange(len(direction))
        if self.order is not None:
            self.place[self.order] = np.arange(len(direction))
        self.falling = bool(self.direction[0] > self.direction[-1])
        ordered = -self.direction if self.falling else self.direction
        # The class at place p ties with those at start[p] .. stop[p] − 1.
        self.start = np.searchsorted(ordered, ordered, side="left")
        self.stop = np.searchsorted(ordered, ordered, side="right")

    def run(
        self,
        logits: NDArray[Any],
        target: IntArray,
        bias: FloatArray | None,
        window_rows: int | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Ends of the interval of every example; `bias` is taken off the logits first."""
        lower, upper = np.empty(len(logits)), np.empty(len(logits))
        window_rows = window_rows or _WINDOW_ROWS
        for start in range(0, len(logits), window_rows):
            rows = slice(start, start + window_rows)
            self._check(logits[rows], start)
            with np.errstate(all="ignore"):  # infinities are meant: no bound
                self._window(logits[rows], target[rows], bias, lower[rows], upper[rows])
        return lower, upper

    def _check(self, window: NDArray[Any], start: int) -> None:
        """Values in natural order: a disk reads ahead, and a message can name the row."""
        step = max(1, (1 << 20) // window.shape[1])
        for first in range(0, len(window), step):
            _checks.all_finite(
                window[first : first + step],
                caller=self.caller,
                name="logits",
                first_row=start + first,
            )
        if start == 0 and not self.signed:
            _checks.not_probabilities(
                window[:step], caller=self.caller, hint="pass their logarithm, numpy.log(probs)"
            )

    def _window(
        self,
        window: NDArray[Any],
        target: IntArray,
        bias: FloatArray | None,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """Fill `lower` and `upper`, class by class and block by block."""
        block = max(1, _BLOCK_ELEMENTS // window.shape[1])
        buffers = [np.empty((block, window.shape[1]), d) for d in (window.dtype, window.dtype, "d")]
        # NumPy sorts 16-bit integers several times faster.
        short = target.astype(np.int16) if len(self.place) < 1 << 15 else target
        by_class = np.argsort(short, kind="stable")
        cuts = np.flatnonzero(np.diff(target[by_class])) + 1
        ends = np.empty((2, len(target)))
        for first, stop in zip([0, *cuts], [*cuts, len(target)], strict=True):
            bounds = self._bounds_of(int(target[by_class[first]]))
            for at in range(first, stop, block):
                part = slice(at, min(at + block, stop))
                scores = self._gather(window, by_class[part], bias, buffers)
                bounds(scores, ends[0, part], ends[1, part])
        lower[by_class], upper[by_class] = ends
        self._settle_zero(window, target, bias, lower, upper)

    def _gather(
        self,
        window: NDArray[Any],
        members: IntArray,
        bias: FloatArray | None,
        buffers: list[NDArray[Any]],
    ) -> FloatArray:
        """The members' logits in float64, shape (num_classes, members), classes sorted by l.

        The memory belongs to the buffers and may be overwritten.
        """
        count = len(members)
        raw, swapped, work = (buffer[:count] for buffer in buffers)
        # mode="clip" lets `take` write into its `out` directly; the indices are in range.
        np.take(window, members, axis=0, out=raw, mode="clip")
        narrow = raw.shape[1] <= _NARROW
        scores = work.reshape(-1, count) if narrow else work.T
        if self.order is None:
            scores[...] = raw.T
        elif narrow:
            scores[self.place] = raw.T
        else:
            scores[...] = np.take(raw, self.order, axis=1, out=swapped, mode="clip").T
        if bias is not None:
            scores -= (bias if self.order is None else bias[self.order])[:, None]
        return scores

    def _bounds_of(self, y: int) -> Callable[[FloatArray, FloatArray, FloatArray], None]:
        """What finds the ends for examples of class y, with all that depends on y prepared."""
        place = int(self.place[y])
        start, stop = int(self.start[place]), int(self.stop[place])
        sides = slice(0, start), slice(stop, len(self.place))
        above, below = sides if self.falling else sides[::-1]
        gaps = self.direction - self.direction[place]
        gaps[start:stop] = np.inf
        inverse = (1.0 / gaps)[:, None]

        def bounds(scores: FloatArray, low: FloatArray, high: FloatArray) -> None:
            own = scores[place].copy()
            lost = None
            if stop - start > 1:  # ties go to the lowest index, as argmax has it
                lost = (scores[start:place] >= own).any(axis=0)
                lost |= (scores[place + 1 : stop] > own).any(axis=0)
            if self.signed:
                self._signed(scores, own, y, inverse, (above, below), low, high)
            else:
                scores -= own
                scores *= inverse
                scores[above].max(axis=0, initial=-np.inf, out=low)
                scores[below].min(axis=0, initial=np.inf, out=high)
            if lost is not None:
                low[lost] = np.inf

        return bounds

    def _signed(
        self,
        scores: FloatArray,
        own: FloatArray,
        y: int,
        inverse: FloatArray,
        sides: tuple[slice, slice],
        low: FloatArray,
        high: FloatArray,
    ) -> None:
        """The ends for weight normalization, f / ν^τ, which keeps every score's sign."""
        top = scores.max(axis=0)
        high[:] = np.inf
        # What is above zero stays above what is not; a score of zero stays zero.
        low[:] = np.where((top > 0) & (own <= 0) | (top == 0) & (own < 0), np.inf, -np.inf)
        zero = np.flatnonzero((own == 0) & (top == 0))
        names = self.place if self.order is None else self.order
        low[zero[(scores[names < y][:, zero] == 0).any(axis=0)]] = np.inf
        for some, sign in ((own > 0, 1.0), ((own < 0) & (top < 0), -1.0)):
            if not some.any():
                continue
            # log 0 = −inf takes the scores of the other sign out of the comparison.
            logs = np.log(np.maximum(sign * scores[:, some], 0.0))
            logs -= np.log(sign * own[some])
            logs *= inverse
            # Among negative scores the smaller |f| wins, so the two sides change roles.
            lows, highs = sides if sign > 0 else sides[::-1]
            low[some] = logs[lows].max(axis=0, initial=-np.inf)
            high[some] = logs[highs].min(axis=0, initial=np.inf)

    def _settle_zero(
        self,
        window: NDArray[Any],
        target: IntArray,
        bias: FloatArray | None,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """Make tau = 0 agree with argmax where the largest logits are equal.

        It is the one place where two scores tie exactly: elsewhere a tie would need a logarithm
        of a rational number to be rational. An end that must include or exclude zero moves by
        the smallest number there is.
        """
        edge = np.flatnonzero((lower == 0) | (upper == 0))
        step = max(1, _BLOCK_ELEMENTS // window.shape[1])
        tiny = np.nextafter(0.0, 1.0)
        for part in (edge[at : at + step] for at in range(0, len(edge), step)):
            rows = window[part] if bias is None else window[part] - bias
            right = rows.argmax(axis=1) == target[part]
            upper[part[right & (upper[part] == 0)]] = tiny
            lower[part[~right & (lower[part] == 0)]] = tiny
