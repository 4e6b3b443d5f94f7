"""Labels and counts as other programs save them: shapes of arrays, forms of small files."""

from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior, InputError
from longtail.predictions import adjust_predictions, from_arrays, open_predictions
from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers

COUNTS = [900, 90, 10]
PRIOR = ClassPrior.from_counts(COUNTS)
TARGET = np.tile([0, 1, 2], 20)
LOGITS = np.random.default_rng(0).normal(size=(60, 3)) + 2 * np.eye(3)[TARGET]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(("name", "settings"), [("target", {}), ("truth", {"labels": "truth"})])
def test_one_column_of_labels_in_an_npz_file(save, name, settings):
    for scores in ("logits", "outputs"):
        save("p.npz", **{scores: LOGITS, name: TARGET[:, None], "counts": COUNTS})
        found = open_predictions("p.npz", kind="logits", **settings)
        np.testing.assert_array_equal(found.target, TARGET)
        assert found.left_out == ()
    adjust_predictions(found, PRIOR, tau=1.0).write("out.npz")
    with np.load("out.npz") as saved:
        np.testing.assert_array_equal(saved[name], TARGET[:, None])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["target", "classes", "ids"])
def test_names_that_are_python_objects_get_there_by_the_message(save, name):
    """As pandas gives text: do what the refusal says."""
    words = np.array(["cat", "dog", "emu"])
    arrays = {"logits": LOGITS, "target": words[TARGET], "classes": words, "ids": words[TARGET]}
    names = arrays[name].astype(object)
    message = f"p.npz can't be read: `{name}` holds Python objects.*text, with names.astype.str."
    save("p.npz", **{**arrays, name: names})
    with pytest.raises(InputError, match=message):
        open_predictions("p.npz")
    save("p.npz", **{**arrays, name: names.astype(str)})
    np.testing.assert_array_equal(open_predictions("p.npz").target, TARGET)
    np.save("y.npy", names)
    with pytest.raises(InputError, match=r"y.npy can't be read: it holds Python objects.*as text"):
        read_labels(Path("y.npy"))


def test_one_column_of_labels_from_elsewhere():
    np.savez("p.npz", logits=LOGITS)
    np.save("y.npy", TARGET[:, None])
    np.testing.assert_array_equal(read_labels(Path("y.npy")), TARGET)
    np.testing.assert_array_equal(open_predictions("p.npz", labels="y.npy").target, TARGET)
    np.testing.assert_array_equal(
        from_arrays(LOGITS, TARGET[:, None], kind="logits").target, TARGET
    )


@pytest.mark.parametrize(
    "labels", [np.eye(3)[TARGET], TARGET[None], np.int64(1), LOGITS[..., None]]
)
def test_other_shapes_of_labels_are_refused(labels):
    np.savez("p.npz", logits=LOGITS, target=labels)
    shape = str(np.shape(labels)).replace("(", r"\(").replace(")", r"\)")
    for settings in ({}, {"labels": "target"}):
        with pytest.raises(
            InputError, match=rf"`target` in p.npz: labels must be one-dimensional.*{shape}"
        ):
            open_predictions("p.npz", **settings)
    np.save("y.npy", labels)
    with pytest.raises(InputError, match=rf"y.npy: labels must be one-dimensional.*{shape}"):
        open_predictions("p.npz", labels="y.npy")
    np.save("y.npy", TARGET)
    assert open_predictions("p.npz", labels="y.npy").labelled
    np.savez("p.npz", logits=LOGITS, target=labels, label=TARGET)
    np.testing.assert_array_equal(open_predictions("p.npz").target, TARGET)


def test_one_hot_labels_are_told_what_to_do():
    np.savez("p.npz", logits=LOGITS, target=np.eye(3)[TARGET])
    with pytest.raises(InputError, match=r"\(60, 3\); of one-hot labels save argmax\(axis=1\)"):
        open_predictions("p.npz")
    with pytest.raises(InputError, match=r"`logits` in p.npz: labels must be one-dimensional"):
        open_predictions("p.npz", labels="logits")


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_counts_may_be_a_row_or_a_column(shape):
    counts, norms = np.reshape(COUNTS, shape), np.reshape([3.0, 2.0, 1.0], shape)
    names = np.reshape(["cat", "dog", "emu"], shape)
    given = {"counts": counts, "norms": norms, "bias": -norms, "classes": names}
    np.savez("p.npz", outputs=LOGITS, target=TARGET, **given)
    found = open_predictions("p.npz", kind="logits")
    np.testing.assert_array_equal(found.counts, COUNTS)
    np.testing.assert_array_equal(found.norms, [3, 2, 1])
    np.testing.assert_array_equal(found.bias, [-3, -2, -1])
    assert found.class_names == ("cat", "dog", "emu")
    assert found.left_out == ()
    np.save("c.npy", counts)
    numbers = read_numbers("c.npy", option="--counts", num_classes=3, class_names=None)
    assert numbers.tolist() == COUNTS


