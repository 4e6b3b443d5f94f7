"""The official archives: what is read from them, and everything else that is refused."""

import hashlib
import os
import pickle

import numpy as np
import pytest

from data_factory import cifar_files, python2_pickle, write_archive
from longtail import InputError
from longtail.data import load
from longtail.data.cifar import official_fingerprints, read_cifar


def test_the_factory_writes_what_python_2_wrote():
    # The MD5 of the official batches.meta: its bytes are known, since its content is.
    content = cifar_files("cifar10")[0]["batches.meta"]
    assert hashlib.md5(content).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"


# What is refused.


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def evil_pickles(path):
    """(what is wrong, pickle); each that runs would make a file."""
    yield "a function", pickle.dumps(Evil(str(path)), protocol=2)
    yield "stack global", pickle.dumps(Evil(str(path)), protocol=4)
    yield "eval", b"cbuiltins\neval\n(S'1'\ntR."
    yield "a huge array", b"cnumpy\nndarray\n(I99999999999\ntR."


NAMES = [name for name, _ in evil_pickles("x")]


@pytest.mark.parametrize("which", range(len(NAMES)), ids=NAMES)
def test_a_foreign_pickle_is_refused_and_never_run(tmp_path, which):
    ran = tmp_path / "ran"
    files, _, _ = cifar_files()
    files["data_batch_2"] = list(evil_pickles(ran))[which][1]
    with pytest.raises(InputError, match="is not the official archive"):
        read_cifar(write_archive(tmp_path, files=files), name="cifar10")
    assert not ran.exists()


def test_a_truncated_archive_says_so_and_how_to_get_it(tmp_path):
    path = write_archive(tmp_path)
    content = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.6, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(InputError, match=r"is not the official archive|lacks") as caught:
            read_cifar(path, name="cifar10")
        assert "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in str(caught.value)


ONE = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.pop("data_batch_3"), "lacks 'data_batch_3'"),
        (
            lambda files: files.update(
                data_batch_3=python2_pickle({b"labels": [10], b"data": ONE})
            ),
            r"must lie in 0 \.\. 9, but 10 occurs",
        ),
    ],
)
def test_files_with_other_content_are_refused(tmp_path, change, message):
    files, _, _ = cifar_files()
    change(files)
    with pytest.raises(InputError, match=message):
        read_cifar(write_archive(tmp_path, files=files), name="cifar10")


# The committed fingerprints.

SUBSETS = [(profile, ratio) for profile in ("exp", "step") for ratio in (10, 50, 100)]


def formula(profile, ratio, largest, classes):
    """Class sizes, straight from the notes on the protocol."""
    if profile == "exp":
        return [int(largest * ratio ** (-i / (classes - 1))) for i in range(classes)]
    return [largest] * (classes // 2) + [int(largest / ratio)] * (classes - classes // 2)


@pytest.mark.parametrize(("base", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_table_has_every_subset_with_its_size(base, classes):
    known = official_fingerprints()[base]
    assert list(known["subsets"]) == [f"{profile}-{ratio}" for profile, ratio in SUBSETS]
    everything = [known["train"], known["test"]]
    for profile, ratio in SUBSETS:
        entry = known["subsets"][f"{profile}-{ratio}"]
        assert entry["examples"] == sum(formula(profile, ratio, 50_000 // classes, classes))
        everything += [entry["indices"], entry["train"]]
    assert len(set(everything)) == len(everything) == 14
    assert all(len(digest) == 64 for digest in everything)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["cifar10", "cifar100"])
def test_the_real_subsets_are_the_literatures(base):
    """The rule once more, in plain Python, with nothing of the package but the reader and hash."""
    if not os.environ.get("LONGTAIL_DATA"):
        pytest.skip("needs the real CIFAR files; set LONGTAIL_DATA to their folder")
    for profile, ratio in SUBSETS:
        known = official_fingerprints()[base]["subsets"][f"{profile}-{ratio}"]
        found = load(f"{base}-lt", profile=profile, imbalance_ratio=ratio, development=0).train
        assert found.fingerprint == known["train"]
        assert len(found) == known["examples"]
        sizes = formula(profile, ratio, 50_000 // found.num_classes, found.num_classes)
        assert found.counts.tolist() == sizes
