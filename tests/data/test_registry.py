"""`load`: every form of every data set by its name, and what it says when it can't."""

import numpy as np
import pytest

from data_factory import (
    CIFAR10_NAMES,
    cifar_files,
    pixels,
    write_archive,
    write_parquet,
    write_unpacked,
)
from longtail import InputError
from longtail.data import cifar, freeze, load, make_long_tailed
from longtail.runs import DataSpec, RunSpec

pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture
def small_is_official(monkeypatch):
    """Take the small CIFAR-10 of these tests for the official one."""

    def declare(path):
        train, test = cifar.read_cifar(path, name="cifar10")
        known = {"train": train.fingerprint, "test": test.fingerprint, "subsets": {}}
        monkeypatch.setattr(cifar, "official_fingerprints", lambda: {"cifar10": known})

    return declare


def write_hub(folder, name="cifar10", *, inside="", parts=1):
    """The small CIFAR as the hub has it, in one file or several for the training set."""
    _, labels, images = cifar_files(name)
    ten = name == "cifar10"
    key = "label" if ten else "fine_label"
    names = CIFAR10_NAMES if ten else [f"class_{i}" for i in range(100)]
    place = folder / name / inside
    for number, rows in enumerate(np.array_split(np.arange(len(labels)), parts)):
        file = f"train-{number:05}-of-{parts:05}.parquet" if inside else "train.parquet"
        write_parquet(place / file, images[rows], labels[rows], names=names, label=key)
    test = np.repeat(np.arange(len(names)), 2)
    file = "test-00000-of-00001.parquet" if inside else "test.parquet"
    write_parquet(place / file, pixels(len(test), seed=3), test, names=names, label=key)


WRITERS = {
    "archive": write_archive,
    "unpacked": write_unpacked,
    "parquet": write_hub,
    "parquet parts": lambda folder, name: write_hub(
        folder, name, inside="plain_text" if name == "cifar10" else "cifar100", parts=3
    ),
}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_same_data(tmp_path, form, name):
    WRITERS[form](tmp_path, name)
    data = load(f"{name}-lt", data_dir=tmp_path, imbalance_ratio=4, verify=False)
    _, labels, images = cifar_files(name)
    # The literature's rule, spelled out.
    classes = 10 if name == "cifar10" else 100
    random, expected = np.random.RandomState(0), []
    for label in range(classes):
        mine = np.array([i for i in range(len(labels)) if labels[i] == label])
        random.shuffle(mine)
        expected += mine[: int(4 * 4 ** (-label / (classes - 1)))].tolist()
    np.testing.assert_array_equal(data.train.labels, labels[expected])
    np.testing.assert_array_equal(data.train.images, images[expected])
    assert data.test.counts.tolist() == [2] * classes
    names = CIFAR10_NAMES if name == "cifar10" else [f"class_{i}" for i in range(100)]
    assert list(data.train.class_names) == list(data.test.class_names) == names
    assert data.spec == DataSpec(f"{name}-lt", "exp", 4.0)


def test_profiles_and_seeds(tmp_path):
    write_archive(tmp_path)

    def get(**options):
        return load("cifar10-lt", data_dir=tmp_path, verify=False, **options)

    assert get(profile="step", imbalance_ratio=4).train.counts.tolist() == [4] * 5 + [1] * 5
    one, two = get(imbalance_ratio=4), get(imbalance_ratio=4, seed=1)
    assert one.train.counts.tolist() == two.train.counts.tolist()
    assert one.train.fingerprint != two.train.fingerprint
    assert two.spec.seed == 1
    sizes = [1, 2, 3, 4, 4, 3, 2, 1, 1, 1]
    file = tmp_path / "sizes.txt"
    file.write_text("\n".join(map(str, sizes)))
    for counts in (sizes, file, str(file)):
        data = get(counts=counts)
        assert data.train.counts.tolist() == sizes
        assert (data.spec.profile, data.spec.imbalance_ratio) == ("natural", 4)
        assert data.spec.settings["counts"] == tuple(sizes)
    assert get(counts=[400, 100], fit=True).train.counts.tolist() == [4, 3, 3, 3, 2, 2, 2, 1, 1, 1]


def test_a_spec_is_enough_to_draw_the_subset_again(tmp_path):
    path = write_archive(tmp_path)
    data = load("cifar10-lt", data_dir=tmp_path, verify=False, counts=[300, 7, 1], fit=True, seed=3)
    spec = RunSpec.from_json(RunSpec(data.spec, "m", "softmax", "r").to_json()).dataset
    again = make_long_tailed(*cifar.read_cifar(path, name="cifar10"), spec)
    assert again.train.fingerprint == data.train.fingerprint


# Frozen files.


def test_a_frozen_file_by_its_path_and_by_the_name_of_what_it_holds(tmp_path):
    write_archive(tmp_path / "originals")
    options = {"verify": False, "data_dir": tmp_path / "originals"}
    exp = load("cifar10-lt", imbalance_ratio=4, **options)
    step = load("cifar10-lt", profile="step", imbalance_ratio=4, **options)
    travel = tmp_path / "travel"
    travel.mkdir()
    freeze(exp, travel / "a.parquet")
    freeze(step, travel / "b.parquet")
    for found in (
        load(travel / "a.parquet"),
        load(str(travel / "a.parquet"), profile="exp", imbalance_ratio=4),
        load("cifar10-lt", data_dir=travel, imbalance_ratio=4),
    ):
        assert found.train.fingerprint == exp.train.fingerprint
        assert found.spec == exp.spec
    with pytest.raises(InputError, match=r"a.parquet is exp, ratio 4; b.parquet is step"):
        load("cifar10-lt", data_dir=travel)


# Official or not.


def test_other_data_than_the_official_are_refused(tmp_path, small_is_official):
    small_is_official(write_archive(tmp_path / "right"))
    load("cifar10-lt", data_dir=tmp_path / "right", imbalance_ratio=4)
    files, _, _ = cifar_files()
    files["data_batch_1"], files["data_batch_2"] = files["data_batch_2"], files["data_batch_1"]
    write_archive(tmp_path / "wrong", files=files)
    message = r"train set in .* is not the official CIFAR-10.* in another order.*verify=False"
    with pytest.raises(InputError, match=f"(?s){message}"):
        load("cifar10-lt", data_dir=tmp_path / "wrong", imbalance_ratio=4)


# Missing data and bad options.


def test_missing_data_says_where_it_looked_and_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match="`data_dir=` or LONGTAIL_DATA must name"):
        load("cifar100-lt")
    message = f"(?s)no CIFAR-100 in {tmp_path}: .*cs.toronto.edu.*huggingface.co.*data freeze"
    with pytest.raises(InputError, match=message):
        load("cifar100-lt", data_dir=tmp_path)
