"""ImageSet and LongTailedData: labelled images as arrays, with a fingerprint.

Training is given an ImageSet and nothing else: the test set is a separate one that only
`evaluate` sees. Pixels stay the integers they came as; recipes say how to normalise them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longtail import runs
from longtail._checks import InputError, IntArray
from longtail.priors import ClassPrior


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images.

    Attributes:
        images: uint8, shape (examples, channels, height, width).
        labels: int64, shape (examples,).
        class_names: one name per class, in label order.
        pixel_range: the largest value a pixel can have, 255 for photographs.
    """

    images: NDArray[np.uint8]
    labels: IntArray
    class_names: tuple[str, ...]
    pixel_range: int = 255

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise InputError(
                f"ImageSet: `images` must be uint8 of shape (examples, channels, height, width); "
                f"got {self.images.dtype} of shape {self.images.shape}."
            )
        if len(self.images) != len(self.labels):
            raise InputError(f"ImageSet: {len(self.images)} images but {len(self.labels)} labels.")

    @property
    def num_classes(self) -> int:
        """L, the number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def counts(self) -> IntArray:
        """Examples per class, zero where a class has none."""
        return np.bincount(self.labels, minlength=self.num_classes)

    @property
    def prior(self) -> ClassPrior:
        """The class frequencies of these examples."""
        return ClassPrior.from_labels(self.labels, num_classes=self.num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over images and labels: equal exactly if the data are equal."""
        return runs.fingerprint(self.images, self.labels)

    def take(self, indices: IntArray) -> ImageSet:
        """The examples at these positions, in this order."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class LongTailedData:
    """A long-tailed training set and the balanced test set that belongs to it.

    Attributes:
        train: what training sees.
        test: what `evaluate` sees.
        spec: how a run's record names it.
    """

    train: ImageSet
    test: ImageSet
    spec: runs.DataSpec
