"""`longtail data`: describe and freeze."""

import json
import re
from pathlib import Path

import pytest

from data_factory import write_archive, write_large
from longtail.data import cifar as archives
from longtail.data.digits import load_digits_lt

pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A folder with a small CIFAR-10 that passes for the official one."""
    folder = tmp_path / "originals"
    train, test = archives.read_cifar(write_archive(folder), name="cifar10")
    known = {"train": train.fingerprint, "test": test.fingerprint, "subsets": {}}
    monkeypatch.setattr(archives, "official_fingerprints", lambda: {"cifar10": known})
    return folder


def words_of(text):
    return re.sub(r" +", " ", text)


def test_describe_shows_counts_groups_profile_and_fingerprints(ok):
    result = ok("data", "describe", "digits-lt")
    assert result.err == ""
    data = load_digits_lt()
    for line in (
        "digits-lt (exp, imbalance ratio 50)",
        "training 314 images of 10 classes, 1 x 8 x 8",
        " 114 to 2 a class, imbalance ratio 57",
        "groups many over 100 1 class 114 images",
        " medium 20 to 100 4 classes 170 images",
        " few under 20 5 classes 30 images",
        "test 600 images, 60 a class",
        f"fingerprint {data.train.fingerprint[:16]} (training)",
        f" {data.test.fingerprint[:16]} (test)",
        " 3 3 30 9.55% 60",
    ):
        assert line in words_of(result.out).splitlines()
    (chart,) = (line for line in result.out.splitlines() if line.startswith("114 "))
    assert chart == "114 " + "█" * 7


def test_describe_a_file_of_class_sizes(cli, ok, refused):
    Path("counts.txt").write_text("\n".join(map(str, [1280, *range(5, 1004)])))
    result = ok("data", "describe", "counts.txt")
    text = words_of(result.out)
    assert "training 504,776 images of 1,000 classes" in text
    assert "fingerprint" not in text
    document = json.loads(cli("data", "describe", "counts.txt", "--json").out)
    assert document["train"]["largest"] == 1280
    said = refused("data", "describe", "counts.txt", "--figure", "a")
    assert "holds class sizes and no images" in said


def test_freeze_and_use_the_file_by_path_and_by_name(cli, cifar, ok, refused):
    options = ("--data-dir", cifar, "--ratio", 4)
    result = ok("data", "freeze", "cifar10-lt", *options, "--out", "travel/a.parquet")
    assert "cifar10-lt (exp, imbalance ratio 4), 18 training and 20 test images" in result.out
    again = refused("data", "freeze", "cifar10-lt", *options, "--out", "travel", "--force")
    assert "travel is a folder; name a file." in again
    described = cli("data", "describe", "cifar10-lt", *options).out
    lines = described.splitlines(keepends=True)
    original = "".join(line for line in lines if "development" not in line)  # not asked for
    assert cli("data", "describe", "travel/a.parquet").out == original
    by_name = cli("data", "describe", "cifar10-lt", "--data-dir", "travel", "--ratio", 4)
    assert by_name.out == original


def test_describe_reads_the_lists_of_what_stays_on_disk(ok, refused):
    from longtail.data import large

    write_large(Path("places-lt"), "places-lt", counts=(9, 4, 2))
    for image in Path("places-lt").rglob("*.jpg"):
        image.unlink()  # class sizes need none
    result = ok("data", "describe", "places-lt/../places-lt")
    data = large.load_listed("./places-lt", check_files=False)
    for line in (
        " 9 to 2 a class, imbalance ratio 4.5",
        "validation 3 images, 1 a class",
        f"fingerprint {data.train.fingerprint[:16]} (training)",
        f" {data.val.fingerprint[:16]} (validation)",
        " 1 1 4 26.67% 1",
    ):
        assert line in words_of(result.out).splitlines()
    said = refused("data", "describe", "./places-lt", "--ratio", 10, code=2)
    assert "--ratio does nothing here: the images of this data set stay" in said


def test_what_is_wrong_is_one_line(refused):
    for name, message in (
        ("cifar10-lt", "LONGTAIL_DATA must name their folder"),
        ("mnist", "There are cifar10-lt, cifar100-lt, digits-lt, imagenet-lt, places-lt, "),
        ("digits", "'digits'; did you mean digits-lt?"),
    ):
        assert message in refused("data", "describe", name)
