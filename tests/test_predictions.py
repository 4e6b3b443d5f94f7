"""Readers and writers of saved predictions: every format gives the same blocks."""

import csv
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior, InputError, adjust_logits
from longtail.predictions import adjust_predictions, from_arrays, open_predictions, tau_intervals
from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers
from longtail.predictions.passes import in_order, learnt_prior
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
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def write_csv(path, logits, labels, *, names=NAMES, prefix="logit_", delimiter=",", ids=True):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow([*(["id"] if ids else []), *(f"{prefix}{n}" for n in names), "label"])
        for k, (row, label) in enumerate(zip(logits, labels, strict=True)):
            rows.writerow([*([k] if ids else []), *map(repr, row.tolist()), label])


def write_all(logits, target):
    """The same predictions in every format; how each is opened."""
    named = np.array(NAMES)[target]
    np.save("scores.npy", logits)
    np.save("labels.npy", target)
    np.savez("stored.npz", logits=logits, target=target)
    np.savez_compressed("packed.npz", logits=logits, target=target)
    np.savez("named.npz", logits=logits, labels=named, classes=NAMES)
    np.savez("fortran.npz", logits=np.asfortranarray(logits), target=target)
    np.savez_compressed("fortran-packed.npz", logits=np.asfortranarray(logits), target=target)
    np.savez("other.npz", outputs=logits, truth=target)
    write_csv("comma.csv", logits, named)
    write_csv("tabs.tsv", logits, target, prefix="", names=("0", "1", "2"), delimiter="\t")
    write_csv("semicolons.csv", logits, target, delimiter=";", ids=False)
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
        "other.npz": {"kind": "logits", "labels": "truth"},
        "comma.csv": {},
        "tabs.tsv": {"kind": "logits"},
        "semicolons.csv": {},
        "wide.parquet": {},
        "lists.parquet": {},
        "fixed.parquet": {"classes": NAMES},
    }


FORMATS = (
    "scores.npy", "stored.npz", "packed.npz", "named.npz", "fortran.npz", "fortran-packed.npz",
    "other.npz", "comma.csv", "tabs.tsv", "semicolons.csv", "wide.parquet", "lists.parquet",
    "fixed.parquet",
)  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_blocks(folder, scores, name):
    logits, target = scores
    found = open_predictions(name, **write_all(logits, target)[name])
    assert (found.kind, found.num_classes, found.labelled) == ("logits", 3, True)
    for elements in (1, 30, 10_000):
        blocks = list(found.blocks(elements))
        assert len(blocks) == {1: 120, 30: 12, 10_000: 1}[elements] or "parquet" in name
        np.testing.assert_array_equal(np.concatenate([b.scores for b in blocks]), logits)
        np.testing.assert_array_equal(np.concatenate([b.target for b in blocks]), target)
        assert [b.first_row for b in blocks] == np.cumsum(
            [0, *(len(b.scores) for b in blocks[:-1])]
        ).tolist()


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
        with pytest.raises(InputError, match=r"out.parquet was adjusted already \(tau = 1.0\)"):
            open_predictions("out.parquet")
        if name == "wide.parquet":
            saved = np.stack([table.column(f"logit_{n}").to_numpy() for n in NAMES], axis=1)
        else:
            saved = np.stack(table.column("logits").to_numpy())
        np.testing.assert_allclose(saved, expected, rtol=1e-15)
    else:
        delimiter = {"tabs.tsv": "\t", "semicolons.csv": ";"}.get(name, ",")
        given, lines = (
            list(csv.DictReader(Path(file).read_text().splitlines(), delimiter=delimiter))
            for file in (name, written.paths[0])
        )
        assert list(lines[0]) == [*given[0], "predicted", "adjusted_tau"]
        columns = [n for n in given[0] if n not in ("id", "label")]
        saved = np.array([[float(cells[n]) for n in columns] for cells in lines])
        np.testing.assert_allclose(saved, expected, rtol=1e-11)
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
    for name in ("stored.npz", "comma.csv", "tabs.tsv", "wide.parquet", "lists.parquet"):
        out = f"out{Path(name).suffix}"
        result = adjust_predictions(open_predictions(name, kind="logits"), PRIOR, tau=0.5)
        result.write(out, force=True)
        with pytest.raises(InputError, match=rf"{out} was adjusted already \(tau = 0.5\); adjust"):
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
    assert packed.notes == (
        "packed.npz is compressed, so every pass unpacks it; numpy.savez stores it ready to map.",
    )
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
    logits = np.log(np.maximum(votes, 2.0**-126))
    expected = TauIntervals.from_logits(logits, target, PRIOR)
    np.testing.assert_array_equal(found.lower, expected.lower)
    np.testing.assert_array_equal(found.upper, expected.upper)
    assert np.isfinite(logits).all()


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