def test_other_scores_of_a_single_example_are_left_out():
    np.savez("p.npz", logits=LOGITS[:1], probs=[[0.5, 0.3, 0.2]], embedding=LOGITS)
    assert open_predictions("p.npz", kind="logits").left_out == ("probs", "embedding")


# --- small files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.csv", "count\n900\n90\n10\n"),  # Series.to_csv(index=False)
        ("c.csv", "900\n90\n10\n"),
        ("c.csv", "900,90,10\n"),
        ("c.csv", "900,90,10,\n"),
        ("c.csv", "900;90;10\n"),
        ("c.csv", "900 90 10\n"),
        ("c.tsv", "900\t90\t10\n"),
        ("c.tsv", "class\tcount\ncat\t900\ndog\t90\nemu; blue\t10\n"),
        ("c.tsv", "cat\t900\ndog\t90\nemu; blue\t10\n"),
        ("c.csv", "class;count\ncat;900\ndog;90\n2;10\n"),
        ("c.CSV", "cat;900\ndog;90\n2;10\n"),
        ("c.csv", "class,count\nemu; blue,10\ncat,900\ndog,90\n"),
        ("c.csv", "emu; blue,10\n"),
        ("c.csv", ",class,count\n0,cat,900\n1,dog,90\n2,emu; blue,10\n"),  # DataFrame.to_csv()
        ("c.csv", ",class,count\n2,emu; blue,10\n0,cat,900\n1,dog,90\n"),
        ("c.csv", '"";"class";"count"\n"1";"cat";900\n"2";"dog";90\n"3";"emu; blue";10\n'),  # R
        ("c.csv", "Unnamed: 0,class,count\n0,cat,900\n1,dog,90\n2,emu; blue,10\n"),
        ("c.csv", ";count\ncat;900\ndog;90\nemu blue;10\n"),
    ],
)
def test_files_of_counts(folder, name, content):
    (folder / name).write_text(content)
    names = ("cat", "dog", "emu blue" if "emu blue" in content else "emu; blue")
    found = read_numbers(name, option="--counts", num_classes=3, class_names=names)
    assert found.tolist() == ([0, 0, 10] if "cat" not in content and "emu" in content else COUNTS)


def test_two_counts_in_a_line_are_no_class_and_its_count(folder):
    (folder / "c.csv").write_text("1,9\n")
    found = read_numbers("c.csv", option="--counts", num_classes=2, class_names=None)
    assert found.tolist() == [1, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\n900\n90\n10\n", "--counts has 4 numbers but the scores have 3 columns"),
        ("count 2\n900\n90\n10\n", "could not convert string to float: 'count'"),
        ("count\nn\n900\n90\n10\n", "could not convert string to float: 'n'"),
        ("count\n", "could not convert string to float: 'count'"),
        (",count,share\ncat,900,0.9\ndog,90,0.09\n", "could not convert string to float: 'count'"),
        ("class;count\ncat;900,5\n", "could not convert string to float: '900,5'"),
        ("class;count\ncat;900\ndog\n", "could not convert string to float: 'cat;900'"),
    ],
)
def test_bad_files_of_counts(folder, content, message):
    (folder / "c.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        read_numbers("c.csv", option="--counts", num_classes=3, class_names=("cat", "dog", "emu"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("y.csv", "file;label\na.jpg;cat\nb.jpg;emu; blue\n".replace("emu; blue", '"emu; blue"')),
        ("y.tsv", "file\tlabel\na.jpg\tcat\nb.jpg\temu; blue\n"),
        ("y.tsv", "label\ncat\nemu; blue\n"),
        ("y.tsv", "cat\nemu; blue\n"),
        ("y.tsv", "0\n2\n"),
        ("y.csv", "emu; blue\nemu; blue\n"),
        ("y.csv", "animal\ncat\nemu; blue\n"),
        ("y.csv", ",animal\n0,cat\n1,emu; blue\n"),  # Series.to_csv()
        ("y.csv", ",0\n0,0\n1,2\n"),  # the same without a name
        ("y.csv", ';label\n0;cat\n1;"emu; blue"\n'),
        ("y.csv", ",file,label\n0,a.jpg,cat\n1,b.jpg,emu; blue\n"),
        ("y.CSV", "file,label\na.jpg,cat\nb.jpg,emu; blue\n"),
    ],
)
def test_files_of_labels(folder, name, content):
    (folder / name).write_text(content)
    encode = LabelEncoder(3, ("cat", "dog", "emu; blue"), name="p.npz")
    first = 2 if content.startswith("emu") else 0
    assert encode(folder / name).tolist() == [first, 2]


@pytest.mark.parametrize("name", ["y.tsv", "y.csv"])
@pytest.mark.parametrize(
    "content",
    ["0\t1\t2\t1\n", "0 1 2 1\n", "0,1,2,1\n", "0 1\n2 1\n", "0.0e+00 1.0e+00\n2.0e+00 1.0e+00\n"],
)
def test_whole_numbers_are_labels_however_many_in_a_line(folder, name, content):
    (folder / name).write_text(content)
    assert LabelEncoder(3, None, name="p.npz")(folder / name).tolist() == [0, 1, 2, 1]


