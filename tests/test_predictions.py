"""Readers and writers of saved predictions: every format gives the same blocks."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax as _softmax

from longtail import ClassPrior, InputError, adjust_logits
from longtail.posthoc import log_probs
from longtail.predictions import adjust_predictions, from_arrays, open_predictions, tau_intervals
from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers
from longtail.predictions.passes import learnt_prior
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
    """Write the same predictions in every format; return how each is opened."""
    named = np.array(NAMES)[target]
    np.save("scores.npy", logits)
    np.save("labels.npy", target)
    np.savez("stored.npz", logits=logits, target=target)
    np.savez_compressed("packed.npz", logits=logits, target=target)
    np.savez("named.npz", logits=logits, label=named, classes=NAMES)
    np.savez("fortran.npz", logits=np.asfortranarray(logits), target=target[:, None])
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
    return {
        "scores.npy": {"kind": "logits", "labels": "labels.npy"},
        "stored.npz": {},
        "packed.npz": {},
        "named.npz": {},
        "fortran.npz": {},
        "fortran-packed.npz": {},
        "other.npz": {"kind": "logits", "labels": "truth", "scores": "outputs"},
        "comma.csv": {},
        "tabs.tsv": {"kind": "logits", "scores": "score *", "classes": NAMES},
        "wide.parquet": {},
        "lists.parquet": {},
        "fixed.parquet": {"classes": NAMES},
    }


FORMATS = (
    "scores.npy", "stored.npz", "packed.npz", "named.npz", "fortran.npz", "fortran-packed.npz",
    "other.npz", "comma.csv", "tabs.tsv", "wide.parquet", "lists.parquet", "fixed.parquet",
)  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(folder, scores, name):
    logits, target = scores
    found = open_predictions(name, **write_all(logits, target)[name])
    assert (found.kind, found.num_classes, found.labelled) == ("logits", 3, True)
    for elements in (1, 30, 10_000):
        blocks = list(found.blocks(elements))
        np.testing.assert_array_equal(np.concatenate([b.scores for b in blocks]), logits)
        np.testing.assert_array_equal(np.concatenate([b.target for b in blocks]), target)
        ends = np.cumsum([len(b.scores) for b in blocks])
        assert [b.first_row for b in blocks] == [0, *ends[:-1].tolist()]


@pytest.mark.parametrize("name", FORMATS)
def test_written_predictions_come_back_adjusted(folder, scores, name):
    logits, target = scores
    settings = write_all(logits, target)[name]
    result = adjust_predictions(open_predictions(name, **settings), PRIOR, tau=1.0)
    suffix = name.rpartition(".")[2]
    written = result.write(f"out.{suffix}")
    expected = adjust_logits(logits, PRIOR)
    assert written.changed == np.sum(expected.argmax(axis=1) != logits.argmax(axis=1)) > 0
    assert written.rows == 120
    assert all(path.exists() for path in written.paths)
    assert not list(folder.glob("*.tmp"))
    if suffix == "npz":
        with np.load("out.npz") as saved, np.load(name) as given:
            key = "outputs" if name == "other.npz" else "logits"
            np.testing.assert_allclose(saved["logits"], expected, rtol=1e-15)
            answers = saved["predicted"]
            assert saved["adjusted_tau"] == 1.0
            for other in set(given.files) - {key}:
                np.testing.assert_array_equal(saved[other], given[other])
    elif suffix == "npy":
        np.testing.assert_allclose(np.load("out.npy"), expected, rtol=1e-15)
        answers = np.load("out.predicted.npy")
    elif suffix == "parquet":
        table = pq.read_table("out.parquet")
        given = pq.read_table(name)
        assert table.schema.names == [*given.schema.names, "predicted"]
        assert table.schema.remove(len(given.schema)).equals(given.schema)
        answers = table.column("predicted").to_numpy()
        label = "target" if name == "lists.parquet" else "label"
        assert table.column(label).equals(given.column(label))
        with pytest.raises(InputError, match=r"out.parquet was adjusted already"):
            open_predictions("out.parquet")
        if name == "wide.parquet":
            saved = np.stack([table.column(f"logit_{n}").to_numpy() for n in NAMES], axis=1)
        else:
            saved = np.stack(table.column("logits").to_numpy())
        np.testing.assert_allclose(saved, expected, rtol=1e-15)
    else:
        delimiter = {"tabs.tsv": "\t"}.get(name, ",")
        given, lines = (
            list(csv.DictReader(Path(file).read_text().splitlines(), delimiter=delimiter))
            for file in (name, written.paths[0])
        )
        assert list(lines[0]) == [*given[0], "predicted", "adjusted_tau"]
        columns = [n for n in given[0] if n not in ("id", "label")]
        saved = np.array([[float(cells[n]) for n in columns] for cells in lines])
        np.testing.assert_allclose(saved, expected, rtol=1e-15)
        for kept in {"id", "label"} & set(given[0]):
            assert [cells[kept] for cells in lines] == [cells[kept] for cells in given]
        answers = np.array([cells["predicted"] for cells in lines])
        assert {cells["adjusted_tau"] for cells in lines} == {"1"}
    in_names = found_names = result.predictions.class_names
    chosen = expected.argmax(axis=1)
    if found_names is not None:
        chosen = np.array(in_names)[chosen]
    np.testing.assert_array_equal(answers, chosen)


def test_an_adjusted_file_is_not_adjusted_again(folder, scores):
    write_all(*scores)
    for name in ("stored.npz", "comma.csv", "wide.parquet", "lists.parquet"):
        out = f"out{Path(name).suffix}"
        result = adjust_predictions(open_predictions(name), PRIOR, tau=0.5)
        result.write(out, force=True)
        with pytest.raises(InputError, match=rf"{out} was adjusted already"):
            open_predictions(out, kind="logits")
    result = adjust_predictions(open_predictions("scores.npy", kind="logits"), PRIOR, tau=0.5)
    result.write("out.npy")
    with pytest.raises(
        InputError, match=r"out.npy was adjusted already, as out.predicted.npy besi"
    ):
        open_predictions("out.npy", kind="logits")
    (folder / "out.predicted.npy").rename("answers.npy")
    assert open_predictions("out.npy", kind="logits").num_rows == 120


def test_stored_arrays_are_mapped_and_packed_ones_say_so(folder, scores):
    write_all(*scores)
    assert isinstance(open_predictions("stored.npz").mapped, np.memmap)
    packed = open_predictions("packed.npz")
    assert packed.mapped is None
    assert "packed.npz is compressed" in packed.notes[0]
    assert open_predictions("comma.csv").mapped is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", np.int32])
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


def test_zeros_are_read_as_the_estimators_read_them():
    votes = np.random.default_rng(0).multinomial(10, [0.7, 0.25, 0.05], size=200) / 10
    assert (votes == 0).any()
    target = np.arange(200) % 3
    found = tau_intervals(from_arrays(votes, target, kind="probs"), PRIOR)
    expected = TauIntervals.from_logits(log_probs(votes), target, PRIOR)
    np.testing.assert_array_equal(found.lower, expected.lower)
    np.testing.assert_array_equal(found.upper, expected.upper)


def test_the_number_of_threads_and_blocks_changes_nothing(monkeypatch, scores):
    from longtail.predictions import passes

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
    weight = np.arange(120.0)
    found = learnt_prior(from_arrays(logits, kind="logits"), PRIOR, weight)
    mean = np.zeros(3)
    for row, w in zip(logits, weight, strict=True):
        mean += w * np.exp(row) / np.exp(row).sum()
    np.testing.assert_allclose(found.probs, mean / mean.sum())
    np.testing.assert_array_equal(found.counts, PRIOR.counts)
    by_probs = learnt_prior(from_arrays(softmax(logits), kind="probs"), None, weight)
    np.testing.assert_allclose(by_probs.probs, found.probs)


# --- labels, class names and counts ----------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([0, 2, 1], None),
        ([[0], [2], [1]], None),
        (["0", "2.0", " 1"], None),
        (np.array([0.0, 2.0, 1.0]), None),
        (["cat", "emu", "dog"], ("cat", "dog", "emu")),
        (np.array([b"cat", b"emu", b"dog"]), ("cat", "dog", "emu")),
        ([0, 2, 1], ("cat", "dog", "emu")),
        ([7, 9, 8], ("7", "8", "9")),
    ],
)
def test_labels_of_any_form_become_indices(labels, names):
    np.testing.assert_array_equal(LabelEncoder(3, names, name="x")(np.array(labels)), [0, 2, 1])


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 3], None, "x: row 1 has the label '3', which is none of the classes 0 to 2"),
        ([0, -1], None, "row 1 has the label '-1'"),
        (["0", "cat"], None, "labels that are names need --classes"),
        (
            ["cat", "yak"],
            ("cat", "dog", "emu"),
            "'yak', which is none of the classes cat, dog, emu",
        ),
        (["cat", ""], ("cat", "dog", "emu"), "row 1 has the label ''"),
        ([0.5, 1], None, "row 0 has the label '0.5'"),
        ([[0, 1]], None, "of one-hot labels save argmax(axis=1)"),
        (np.array([None, 1]), None, "labels must be whole numbers or names; their dtype is object"),
        ([1], ("7", "8", "9"), "'1', which is none of the classes 7, 8, 9"),
    ],
)
def test_labels_that_the_model_does_not_know(labels, names, message):
    with pytest.raises(InputError) as caught:
        LabelEncoder(3, names, name="x")(np.array(labels))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("lines.txt", "polar bear\ncat\n\n", ["polar bear", "cat"]),
        ("table.csv", "file,label\na.jpg,cat\nb.jpg,dog\n", ["cat", "dog"]),
        ("single.csv", "animal\ncat\n", ["cat"]),
        ("single.csv", "cat\ndog\n", ["cat", "dog"]),
        ("numbers.csv", "1\n0\n", ["1", "0"]),
        ("table.tsv", "label\tfile\ndog\ta,b\n", ["dog"]),
    ],
)
def test_label_files(folder, name, content, expected):
    (folder / name).write_text(content)
    assert read_labels(folder / name, ("cat", "dog", "polar bear")).tolist() == expected


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (None, "900,90, 10", [900, 90, 10]),
        (None, "0.9 0.09 0.01", [0.9, 0.09, 0.01]),
        ("c.txt", "900\n90\n10\n", [900, 90, 10]),
        ("c.txt", "900 90 10\n", [900, 90, 10]),
        ("c.json", json.dumps([900, 90, 10]), [900, 90, 10]),
        ("c.json", json.dumps({"dog": 90, "cat": 900}), [900, 90, 0]),
        ("c.csv", "class,count\nemu,10\ncat,900\ndog,90\n", [900, 90, 10]),
        ("c.csv", "emu,10\ncat,900\ndog,90\n", [900, 90, 10]),
        ("c.csv", "count\n900\n90\n10\n", [900, 90, 10]),
    ],
)
def test_numbers_per_class_by_position_or_name(folder, name, content, expected):
    if name is not None:
        (folder / name).write_text(content)
    found = read_numbers(
        name or content, option="--counts", num_classes=3, class_names=("cat", "dog", "emu")
    )
    assert found.tolist() == expected
    assert found.dtype == (np.int64 if max(expected) > 1 else np.float64)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, "9,1", "--counts has 2 numbers but there are 3 columns of scores"),
        (None, "x.txt", "must be numbers such as 900,90,10 or a file of them; there is no file"),
        ("c.json", json.dumps({"yak": 1}), "has the label 'yak', which is none of the classes"),
        ("c.json", '{"cat": 1, "cat": 2}', "c.json can't be read as numbers: a class occurs twice"),
        ("c.json", "{", "c.json can't be read as numbers"),
        ("c.csv", "cat,1\ncat,2\n", "c.csv can't be read as numbers: a class occurs twice"),
        ("c.csv", "cat,1\ndog\n", "line 2 has 1 cells but the first has 2"),
        ("c.txt", "one two three", "c.txt can't be read as numbers"),
        ("c.txt", "", "c.txt is empty"),
    ],
)
def test_bad_numbers_per_class(folder, name, content, message):
    if name is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_numbers(
            name or content, option="--counts", num_classes=3, class_names=("cat", "dog", "emu")
        )
    assert message in str(caught.value)


# --- what a user may get wrong -----------------------------------------------------------------


def read_through(name, **settings):
    """Open a file and make the pass over it."""
    return tau_intervals(open_predictions(name, **settings), ClassPrior.from_counts(COUNTS))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("logit_a,logit_b,logit_c,label\n1,2,3,a\n1,2,a\n", "Expected 4 columns, got 3"),
        ("logit_a,logit_b,logit_c,label\n1,oops,3,b\n", "invalid value 'oops'"),
        ("logit_a,logit_b,logit_c,label\n1,,3,b\n", "row 0, column 'logit_b' is empty"),
        ("logit_a,logit_b,logit_c,label\n1,2,3,z\n", "row 0 has the label 'z'"),
        ("logit_a,logit_b,logit_c,label\n1,2,inf,a\n", "row 0, column 2 is inf"),
        ("logit_a,logit_a,logit_c,label\n1,2,3,a\n", "the column 'logit_a' occurs twice"),
        ("logit_a,logit_b,logit_c,label\n", "has no rows"),
        ("a;b;c;label\n1;2;3;a\n", "must have columns logit_NAME or prob_NAME"),
        ("", "p.csv can't be read: Empty CSV file"),
        ("logit_a,prob_a\n1,2\n", "has both logits and probabilities; choose with --logits"),
        ("logit_a,b\n1,2\n", "scores of at least two classes"),
    ],
)
def test_bad_csv(folder, content, message):
    Path("p.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        read_through("p.csv")
    assert message in str(caught.value)


def test_columns_are_chosen_and_named(folder):
    Path("p.csv").write_text("name,size,a,b,truth\nx.jpg,3,1,2,b\ny.jpg,4,2,1,a\n")
    found = open_predictions("p.csv", kind="logits", labels="truth", scores="a,b")
    (block,) = found.blocks(100)
    np.testing.assert_array_equal(block.scores, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(block.target, [1, 0])
    for settings, message in (
        ({"scores": "z*", "kind": "logits"}, "no column matches 'z*'; its columns are name, size"),
        ({"scores": "name,a", "kind": "logits"}, "invalid value 'x.jpg'"),
        ({"scores": "a,b"}, "say what the scores are, with --logits"),
        ({"labels": "gone"}, "--labels gone: there is no such file, and p.csv has no array"),
    ):
        with pytest.raises(InputError) as caught:
            list(open_predictions("p.csv", **settings).blocks(100))
        assert message in str(caught.value)


def test_named_columns_are_not_renamed(folder):
    Path("p.csv").write_text("logit_a,logit_b\n1,2\n")
    assert open_predictions("p.csv", classes=["a", "b"]).class_names == ("a", "b")
    with pytest.raises(InputError, match="the score columns are of the classes a, b, in this ord"):
        open_predictions("p.csv", classes=["b", "a"])


def test_other_scores_of_the_same_classes_are_left_out(folder):
    Path("p.csv").write_text("logit_a,logit_b,prob_a,prob_b,prob_rain\n1,2,.3,.7,.5\n")
    found = open_predictions("p.csv", kind="logits")
    assert found.left_out == ("prob_a", "prob_b")
    prior = ClassPrior.from_counts([9, 1])
    adjust_predictions(found, prior, tau=1.0).write("out.csv")
    header = Path("out.csv").read_text().splitlines()[0]
    assert header == "logit_a,logit_b,prob_rain,predicted,adjusted_tau"
    features = np.ones((1, 4096))
    np.savez("p.npz", logits=[[1.0, 2.0]], probs=[[0.3, 0.7]], features=[features, features])
    assert open_predictions("p.npz", kind="probs").left_out == ("logits", "features")


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pandas_reads_adjusted_parquet_files(folder, dtype):
    pd = pytest.importorskip("pandas")
    given = pd.DataFrame({"logit_a": [1, 2], "logit_b": [2, 1]}, index=[7, 9]).astype(dtype)
    given.to_parquet("p.parquet")
    prior = ClassPrior.from_probs([0.9, 0.1])
    adjust_predictions(open_predictions("p.parquet"), prior, tau=1.0).write("o.parquet")
    found = pd.read_parquet("o.parquet")
    expected = adjust_logits(given[["logit_a", "logit_b"]].to_numpy(np.float64), prior)
    np.testing.assert_allclose(found[["logit_a", "logit_b"]], expected, rtol=1e-6)
    assert found["predicted"].tolist() == ["b", "b"]


def test_damaged_files(folder, scores):
    opened = write_all(*scores)
    for name in ("stored.npz", "packed.npz", "wide.parquet", "scores.npy"):
        whole = Path(name).read_bytes()
        Path(f"cut-{name}").write_bytes(whole[: int(0.6 * len(whole))])
        with pytest.raises(InputError, match=f"cut-{name} can't be read"):
            read_through(f"cut-{name}", **opened[name])
    for name, first, last in (("packed.npz", 200, 260), ("wide.parquet", 900, 2900)):
        content = bytearray(Path(name).read_bytes())
        content[first:last] = bytes(last - first)
        Path(f"spoilt-{name}").write_bytes(content)
        with pytest.raises(InputError, match=f"spoilt-{name} (can't be read|is damaged)"):
            read_through(f"spoilt-{name}")


def test_bad_npz(folder, scores):
    logits, target = scores
    for arrays, settings, message in (
        ({"x": np.zeros(3)}, {}, "must have an array `logits` or `probs`"),
        ({"logits": logits, "probs": logits}, {}, "both logits and probabilities; choose with"),
        ({"logits": logits}, {"kind": "probs"}, "must have an array `logits` or `probs`; name"),
        ({"a": logits}, {"scores": "a"}, "say what the scores are"),
        ({"a": logits}, {"scores": "b"}, "has no array 'b'; it has a"),
        ({"logits": logits, "target": target[1:]}, {}, "120 rows but 119 labels"),
        ({"logits": logits[:, 0]}, {}, "must hold numbers in the shape (examples, classes)"),
        ({"logits": logits, "classes": ["a", "b"]}, {}, "2 class names but 3 columns of scores"),
        ({"logits": logits, "classes": list("aba")}, {}, "class names must be distinct"),
        ({"logits": logits, "target": np.array([None] * 120)}, {}, "save names as text"),
    ):
        np.savez("p.npz", **arrays)
        with pytest.raises(InputError) as caught:
            open_predictions("p.npz", **settings)
        assert message in str(caught.value)


def test_bad_values_name_their_row(folder, monkeypatch, scores):
    from longtail.predictions import passes

    logits, target = scores
    monkeypatch.setattr(passes, "_MAPPED", 30)
    monkeypatch.setattr(passes, "_COPIED", 30)
    logits[77, 1] = np.nan
    np.savez("p.npz", logits=logits, target=target)
    with pytest.raises(InputError, match=r"`logits` must be finite, but row 77, column 1 is"):
        read_through("p.npz")
    with pytest.raises(InputError, match=r"row 77, column 1 is nan"):
        adjust_predictions(open_predictions("p.npz"), PRIOR, tau=1.0).write("o.npz")
    probs = np.full((120, 3), 1 / 3)
    probs[88] *= 1.1
    np.savez("p.npz", probs=probs, target=target)
    with pytest.raises(InputError, match=r"each row of `probs` must sum to 1, but row 88 sums to"):
        read_through("p.npz")


def test_logits_declared_as_probabilities_and_the_reverse(folder, scores):
    logits, target = scores
    np.savez("p.npz", probs=logits, target=target)
    with pytest.raises(InputError, match="these look like logits"):
        read_through("p.npz")
    np.savez("p.npz", logits=softmax(logits), target=target)
    with pytest.raises(InputError, match="these look like probabilities"):
        read_through("p.npz")


def test_bad_parquet(folder, scores):
    logits, target = scores
    columns = {f"logit_{n}": logits[:, k] for k, n in enumerate("abc")}
    hole = pa.array([None if k == 5 else 1.0 for k in range(120)])
    for changes, message in (
        ({"logit_b": hole}, "p.parquet: row 5, column 'logit_b' is empty"),
        ({"label": pa.array([None, *"a" * 119])}, "row 0, column 'label' is empty"),
        ({"label": pa.array([*"a" * 119, "z"])}, "row 119 has the label 'z'"),
        ({"logit_c": pa.array(["x"] * 120)}, "column 'logit_c' holds string, not numbers"),
        ({"logit_a": np.full(120, np.inf)}, "row 0, column 0 is inf"),
    ):
        table = pa.table({**columns, "label": np.array(list("abc"))[target], **changes})
        pq.write_table(table, "p.parquet")
        with pytest.raises(InputError) as caught:
            read_through("p.parquet")
        assert message in str(caught.value)
    ragged = pa.array([[1.0, 2.0, 3.0]] * 9 + [[1.0, 2.0]])
    pq.write_table(pa.table({"logits": ragged, "target": range(10)}), "p.parquet")
    with pytest.raises(InputError, match=r"row 9 has 2 scores but the first row has 3"):
        list(open_predictions("p.parquet").blocks(100))


def test_tables_without_pyarrow_name_the_extra(folder, scores, monkeypatch):
    from longtail import MissingExtraError

    write_all(*scores)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("wide.parquet", "comma.csv"):
        with pytest.raises(MissingExtraError, match=r"pyarrow.*\[tables\]"):
            open_predictions(name)


def test_other_sources(folder):
    for name, settings, message in (
        ("gone.npz", {}, "gone.npz: there is no such file"),
        ("p.xlsx", {}, "must be a run folder or end in .npz, .npy, .csv, .tsv, .parquet"),
        ("p.npy", {}, "p.npy: say what the scores are"),
        ("p.npy", {"kind": "logits", "labels": "y.npy"}, "--labels y.npy: there is no such file"),
    ):
        np.save("p.npy", np.zeros((2, 3)))
        with pytest.raises(InputError) as caught:
            open_predictions(name, **settings)
        assert message in str(caught.value)


def test_nothing_is_replaced_unless_told(folder, scores):
    write_all(*scores)
    result = adjust_predictions(open_predictions("stored.npz"), PRIOR, tau=1.0)
    result.write("out.npz")
    before = (folder / "out.npz").read_bytes()
    with pytest.raises(InputError, match=r"out.npz exists; pass --force \(force=True\)"):
        result.write("out.npz")
    result.write("out.npz", force=True)
    assert (folder / "out.npz").read_bytes() == before
    with pytest.raises(InputError, match=r"stored.npz is the file that is being adjusted"):
        result.write("stored.npz", force=True)
    with pytest.raises(InputError, match=r"out.csv must end in .npz: adjusted predictions keep"):
        result.write("out.csv")
    pair = open_predictions("scores.npy", kind="logits", labels="labels.npy")
    (folder / "o.predicted.npy").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"o.predicted.npy exists"):
        adjust_predictions(pair, PRIOR, tau=1.0).write("o.npy")
    assert (folder / "o.predicted.npy").read_bytes() == b"mine"


def test_a_failed_write_leaves_nothing_behind(folder, scores):
    logits, _ = scores
    logits[100, 0] = np.inf
    for name in ("p.npz", "p.npy"):
        saved = from_arrays(logits, kind="logits", form=name[2:])
        result = adjust_predictions(saved, PRIOR, tau=1.0)
        with pytest.raises(InputError, match=r"row 100, column 0 is inf"):
            result.write(name)
    assert list(folder.iterdir()) == []
