"""CIFAR-10 and CIFAR-100 from the official python archives, packed or unpacked.

The archives are pickles; their unpickler admits NumPy's arrays and nothing else.
`fingerprints.json` beside this file holds facts about the data, not data.
"""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.images import ImageSet


class Archive(NamedTuple):
    """Layout of an official archive, and where it is published."""

    num_classes: int
    folder: str
    train: tuple[str, ...]  # in the official order
    test: str
    meta: str  # of the class names
    prefix: bytes  # of the keys of labels and names
    md5: str

    @property
    def title(self) -> str:
        """Name of the data set as its authors write it."""
        return f"CIFAR-{self.num_classes}"

    @property
    def file(self) -> str:
        """Name of the archive."""
        return f"cifar-{self.num_classes}-python.tar.gz"

    @property
    def url(self) -> str:
        """Address where the archive is published."""
        return f"https://www.cs.toronto.edu/~kriz/{self.file}"


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_MD5 = ("c58f30108f718f92721af3b95e74349a", "eb9058c3a382ffc7106e4002c42a8d85")
ARCHIVES = {
    "cifar10": Archive(
        10, "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", b"label", _MD5[0]
    ),
    "cifar100": Archive(
        100, "cifar-100-python", ("train",), "test", "meta", b"fine_label", _MD5[1]
    ),
}


def read_cifar(path: Path | str, *, name: str) -> tuple[ImageSet, ImageSet]:
    """Read the training and the test set of ``cifar10`` or ``cifar100``, in the official order.

    `path` is the archive or the folder that it unpacks to. Labels of CIFAR-100 are the fine ones.
    """
    archive, path = ARCHIVES[name], Path(path)
    wanted = (*archive.train, archive.test, archive.meta)
    contents: dict[str, Any] = {}
    try:
        if path.is_dir():
            contents = {file: _unpickled((path / file).read_bytes()) for file in wanted}
        else:
            with tarfile.open(path, "r:gz") as tar:
                for member in tar:
                    folder, _, file = member.name.partition("/")
                    # A link is not followed.
                    if folder == archive.folder and file in wanted and member.isreg():
                        contents[file] = _unpickled(tar.extractfile(member).read())  # type: ignore[union-attr]
        names = tuple(name.decode() for name in contents[archive.meta][archive.prefix + b"_names"])
        parts = []
        for some in (archive.train, (archive.test,)):
            batches = [contents[file] for file in some]
            pixels = np.concatenate([np.asarray(batch[b"data"]) for batch in batches])
            labels = np.concatenate([batch[archive.prefix + b"s"] for batch in batches])
            labels = _checks.labels(labels, name="labels", num_classes=archive.num_classes)
            parts.append(ImageSet(pixels.reshape(-1, 3, 32, 32), labels, names))
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged bytes can fail in any way at all
        what = "lacks" if isinstance(error, KeyError) else "is not the official archive:"
        raise InputError(
            f"{path} {what} {str(error).rstrip('.')}; download {archive.url} again (its MD5 is "
            f"{archive.md5})."
        ) from error
    return parts[0], parts[1]


class _Unpickler(pickle.Unpickler):
    """Finds NumPy's arrays, and no other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a name that the official files have."""
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        # NumPy's own module has moved once; the official files have the first name.
        if (module.replace("._core", ".core"), name) == ("numpy.core.multiarray", "_reconstruct"):
            return _reconstruct
        raise InputError(
            f"its pickle asks for {module}.{name}, which the official files don't contain; "
            f"nothing of it was run"
        )


def _reconstruct(kind: Any, *_: Any) -> Any:
    """Return an empty array, to be filled by its state."""
    return np.empty(0, np.uint8) if kind is np.ndarray else None


def _unpickled(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


@cache
def official_fingerprints() -> dict[str, Any]:
    """Return fingerprints of the official CIFARs and of the literature's subsets of them.

    Returns:
        By data set: `train` and `test`; and `subsets`, by ``<profile>-<ratio>``, each with its
        number of `examples` and the fingerprints of its `indices` and of itself (`train`).

    Examples:
        >>> official_fingerprints()["cifar10"]["subsets"]["exp-100"]["examples"]
        12406
    """
    text = (resources.files("longtail.data") / "fingerprints.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def verify_official(base: str, train: ImageSet, test: ImageSet, *, where: Path | str) -> None:
    """Refuse a CIFAR that is not the official one, image by image and in its order."""
    expected, archive = official_fingerprints()[base], ARCHIVES[base]
    for split, part in (("train", train), ("test", test)):
        if part.fingerprint != expected[split]:
            raise InputError(
                f"the {split} set in {where} is not the official {archive.title}: other images or "
                f"labels, or in another order (fingerprint {part.fingerprint[:16]} instead of "
                f"{expected[split][:16]}), so results would not compare with any others; get it "
                f"anew from {archive.url} (MD5 {archive.md5}), or, in Python, pass verify=False to "
                f"use it all the same."
            )