def test_work_in_order_takes_items_as_needed_and_passes_errors_on():
    taken = []

    def items():
        for k in range(100):
            taken.append(k)
            yield k

    results = in_order(lambda k: k * k, items(), workers=3)
    assert [next(results) for _ in range(4)] == [0, 1, 4, 9]
    assert len(taken) <= 8
    results.close()
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda k: 1 // k, [1, 0, 2], workers=2))


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
        (["0", "2.0", " 1"], None),
        (np.array([0.0, 2.0, 1.0]), None),
        (["cat", "emu", "dog"], ("cat", "dog", "emu")),
        (np.array([b"cat", b"emu", b"dog"]), ("cat", "dog", "emu")),
        ([0, 2, 1], ("cat", "dog", "emu")),
        ([7, 9, 8], ("7", "8", "9")),
        (["7", "9.0", "8"], ("7", "8", "9")),
        (np.array([False, True, True]).astype(int) + np.array([0, 1, 0]), None),
    ],
)
def test_labels_of_any_form_become_indices(labels, names):
    np.testing.assert_array_equal(LabelEncoder(3, names, name="x")(np.array(labels)), [0, 2, 1])


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 3], None, "x: row 1 has the label '3', which the model does not know; its classes"),
        ([0, -1], None, "row 1 has the label '-1'"),
        (["0", "3"], None, "row 1 has the label '3', which the model does not know"),
        (["cat", "3"], ("cat", "dog", "emu"), "row 1 has the label '3', which the model does"),
        (["0", "cat"], None, "labels that are names need the classes' names, with --classes"),
        (["cat", "yak"], ("cat", "dog", "emu"), "'yak', which the model does not know; its cl"),
        (["cat", ""], ("cat", "dog", "emu"), "row 1 has no label; drop the unlabelled"),
        ([0.5, 1], None, "row 0 has the label '0.5'"),
        ([[0, 1]], None, "labels must be one-dimensional"),
        (np.array([None, 1]), None, "labels must be whole numbers or names; their dtype is object"),
        ([1], ("7", "8", "9"), "'1', which the model does not know; its classes are 7, 8, 9"),
    ],
)
def test_labels_that_the_model_does_not_know(labels, names, message):
    with pytest.raises(InputError) as caught:
        LabelEncoder(3, names, name="x")(np.array(labels))
    assert message in str(caught.value)


def test_label_files(folder):
    (folder / "lines.txt").write_text("polar bear\ncat\n\n")
    assert read_labels(folder / "lines.txt").tolist() == ["polar bear", "cat"]
    (folder / "numbers.txt").write_text("0 1\n2, 3\n")
    assert read_labels(folder / "numbers.txt").tolist() == ["0", "1", "2", "3"]
    (folder / "table.csv").write_text("file,label\na.jpg,cat\nb.jpg,dog\n")
    assert read_labels(folder / "table.csv").tolist() == ["cat", "dog"]
    (folder / "single.csv").write_text("animal\ncat\n")
    assert read_labels(folder / "single.csv").tolist() == ["cat"]


