"""The official archives: what is read from them, and everything else that is refused."""

import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest

from data_factory import (
    CIFAR10_NAMES,
    cifar_files,
    pixels,
    python2_pickle,
    write_archive,
    write_unpacked,
)
from longtail import InputError
from longtail.data.cifar import ARCHIVES, read_cifar


def test_the_factory_writes_what_python_2_wrote():
    # The MD5 of the official batches.meta: its bytes are known, since its content is.
    content = cifar_files("cifar10")[0]["batches.meta"]
    assert hashlib.md5(content).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("write", [write_archive, write_unpacked])
def test_both_forms_give_the_images_in_official_order(tmp_path, name, write):
    files, labels, images = cifar_files(name)
    train, test = read_cifar(write(tmp_path, name, files), name=name)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(train.images, images)
    assert train.labels.dtype == np.int64
    assert test.counts.tolist() == [2] * ARCHIVES[name].num_classes
    if name == "cifar10":
        assert list(train.class_names) == list(test.class_names) == CIFAR10_NAMES
    else:
        assert train.class_names[:2] == ("class_0", "class_1")


def test_an_array_in_fortran_order_is_the_same_array(tmp_path):
    files, labels, images = cifar_files("cifar100")
    rows = np.asfortranarray(images.reshape(len(images), -1))
    files["train"] = python2_pickle({b"fine_labels": labels.tolist(), b"data": rows})
    train, _ = read_cifar(write_unpacked(tmp_path, "cifar100", files), name="cifar100")
    np.testing.assert_array_equal(train.images, images)


def test_the_newer_name_of_numpys_module_is_admitted(tmp_path):
    files, _, images = cifar_files()
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    files = {name: content.replace(old, new) for name, content in files.items()}
    train, _ = read_cifar(write_unpacked(tmp_path, files=files), name="cifar10")
    np.testing.assert_array_equal(train.images, images)


# What is refused.


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def evil_pickles(path):
    """(what is wrong, pickle); each that runs would make a file."""
    text = repr(str(path)).encode()
    yield "a function", pickle.dumps(Evil(str(path)), protocol=2)
    yield "stack global", pickle.dumps(Evil(str(path)), protocol=4)
    yield "inst", b"(S" + text + b"\nS'w'\niio\nopen\n."
    yield "obj", b"(cio\nopen\nS" + text + b"\no."
    yield "newobj", b"\x80\x02cio\nopen\n)\x81."
    yield "a persistent id", b"Pname\n."
    yield "an extension", b"\x80\x02\x82\x01."
    yield "eval", b"cbuiltins\neval\n(S'1'\ntR."
    yield "another of numpy", b"cnumpy\nload\n(S" + text + b"\ntR."
    yield "a dotted name", b"cnumpy\nndarray.__init__\n."
    yield "a huge array", b"cnumpy\nndarray\n(I99999999999\ntR."
    yield "a state for a class", b"cnumpy\nndarray\n}S'shape'\nI1\nsb."
    yield (
        "another class of array",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\nI0\nS'b'\ntR}b.",
    )


NAMES = [name for name, _ in evil_pickles("x")]


@pytest.mark.parametrize("which", range(len(NAMES)), ids=NAMES)
def test_a_foreign_pickle_is_refused_and_never_run(tmp_path, which):
    ran = tmp_path / "ran"
    files, _, _ = cifar_files()
    files["data_batch_2"] = list(evil_pickles(ran))[which][1]
    with pytest.raises(InputError, match=r"is refused|is truncated or damaged"):
        read_cifar(write_archive(tmp_path, files=files), name="cifar10")
    assert not ran.exists()


def test_the_attack_would_work_without_the_guard(tmp_path):
    # Otherwise the test above could not fail.
    pickle.loads(next(evil_pickles(tmp_path / "ran"))[1]).close()
    assert (tmp_path / "ran").exists()


def test_a_truncated_archive_says_so_and_how_to_get_it(tmp_path):
    path = write_archive(tmp_path)
    content = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.6, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(InputError, match=r"is truncated or damaged|lacks") as caught:
            read_cifar(path, name="cifar10")
        assert "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in str(caught.value)
        assert "c58f30108f718f92721af3b95e74349a" in str(caught.value)
    path.write_bytes(b"not an archive at all")
    with pytest.raises(InputError, match="is truncated or damaged"):
        read_cifar(path, name="cifar10")


@pytest.mark.parametrize(
    ("file", "document", "message"),
    [
        ("data_batch_3", None, "lacks 'data_batch_3'"),
        ("data_batch_3", {b"data": 3}, "is truncated or damaged"),
        (
            "data_batch_3",
            {b"labels": [0, 1], b"data": pixels(1).reshape(1, -1)},
            r"a row of 3072 bytes for each of \d+ labels",
        ),
        (
            "data_batch_3",
            {b"labels": [10], b"data": pixels(1).reshape(1, -1)},
            r"must lie in 0 .. 9, but 10 occurs",
        ),
    ],
)
def test_files_with_other_content_are_refused(tmp_path, file, document, message):
    files, _, _ = cifar_files()
    if document is None:
        del files[file]
    else:
        files[file] = python2_pickle(document)
    with pytest.raises(InputError, match=message):
        read_cifar(write_archive(tmp_path, files=files), name="cifar10")


def test_what_is_not_there_or_not_known_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_cifar(tmp_path / "nowhere", name="cifar10")
    with pytest.raises(InputError, match="must be one of 'cifar10', 'cifar100'; got 'cifar'"):
        read_cifar(tmp_path, name="cifar")


def test_nothing_is_read_from_odd_members_of_an_archive(tmp_path):
    # A link in the place of a file is not followed, nor does it end the reading.
    files, _, _ = cifar_files()
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
        for name, content in files.items():
            if name != "test_batch":
                entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(InputError, match="lacks 'test_batch'"):
        read_cifar(path, name="cifar10")
