"""TensorBoard logs: what readers of them see."""

import pytest

from longtail.data.digits import load_digits_lt
from longtail.train.engine import EpochEnd
from longtail.train.recipe import make_spec
from longtail.train.tensorboard import TensorBoard

pytest.importorskip("tensorboard")

SPEC = make_spec(load_digits_lt().spec, method="softmax", recipe="digits", seed=0)


def scalars(folder):
    """By tag: (step, value) pairs, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def end(folder, epoch, *, loss=None, error=None, epochs=5):
    return EpochEnd(SPEC, folder, epoch, epochs, loss or float(epoch), error, epoch / 8)


def test_each_run_has_its_numbers_by_epoch(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    with TensorBoard() as board:
        for epoch in range(1, 6):
            board(end(one, epoch, error=0.5 if epoch == 5 else None))
            board(end(two, epoch, loss=0.25))
    assert scalars(one) == {
        "loss": [(epoch, epoch) for epoch in range(1, 6)],
        "learning rate": [(epoch, epoch / 8) for epoch in range(1, 6)],
        "held-out balanced error": [(5, 0.5)],
    }
    assert scalars(two)["loss"] == [(epoch, 0.25) for epoch in range(1, 6)]
    assert "held-out balanced error" not in scalars(two)


def test_a_resumed_run_shows_no_step_twice(tmp_path):
    with TensorBoard() as board:
        for epoch in (1, 2, 3):
            board(end(tmp_path, epoch, loss=9.0))
    with TensorBoard() as board:  # the last checkpoint was after epoch 1
        for epoch in (2, 3, 4):
            board(end(tmp_path, epoch, loss=7.0))
    assert scalars(tmp_path)["loss"] == [(1, 9.0), (2, 7.0), (3, 7.0), (4, 7.0)]
    assert [step for step, _ in scalars(tmp_path)["learning rate"]] == [1, 2, 3, 4]