@pytest.mark.parametrize(
    ("content", "names", "expected"),
    [
        ("0\n1\n2\n", None, [0, 1, 2]),
        ("label\n1\n2\n", None, [1, 2]),
        ("Y_True\n1\n2\n", None, [1, 2]),
        ("class\n1\n2\n", None, [1, 2]),
        ("cat\ndog\n", NAMES, [0, 1]),
        ("animal\ncat\ndog\n", NAMES, [0, 1]),
        ("label\ncat\ndog\n", NAMES, [0, 1]),
        ("1\n0\n", NAMES, [1, 0]),
        ("0\ncat\ndog\n", NAMES, [0, 1]),  # pandas calls a column without a name 0
        ("7\n9\n", ("7", "8", "9"), [0, 2]),
        ("1.000e+00\n2.000e+00\n", None, [1, 2]),  # as numpy.savetxt writes them
        ("0\n", None, [0]),
    ],
)
def test_the_first_line_of_a_label_column_may_be_a_label(folder, content, names, expected):
    (folder / "y.csv").write_text(content)
    encode = LabelEncoder(3, names, name="y.csv")
    assert encode(folder / "y.csv").tolist() == expected


def test_a_first_line_that_may_be_a_class_or_a_column_is_refused(folder):
    (folder / "y.csv").write_text("target\nlabel\n")
    encode = LabelEncoder(3, ("label", "target", "x"), name="y.csv")
    with pytest.raises(InputError, match="'target', may be a label or the name of the column"):
        encode(folder / "y.csv")
    np.savetxt(folder / "y.txt", [2.0, 0.0])
    assert LabelEncoder(3, None, name="y")(folder / "y.txt").tolist() == [2, 0]


@pytest.mark.parametrize("name", ["scores.npy", "unlabelled.npz", "comma.csv", "wide.parquet"])
def test_labels_from_a_csv_file_without_a_header(folder, scores, name):
    logits, target = scores
    write_all(logits, target)
    np.savez("unlabelled.npz", logits=logits)
    named = name in ("comma.csv", "wide.parquet")
    with open("y.csv", "w", newline="") as file:
        csv.writer(file).writerows([NAMES[k] if named else k] for k in target)
    found = open_predictions(name, kind="logits", labels="y.csv")
    np.testing.assert_array_equal(np.concatenate([b.target for b in found.blocks(99)]), target)
    (folder / "y.csv").write_text("0\n" + "\n".join(map(str, target)))
    with pytest.raises(
        InputError, match=r"120 rows but there are 121 labels .*name the column `label`"
    ):
        list(open_predictions(name, kind="logits", labels="y.csv").blocks(99))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (None, "900,90, 10", [900, 90, 10]),
        (None, "0.9 0.09 0.01", [0.9, 0.09, 0.01]),
        ("c.txt", "900\n90\n10\n", [900, 90, 10]),
        ("c.json", json.dumps([900, 90, 10]), [900, 90, 10]),
        ("c.json", json.dumps({"dog": 90, "cat": 900}), [900, 90, 0]),
        ("c.csv", "class,count\nemu,10\ncat,900\ndog,90\n", [900, 90, 10]),
        ("c.csv", "emu,10\ncat,900\ndog,90\n", [900, 90, 10]),
        ("c.csv", "cat,0.9\ndog,0.09\nemu,1e-2\n", [0.9, 0.09, 0.01]),
        ("c.csv", ",0\ncat,900\ndog,90\nemu,10\n", [900, 90, 10]),  # a pandas Series without a name
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
        (None, "9,1", "--counts has 2 numbers but the scores have 3 columns"),
        (None, "x.txt", "must be numbers such as 900,90,10 or a file of them; there is no file"),
        ("c.json", json.dumps({"yak": 1}), "entry 1 has the label 'yak', which the model does"),
        ("c.json", "{", "c.json can't be read as numbers"),
        ("c.csv", "cat,1\ncat,2\n", "c.csv: a class occurs twice"),
        ("c.csv", "cat,1\ndog\n", "line 2 has 1 cells but the first has 2"),
        ("c.txt", "one two three", "c.txt can't be read as numbers"),
        ("c.txt", "", "c.txt can't be read as numbers: it is empty"),
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


