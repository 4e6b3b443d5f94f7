"""Labels and counts as other programs save them: shapes of arrays, forms of small files."""

from pathlib import Path

import numpy as np
import pytest

from longtail import ClassPrior, InputError
from longtail.predictions import adjust_predictions, from_arrays, open_predictions
from longtail.predictions.labels import read_labels, read_numbers

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
