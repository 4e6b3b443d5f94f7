"""Lightning: which examples each of several processes has collected."""

import lightning_example as example
import numpy as np
import pytest
import torch
from lightning_example import logits_of, trainer
from torch.utils.data import DataLoader

from longtail import InputError, balanced_error
from longtail.integrations import lightning as adapter
from longtail.integrations._lightning_examples import Examples, together

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


def test_processes_with_data_of_their_own_are_refused():
    """Each counts its examples from 0, so positions meet; labels tell that they are others'."""
    mine = Examples(np.array([0, 1, 1]), np.array([0, 1, 1]), np.arange(3))
    assert together([mine, mine]).target.tolist() == [0, 1, 1]
    other = mine._replace(target=np.array([1, 1, 0]))
    with pytest.raises(InputError, match="at the same position have different labels"):
        together([mine, other])


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
    wanted = balanced_error(example.HELD.tensors[1], logits_of(net, example.HELD))
    assert used.callback_metrics["val_balanced_error"].item() == pytest.approx(wanted, abs=1e-7)


class Shares:
    """Batches that a process deals to itself, as samplers that sort by length do."""

    def __init__(self, rank):
        self.batches = torch.arange(61).split(8)[rank::2]

    def __iter__(self):
        return (batch.tolist() for batch in self.batches)

    def __len__(self):
        return len(self.batches)


class OwnOrder(torch.utils.data.BatchSampler):
    """As `Shares`; that it is a kind of torch's says nothing about its order."""

    def __iter__(self):
        return iter(list(super().__iter__())[1::2])


@pytest.mark.parametrize(
    "batches", [Shares(1), OwnOrder(range(61), 8, False)], ids=["any class", "torch's kind"]
)
def test_a_batch_sampler_of_ones_own_does_not_say_which_examples_come(monkeypatch, batches):
    loader = DataLoader(example.HELD, batch_sampler=batches)
    assert isinstance(loader.sampler, torch.utils.data.SequentialSampler)  # which is not asked
    used, net = trainer(), example.Net()
    used.validate(net, loader, verbose=False)  # one process need not know
    rows = np.concatenate(list(batches))
    wanted = balanced_error(example.HELD.tensors[1][rows], logits_of(net, example.HELD)[rows])
    assert used.callback_metrics["val_balanced_error"].item() == pytest.approx(wanted, abs=1e-7)
    monkeypatch.setattr(adapter, "_of_all_processes", lambda value: [value, value])
    with pytest.raises(InputError, match="have to be told apart"):
        trainer().validate(example.Net(), loader, verbose=False)


def test_torchs_batch_sampler_goes_by_the_sampler_in_it():
    halves = torch.utils.data.DistributedSampler(
        example.HELD, num_replicas=2, rank=1, shuffle=False
    )
    batches = torch.utils.data.BatchSampler(halves, 8, drop_last=False)
    net = example.Net()
    trainer().validate(net, DataLoader(example.HELD, batch_sampler=batches), verbose=False)
    np.testing.assert_array_equal(net._mine("val").indices, list(halves))
