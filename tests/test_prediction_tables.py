"""Tables of saved predictions, csv and parquet: which columns are written, and as what."""

import numpy as np
import pytest

from longtail import ClassPrior, InputError, adjust_logits
from longtail.predictions import adjust_predictions, open_predictions

pq = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402

NAMES = ("cat", "dog", "emu")
PRIOR = ClassPrior.from_counts([900, 90, 10])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scores():
    target = np.tile([0, 1, 2], 40)
    noise = np.random.default_rng(0).normal(size=(120, 3))
    return noise + 2.0 * np.eye(3)[target] + PRIOR.log_probs, target


def wide(values, target):
    columns = {f"logit_{name}": values[:, k] for k, name in enumerate(NAMES)}
    return pa.table({**columns, "label": np.array(NAMES)[target]})


def listed(values, target, form):
    """Scores as lists, large lists or lists of a fixed size."""
    flat = pa.array(values.reshape(-1))
    ends = np.arange(len(values) + 1) * 3
    column = {
        "list": lambda: pa.ListArray.from_arrays(ends.astype(np.int32), flat),
        "large": lambda: pa.LargeListArray.from_arrays(ends, flat),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(flat, 3),
    }[form]()
    return pa.table({"logits": column, "label": target})


@pytest.mark.parametrize("form", ["wide", "list", "large", "fixed"])
@pytest.mark.parametrize("dtype", ["i1", "u4", "i8", "f2", "f4", "f8"])
def test_parquet_keeps_the_precision_and_turns_whole_numbers_into_floats(scores, form, dtype):
    logits, target = scores
    given = np.rint(3 * logits + 40).astype(dtype)
    table = wide(given, target) if form == "wide" else listed(given, target, form)
    pq.write_table(table, "p.parquet")
    adjust_predictions(open_predictions("p.parquet"), PRIOR, tau=1.3).write("out.parquet")
    exact = adjust_logits(given.astype(np.float64), PRIOR, tau=1.3)
    expected = np.dtype(dtype) if dtype[0] == "f" else np.dtype(np.float64)
    out = pq.read_table("out.parquet")
    if form == "wide":
        found = np.stack([out.column(k).to_numpy() for k in range(3)], axis=1)
        assert out.column("predicted").to_pylist() == [NAMES[k] for k in exact.argmax(axis=1)]
    else:
        column = out.column("logits").combine_chunks()
        found = column.flatten().to_numpy().reshape(-1, 3)
        assert type(out.schema.field("logits").type) is type(table.schema.field("logits").type)
    assert found.dtype == expected
    np.testing.assert_array_equal(found, exact.astype(expected))


def test_pandas_reads_adjusted_whole_numbers(scores):
    pandas = pytest.importorskip("pandas")
    logits, target = scores
    frame = wide(np.rint(logits).astype(int), target).to_pandas()
    frame.to_parquet("p.parquet")
    adjust_predictions(open_predictions("p.parquet"), PRIOR, tau=1.0).write("out.parquet")
    again = pandas.read_parquet("out.parquet")
    expected = adjust_logits(frame.iloc[:, :3].to_numpy(np.float64), PRIOR)
    np.testing.assert_array_equal(again.iloc[:, :3].to_numpy(), expected)


def test_lists_of_words_are_no_scores():
    pq.write_table(pa.table({"logits": [["a", "b"], ["c", "d"]], "label": [0, 1]}), "p.parquet")
    with pytest.raises(InputError, match=r"the column 'logits' holds list<.*string>, not numbers"):
        open_predictions("p.parquet")


def test_several_label_columns_beside_lists_are_refused(scores):
    logits, target = scores
    table = listed(logits, target, "list").append_column("target", pa.array(target))
    pq.write_table(table, "p.parquet")
    with pytest.raises(InputError, match=r"several columns of labels, label, target; name one wit"):
        open_predictions("p.parquet")
    assert open_predictions("p.parquet", labels="target").label_column == "target"
    np.save("y.npy", target)
    assert open_predictions("p.parquet", labels="y.npy").labelled
