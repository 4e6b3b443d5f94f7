"""Lightning: deferred re-weighting, its checkpoints, and what it leaves behind."""

import copy

import lightning
import lightning_example as example
import numpy as np
import pytest
import torch
from lightning_example import logits_of, trainer
from torch.utils.data import DataLoader

from longtail import balanced_error
from longtail.integrations.lightning import DeferredReweighting
from longtail.losses import SoftmaxLoss

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.mark.parametrize("start", [1, None])
def test_deferred_reweighting_begins_at_its_epoch(start):
    net = example.Net(SoftmaxLoss(example.PRIOR))
    callback = DeferredReweighting(example.PRIOR, start=start, beta=0.99)
    trainer(max_epochs=5, callbacks=[callback], limit_train_batches=2).fit(net, example.Data(16))
    seen, begins = np.array(net.weights_seen), 2 * (4 if start is None else start)
    weights = np.array([(1 - 0.99) / (1 - 0.99**n) for n in example.COUNTS])
    assert seen.shape == (10, 3)
    np.testing.assert_array_equal(seen[:begins], 1.0)
    np.testing.assert_allclose(
        seen[begins:], np.tile(3 * weights / weights.sum(), (10 - begins, 1)), rtol=1e-6
    )


class Plain(example.Net):
    """As `load_from_checkpoint` makes it."""

    def __init__(self):
        super().__init__(SoftmaxLoss(example.PRIOR))


def reweighting():
    return DeferredReweighting(example.PRIOR, start=1, beta=0.99)


def test_a_reweighted_checkpoint_loads_with_and_without_the_callback(tmp_path):
    net, used, file = Plain(), trainer(callbacks=[reweighting()]), tmp_path / "end.ckpt"
    used.fit(net, example.Data(64))
    used.save_checkpoint(file)
    wanted = balanced_error(example.TEST.tensors[1], logits_of(net, example.TEST))
    for callbacks in ([], [reweighting()]):
        again = trainer(callbacks=callbacks)
        again.test(Plain(), example.Data(64), ckpt_path=file, verbose=False)
        error = again.callback_metrics["test_balanced_error"].item()
        assert error == pytest.approx(wanted, abs=1e-7)
    loaded = Plain.load_from_checkpoint(file)
    assert loaded.criterion.weight is None
    trainer(max_epochs=4, callbacks=[reweighting()]).fit(loaded, example.Data(64))
    on = Plain()
    trainer(max_epochs=4).fit(on, example.Data(64), ckpt_path=file)
    assert on.weights_seen == [None] * 4  # who leaves the callback out goes on without weights


def test_a_training_resumed_within_an_epoch_has_its_weights_at_once(tmp_path):
    saver = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=6, save_top_k=-1
    )
    whole, loader = Plain(), DataLoader(example.TRAIN, batch_size=52)  # 4 steps an epoch
    trainer(callbacks=[reweighting(), saver], enable_checkpointing=True).fit(whole, loader)
    file = tmp_path / "step=6.ckpt"
    saved = torch.load(file, weights_only=False)
    assert "criterion.weight" not in saved["state_dict"]
    net = Plain()
    trainer(callbacks=[reweighting()]).fit(net, loader, ckpt_path=file, weights_only=False)
    assert net.weights_seen == whole.weights_seen[6:]
    assert max(net.weights_seen[0]) > 2


def test_the_weights_are_gone_after_the_training(tmp_path):
    """The same cell run twice, a copy, a resumed training, and one without the callback."""
    net, used, file = Plain(), trainer(callbacks=[reweighting()]), tmp_path / "end.ckpt"
    fresh = Plain().criterion
    used.fit(net, example.Data(64))
    used.save_checkpoint(file)
    assert net.criterion.weight is None
    assert net.criterion._non_persistent_buffers_set == fresh._non_persistent_buffers_set
    weighted = net.weights_seen[-1]
    for again, settings in ((net, {}), (copy.deepcopy(net), {}), (net, {"ckpt_path": file})):
        again.weights_seen.clear()
        trainer(max_epochs=4, callbacks=[reweighting()]).fit(again, example.Data(64), **settings)
        assert again.weights_seen[-1] == weighted
    net.weights_seen.clear()
    trainer(max_epochs=1).fit(net, example.Data(64))
    assert set(net.weights_seen) == {None}
