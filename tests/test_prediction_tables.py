"""Tables of saved predictions, csv and parquet: which columns are written, and as what."""

import csv
from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior, InputError, adjust_logits
from longtail.predictions import adjust_predictions, open_predictions
from longtail.report import adjusting as texts

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


@pytest.mark.parametrize("dtype", ["int64", "Int64", "int64[pyarrow]"])
def test_pandas_reads_adjusted_whole_numbers(scores, dtype):
    pandas = pytest.importorskip("pandas")
    logits, target = scores
    frame = wide(np.rint(logits).astype(int), target).to_pandas()
    frame = frame.astype(dict.fromkeys(frame.columns[:3], dtype))
    frame.to_parquet("p.parquet")
    adjust_predictions(open_predictions("p.parquet"), PRIOR, tau=1.0).write("out.parquet")
    again = pandas.read_parquet("out.parquet")
    expected = adjust_logits(frame.iloc[:, :3].to_numpy(np.float64), PRIOR)
    np.testing.assert_array_equal(again.iloc[:, :3].to_numpy(), expected)


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        ([], [None]),
        (["photo"], ["photo"]),
        (["predicted"], [None]),
        (["prob_cat"], [None]),
        (["photo", "predicted"], ["photo"]),
    ],
)
def test_pandas_reads_what_is_left_of_its_columns(scores, index, kept):
    pandas = pytest.importorskip("pandas")
    logits, target = scores
    frame = wide(logits, target).to_pandas()
    frame["label"] = frame["label"].astype("category")
    frame["photo"] = [f"{k}.jpg" for k in range(120)]
    frame["predicted"] = pandas.Categorical(["cat"] * 120)  # an earlier answer, of another type
    frame[[f"prob_{name}" for name in NAMES]] = softmax(logits)
    frame = frame.set_index(index) if index else frame
    frame.to_parquet("p.parquet")
    found = open_predictions("p.parquet", kind="logits")
    adjust_predictions(found, PRIOR, tau=1.0).write("out.parquet")
    again = pandas.read_parquet("out.parquet")
    assert list(again.index.names) == kept
    assert again["label"].equals(frame["label"].set_axis(again.index))
    expected = adjust_logits(logits, PRIOR)
    np.testing.assert_array_equal(again[list(frame.filter(like="logit_"))], expected)
    assert again["predicted"].tolist() == [NAMES[k] for k in expected.argmax(axis=1)]
    assert not any(name.startswith("prob_") for name in again.reset_index())


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


@pytest.mark.parametrize("prefix", ["logit_", ""])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_a_label_name_are_no_scores(scores, prefix, suffix):
    pytest.importorskip("pandas")
    logits, target = scores
    frame = wide(logits, (target + 1) % 3).to_pandas()  # the labels in the file are wrong
    frame.columns = [*(prefix + name for name in NAMES), "label"]
    frame["Target"] = target
    name = f"p.{suffix}"
    frame.to_csv(name, index=False) if suffix == "csv" else frame.to_parquet(name)
    with pytest.raises(InputError, match=r"several columns of labels, label, Target; name one wit"):
        open_predictions(name, kind="logits")
    np.save("y.npy", target)
    for settings in ({}, {"columns": "*"}):
        for labels in ("Target", "y.npy", target):
            found = open_predictions(name, kind="logits", labels=labels, **settings)
            assert found.class_names == NAMES
            (block,) = found.blocks(1000)
            np.testing.assert_array_equal(block.target, target)
    adjust_predictions(found, PRIOR, tau=1.0).write(f"out.{suffix}")
    with pytest.raises(InputError, match=r"no column matches 'Target'"):
        open_predictions(name, kind="logits", labels="Target", columns="Target")


def test_a_class_of_a_label_name_is_a_score_if_it_is_named():
    Path("p.csv").write_text("target,other,truth\n1.5,2,other\n2.5,1,target\n")
    with pytest.raises(InputError, match=rf"scores of one class .*{TARGET} target,other\.$"):
        open_predictions("p.csv", kind="logits", labels="truth")
    found = open_predictions("p.csv", kind="logits", labels="truth", columns="target,other")
    assert found.class_names == ("target", "other")


