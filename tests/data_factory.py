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

NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR10_NAMES = NAMES.split()


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


def write_clutter(folder):
    """Files that macOS, Windows, archives and network drives leave behind."""
    for name in (".DS_Store", "._1.jpg", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Icon\r"):
        (folder / name).write_text("x")
    for name in (".cache", "__MACOSX", "@eaDir"):
        (folder / name).mkdir()
        (folder / name / "1.jpg").write_text("x")


def photo(width, height, *, mode="RGB", seed=0):
    """A photograph-like image: a gradient with shapes in it, different for each seed."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(a * x + b * y + c) for a, b, c in random.uniform(1, 9, (3, 3))]
    array = (np.stack(waves, axis=-1) * 120 + 128).astype(np.uint8)
    return Image.fromarray(array).convert(mode)


def write_photos(root, paths, *, size=(40, 30)):
    """A small JPEG at each path, some upright and some grey, as in real collections."""
    for number, path in enumerate(paths):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        extent = size if number % 3 else size[::-1]
        image = photo(*extent, mode="L" if number % 7 == 6 else "RGB", seed=number)
        image.save(file, "JPEG", quality=90)


def write_list(file, entries):
    """Lines `path label`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{path} {label}\n" for path, label in entries))
    return file


def listed_entries(counts, *, form="imagenet-lt", split="train"):
    """(path, label) pairs as each of the large data sets names its files."""
    group = "val" if split == "test" else "train"
    patterns = {
        "imagenet-lt": lambda c, i: f"{group}/n{c + 1440764:08d}/{split}_{i}.JPEG",
        "places-lt": lambda c, i: f"{group}/scene_{c}/{split}_{i:08d}.jpg",
        "inaturalist": lambda c, i: f"train_val2018/Plantae/{c}/{split}{c:04x}{i:028x}.jpg",
    }
    return [(patterns[form](c, i), c) for c, count in enumerate(counts) for i in range(count)]


LIST_NAMES = {
    "imagenet-lt": {s: f"ImageNet_LT_{s}.txt" for s in ("train", "val", "test")},
    "places-lt": {s: f"Places_LT_{s}.txt" for s in ("train", "val", "test")},
    "inaturalist": {"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"},
}


def write_large(root, form="imagenet-lt", *, counts=(6, 3, 1), held=1, size=(40, 30)):
    """A small data set as one of the large ones is laid out, images beside its lists."""
    for split, name in LIST_NAMES[form].items():
        sizes = counts if split == "train" else [held] * len(counts)
        entries = listed_entries(sizes, form=form, split=split)
        write_photos(root, [path for path, _ in entries], size=size)
        write_list(root / name, entries)
    return root


def competition(entries, *, num_classes):
    """The competition's json; ids count from 1 and images come in another order than labels."""
    images = [
        {"id": 10 + i, "file_name": path, "width": 40, "height": 30, "license": 1}
        for i, (path, _) in enumerate(entries)
    ]
    annotations = [
        {"id": 90 + i, "image_id": 10 + i, "category_id": label}
        for i, (_, label) in enumerate(entries)
    ]
    categories = [
        {"id": c, "name": f"species {c}", "supercategory": "Plantae"} for c in range(num_classes)
    ]
    return {"images": images, "annotations": annotations[::-1], "categories": categories[::-1]}
