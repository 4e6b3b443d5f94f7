"""Lightning: the balanced error, run folders, deferred re-weighting, several processes."""

import lightning
import lightning_example as example
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning_example import logits_of, trainer
from torch.utils.data import DataLoader

from longtail import InputError, balanced_error
from longtail.integrations import lightning as adapter
from longtail.integrations.lightning import DeferredReweighting, _positions
from longtail.losses import SoftmaxLoss
from longtail.runs import Run, RunError, find_runs

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    net, used = example.fit_and_test(root, batch_size=16)
    return net, used, Run.open(root / example.SPEC.folder)


def assert_error(used, split, net, data):
    """The logged balanced error is that of the network on all of the data."""
    wanted = balanced_error(data.tensors[1], logits_of(net, data))
    found = used.callback_metrics[f"{split}_balanced_error"].item()
    assert found == pytest.approx(wanted, abs=1e-7)


def test_the_balanced_error_is_that_of_the_whole_split(trained):
    net, used, _ = trained
    assert_error(used, "test", net, example.TEST)


def test_the_run_folder_holds_what_was_trained(trained):
    net, _, run = trained
    assert run.finished
    assert run.spec == example.SPEC
    assert run.prior.counts.tolist() == example.COUNTS
    assert set(run.splits) == {"held-out", "test"}
    for split, data in (("held-out", example.HELD), ("test", example.TEST)):
        found = run.logits(split)
        np.testing.assert_allclose(found.logits, logits_of(net, data), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found.target, data.tensors[1])
        np.testing.assert_array_equal(found.indices, np.arange(len(data)))
    np.testing.assert_array_equal(run.model()["fc.weight"], net.fc.weight.detach())
    weight = net.fc.weight.detach().double()
    np.testing.assert_allclose(run.head.norms, (weight**2).sum(1) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(run.head.bias, net.fc.bias.detach().double(), rtol=1e-12)
    assert run.record["facts"]["parameters"] == 9


@pytest.mark.slow
def test_two_processes_do_the_same_as_one(trained, two_processes, tmp_path):
    """Also for 61 and 93 examples, where the sampler repeats one to fill up."""
    two_processes(example.__file__, f"--root={tmp_path}")
    one, two = trained[2], Run.open(tmp_path / example.SPEC.folder)
    for split in ("held-out", "test"):
        mine, theirs = one.logits(split), two.logits(split)
        np.testing.assert_array_equal(theirs.indices, mine.indices)
        np.testing.assert_array_equal(theirs.target, mine.target)
        np.testing.assert_allclose(theirs.logits, mine.logits, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(one.log(), two.log(), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["val_balanced_error"] == pytest.approx(mine["val_balanced_error"], abs=1e-12)
    np.testing.assert_allclose(two.model()["fc.weight"], one.model()["fc.weight"], rtol=1e-4)


def test_an_interrupted_run_is_resumed_with_its_log(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    example.fit_and_test(whole, batch_size=16)

    class Killed(example.Net):
        def on_train_epoch_start(self):
            super().on_train_epoch_start()
            if self.current_epoch == 2:
                raise SystemError("power cut")

    saver = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="latest")
    net = example.record(Killed(), parts)
    with pytest.raises(SystemError):
        trainer(enable_checkpointing=True, callbacks=[saver]).fit(net, example.Data(16))
    (run,) = find_runs(parts, unfinished=True)
    assert not run.finished
    net = example.record(example.Net(), parts)
    trainer().fit(net, example.Data(16), ckpt_path=str(tmp_path / "latest.ckpt"))
    (one,), (two,) = find_runs(whole), find_runs(parts)
    assert two.log() == one.log()
    np.testing.assert_array_equal(two.model()["fc.weight"], one.model()["fc.weight"])


def test_logits_of_earlier_weights_are_not_taken_for_the_runs(tmp_path, caplog):
    net = example.record(example.Net(), tmp_path)
    trainer(check_val_every_n_epoch=2).fit(net, example.Data(16))  # after epoch 2 of 3
    (run,) = find_runs(tmp_path)
    assert run.splits == ()
    assert "val_balanced_error" in run.log()[1]
    assert "val_balanced_error" not in run.log()[2]
    assert "training went on after the last validation" in caplog.text


def test_missing_classes_are_an_error_or_skipped():
    few = torch.utils.data.Subset(example.HELD, np.flatnonzero(example.HELD.tensors[1] != 1))
    with pytest.raises(InputError, match=r"1 of 3 have none .* pass missing='skip'"):
        trainer().validate(example.Net(), DataLoader(few, batch_size=2), verbose=False)
    net = example.Net()
    net.missing = "skip"
    used = trainer()
    used.validate(net, DataLoader(few, batch_size=2), verbose=False)
    assert 0 <= used.callback_metrics["val_balanced_error"] <= 1


def test_diverged_logits_are_refused():
    net = example.Net()
    torch.nn.init.constant_(net.fc.bias, torch.nan)
    with pytest.raises(InputError, match="the training has diverged"):
        trainer().validate(net, example.Data(16), verbose=False)


def test_other_weights_than_the_runs_are_refused(trained):
    net, _, run = trained
    other = example.record(example.Net(), run.folder.parents[1])
    with pytest.raises(InputError, match=r"not those at the end .* \(fc.weight differs\)"):
        trainer().test(other, example.Data(16), verbose=False)
    with pytest.raises(RunError, match="has the logits of the split 'test' already"):
        trainer().test(net, example.Data(16), verbose=False)


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
    assert net.criterion.weight is None  # gone after the training


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
    for callbacks in ([], [reweighting()]):
        again = trainer(callbacks=callbacks)
        again.test(Plain(), example.Data(64), ckpt_path=file, verbose=False)
        assert_error(again, "test", net, example.TEST)
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


def test_processes_whose_examples_cannot_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr(adapter, "_of_all_processes", lambda value: [value, value])
    shuffled = DataLoader(example.HELD, batch_size=8, shuffle=True)
    with pytest.raises(InputError, match="have to be told apart"):
        trainer().validate(example.Net(), shuffled, verbose=False)

    class Told(example.Net):
        def validation_step(self, batch, _):
            points, target, positions = batch
            self.collect(self(points), target, indices=positions)

    told = torch.utils.data.TensorDataset(*example.HELD.tensors, torch.arange(61))
    net, used = Told(), trainer()
    used.validate(net, DataLoader(told, batch_size=8, shuffle=True), verbose=False)
    assert_error(used, "val", net, example.HELD)


def test_a_sampler_that_draws_anew_does_not_say_which_examples_came():
    """Lightning wraps any sampler for several processes, and asked again it may draw others."""

    def positions(within):
        wrapped = DistributedSamplerWrapper(within, num_replicas=2, rank=1, shuffle=False)
        return _positions(DataLoader(example.HELD, batch_size=8, sampler=wrapped), 10)

    state = torch.get_rng_state()
    assert positions(list(range(60, 0, -3))).tolist() == list(range(57, 0, -6))
    assert positions(torch.utils.data.RandomSampler(example.HELD)) is None
    assert torch.equal(torch.get_rng_state(), state)  # nor does the question change what follows
