"""Small data sets in the formats of the large ones, made from nothing.

Pickles are written as Python 2 wrote those of the official CIFAR archives: protocol 2, its
strings as bytes, NumPy's function under the module name that it had then.
"""

import gzip
import io
import json
import pickle
import tarfile
from typing import ClassVar

import numpy as np
from PIL import Image

CIFAR10_NAMES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]


class Python2Pickler(pickle._Pickler):
    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def __init__(self, file):
        super().__init__(file, 2)

    def memoize(self, obj):
        number = len(self.memo) + 1  # cPickle counted from one
        self.write(self.put(number))
        self.memo[id(obj)] = number, obj

    def save_bytes(self, obj):
        short = len(obj) < 256
        self.write(b"U" + bytes([len(obj)]) if short else b"T" + len(obj).to_bytes(4, "little"))
        self.write(obj)
        self.memoize(obj)

    def save_array(self, obj):
        self.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R")
        self.memoize(obj)
        self.write(b"(K\x01")
        self.save(obj.shape)
        self.write(b"cnumpy\ndtype\nU\x02" + obj.dtype.str[1:].encode() + b"K\x00K\x01\x87R")
        self.write(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb")
        fortran = obj.flags.f_contiguous and not obj.flags.c_contiguous
        self.save(fortran)
        self.save_bytes(obj.tobytes(order="F" if fortran else "C"))
        self.write(b"tb")

    dispatch[bytes] = save_bytes
    dispatch[np.ndarray] = save_array


def python2_pickle(document) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file).dump(document)
    return file.getvalue()


def pixels(count, *, shape=(3, 32, 32), seed=0):
    """Smooth random images: neither constant nor noise, so that codecs have work to do."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, shape[0], 4, 4))
    steps = [np.linspace(0, 3, size).astype(int) for size in shape[1:]]
    return coarse[:, :, steps[0]][:, :, :, steps[1]].astype(np.uint8)


def cifar_files(name="cifar10", *, per_class=4, test_per_class=2):
    """The files of a small CIFAR by name, its training labels and images, in official order."""
    ten = name == "cifar10"
    classes = 10 if ten else 100
    key = b"labels" if ten else b"fine_labels"
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(classes), per_class))
    images = pixels(len(labels), seed=2)
    test_labels = np.repeat(np.arange(classes), test_per_class)

    def batch(some, their_labels, title):
        names = [b"image_%d.png" % i for i in range(len(some))]
        extra = {} if ten else {b"coarse_labels": [int(v) // 5 for v in their_labels]}
        return python2_pickle(
            {
                b"batch_label": title,
                key: [int(v) for v in their_labels],
                **extra,
                b"data": some.reshape(len(some), -1),
                b"filenames": names,
            }
        )

    if ten:
        parts = np.array_split(np.arange(len(labels)), 5)
        files = {
            f"data_batch_{i + 1}": batch(images[p], labels[p], b"training batch %d of 5" % (i + 1))
            for i, p in enumerate(parts)
        }
        names = [n.encode() for n in CIFAR10_NAMES]
        files["batches.meta"] = python2_pickle(
            {b"num_cases_per_batch": 10000, b"label_names": names, b"num_vis": 3072}
        )
    else:
        files = {"train": batch(images, labels, b"training batch 1 of 1")}
        names = [b"class_%d" % i for i in range(100)]
        coarse = [b"group_%d" % i for i in range(20)]
        files["meta"] = python2_pickle({b"fine_label_names": names, b"coarse_label_names": coarse})
    files["test_batch" if ten else "test"] = batch(
        pixels(len(test_labels), seed=3), test_labels, b"testing batch 1 of 1"
    )
    return files, labels, images


FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def write_archive(folder, name="cifar10", files=None):
    """The archive, packed; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARCHIVES[name]
    with gzip.open(path, "wb") as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for file, content in (files or cifar_files(name)[0]).items():
            entry = tarfile.TarInfo(f"{FOLDERS[name]}/{file}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def write_unpacked(folder, name="cifar10", files=None):
    """The folder that the archive unpacks to; its path."""
    path = folder / FOLDERS[name]
    path.mkdir(parents=True)
    for file, content in (files or cifar_files(name)[0]).items():
        (path / file).write_bytes(content)
    return path


def encoded(image, kind="PNG"):
    """An image (channels, height, width) as a file's bytes."""
    file = io.BytesIO()
    array = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    Image.fromarray(array).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def write_parquet(path, images, labels, *, names=None, label="label", column="img", kind="PNG"):
    """A parquet file as the hub lays it out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    blobs = [one if isinstance(one, bytes | None) else encoded(one, kind) for one in images]
    table = pa.table(
        {
            column: pa.array(
                [{"bytes": blob, "path": None} for blob in blobs],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            label: pa.array([int(v) for v in labels], pa.int64()),
        }
    )
    if names is not None:
        features = {label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)
    return path


def write_folder(root, counts, *, shape=(3, 6, 5), seed=0):
    """`root/<class>/<number>.png`, with so many images for each class name; in class order."""
    made = {}
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        made[name] = pixels(count, shape=shape, seed=seed + number)
        for i, image in enumerate(made[name]):
            (root / name / f"{i}.png").write_bytes(encoded(image))
    return made
