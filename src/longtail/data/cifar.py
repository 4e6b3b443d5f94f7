"""CIFAR-10 and CIFAR-100 from the official python archives, packed or unpacked.

The archives are pickles; their unpickler admits NumPy's arrays and nothing else.
"""

from __future__ import annotations

import io
import math
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.images import ImageSet

_SIZE = (3, 32, 32)


@dataclass(frozen=True)
class Archive:
    """Names and layout of an official archive.

    Attributes:
        title: for people.
        file: the archive's name.
        md5: of the archive.
        folder: inside it.
        train: files of the training set, in the official order.
        test: files of the test set.
        meta: file of the class names.
        labels: key of the labels.
        names: key of the class names.
        num_classes: how many classes there are.
        hub: the data set's name on the Hugging Face hub.
    """

    title: str
    file: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: bytes
    names: bytes
    num_classes: int
    hub: str

    @property
    def url(self) -> str:
        """Address where the archive is published."""
        return f"https://www.cs.toronto.edu/~kriz/{self.file}"


ARCHIVES = {
    "cifar10": Archive(
        title="CIFAR-10",
        file="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        labels=b"labels",
        names=b"label_names",
        num_classes=10,
        hub="uoft-cs/cifar10",
    ),
    "cifar100": Archive(
        title="CIFAR-100",
        file="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        labels=b"fine_labels",
        names=b"fine_label_names",
        num_classes=100,
        hub="uoft-cs/cifar100",
    ),
}


def read_cifar(path: Path | str, *, name: str) -> tuple[ImageSet, ImageSet]:
    """Read the training and the test set, in the official order.

    Args:
        path: the archive (.tar.gz), or the folder that it unpacks to.
        name: ``cifar10`` or ``cifar100``.

    Returns:
        (training set, test set); images are 3 x 32 x 32. Labels of CIFAR-100 are the fine ones.
    """
    archive = ARCHIVES[_checks.choice(name, list(ARCHIVES), name="name")]
    path = Path(path)
    again = f"download {archive.url} again (its MD5 is {archive.md5})"
    try:
        contents = _from_folder(path, archive) if path.is_dir() else _from_tar(path, archive)
        names = tuple(name.decode() for name in contents[archive.meta][archive.names])
        train = _image_set([contents[file] for file in archive.train], archive, names)
        test = _image_set([contents[file] for file in archive.test], archive, names)
    except InputError as error:
        raise InputError(f"{path} is refused: {error}") from error
    except FileNotFoundError:
        raise
    except KeyError as error:
        raise InputError(f"{path} lacks {error}; {again}.") from error
    except Exception as error:  # damaged bytes can fail in any way at all
        raise InputError(f"{path} is truncated or damaged: {error}; {again}.") from error
    return train, test


def _from_folder(path: Path, archive: Archive) -> dict[str, Any]:
    wanted = (*archive.train, *archive.test, archive.meta)
    return {file: _unpickled((path / file).read_bytes()) for file in wanted}


def _from_tar(path: Path, archive: Archive) -> dict[str, Any]:
    """Return the unpickled files of an archive; nothing is written to disk."""
    wanted = {f"{archive.folder}/{f}": f for f in (*archive.train, *archive.test, archive.meta)}
    contents = {}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            if member.name in wanted and member.isreg():  # a link is not followed
                source = tar.extractfile(member)
                contents[wanted[member.name]] = _unpickled(source.read() if source else b"")
    return contents


def _image_set(batches: list[Any], archive: Archive, names: tuple[str, ...]) -> ImageSet:
    pixels = np.concatenate([np.asarray(batch[b"data"]) for batch in batches])
    labels = np.concatenate([batch[archive.labels] for batch in batches])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), math.prod(_SIZE)):
        raise InputError(
            f"it must hold a row of {math.prod(_SIZE)} bytes for each of {len(labels)} labels; its "
            f"images are {pixels.dtype} of shape {pixels.shape}."
        )
    target = _checks.labels(labels, name="labels", num_classes=archive.num_classes)
    return ImageSet(pixels.reshape(-1, *_SIZE), target, names)


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
            f"nothing of it was run."
        )


def _reconstruct(kind: Any, *_: Any) -> Any:
    """Return an empty array, to be filled by its state."""
    return np.empty(0, np.uint8) if kind is np.ndarray else None


def _unpickled(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()