# --- files that can't be what they should be ----------------------------------------------------


def read_through(name, **settings):
    """Open a file and make the pass over it."""
    return tau_intervals(open_predictions(name, **settings), PRIOR)


CSV = {
    "ragged": ("logit_a,logit_b,logit_c,label\n1,2,3,a\n1,2,a\n", "line 3 has 3 cells but the hea"),
    "ragged-more": ("logit_a,logit_b,logit_c,label\n1,2,3,4,a\n", "line 2 has 5 cells but the"),
    "quoted-ragged": ('logit_a,logit_b,logit_c,label\n1,2,3,"a,b",a\n', "line 2 has 5 cells"),
    "open-quote": ('logit_a,logit_b,logit_c,label\n1,2,3,"a\n', "line 2 has an open quotation"),
    "text-cell": (
        "logit_a,logit_b,logit_c,label\n1,2,3,a\n\n1,oops,3,b\n",
        "line 4, column 'logit_b' holds 'oops', not a number; if it is no score, name the columns",
    ),
    "empty-cell": ("logit_a,logit_b,logit_c,label\n1,,3,a\n", "line 2, column 'logit_b' is empty"),
    "nan": ("logit_a,logit_b,logit_c,label\n1,2,nan,a\n", "line 2, column 'logit_c' is nan; sc"),
    "inf": ("logit_a,logit_b,logit_c,label\n1,2,-inf,a\n", "column 'logit_c' is -inf; scores must"),
    "label": ("logit_a,logit_b,logit_c,label\n1,2,3,z\n", "line 2 has the label 'z', which the"),
    "no-label": ("logit_a,logit_b,logit_c,label\n1,2,3,\n", "line 2 has no label; drop"),
    "no-rows": ("logit_a,logit_b,logit_c,label\n", "has a header but no rows"),
    "nothing": ("", "is empty; its first line must name the columns"),
    "no-header": ("0.5,1.5,2.5\n1.0,2.0,3.0\n", "the first line must name the columns, but it"),
    "twice": ("logit_a,logit_a,label\n1,2,a\n", "the column 'logit_a' occurs twice"),
    "two-labels": ("logit_a,logit_b,label,target\n1,2,a,a\n", "has several columns of labels, la"),
    "both-kinds": ("logit_a,logit_b,prob_a,prob_b,label\n1,2,0,1,a\n", "has columns of logits and"),
    "no-kind": ("a,b,c,label\n1,2,3,a\n", "doesn't say whether its scores are logits or proba"),
    "no-scores": ("id,label\n1,a\n", "has no columns of scores; its columns are id, label"),
    "one-class": ("logit_a,label\n1,a\n", "scores of one class leave nothing to decide"),
    "constant": (
        "logit_a,logit_b,logit_c,label\n" + "3,2,1,a\n" * 9,
        "every row holds the same scores",
    ),
    "flat": ("logit_a,logit_b,logit_c,label\n1,1,1,a\n2,2,2,b\n", "all classes have the same sco"),
}


