"""Lightning: which examples each of several processes has collected."""

import lightning_example as example
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning_example import logits_of, trainer
from torch.utils.data import DataLoader

from longtail import InputError, balanced_error
from longtail.integrations import lightning as adapter
from longtail.integrations.lightning import _Examples, _positions, _together

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.usefixtures("one_thread"),
]


def test_processes_with_data_of_their_own_are_refused():
    """Each counts its examples from 0, so positions meet; labels tell that they are others'."""
    mine = _Examples(np.array([0, 1, 1]), np.array([0, 1, 1]), np.arange(3))
    assert _together([mine, mine]).target.tolist() == [0, 1, 1]
    other = mine._replace(target=np.array([1, 1, 0]))
    with pytest.raises(InputError, match="at the same position have different labels"):
        _together([mine, other])


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


@pytest.mark.parametrize(
    ("within", "known"),
    [
        (torch.utils.data.SequentialSampler(example.HELD), True),
        (list(range(60, 0, -3)), True),
        (torch.utils.data.SubsetRandomSampler(range(45)), False),
        (torch.utils.data.RandomSampler(example.HELD), False),
    ],
    ids=["in order", "a fixed choice", "a random choice", "shuffled"],
)
def test_a_sampler_that_draws_anew_does_not_say_which_examples_came(within, known):
    """Lightning wraps any sampler for several processes, and asked again it may draw others."""
    wrapped = DistributedSamplerWrapper(within, num_replicas=2, rank=1, shuffle=False)
    state = torch.get_rng_state()
    found = _positions(DataLoader(example.HELD, batch_size=8, sampler=wrapped), 10)
    assert torch.equal(torch.get_rng_state(), state)  # nor does the question change what follows
    if known:
        assert found.tolist() == list(within)[1:20:2]
    else:
        assert found is None


def test_the_shuffle_of_a_distributed_sampler_is_known():
    sampler = torch.utils.data.DistributedSampler(example.HELD, num_replicas=2, rank=1)
    sampler.set_epoch(3)
    loader = DataLoader(example.HELD, batch_size=8, sampler=sampler)
    assert _positions(loader, 31).tolist() == list(sampler)
    assert _positions(loader, 32) is None  # there can't be so many
