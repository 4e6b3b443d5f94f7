"""Fingerprints of the official CIFARs and of the literature's subsets, and checks against them.

`fingerprints.json` beside this file holds facts about the data, not data.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from longtail import runs
from longtail._checks import InputError
from longtail.data.cifar import ARCHIVES
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.profiles import PROFILES
from longtail.data.subsets import long_tailed_indices, make_long_tailed
from longtail.runs import DataSpec


@cache
def official_fingerprints() -> dict[str, Any]:
    """Return SHA-256 of the official CIFARs and of the subsets that the literature draws from them.

    Returns:
        By data set: `train` and `test`, over images and labels; and `subsets`, by
        ``<profile>-<ratio>``, each with its number of `examples` and the fingerprints of its
        `indices` and of itself (`train`).

    Examples:
        >>> official_fingerprints()["cifar10"]["subsets"]["exp-100"]["examples"]
        12406
    """
    text = (resources.files("longtail.data") / "fingerprints.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def verify_official(base: str, train: ImageSet, test: ImageSet, *, where: Path | str) -> None:
    """Refuse a CIFAR that is not the official one, image by image and in its order.

    Args:
        base: ``cifar10`` or ``cifar100``.
        train: the whole training set.
        test: the test set.
        where: the data's place, for the message.
    """
    expected = official_fingerprints()[base]
    for split, part in (("train", train), ("test", test)):
        if part.fingerprint != expected[split]:
            raise InputError(
                f"the {split} set in {where} is not the official {ARCHIVES[base].title}: "
                f"other images or labels, or in another order (fingerprint "
                f"{part.fingerprint[:16]} instead of {expected[split][:16]}), so results would "
                f"not compare with any others; get it anew from {ARCHIVES[base].url} (MD5 "
                f"{ARCHIVES[base].md5}), or, in Python, pass verify=False to use "
                f"it all the same."
            )


def subset_fingerprints(pool: ImageSet, spec: DataSpec) -> dict[str, Any]:
    """Return the fingerprints of a subset: of its positions in the pool, and of what is there.

    Args:
        pool: all training examples, in their official order.
        spec: which subset.

    Returns:
        `examples`, their number; `indices` and `train`, SHA-256.
    """
    train = make_long_tailed(pool, pool, spec).train
    indices = long_tailed_indices(pool.labels, train.counts, seed=spec.seed)
    return {
        "examples": len(train),
        "indices": runs.fingerprint(indices),
        "train": train.fingerprint,
    }


def verify_subset(base: str, data: LongTailedData) -> None:
    """Refuse a subset that is not the literature's, where that is known.

    The pool is right already, so this holds NumPy's generator to what it has always drawn.
    """
    spec = data.spec
    if spec.seed != 0 or spec.imbalance_ratio is None or spec.profile not in PROFILES:
        return
    key = f"{spec.profile}-{spec.imbalance_ratio:g}"
    expected = official_fingerprints()[base]["subsets"].get(key)
    if expected is not None and data.train.fingerprint != expected["train"]:
        raise InputError(
            f"the subset {key} of {ARCHIVES[base].title} that was drawn here is not the "
            f"literature's (fingerprint {data.train.fingerprint[:16]} instead of "
            f"{expected['train'][:16]}), though the files are: this NumPy shuffles differently."
        )
