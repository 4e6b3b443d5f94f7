"""Class sizes of the large data sets: published facts, files, and what is refused."""

import numpy as np
import pytest

from longtail import ClassPrior
from longtail._checks import InputError
from longtail.data.large import LARGE
from longtail.experiments.natural_profiles import FACTS, class_counts, rebuilt_counts


@pytest.mark.parametrize(
    ("name", "total", "ends", "groups"),
    [
        ("imagenet-lt", 115_846, (1280, 5), [385, 479, 136]),
        ("inaturalist", 437_513, (1000, 2), [842, 4076, 3224]),
    ],
)
def test_the_rebuilt_sizes_have_every_published_fact(name, total, ends, groups):
    counts = rebuilt_counts(name)
    assert counts.sum() == total
    assert (counts.max(), counts.min()) == ends
    assert [len(g) for g in ClassPrior.from_counts(counts).groups().values()] == groups
    assert (np.diff(counts) <= 0).all()


def test_a_file_is_read_and_checked(tmp_path, monkeypatch):
    folder = tmp_path / "class_counts"
    folder.mkdir()
    mixed = np.random.default_rng(0).permutation(rebuilt_counts("imagenet-lt"))
    (folder / FACTS["imagenet-lt"].file).write_text("\n".join(map(str, mixed)))
    counts, source = class_counts("imagenet-lt", data_dir=tmp_path)
    assert source == "file"
    np.testing.assert_array_equal(counts, mixed)
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))
    assert class_counts("imagenet-lt")[1] == "file"
    assert class_counts("inaturalist")[1] == "rebuilt"  # no such file there
    with pytest.raises(InputError, match="there is no file"):
        class_counts("inaturalist", data_dir=tmp_path)
    (folder / FACTS["imagenet-lt"].file).write_text("3\n2\n")
    with pytest.raises(InputError, match=r"2 classes and 5 examples, but ImageNet-LT has 1,000"):
        class_counts("imagenet-lt")


def test_without_data_they_are_rebuilt(monkeypatch):
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    for name in FACTS:
        counts, source = class_counts(name)
        assert (len(counts), source) == (LARGE[name].num_classes, "rebuilt")
    with pytest.raises(InputError, match="`name` must be one of"):
        class_counts("places")