# What is said where a class may be missing, up to the names of the score columns.
TARGET = (
    r"The column 'target' was taken for labels; if it holds the scores of a class, pass --columns"
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_class_of_a_label_name_is_named_where_it_is_missed(scores, suffix):
    pytest.importorskip("pandas")
    logits, target = scores
    names = ("target", "noise", "music")
    labels = np.array(names)[target]
    frame = pa.table({name: logits[:, k] for k, name in enumerate(names)}).to_pandas()
    here, remedy = f"p.{suffix}", rf"{TARGET} target,noise,music\.$"
    save = frame.to_parquet if suffix == "parquet" else frame.to_csv
    save(here, index=False)
    with pytest.raises(InputError, match=rf"row 0 has the label 'target', .*{remedy}"):
        open_predictions(here, kind="logits", labels=labels)
    frame["y"] = labels
    save(here, index=False)
    with pytest.raises(InputError, match=rf"3 class names but 2 columns.*{remedy}"):
        open_predictions(here, kind="logits", labels="y", classes=names)
    found = open_predictions(here, kind="logits", labels="y")
    with pytest.raises(InputError, match=rf"has the label 'target', .*{remedy}"):
        list(found.blocks(1000))
    with pytest.raises(InputError, match=rf"has 3 classes.*{remedy}"):
        adjust_predictions(found, PRIOR, tau=1.0)


def test_columns_that_were_named_leave_no_doubt():
    Path("p.csv").write_text("target,a,b,y\n1,2,3,c\n")
    found = open_predictions("p.csv", kind="logits", labels="y", columns="a,b")
    with pytest.raises(InputError, match=r"its classes are a, b\.$"):
        list(found.blocks(1000))


@pytest.mark.parametrize(
    "first",
    [
        "0.98,0.02,0",
        "1,0,0",  # two classes can't have the same name
        "0.1,0.2,0.7,2",
        "0.1,0.2,0.7,cat",
        "7.jpg,0.1,0.2,0.7",
        "1e-05,1,0",
        "3,-1,2",
        "3,-2",
        "3,1,-2",
        "3;-1;2;cat",
        "0.98\t0.02\t0",
        '"0.98","0.02","0"',
    ],
)
@pytest.mark.parametrize("labels", [None, "y.npy", "2"])
def test_a_csv_file_without_a_header_keeps_its_first_example(first, labels):
    np.save("y.npy", [0] * 9)
    Path("2").write_text("0\n" * 9)
    Path("p.csv").write_text(f"{first}\n" * 9)
    with pytest.raises(
        InputError,
        match=r"p.csv: the first line must name the columns, but it holds '.*', as if it were an "
        r"example; put a line above it such as prob_cat,prob_dog,label",
    ):
        open_predictions("p.csv", kind="probs", labels=labels)


@pytest.mark.parametrize(
    ("header", "settings"),
    [
        ("0,1,2", {}),
        ("2,0,1", {}),
        ("-1,0,1", {}),  # as scikit-learn orders its classes
        ("1,0,-1", {}),
        ("1,0,-1", {"labels": "y.npy"}),
        ("beta,1.0,2.0", {"labels": "y.npy"}),
        ("neg,-1,-0.5", {}),
        ("0.0,1.0,2.0,label", {}),  # pandas, of labels that are floats
        (",0.0,1.0,2.0", {}),
        ("id,-1,1,0", {}),
        ("1_2,1_3,nan", {}),
        ("1.5,2,2.5,truth", {"labels": "truth"}),
        ("photo,1.5,2,2.5", {"columns": "1.5,2,2.5"}),
        ("prob_1.5,prob_2,prob_2.5,0.7", {}),
    ],
)
def test_numbers_may_be_the_names_of_classes(header, settings):
    width = header.count(",") + 1
    np.save("y.npy", header.split(",")[:1])
    Path("p.csv").write_text(f"{header}\n{','.join('1' * width)}\n")
    assert open_predictions("p.csv", kind="probs", **settings).num_classes == 3


def test_a_word_above_a_word_may_be_of_an_example():
    Path("p.csv").write_text("old,1.5,2.5\n1,2,3\nold,2,3\n")
    with pytest.raises(InputError, match=r"holds '1.5', as if .*with --columns, all by --columns"):
        open_predictions("p.csv", kind="logits")
    Path("p.csv").write_text("old,1.5,2.5\n1,2,3\n2,2,3\n")
    found = open_predictions("p.csv", kind="logits", columns="*")
    assert found.class_names == ("old", "1.5", "2.5")


@pytest.mark.parametrize("missing", ["nan", "NA"])
def test_missing_numbers_make_no_header(missing):
    Path("p.csv").write_text(f"0.5,{missing},1\n1,2,3\n")
    with pytest.raises(InputError, match=r"it holds '0.5', as if it were an example"):
        open_predictions("p.csv", kind="logits")


@pytest.mark.parametrize(
    ("header", "classes"),
    [
        ("logit_0,logit_-1", ("0", "-1")),
        ("logit_0.5,logit_-0.5,logit_-.25", ("0.5", "-0.5", "-.25")),
        ("logit: 0,logit: -1", ("0", "-1")),
        ("logit-0,logit-1", ("0", "1")),
        ("logit-a,logit_-b", ("a", "b")),
        ("logit--1,logit-1", ("-1", "1")),
    ],
)
def test_a_minus_belongs_to_the_number_of_a_class(header, classes):
    Path("p.csv").write_text(f"{header}\n{','.join('1' * len(classes))}\n")
    assert open_predictions("p.csv").class_names == classes


def softmax(logits):
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True)


