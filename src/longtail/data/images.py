"""ImageSet and LongTailedData: labelled images as arrays, with a fingerprint.

Training is given an ImageSet (or `lists.ListedImages`, which are read when they are needed) and
nothing else: the test set and the development set are separate ones that only `evaluate` sees.
Pixels stay the integers they came as; recipes say how to normalise them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longtail import runs
from longtail._checks import InputError, IntArray
from longtail.priors import ClassPrior


class Labeled:
    """Labels and class names, wherever the images are.

    Attributes:
        labels: int64, shape (examples,).
        class_names: one name per class, in label order.
        num_classes: number of classes, L.
        counts: examples per class, zero where a class has none.
    """

    labels: IntArray
    class_names: tuple[str, ...]
    num_classes: int
    counts: IntArray

    @property
    def prior(self) -> ClassPrior:
        """Class frequencies of these examples."""
        return ClassPrior.from_labels(self.labels, num_classes=self.num_classes)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSet(Labeled):
    """Labelled images.

    Attributes:
        images: uint8, shape (examples, channels, height, width); or embeddings, float32, shape
            (examples, D, 1, 1) with the pixel range 1, which may be mapped from a file.
        labels, class_names: see `Labeled`.
        pixel_range: the largest value a pixel can have, 255 for photographs.
        role: ``test`` or ``development`` for images that training refuses, since runs are only
            judged on them; else empty.
        image_shape: (channels, height, width).
        is_embeddings: True for embeddings, which are neither cropped nor normalised.
    """

    images: NDArray[np.uint8] | NDArray[np.float32]
    labels: IntArray
    class_names: tuple[str, ...]
    pixel_range: int = 255
    role: str = ""
    image_shape: tuple[int, int, int] = field(init=False, repr=False)
    is_embeddings: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape, dtype = self.images.shape, self.images.dtype
        embeddings = dtype == np.float32 and shape[2:] == (1, 1) and self.pixel_range == 1
        if len(shape) != 4 or not (embeddings or dtype == np.uint8):
            raise InputError(
                f"`images` must be uint8 of shape (examples, channels, height, width); "
                f"got {dtype} of shape {shape}."
            )
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(self.images)} images but {len(self.labels)} labels.")
        self.__dict__.update(image_shape=shape[1:], is_embeddings=embeddings)
        classes = len(self.class_names)
        self.__dict__.update(num_classes=classes, counts=np.bincount(self.labels, None, classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over images and labels: equal exactly if the data are equal."""
        return runs.fingerprint(self.images, self.labels)

    def take(self, indices: IntArray) -> ImageSet:
        """Return the examples at these positions, in this order."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])


@dataclass(frozen=True, eq=False)
class LongTailedData:
    """Long-tailed training set and the balanced test set that belongs to it.

    Attributes:
        train: training set.
        test: test set, read by `evaluate` alone.
        spec: name and profile, for a run's record.
        dev: the development set, to choose settings on: images that the training set leaves
            out, so that no run has trained on them; None where there are none.
    """

    train: ImageSet
    test: ImageSet
    spec: runs.DataSpec
    dev: ImageSet | None = None

    def __post_init__(self) -> None:
        self.__dict__["test"] = replace(self.test, role="test")
        if self.dev is not None:
            self.__dict__["dev"] = replace(self.dev, role="development")

    def development(self, run: runs.Run) -> ImageSet:
        """Return the development set, to judge a run on.

        A run that was trained on another subset, say of a lower imbalance ratio, may have seen
        these images, so it is refused.
        """
        if self.dev is None:
            raise InputError(
                f"{self.spec.name} has no development set: its training set leaves nothing out, "
                f"or it was frozen without one; freeze it with --dev N."
            )
        if run.data != self.train.fingerprint:
            raise runs.RunError(
                f"{run.folder} was trained on other data (fingerprint {run.data[:16]} against "
                f"{self.train.fingerprint[:16]}), which may hold images of this development "
                f"set; it can't be judged on it."
            )
        return self.dev
