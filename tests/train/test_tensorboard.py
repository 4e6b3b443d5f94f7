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


def end(folder, epoch, *, loss, error=None):
    return EpochEnd(SPEC, folder, epoch, 5, loss, error, epoch / 8)


def test_a_resumed_run_has_its_numbers_by_epoch_and_none_twice(tmp_path):
    with TensorBoard() as board:
        for epoch in (1, 2, 3):
            board(end(tmp_path, epoch, loss=9.0))
    with TensorBoard() as board:  # the last checkpoint was after epoch 1
        for epoch in (2, 3, 4):
            board(end(tmp_path, epoch, loss=7.0, error=0.5 if epoch == 4 else None))
    assert scalars(tmp_path) == {
        "loss": [(1, 9.0), (2, 7.0), (3, 7.0), (4, 7.0)],
        "learning rate": [(epoch, epoch / 8) for epoch in range(1, 5)],
        "held-out balanced error": [(4, 0.5)],
    }