def write_both(logits, target, name, *, aside="prob_rain"):
    """A table with logits and probabilities of each class in turn, and what has no class."""
    columns = {"photo": [f"{k}.jpg" for k in range(len(target))]}
    for k, label in enumerate(NAMES):
        columns |= {f"logit_{label}": logits[:, k], f"prob_{label}": softmax(logits)[:, k]}
    columns |= {aside: np.full(len(target), 0.25), "label": np.array(NAMES)[target]}
    if name.endswith("parquet"):
        pq.write_table(pa.table(columns), name)
        return
    rows = zip(*(map(str, column) for column in columns.values()), strict=True)
    with open(name, "w", encoding="utf-8") as file:
        file.writelines(",".join(row) + "\n" for row in (columns, *rows))


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_of_the_other_kind_are_left_out(scores, kind, suffix):
    logits, target = scores
    other, own = ("prob_", "logit_") if kind == "logits" else ("logit_", "prob_")
    write_both(logits, target, f"both.{suffix}", aside=f"{other}rain")
    found = open_predictions(f"both.{suffix}", kind=kind)
    assert found.left_out == tuple(f"{other}{name}" for name in NAMES)
    result = adjust_predictions(found, PRIOR, tau=1.0)
    written = result.write(f"out.{suffix}")
    assert f"Not copied: {other}cat, {other}dog, {other}emu." in texts.written(result, written)
    if suffix == "csv":
        with open("out.csv") as file:
            lines = list(csv.DictReader(file))
        table = {name: [line[name] for line in lines] for name in lines[0]}
        assert table.pop("adjusted_tau") == ["1"] * 120
    else:
        table = pq.read_table("out.parquet").to_pydict()
    between = [f"{own}{name}" for name in NAMES]
    assert list(table) == ["photo", *between, f"{other}rain", "label", "predicted"]
    adjusted = adjust_logits(logits, PRIOR)
    saved = np.array([table[name] for name in between], dtype=float).T
    expected = adjusted if kind == "logits" else softmax(adjusted)
    np.testing.assert_allclose(saved, expected, rtol=1e-9)
    assert table["photo"][7] == "7.jpg"
    assert set(map(float, table[f"{other}rain"])) == {0.25}
    assert table["predicted"] == [NAMES[k] for k in adjusted.argmax(axis=1)]


def test_a_score_of_something_else_is_kept():
    """It may be of anything, unless there is one for every class."""
    whole = ("score_0", "score_1", "score_2")
    for others, left_out in ((("score_1", "score_test"), ()), (whole, whole)):
        header = ["logit_0", "logit_1", "logit_2", *others]
        row = ",".join("123456"[: len(header)])
        Path("s.csv").write_text(f"{','.join(header)}\n{row}\n")
        assert open_predictions("s.csv", kind="logits").left_out == left_out


def test_an_earlier_answer_is_replaced_where_it_stands(scores):
    logits, target = scores
    write_both(logits, target, "both.csv")
    text = Path("both.csv").read_text().replace("photo", "predicted").replace(".jpg", "")
    Path("both.csv").write_text(text)
    found = open_predictions("both.csv", kind="logits")
    adjust_predictions(found, PRIOR, tau=1.0).write("out.csv")
    header, *lines = Path("out.csv").read_text().splitlines()
    assert header == ("predicted,logit_cat,logit_dog,logit_emu,prob_rain,label,adjusted_tau")
    chosen = adjust_logits(logits, PRIOR).argmax(axis=1)
    assert [line.split(",")[0] for line in lines] == [NAMES[k] for k in chosen]


def test_lists_of_the_other_kind_are_left_out(scores):
    logits, target = scores
    columns = {f"prob_{k}": softmax(logits)[:, k] for k in range(3)}
    both = {"logits": list(logits), "probs": list(softmax(logits)), "embedding": list(logits)}
    pq.write_table(pa.table({**both, **columns, "label": target}), "p.parquet")
    found = open_predictions("p.parquet", kind="logits")
    assert found.left_out == ("probs", "prob_0", "prob_1", "prob_2")
    adjust_predictions(found, PRIOR, tau=1.0).write("out.parquet")
    assert pq.read_schema("out.parquet").names == ["logits", "embedding", "label", "predicted"]


def test_a_label_column_is_kept_whatever_its_name(scores):
    logits, target = scores
    table = wide(logits, target).rename_columns(["logit_0", "logit_1", "logit_2", "score_1"])
    pq.write_table(table, "p.parquet")
    found = open_predictions("p.parquet", labels="score_1", classes=NAMES)
    assert found.left_out == ()