def test_a_class_of_several_numbers_is_one_label(folder):
    (folder / "y.tsv").write_text("1 2\n3 4\n1 2\n")
    encode = LabelEncoder(2, ("3 4", "1 2"), name="p.npz")
    assert encode(folder / "y.tsv").tolist() == [1, 0, 1]


def test_a_table_of_numbers_is_no_list_of_labels(folder):
    (folder / "y.tsv").write_text("0\t1\n1\t2\n")  # which column, or both?
    with pytest.raises(InputError, match=r"must have one column, or one called target or label"):
        read_labels(folder / "y.tsv")
    for content in ("0\n \n1\n", "0 1\n \n1 2\n"):
        (folder / "y.tsv").write_text(content)
        with pytest.raises(InputError, match=r"row \d has "):
            LabelEncoder(3, None, name="p.npz")(folder / "y.tsv")


def test_numbers_in_a_cell_name_no_column(folder):
    (folder / "y.csv").write_text("0.5 1\n0.5 2\n")
    assert read_labels(folder / "y.csv").tolist() == ["0.5 1", "0.5 2"]
    (folder / "y.csv").write_text('""\n0\n1\n')  # pandas, of a column called ""
    assert read_labels(folder / "y.csv").tolist() == ["0", "1"]


@pytest.mark.parametrize(("name", "header"), [("y.csv", "id,label"), ("y.tsv", "animal")])
def test_a_header_without_labels_is_refused(folder, name, header):
    (folder / name).write_text(f"{header}\n")
    with pytest.raises(InputError, match=rf"{name} has a header, '{header}', but no labels below"):
        read_labels(folder / name)


def test_columns_without_a_label_are_refused(folder):
    for content in ("file,animal\na.jpg,cat\n", ",file,animal\n0,a.jpg,cat\n", ",x\na.jpg,cat\n"):
        (folder / "y.csv").write_text(content)
        with pytest.raises(InputError, match=r"must have one column, or one called target or lab"):
            read_labels(folder / "y.csv")


@pytest.mark.parametrize(("name", "line"), [("y.csv", " "), ("y.tsv", " "), ("y.tsv", "\t")])
def test_a_line_without_a_label_is_not_passed_over(folder, name, line):
    header = "file\tlabel\na.jpg\t0\n" if line == "\t" else "label\n0\n"
    (folder / name).write_text(f"{header}{line}\n{header.splitlines()[1]}\n")
    with pytest.raises(InputError, match=r"row 1 has no label; drop the unlabelled examples"):
        LabelEncoder(3, None, name="p.npz")(folder / name)


def test_names_without_classes_get_there_by_the_message():
    """Whichever way the scores came: the command line, a file or arrays."""
    words = np.array(["cat", "dog", "emu"])
    np.savez("p.npz", logits=LOGITS, target=words[TARGET])
    message = r"names need the classes' names, with --classes \(classes= in Python; class_names= of"
    with pytest.raises(InputError, match=message):
        open_predictions("p.npz")
    with pytest.raises(InputError, match=message):
        from_arrays(LOGITS, words[TARGET], kind="logits")
    for found in (
        open_predictions("p.npz", classes=words),
        from_arrays(LOGITS, words[TARGET], kind="logits", class_names=words),
    ):
        np.testing.assert_array_equal(found.target, TARGET)


@pytest.mark.parametrize("name", ["y.parquet", "y.txt", "y.csv", "y.tsv"])
def test_labels_in_a_file_of_another_kind(name):
    Path(name).write_bytes(b"PAR1\x15\x04\x00\x00\xca\xfe")
    message = f"{name} is not a text file; labels and numbers are read from .npy, .csv, .tsv or "
    with pytest.raises(InputError, match=message) as refused:
        read_labels(Path(name))
    assert "codec" not in str(refused.value)
    with pytest.raises(InputError, match=message):
        read_numbers(name, option="--counts", num_classes=3, class_names=None)


def test_text_in_utf_16_is_told():
    for encoding in ("utf-16", "utf-16-le"):
        Path("y.csv").write_bytes("label\n0\n1\n".encode(encoding))
        with pytest.raises(InputError, match=r"y.csv is .*UTF-8"):
            read_labels(Path("y.csv"))
    Path("y.csv").write_bytes("label\n0\n1\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"in UTF-16, not in UTF-8; save it in UTF-8"):
        read_labels(Path("y.csv"))


def test_text_in_another_encoding_names_the_byte():
    Path("y.txt").write_bytes("caf\u00e9\nbar\n".encode("latin-1"))
    with pytest.raises(
        InputError, match=r"y.txt is not text in UTF-8: .*position 3.*; save it in UTF"
    ):
        read_labels(Path("y.txt"))
