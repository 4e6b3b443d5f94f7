"""Embeddings from files: every layout gives the same data; bad input is refused."""

import mmap
import os

import numpy as np
import pytest

from longtail._checks import InputError
from longtail.data import load
from longtail.data.embeddings import is_embeddings, read_ahead, read_embeddings

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(40, 6)).astype(np.float32)
LABELS = np.array(["emu", "ant", "bee", "ant"] * 10)
TEST_FEATURES, TEST_LABELS = FEATURES[:7] + 1, LABELS[:7]
PARTS = {
    "features": FEATURES,
    "labels": LABELS,
    "test_features": TEST_FEATURES,
    "test_labels": TEST_LABELS,
}


def write(folder, form, parts=PARTS):
    path = folder / f"features.{form}"
    if form == "npz":
        np.savez(path, **parts)
    elif form == "npy":
        for name, array in parts.items():
            np.save(folder / f"{name}.npy", array)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        # The test part's rows stand among the others.
        n = len(parts["features"])
        split = ["test"] * 3 + ["train"] * n + ["test"] * 4
        rows = np.r_[n : n + 3, 0:n, n + 3 : n + 7]
        features = np.concatenate([parts["features"], parts["test_features"]])[rows]
        labels = np.concatenate([parts["labels"], parts["test_labels"]])[rows]
        table = pa.table({"features": list(features), "label": labels, "split": split})
        parquet.write_table(table, path, row_group_size=9)
    return path


@pytest.mark.parametrize("form", ["npz", "npy", "parquet"])
def test_every_layout_gives_the_same_data(form, tmp_path):
    train, test = read_embeddings(write(tmp_path, form))
    assert train.class_names == ("ant", "bee", "emu") == test.class_names
    assert (np.array(train.class_names)[train.labels] == LABELS).all()
    assert (np.array(test.class_names)[test.labels] == TEST_LABELS).all()
    np.testing.assert_array_equal(train.images[:, :, 0, 0], FEATURES)
    np.testing.assert_array_equal(test.images[:, :, 0, 0], TEST_FEATURES)
    assert train.is_embeddings
    if form != "parquet":  # arrays stay in their file
        assert isinstance(train.images, np.memmap)
        assert isinstance(test.images, np.memmap)
        assert not train.images.flags.writeable


@pytest.mark.parametrize(
    ("form", "memory", "ahead"),
    [("npz", 100, True), ("npy", 100, True), ("npy", 10**6, False), ("parquet", 100, False)],
)
def test_rows_of_a_file_larger_than_memory_are_read_ahead(
    form, memory, ahead, tmp_path, monkeypatch
):
    advice = []

    class Mapped(mmap.mmap):
        def madvise(self, what, *where):
            advice.append((what, *where))
            super().madvise(what, *where)

    monkeypatch.setattr(mmap, "mmap", Mapped)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": memory, "SC_PAGE_SIZE": 1}.get)
    features = np.arange(4000 * 6, dtype=np.float32).reshape(4000, 6)
    parts = PARTS | {"features": features, "labels": np.resize(LABELS, 4000)}
    train, _ = read_embeddings(write(tmp_path, form, parts))
    read_ahead(train.images)(np.array([3999, 0, 2000]))
    if ahead:
        (what,), *others = advice
        assert what == mmap.MADV_RANDOM
        last, *pages = [start // mmap.PAGESIZE for _, start, _ in others]
        assert 0 <= (4000 * 24 + 1000) // mmap.PAGESIZE - last <= 1
        assert pages == [0, 2000 * 24 // mmap.PAGESIZE]
    else:
        assert not advice


def test_no_test_part_is_taken_from_a_file_larger_than_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 100, "SC_PAGE_SIZE": 1}.get)
    path = write(tmp_path, "npz", {"features": FEATURES, "labels": LABELS})
    with pytest.raises(InputError, match="store test_features and test_labels, too"):
        read_embeddings(path)


def test_numbers_as_labels_keep_their_order_and_names(tmp_path):
    labels = np.array([10, 9, 100, 9] * 10)
    np.savez_compressed(tmp_path / "a.npz", features=FEATURES, labels=labels)
    train, test = read_embeddings(tmp_path / "a.npz")
    assert train.class_names == ("9", "10", "100")
    assert len(train) + len(test) == 40


def test_without_a_test_part_a_fifth_of_each_class_is_set_aside(tmp_path, caplog):
    labels = np.repeat(["common", "rare", "single"], [29, 10, 1])
    path = write(tmp_path, "npz", {"features": FEATURES, "labels": labels})
    data = load(path)
    assert data.train.counts.tolist() == [23, 8, 1]
    assert data.test.counts.tolist() == [6, 2, 0]
    rows = np.concatenate([data.train.images, data.test.images])[:, :, 0, 0]
    assert sorted(map(tuple, rows)) == sorted(map(tuple, FEATURES))
    assert "8 of its 40 examples" in caplog.text
    assert load(path).train.fingerprint == data.train.fingerprint
    assert (data.spec.name, data.spec.profile) == ("features", None)


def spoiled(array, row, value):
    return np.where(np.arange(len(array))[:, None] == row, value, array).astype(np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": spoiled(FEATURES, 13, np.nan)}, "features: row 13 has a NaN"),
        ({"labels": LABELS[:39]}, "one for each of the 40 rows of features"),
        ({"test_labels": np.array(["ant"] * 6 + ["fly"])}, "row 6 of test_labels .* 'fly', which"),
        ({"labels": LABELS.astype(object)}, r"labels.astype\(str\)"),
        ({"test_features": TEST_FEATURES[:, 1:]}, "6 columns but test_features have 5"),
    ],
)
def test_bad_input(changes, message, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.data.embeddings._BLOCK", 5 * 24)  # rows are counted over blocks
    with pytest.raises(InputError, match=message):
        read_embeddings(write(tmp_path, "npz", PARTS | changes))


def test_missing_parts_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", X=FEATURES, labels=LABELS)
    with pytest.raises(InputError, match="features and labels; it has X, labels"):
        read_embeddings(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", features=FEATURES, labels=LABELS, test_labels=LABELS)
    with pytest.raises(InputError, match="only one of test_features and test_labels"):
        read_embeddings(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", FEATURES)
    with pytest.raises(InputError, match=r"must lie beside it as .*labels\.npy"):
        read_embeddings(tmp_path / "c.npy")


def test_parquet_columns_are_checked(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    for columns, message in (
        ({"features": [[1.0], [2.0]], "y": [0, 1]}, "columns features and label; it has"),
        ({"features": [[1.0], [2.0, 3.0]], "label": [0, 1]}, "must have the same number"),
        ({"features": [[1.0]], "label": [0], "split": ["dev"]}, "it is also 'dev'"),
    ):
        parquet.write_table(pa.table(columns), path)
        assert is_embeddings(path)
        with pytest.raises(InputError, match=message):
            read_embeddings(path)
    parquet.write_table(pa.table({"image": [0]}), path)
    assert not is_embeddings(path)
