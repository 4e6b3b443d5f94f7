"""Readers and writers of saved predictions: every format gives the same blocks."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax as _softmax

from longtail import ClassPrior, InputError, MissingExtraError, adjust_logits
from longtail.predictions import (
    adjust_predictions,
    from_arrays,
    open_predictions,
    passes,
    tau_intervals,
)
from longtail.predictions.labels import class_indices, read_numbers
from longtail.predictions.passes import learnt_priors
from longtail.tuning import TauIntervals

pq = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402

NAMES = ("cat", "dog", "emu, blue")
COUNTS = [900, 90, 10]
PRIOR = ClassPrior.from_counts(COUNTS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scores():
    target = np.tile([0, 1, 2], 40)
    noise = np.random.default_rng(0).normal(size=(120, 3))
    return noise + 2.0 * np.eye(3)[target] + PRIOR.log_probs, target


def softmax(logits):
    return _softmax(logits, axis=1)


def write_csv(path, logits, labels, *, prefix="logit_", delimiter=","):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["id", *(f"{prefix}{n}" for n in NAMES), "label"])
        for k, (row, label) in enumerate(zip(logits, labels, strict=True)):
            rows.writerow([f"{k:04}", *map(repr, row.tolist()), label])


def write_all(logits, target):
    """Write the same predictions in every format."""
    named = np.array(NAMES)[target]
    np.save("scores.npy", logits)
    np.save("labels.npy", target)
    np.savez("stored.npz", logits=logits, target=target, features=logits[:, :2])
    np.savez_compressed("packed.npz", logits=logits, target=target)
    np.savez("named.npz", logits=logits, label=named, classes=NAMES)
    np.savez_compressed("fortran-packed.npz", logits=np.asfortranarray(logits), target=target)
    np.savez("other.npz", outputs=logits, truth=target)
    write_csv("comma.csv", logits, named)
    write_csv("tabs.tsv", logits, target, prefix="score ", delimiter="\t")
    columns = {f"logit_{n}": logits[:, k] for k, n in enumerate(NAMES)}
    pq.write_table(pa.table({"id": range(120), **columns, "label": named}), "wide.parquet")
    lists = {"logits": list(logits), "target": target}
    pq.write_table(pa.table(lists), "lists.parquet", row_group_size=50)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), 3)
    coded = pa.array(named).dictionary_encode()
    table = pa.table({"logits": fixed, "label": coded})
    pq.write_table(table, "fixed.parquet", row_group_size=7)


FORMATS = {
    "scores.npy": {"kind": "logits", "labels": "labels.npy"},
    "stored.npz": {},
    "packed.npz": {},
    "named.npz": {},
    "fortran-packed.npz": {},
    "other.npz": {"kind": "logits", "labels": "truth", "scores": "outputs"},
    "comma.csv": {},
    "tabs.tsv": {"kind": "logits", "scores": "score *", "classes": NAMES},
    "wide.parquet": {},
    "lists.parquet": {},
    "fixed.parquet": {"classes": NAMES},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(folder, scores, name):
    logits, target = scores
    write_all(logits, target)
    found = open_predictions(name, **FORMATS[name])
    assert (found.kind, found.num_classes, found.labelled) == ("logits", 3, True)
    for elements in (1, 30, 10_000):
        blocks = list(found.blocks(elements))
        np.testing.assert_array_equal(np.concatenate([b.scores for b in blocks]), logits)
        np.testing.assert_array_equal(np.concatenate([b.target for b in blocks]), target)
        ends = np.cumsum([len(b.scores) for b in blocks])
        assert [b.first_row for b in blocks] == [0, *ends[:-1].tolist()]


def columns_of(path):
    """What a file holds, by the names of its arrays or columns."""
    if path.suffix == ".npy":
        return {"logits": np.load(path)}
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
    with open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    return dict(zip(header, np.array(rows).T, strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_written_predictions_come_back_adjusted(folder, scores, name):
    logits, target = scores
    write_all(logits, target)
    found = open_predictions(name, **FORMATS[name])
    suffix = name.rpartition(".")[2]
    out = folder / f"out.{'npz' if suffix == 'npy' else suffix}"
    written = adjust_predictions(found, PRIOR, tau=1.0).write(out)
    expected = adjust_logits(logits, PRIOR)
    chosen = expected.argmax(axis=1)
    assert written.changed == np.sum(chosen != logits.argmax(axis=1)) > 0
    assert (written.rows, list(folder.glob("*.tmp"))) == (120, [])
    given, saved = columns_of(folder / name), columns_of(out)
    kept = [n for n in given if n in ("id", "label", "target", "truth", "classes", "features")]
    for other in kept:
        np.testing.assert_array_equal(saved.pop(other), given[other])
    answers, mark = saved.pop("predicted"), saved.pop("adjusted_tau", None)
    names = found.class_names
    np.testing.assert_array_equal(answers, chosen if names is None else np.array(names)[chosen])
    assert mark is None or np.all(mark.astype(float) == 1)
    after = np.concatenate([np.reshape(c, (120, -1)) for c in saved.values()], axis=1)
    np.testing.assert_allclose(after.astype(float), expected, rtol=1e-15)
    with pytest.raises(InputError, match="was adjusted already"):
        open_predictions(out, kind="logits")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_precision_is_kept_and_decisions_are_exact(folder, dtype):
    logits = np.random.default_rng(1).integers(-9, 9, (50, 3)).astype(dtype)
    np.savez("p.npz", logits=logits, target=np.arange(50) % 3)
    result = adjust_predictions(open_predictions("p.npz"), PRIOR, tau=0.7)
    result.write("out.npz")
    exact = logits.astype(np.float64) - 0.7 * PRIOR.log_probs
    with np.load("out.npz") as saved:
        expected = np.float64 if np.dtype(dtype).kind == "i" else np.dtype(dtype).newbyteorder("=")
        assert saved["logits"].dtype == expected
        np.testing.assert_array_equal(saved["logits"], exact.astype(expected))
        np.testing.assert_array_equal(saved["predicted"], exact.argmax(axis=1))
    wrong = result.predictions.target != exact.argmax(axis=1)
    assert result.overall.after.value == pytest.approx(wrong.mean())


def test_probabilities_stay_probabilities(folder, scores):
    logits, target = scores
    probs = softmax(logits)
    np.savez("p.npz", probs=probs, target=target)
    write_csv("p.csv", probs, np.array(NAMES)[target], prefix="prob_")
    for name in ("p.npz", "p.csv"):
        found = open_predictions(name)
        assert found.kind == "probs"
        by_probs = tau_intervals(found, PRIOR)
        by_logits = TauIntervals.from_logits(logits, target, PRIOR)
        np.testing.assert_allclose(by_probs.lower, by_logits.lower, atol=1e-12)
        np.testing.assert_allclose(by_probs.upper, by_logits.upper, atol=1e-12)
        adjust_predictions(found, PRIOR, tau=1.0).write(f"out-{name}")
    expected = softmax(adjust_logits(logits, PRIOR))
    np.testing.assert_allclose(np.load("out-p.npz")["probs"], expected, atol=1e-15)
    lines = list(csv.DictReader(Path("out-p.csv").read_text().splitlines()))
    found = np.array([[float(cells[f"prob_{name}"]) for name in NAMES] for cells in lines])
    np.testing.assert_allclose(found, expected, atol=1e-11)


def test_the_number_of_threads_and_blocks_changes_nothing(monkeypatch, scores):
    logits, target = scores
    saved = from_arrays(logits, target, kind="logits")
    expected = TauIntervals.from_logits(logits, target, PRIOR)
    monkeypatch.setattr(passes, "_MAPPED", 21)
    for workers in (1, 2, 5):
        found = tau_intervals(saved, PRIOR, workers=workers)
        np.testing.assert_array_equal(found.lower, expected.lower)
        np.testing.assert_array_equal(found.upper, expected.upper)
        np.testing.assert_array_equal(found.target, target)


def test_the_learnt_prior_is_the_mean_prediction(scores):
    logits, _ = scores
    rows = np.arange(120) % 3 > 0
    found = learnt_priors(from_arrays(logits, kind="logits"), PRIOR, [rows])[0]
    mean = np.zeros(3)
    for row in logits[rows]:
        mean += np.exp(row) / np.exp(row).sum()
    np.testing.assert_allclose(found.probs, mean / mean.sum())
    np.testing.assert_array_equal(found.counts, PRIOR.counts)
    by_probs = learnt_priors(from_arrays(softmax(logits), kind="probs"), None, [rows])[0]
    np.testing.assert_allclose(by_probs.probs, found.probs)


# --- labels, class names and counts ----------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([0, 2, 1], None),
        (np.array([0.0, 2.0, 1.0]), None),
        (["cat", "emu", "dog"], ("cat", "dog", "emu")),
        ([0, 2, 1], ("cat", "dog", "emu")),
        ([7, 9, 8], ("7", "8", "9")),
    ],
)
def test_labels_of_any_form_become_indices(labels, names):
    found = class_indices(np.array(labels), 3, names, name="x")
    np.testing.assert_array_equal(found, [0, 2, 1])


def numbers_per_class(name, content):
    """Numbers given on the command line, or in a file of that name."""
    if name is not None:
        Path(name).write_text(content)
    names = ("cat", "dog", "emu")
    return read_numbers(name or content, option="--counts", num_classes=3, class_names=names)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (None, "900,90, 10", [900, 90, 10]),
        ("c.txt", "900\n90\n10\n", [900, 90, 10]),
        ("c.json", json.dumps({"dog": 90, "cat": 900}), [900, 90, 0]),
        ("c.csv", "class,count\nemu,10\ncat,900\ndog,90\n", [900, 90, 10]),
    ],
)
def test_numbers_per_class_by_position_or_name(folder, name, content, expected):
    found = numbers_per_class(name, content)
    assert found.tolist() == expected
    assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, "9,1", "--counts has 2 numbers but there are 3 columns of scores"),
        (None, "x.txt", "there is no file"),
        ("c.json", '{"yak": 1}', "has the label 'yak', which is none of the classes"),
        ("c.csv", "0,cat,9\n1,dog,1\n", "must have one column of numbers, or two"),
    ],
)
def test_bad_numbers_per_class(folder, name, content, message):
    with pytest.raises(InputError, match=message):
        numbers_per_class(name, content)


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 3], None, "row 1 has the label '3', which is none of the classes 0 to 2"),
        (["0", "cat"], None, "name the classes with `classes=`"),
        ([0.5, 1], None, "row 0 has the label '0.5'"),
        ([[0, 1]], None, "of one-hot labels save argmax"),
    ],
)
def test_labels_that_the_model_does_not_know(labels, names, message):
    with pytest.raises(InputError, match=message):
        class_indices(np.array(labels), 3, names, name="x")


# --- what a user may get wrong -----------------------------------------------------------------


def read_through(name, **settings):
    """Open a file and make the pass over it."""
    return tau_intervals(open_predictions(name, **settings), PRIOR)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("logit_a,logit_b,label\n1,2,a\n1,a\n", "Expected 3 columns, got 2"),
        ("logit_a,logit_b,label\n1,,b\n", "row 0, column 1 is nan"),
        ("a;b;c;label\n1;2;3;a\n", "must have either logits or probs"),
        ("logit_a,prob_a\n1,2\n", "Say which with `kind="),
    ],
)
def test_bad_csv(folder, content, message):
    Path("p.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        tau_intervals(open_predictions("p.csv"), ClassPrior.from_counts([9, 1]))


def test_columns_are_chosen_and_named(folder):
    Path("p.csv").write_text("name,size,a,b,truth\nx.jpg,3,1,2,b\ny.jpg,4,2,1,a\n")
    found = open_predictions("p.csv", kind="logits", labels="truth", scores="a,b")
    (block,) = found.blocks(100)
    np.testing.assert_array_equal(block.scores, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(block.target, [1, 0])
    with pytest.raises(InputError, match="no array or column"):
        open_predictions("p.csv", scores="z*", kind="logits")
    with pytest.raises(InputError, match="say what the scores are, with `kind="):
        open_predictions("p.csv", scores="a,b")
    Path("p.csv").write_text("logit_a,logit_b\n1,2\n")
    assert open_predictions("p.csv", classes=["a", "b"]).class_names == ("a", "b")
    with pytest.raises(InputError, match="the score columns are of the classes a, b"):
        open_predictions("p.csv", classes=["b", "a"])


def test_damaged_and_foreign_files(folder, scores):
    write_all(*scores)
    for name in ("stored.npz", "packed.npz", "wide.parquet", "scores.npy"):
        whole = Path(name).read_bytes()
        Path(f"cut-{name}").write_bytes(whole[: int(0.6 * len(whole))])
        with pytest.raises(InputError, match=f"cut-{name} can't be read"):
            read_through(f"cut-{name}", **FORMATS[name])


def test_bad_npz(folder, scores):
    logits, target = scores
    for arrays, message in (
        ({"x": np.zeros(3)}, "must have either logits or probs"),
        ({"logits": logits, "target": target[1:]}, "120 rows but 119 labels"),
        ({"logits": logits, "classes": ["a", "b"]}, "2 class names but 3 columns of scores"),
        ({"probs": logits, "target": target}, "these look like logits"),
        ({"logits": softmax(logits), "target": target}, "these look like probabilities"),
    ):
        np.savez("p.npz", **arrays)
        with pytest.raises(InputError, match=message):
            read_through("p.npz")


def test_nothing_is_replaced_unless_told(folder, scores):
    write_all(*scores)
    result = adjust_predictions(open_predictions("stored.npz"), PRIOR, tau=1.0)
    result.write("out.npz")
    before = (folder / "out.npz").read_bytes()
    with pytest.raises(InputError, match=r"out.npz exists; pass `force=True`"):
        result.write("out.npz")
    result.write("out.npz", force=True)
    assert (folder / "out.npz").read_bytes() == before
    with pytest.raises(InputError, match="is the file that is being adjusted"):
        result.write("stored.npz", force=True)
    with pytest.raises(InputError, match="must end in"):
        result.write("out.csv")


def test_bad_values_name_their_row(folder, monkeypatch, scores):
    logits, target = scores
    monkeypatch.setattr(passes, "_MAPPED", 30)
    monkeypatch.setattr(passes, "_COPIED", 30)
    logits[77, 1] = np.nan
    np.savez("p.npz", logits=logits, target=target)
    with pytest.raises(InputError, match=r"`logits` must be finite, but row 77, column 1 is"):
        read_through("p.npz")
    probs = np.full((120, 3), 1 / 3)
    probs[88] *= 1.1
    np.savez("p.npz", probs=probs, target=target)
    with pytest.raises(InputError, match=r"each row of `probs` must sum to 1, but row 88 sums to"):
        read_through("p.npz")


def test_tables_without_pyarrow_name_the_extra(folder, scores, monkeypatch):
    write_all(*scores)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    for name in ("wide.parquet", "comma.csv"):
        with pytest.raises(MissingExtraError, match=r"pyarrow.*\[tables\]"):
            open_predictions(name)


def test_a_failed_write_leaves_nothing_behind(folder, scores):
    logits, _ = scores
    logits[100, 0] = np.inf
    result = adjust_predictions(from_arrays(logits, kind="logits"), PRIOR, tau=1.0)
    with pytest.raises(InputError, match=r"row 100, column 0 is inf"):
        result.write("p.npz")
    assert list(folder.iterdir()) == []