@pytest.mark.parametrize("case", CSV)
def test_bad_csv(folder, case):
    content, message = CSV[case]
    (folder / f"{case}.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        read_through(f"{case}.csv")
    assert str(caught.value).startswith(f"{case}.csv")
    assert message in str(caught.value)


def test_csv_files_of_other_systems(folder):
    content = "\ufefflogit_a;logit_b;label\r\n1;2;b\r\n\r\n2,5;1;a\r\n"
    (folder / "p.csv").write_text(content, newline="")
    wrong = r"line 4, column 'logit_a' holds '2,5', not a number; save .* with a decimal point"
    with pytest.raises(InputError, match=wrong):
        list(open_predictions("p.csv").blocks(100))
    (folder / "p.csv").write_text(content.replace("2,5", '"2.5"'), newline="")
    (block,) = open_predictions("p.csv").blocks(100)
    np.testing.assert_array_equal(block.scores, [[1, 2], [2.5, 1]])
    np.testing.assert_array_equal(block.target, [1, 0])
    adjust_predictions(open_predictions("p.csv"), ClassPrior.uniform(2), tau=1.0).write("o.csv")
    text = (folder / "o.csv").read_text()
    shift = np.log(2)
    assert text.splitlines()[0] == "logit_a;logit_b;label;predicted;adjusted_tau"
    assert text.splitlines()[1] == f"{1 + shift:.12g};{2 + shift:.12g};b;b;1"


def test_a_csv_that_is_no_text(folder):
    (folder / "binary.csv").write_bytes(b"logit_a,logit_b\n\xff\xfe\x00,1\n")
    with pytest.raises(InputError, match=r"binary.csv is not a text file"):
        read_through("binary.csv", labels=[0])


def test_columns_can_be_chosen(folder):
    (folder / "p.csv").write_text("name,size,a,b,truth\nx.jpg,3,1,2,b\ny.jpg,4,2,1,a\n")
    with pytest.raises(InputError, match=r"line 2, column 'name' holds 'x.jpg', not a number"):
        list(open_predictions("p.csv", kind="logits", labels="truth").blocks(100))
    found = open_predictions("p.csv", kind="logits", labels="truth", columns="a,b")
    (block,) = found.blocks(100)
    np.testing.assert_array_equal(block.scores, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(block.target, [1, 0])
    with pytest.raises(InputError, match=r"no column matches 'z\*'; its columns are name, size"):
        open_predictions("p.csv", kind="logits", columns="z*")
    with pytest.raises(InputError, match=r"--labels gone: p.csv has no array or column of that na"):
        open_predictions("p.csv", kind="logits", labels="gone")


def damaged(name, keep):
    whole = Path(name).read_bytes()
    Path(f"cut-{name}").write_bytes(whole[: int(keep * len(whole))])
    return f"cut-{name}"


def test_damaged_files(folder, scores):
    write_all(*scores)
    for name, message in (
        ("stored.npz", "is not an .npz file, or a damaged one"),
        ("packed.npz", "is not an .npz file, or a damaged one"),
        ("wide.parquet", "is not a parquet file, or a damaged one"),
    ):
        with pytest.raises(InputError) as caught:
            read_through(damaged(name, 0.6))
        assert message in str(caught.value)
    with pytest.raises(
        InputError, match=r"can't be read as numbers: it is shorter than its header"
    ):
        read_through(damaged("scores.npy", 0.6), kind="logits", labels="labels.npy")
    content = bytearray(Path("packed.npz").read_bytes())
    content[200:260] = bytes(60)
    Path("spoilt.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"spoilt.npz can't be read as numbers"):
        read_through("spoilt.npz")


def test_a_parquet_file_with_spoilt_pages(folder, scores):
    write_all(*scores)
    content = bytearray(Path("wide.parquet").read_bytes())
    content[900:2900] = bytes(2000)
    Path("spoilt.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"spoilt.parquet is not a parquet file, or a damaged one"):
        read_through("spoilt.parquet")


def test_a_member_that_is_shorter_than_its_header_says(folder):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (100, 3)}
    )
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile("short.npz", "w", compression) as archive:
            archive.writestr("logits.npy", header.getvalue() + bytes(160))
        with pytest.raises(InputError, match=r"short.npz can't be read as numbers: it is shorter"):
            read_through("short.npz", labels=np.zeros(100, int))


def test_bad_npz(folder, scores):
    logits, target = scores
    np.savez("p.npz", x=np.zeros(3))
    with pytest.raises(InputError, match=r"must hold `logits` or `probs`, of shape .*; it has x"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits, probs=softmax(logits))
    with pytest.raises(InputError, match=r"p.npz has both logits and probs; choose with --logits"):
        open_predictions("p.npz")
    assert open_predictions("p.npz", kind="probs").left_out == ("logits",)
    np.savez("p.npz", logits=logits)
    with pytest.raises(InputError, match=r"calls its scores logits, but probs was asked for"):
        open_predictions("p.npz", kind="probs")
    np.savez("p.npz", a=logits, b=logits)
    with pytest.raises(InputError, match=r"must hold `logits` or `probs`"):
        open_predictions("p.npz", kind="logits")
    np.savez("p.npz", outputs=logits)
    with pytest.raises(InputError, match=r"doesn't say whether its scores are logits or probabil"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits, target=target[1:])
    with pytest.raises(InputError, match=r"p.npz: `logits` has 120 rows but there are 119 labels"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits, target=target, y_true=target)
    with pytest.raises(InputError, match=r"several arrays of labels, target, y_true; name one wit"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits[:, 0], target=target)
    with pytest.raises(InputError, match=r"`logits` must hold numbers in the shape .examples, cl"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits, target=target, classes=["a", "b"])
    with pytest.raises(InputError, match=r"there are 2 class names but 3 columns of scores"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=logits, target=target, classes=["a", "b", "a"])
    with pytest.raises(InputError, match=r"class names must be distinct and not empty; 'a'"):
        open_predictions("p.npz")
    np.savez("p.npz", logits=np.array([object()]))
    with pytest.raises(InputError, match=r"p.npz can't be read: `logits` holds Python objects"):
        open_predictions("p.npz")


def test_bad_values_name_their_row(folder, monkeypatch, scores):
    from longtail.predictions import passes

    logits, target = scores
    monkeypatch.setattr(passes, "_MAPPED", 30)
    monkeypatch.setattr(passes, "_COPIED", 30)
    logits[77, 1] = np.nan
    np.savez("p.npz", logits=logits, target=target)
    with pytest.raises(
        InputError, match=r"p.npz: `logits` must be finite, but row 77, column 1 is"
    ):
        read_through("p.npz")
    with pytest.raises(InputError, match=r"row 77, column 1 is nan"):
        adjust_predictions(open_predictions("p.npz"), PRIOR, tau=1.0).write("o.npz")
    probs = np.full((120, 3), 1 / 3)
    probs[:, 0] += np.linspace(-0.1, 0, 120)
    probs[:, 1] -= np.linspace(-0.1, 0, 120)
    probs[88] *= 1.1
    np.savez("p.npz", probs=probs, target=target)
    with pytest.raises(
        InputError, match=r"each row of `probs` must sum to 1, but row 88 sums to 1"
    ):
        read_through("p.npz")


def test_logits_declared_as_probabilities_and_the_reverse(folder, scores):
    logits, target = scores
    np.save("logits.npy", logits)
    np.save("probs.npy", softmax(logits))
    with pytest.raises(InputError, match=r"these look like logits: declare them with --logits"):
        read_through("logits.npy", kind="probs", labels=target)
    with pytest.raises(InputError, match=r"look like probabilities; declare them with --probs"):
        read_through("probs.npy", kind="logits", labels=target)


SAVED = {
    "p.npz": {"logits": "save them as `logits=`", "probs": "save them as `probs=`"},
    "p.csv": {
        "logits": "save them in columns `logit_NAME`",
        "probs": "save them in columns `prob_NAME`",
    },
    "columns.parquet": {
        "logits": "save them in columns `logit_NAME`",
        "probs": "save them in columns `prob_NAME`",
    },
    "p.parquet": {
        "logits": "save them in a column `logits`",
        "probs": "save them in a column `probs`",
    },
}


def save_under(kind, array, target, file):
    """Scores in a file that calls them logits or probs."""
    if file.endswith(".npz"):
        np.savez(file, **{kind: array}, target=target)
        return
    table = {f"{kind[:-1]}_{n}": array[:, k] for k, n in enumerate("abc")}
    if file == "p.parquet":
        table = {kind: array.tolist()}
    names = target if file == "p.parquet" else np.array(["a", "b", "c"])[target]
    whole = pa.table(table | {"label": names})
    if file.endswith(".parquet"):
        pq.write_table(whole, file)
    else:
        whole.to_pandas().to_csv(file, index=False)


@pytest.mark.parametrize("file", SAVED)
@pytest.mark.parametrize(("kind", "other"), [("logits", "probs"), ("probs", "logits")])
def test_scores_under_the_other_s_name_are_to_be_saved_under_their_own(
    folder, scores, file, kind, other
):
    """As a user would: do what each refusal says, until the file is read."""
    logits, target = scores
    array = {"logits": logits, "probs": softmax(logits)}[kind]
    save_under(other, array, target, file)
    with pytest.raises(InputError, match=rf"look like .*{SAVED[file][kind]}") as caught:
        read_through(file)
    assert "declare" not in str(caught.value)
    with pytest.raises(InputError, match=f"calls its scores {other}.*{SAVED[file][kind]}"):
        read_through(file, kind=kind)
    save_under(kind, array, target, file)
    assert read_through(file).num_examples == len(target)


def test_bad_parquet(folder, scores):
    logits, target = scores
    columns = {f"logit_{n}": logits[:, k] for k, n in enumerate("abc")}

    def write(**changes):
        table = pa.table({**columns, "label": np.array(list("abc"))[target], **changes})
        pq.write_table(table, "p.parquet")

    hole = pa.array([None if k == 5 else 1.0 for k in range(120)])
    for changes, message in (
        ({"logit_b": hole}, "p.parquet: row 5, column 'logit_b' is empty"),
        ({"label": pa.array([None, *"a" * 119])}, "row 0, column 'label' is empty"),
        ({"label": pa.array([*"a" * 119, "z"])}, "row 119 has the label 'z', which the model"),
        ({"logit_c": pa.array(["x"] * 120)}, "column 'logit_c' holds string, not numbers"),
        ({"logit_a": np.full(120, np.inf)}, "row 0, column 'logit_a' is inf; scores must be"),
    ):
        write(**changes)
        with pytest.raises(InputError) as caught:
            read_through("p.parquet")
        assert message in str(caught.value)
    ragged = pa.array([[1.0, 2.0, 3.0]] * 9 + [[1.0, 2.0]])
    pq.write_table(pa.table({"logits": ragged, "target": range(10)}), "p.parquet")
    with pytest.raises(InputError, match=r"row 9 has 2 scores in 'logits' but the first row has 3"):
        list(open_predictions("p.parquet").blocks(100))
    pq.write_table(pa.table({"a": ragged, "b": ragged}), "p.parquet")
    with pytest.raises(InputError, match=r"has several columns of lists, a, b; name the scores'"):
        open_predictions("p.parquet", kind="logits")
    assert open_predictions("p.parquet", kind="logits", columns="a").num_classes == 3


def test_parquet_without_pyarrow_names_the_extra(folder, scores, monkeypatch):
    from longtail import MissingExtraError

    write_all(*scores)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        MissingExtraError, match=r"reading parquet files needs pyarrow.*\[parquet\]"
    ):
        open_predictions("wide.parquet")


def test_other_sources(folder):
    with pytest.raises(InputError, match=r"there is no file or run folder gone.npz"):
        open_predictions("gone.npz")
    (folder / "p.xlsx").write_bytes(b"")
    with pytest.raises(InputError, match=r"p.xlsx is none of .npz, .npy, .csv, .tsv, .parquet"):
        open_predictions("p.xlsx")
    (folder / "p.csv.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"or a run folder; unpack it to p.csv first"):
        open_predictions("p.csv.gz")
    np.save("p.npy", np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"p.npy doesn't say whether its scores are logits or"):
        open_predictions("p.npy")
    with pytest.raises(InputError, match=r"--labels y.npy: there is no file y.npy"):
        open_predictions("p.npy", kind="logits", labels="y.npy")
    with pytest.raises(InputError, match=r"at least two"):
        from_arrays(np.zeros((2, 1)), kind="logits")


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
