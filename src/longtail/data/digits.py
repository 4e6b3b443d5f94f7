"""Scikit-learn's handwritten digits, made long-tailed: real images that need no download."""

from __future__ import annotations

import numpy as np

from longtail.data.images import ImageSet, LongTailedData
from longtail.data.subsets import long_tailed_indices, make_long_tailed
from longtail.runs import DataSpec


def load_digits_lt(*, profile: str = "exp", imbalance_ratio: float = 50.0) -> LongTailedData:
    """Return scikit-learn's 1,797 digits, made long-tailed; images are 1 x 8 x 8, values 0 to 16.

    The test set is 60 images of each class, the training set a subset of the rest with the
    profile `exp` or `step`; both are fixed by the literature's rule with seed 0.

    Examples:
        >>> data = load_digits_lt()
        >>> data.train.counts
        array([114,  73,  47,  30,  20,  12,   8,   5,   3,   2])
        >>> len(data.test)
        600
    """
    return make_long_tailed(*read_digits(), DataSpec("digits-lt", profile, float(imbalance_ratio)))


def read_digits() -> tuple[ImageSet, ImageSet]:
    """Return all digits that may be trained on, 1,197, and the balanced test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = tuple(map(str, range(10)))
    images = digits.images.astype(np.uint8)[:, None]
    everything = ImageSet(images, digits.target.astype(np.int64), names, 16)
    test = long_tailed_indices(everything.labels, np.full(10, 60))
    pool = everything.take(np.setdiff1d(np.arange(len(everything)), test))
    return pool, everything.take(test)
