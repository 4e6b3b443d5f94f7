"""Scikit-learn's handwritten digits, made long-tailed: real images that need no download."""

from __future__ import annotations

import numpy as np

from longtail.data.images import ImageSet, LongTailedData
from longtail.data.profiles import check_ratio
from longtail.data.subsets import long_tailed_indices, make_long_tailed
from longtail.runs import DataSpec

TEST_PER_CLASS = 60


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
    ratio = check_ratio(imbalance_ratio)
    spec = DataSpec("digits-lt", profile=profile, imbalance_ratio=ratio)
    return make_long_tailed(*read_digits(), spec)


def read_digits() -> tuple[ImageSet, ImageSet]:
    """Return all digits that may be trained on, and the balanced test set.

    Examples:
        >>> pool, test = read_digits()
        >>> len(pool), test.counts[0]
        (1197, np.int64(60))
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = tuple(str(digit) for digit in range(10))
    everything = ImageSet(
        digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64), names, 16
    )
    test = long_tailed_indices(everything.labels, np.full(10, TEST_PER_CLASS))
    pool = everything.take(np.setdiff1d(np.arange(len(everything)), test))
    return pool, everything.take(test)
