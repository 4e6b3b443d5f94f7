"""Resampling by class: the examples of an epoch and their order; for torch, `torch_samplers`.

An epoch is made in three steps: how often each class is drawn (`draws`), which of its examples
that makes (shuffled passes over the class), and in which order the classes take turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks
from longtail._checks import FloatArray, InputError, IntArray

RULES = ("instance", "class-balanced", "square-root", "under", "progressive")


class ClassSampler:
    """Draws the examples of each epoch by one of the classical resampling rules.

        instance        p_y ∝ n_y           every example once, shuffled
        class-balanced  p_y ∝ 1
        square-root     p_y ∝ √n_y
        progressive     p_y = (1 − t)·n_y / n + t / L,   t = epoch / (epochs − 1), at most 1
        under           each class cut to the smallest one's size, other examples every epoch

    L counts the classes that have examples; the others are never drawn. Of m draws a class gets
    m·p_y, rounded up or down at random so that the mean over epochs is exact: less noise than
    drawing the class of each example anew. The examples of a class come in shuffled passes over
    it, so within an epoch none is seen again before all of its class were; and the classes take
    turns in uniformly random order. An epoch's indices depend on `labels`, `rule`, `seed` and
    the epoch alone, not on the epochs before.

    A resampled epoch has another class prior than the data: give a loss that needs one
    ``ClassPrior.from_weights(sampler.class_weights(epoch))``, not the data's own prior, or the
    imbalance is corrected twice.

    Args:
        labels: of all examples, shape (examples,), in 0 .. num_classes − 1.
        rule: see above.
        num_classes: of `class_weights`; by default one more than the largest label.
        num_samples: m, the length of an epoch; by default the number of examples. The rule
            ``under`` has its own and takes none.
        seed: of the random numbers.
        epochs: after how many the rule ``progressive`` is class-balanced; for it alone.

    Attributes:
        counts: n_y, shape (num_classes,).
        num_samples: m.

    Examples:
        >>> sampler = ClassSampler([0, 0, 0, 0, 1, 1], rule="class-balanced", num_samples=8)
        >>> drawn = sampler.indices(0)
        >>> np.bincount(drawn)  # class 1 twice over, class 0 once
        array([1, 1, 1, 1, 2, 2])
        >>> sampler.class_weights(0)
        array([0.5, 0.5])
    """

    def __init__(
        self,
        labels: Any,
        *,
        rule: str = "instance",
        num_classes: int | None = None,
        num_samples: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
    ) -> None:
        self.rule, self.seed, self.epochs = _checks.choice(rule, RULES, name="rule"), seed, epochs
        targets = _checks.labels(labels, name="labels", num_classes=num_classes)
        if (rule == "progressive") != (epochs is not None):
            raise InputError(
                f"`epochs`, the number of epochs until sampling is class-balanced, is needed by "
                f"the rule 'progressive' and by no other; got {epochs} for {rule!r}."
            )
        if epochs is not None:
            _checks.whole(epochs, name="epochs", at_least=2)
        if rule == "under" and num_samples is not None:
            raise InputError(
                f"`num_samples` is {num_samples}, but the rule 'under' takes as many of each class "
                f"as the smallest has; leave it out, or take 'class-balanced'."
            )
        self.counts = np.bincount(targets, minlength=num_classes or 0)
        present = np.flatnonzero(self.counts)
        # Classes by size: those of one size are shuffled together, and no data set of n examples
        # has more than √(2n) sizes.
        self._classes = present[np.argsort(self.counts[present], kind="stable")]
        self._sizes = self.counts[self._classes]
        self._starts = (np.cumsum(self.counts) - self.counts)[self._classes]
        self._examples = len(targets)
        if rule != "instance":
            self._members = _by_group(targets, len(self.counts))
        if num_samples is None:
            num_samples = len(self._sizes) * self._sizes[0] if rule == "under" else len(targets)
        self.num_samples = _checks.whole(num_samples, name="num_samples")

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rule={self.rule!r}, num_samples={self.num_samples}, "
            f"examples={self._examples}, num_classes={len(self.counts)}, seed={self.seed})"
        )

    def class_weights(self, epoch: int) -> FloatArray:
        """Return p_y of an epoch, shape (num_classes,): the prior that the network is trained on.

        Examples:
            >>> sampler = ClassSampler([0, 0, 0, 1], rule="progressive", epochs=3)
            >>> [sampler.class_weights(epoch).tolist() for epoch in range(3)]
            [[0.75, 0.25], [0.625, 0.375], [0.5, 0.5]]
        """
        weights = np.zeros(len(self.counts))
        weights[self._classes] = self._probabilities(epoch)
        return weights

    def indices(self, epoch: int) -> IntArray:
        """Return the examples of an epoch, counted from 0, in order; int64, shape (m,)."""
        random = np.random.default_rng([self.seed, epoch])
        if self.rule == "instance" or (self.rule == "progressive" and epoch == 0):
            starts = range(0, self.num_samples, self._examples)
            passes = [random.permutation(self._examples) for _ in starts]
            return np.concatenate(passes)[: self.num_samples]
        draws = self._draws(epoch, random)
        stream = self._stream(draws, random)
        turns = np.repeat(np.arange(len(draws), dtype=np.int32), draws)
        random.shuffle(turns)
        order = np.empty(self.num_samples, np.int64)
        order[_by_group(turns, len(draws))] = stream
        return order

    def _probabilities(self, epoch: int) -> FloatArray:
        """Return p_y of the classes that have examples, by size."""
        t = float(self.rule != "instance")  # the share of the rule beside instance sampling
        if self.epochs is not None:
            t = min(epoch / (self.epochs - 1), 1.0)
        wanted = np.sqrt(self._sizes) if self.rule == "square-root" else np.ones(len(self._sizes))
        p: FloatArray = (1 - t) * self._sizes / self._sizes.sum() + t * wanted / wanted.sum()
        return p

    def _draws(self, epoch: int, random: np.random.Generator) -> IntArray:
        """Return how often each class is drawn: m·p_y rounded up or down, with sum m."""
        if self.rule == "under":
            return np.full(len(self._sizes), self._sizes[0])
        # Systematic sampling: one random start, whole numbers between the cumulated shares. In
        # random class order, since otherwise neighbours would never be rounded up together.
        order = random.permutation(len(self._sizes))
        ends = np.cumsum(self._probabilities(epoch)[order]) * self.num_samples
        ends[-1] = self.num_samples
        whole = np.floor(ends + random.random()).astype(np.int64)
        whole[-1] = self.num_samples
        draws = np.empty_like(whole)
        draws[order] = np.diff(whole, prepend=0)
        return draws

    def _stream(self, draws: IntArray, random: np.random.Generator) -> IntArray:
        """Return the drawn examples by class, each class in shuffled passes over its members."""
        sizes, firsts = np.unique(self._sizes, return_index=True)
        pieces = []
        for size, first, end in zip(sizes, firsts, [*firsts[1:], len(draws)], strict=True):
            wanted = draws[first:end]
            passes = -(-wanted // size)
            starts = np.repeat(self._starts[first:end], passes)
            block = self._members[starts[:, None] + np.arange(size)]
            if size > 1:
                block = random.permuted(block, axis=1)
            # A class's last pass is cut where its draws end.
            length = np.full(len(block), size)
            cut = passes > 0
            length[np.cumsum(passes)[cut] - 1] = (wanted - (passes - 1) * size)[cut]
            pieces.append(block[np.arange(size) < length[:, None]])
        return np.concatenate(pieces)


def _by_group(groups: NDArray[Any], num_groups: int) -> NDArray[Any]:
    """Return positions by group, ascending within each: a stable argsort in linear time."""
    from scipy import sparse  # here: reading data must not need it

    # The transposition of a matrix with one entry per row is a counting sort.
    columns, ends = groups.astype(np.int32), np.arange(len(groups) + 1, dtype=np.int32)
    entries = np.broadcast_to(np.int8(1), len(groups)), columns, ends
    rows = sparse.csr_matrix(entries, shape=(len(groups), num_groups))
    return np.asarray(rows.tocsc().indices)
