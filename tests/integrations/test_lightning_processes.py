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
from longtail.integrations._lightning_examples import Examples, marks, positions, together

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.usefixtures("one_thread"),
]


def test_processes_with_data_of_their_own_are_refused():
    """Each counts its examples from 0, so positions meet; labels tell that they are others'."""
    mine = Examples(np.array([0, 1, 1]), np.array([0, 1, 1]), np.arange(3))
    assert together([mine, mine]).target.tolist() == [0, 1, 1]
    other = mine._replace(target=np.array([1, 1, 0]))
    with pytest.raises(InputError, match="at the same position have different labels"):
        together([mine, other])


def by_class(net):
    """Logits and labels of the test set, sorted by class as a folder of images is."""
    order = np.argsort(example.TEST.tensors[1], kind="stable")
    return logits_of(net, example.TEST)[order], example.TEST.tensors[1].numpy()[order]


def counted_alone(scores, target):
    """A process's part, as a loader without a distributed sampler gives it."""
    return Examples(scores, target, np.arange(len(target)), marks(scores))


@pytest.mark.parametrize("epochs", [0, 3], ids=["untrained", "trained"])
def test_processes_whose_own_data_have_the_same_labels_are_refused(epochs):
    """Every second example of a sorted set: the labels are equal, and the logits are not."""
    net = example.Net()
    trainer(max_epochs=epochs).fit(net, example.Data(16))
    scores, target = by_class(net)
    even = np.flatnonzero(np.arange(len(target) - 1) % 2 == 0)
    even = even[target[even] == target[even + 1]]
    parts = [counted_alone(scores[rows], target[rows]) for rows in (even, even + 1)]
    assert parts[0].target.tolist() == parts[1].target.tolist()
    message = r"have different logits, as if each .* pass collect\(\.\.\., indices=\.\.\.\)"
    with pytest.raises(InputError, match=message):
        together(parts)
    # Positions that the user gave, or that a distributed sampler dealt out, are taken as they are.
    together([part._replace(marks=None) for part in parts])
    second = parts[1]._replace(indices=np.arange(len(even)) + len(even))
    assert len(together([parts[0], second]).target) == 2 * len(even)


def test_so_are_those_whose_logits_do_not_vary_within_a_class():
    target = np.repeat(np.arange(3), 10)
    right = np.eye(3)[target]
    with pytest.raises(InputError, match="at the same position have different logits"):
        together([counted_alone(right, target), counted_alone(-right, target)])


@pytest.mark.parametrize("off", ["rounded", "shifted", "noisy"])
def test_processes_that_all_judge_the_whole_set_may_differ_a_little(off):
    """By half precision and batch norm's statistics of each process; in a dead network, too."""
    random = np.random.default_rng(0)
    scores, target = by_class(example.Net())
    other = {
        "rounded": torch.tensor(scores).bfloat16().float().numpy(),
        "shifted": scores * 1.2 + scores.std(),
        "noisy": scores + random.normal(size=scores.shape) * 0.1 * scores.std(),
    }[off]
    found = together([counted_alone(scores, target), counted_alone(other, target)])
    np.testing.assert_array_equal(found.scores, scores)
    dead = np.tile(scores[:1], (len(target), 1))
    noise = 1 + 0.003 * random.normal(size=dead.shape)
    together([counted_alone(dead, target), counted_alone(dead * noise, target)])


def test_the_marks_come_along_where_a_process_counts_by_itself(monkeypatch):
    net, whole = example.Net(), DataLoader(example.HELD, batch_size=8)
    trainer().validate(net, whole, verbose=False)
    mine = net._mine("val")
    np.testing.assert_allclose(mine.marks, marks(logits_of(net, example.HELD)), rtol=1e-5)
    sampler = torch.utils.data.DistributedSampler(example.HELD, num_replicas=1, rank=0)
    used = trainer(use_distributed_sampler=False)
    used.validate(net, DataLoader(example.HELD, 8, sampler=sampler), verbose=False)
    assert net._mine("val").marks is None  # it deals out to as many processes as there are

    def parts(value):
        """A second process, whose examples are the mirror images of the first one's."""
        mirrored = isinstance(value, Examples)
        return [value, value._replace(marks=-value.marks) if mirrored else value]

    monkeypatch.setattr(adapter, "_of_all_processes", parts)
    with pytest.raises(InputError, match="at the same position have different logits"):
        trainer().validate(net, whole, verbose=False)


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
    found = positions(DataLoader(example.HELD, batch_size=8, sampler=wrapped), 10)
    assert torch.equal(torch.get_rng_state(), state)  # nor does the question change what follows
    if known:
        assert found.tolist() == list(within)[1:20:2]
    else:
        assert found is None


def test_the_shuffle_of_a_distributed_sampler_is_known():
    sampler = torch.utils.data.DistributedSampler(example.HELD, num_replicas=2, rank=1)
    sampler.set_epoch(3)
    loader = DataLoader(example.HELD, batch_size=8, sampler=sampler)
    assert positions(loader, 31).tolist() == list(sampler)
    assert positions(loader, 32) is None  # there can't be so many
