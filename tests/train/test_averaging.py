"""The average of weights is the weighted mean of what it was shown, buffers included."""

import numpy as np
import pytest
import torch
from torch import nn

from longtail.train.averaging import WeightAverage


def walk(steps, decay):
    """A network whose tensors change at every step, its average, and all its states."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    average = WeightAverage(model, decay=decay)
    states = []
    for step in range(steps):
        model(torch.randn(8, 3, dtype=torch.float64))
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p) + step
        average.update()
        states.append({name: v.clone() for name, v in model.state_dict().items()})
    return model, average, states


@pytest.mark.parametrize(("steps", "decay"), [(1, 0.9), (7, 0.5), (30, 0.99)])
def test_it_is_the_weighted_mean_of_the_steps(steps, decay):
    model, average, states = walk(steps, decay)
    weights = decay ** np.arange(steps)[::-1]
    found = average.state_dict()
    assert found.keys() == model.state_dict().keys()
    for name, value in found.items():
        seen = np.stack([state[name].numpy() for state in states])
        if name.endswith("num_batches_tracked"):
            assert int(value) == steps
        else:
            expected = np.tensordot(weights, seen, 1) / weights.sum()
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-9)
    last = model.state_dict()["0.weight"]
    assert torch.equal(last, states[-1]["0.weight"])  # the network itself is left alone
    if steps == 1:
        torch.testing.assert_close(found["0.weight"], last)


def test_it_goes_on_from_what_was_saved():
    model, part, states = walk(6, 0.9)
    fresh = WeightAverage(model, decay=0.9)
    fresh.load({name: v.clone() for name, v in part.sums.items()}, int(part.steps))
    for state in states[:2]:
        model.load_state_dict(state)
        fresh.update()
        part.update()
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, part.state_dict()[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_in_half_precision_are_summed_in_float32(dtype):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data.fill_(1.0)
    average = WeightAverage(model, decay=0.999)
    for _ in range(3000):
        average.update()
    assert average.sums["weight"].dtype == torch.float32
    found = average.state_dict()["weight"]
    assert found.dtype == dtype
    assert found.item() == pytest.approx(1.0, rel=1e-4)
