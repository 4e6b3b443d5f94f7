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
