"""The average of weights is the weighted mean of what it was shown, buffers included."""

import numpy as np
import pytest
import torch
from torch import nn

from longtail import InputError
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
    _, whole, _ = walk(9, 0.9)
    model, part, states = walk(6, 0.9)
    fresh = WeightAverage(model, decay=0.9)
    fresh.load({name: v.clone() for name, v in part.sums.items()}, int(part.steps))
    for state in states[:2]:
        model.load_state_dict(state)
        fresh.update()
        part.update()
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, part.state_dict()[name])
    assert int(whole.steps) == 9


SAVED = {"weight": torch.full((2, 2), 0.5), "bias": torch.full((2,), 0.5)}


@pytest.mark.parametrize(
    ("sums", "steps", "message"),
    [
        (SAVED, -1, "`steps` must be a whole number, at least 0; got -1"),
        (SAVED, 1.5, "`steps` must be a whole number"),
        ({"weight": SAVED["weight"]}, 1, "`sums` lacks bias"),
        (SAVED | {"scale": torch.ones(1)}, 1, "`sums` has scale, .* no such weight to average"),
        (SAVED | {"bias": torch.ones(1)}, 1, r"`sums` has bias of shape \(1,\), .* shape \(2,\)"),
        (SAVED | {"bias": SAVED["bias"] * 1j}, 1, "`sums` has bias of torch.complex64"),
        (SAVED | {"bias": [0.5, 0.5]}, 1, "`sums` must hold tensors; its bias is list"),
    ],
)
def test_what_is_no_average_of_the_network_is_not_loaded(sums, steps, message):
    average = WeightAverage(nn.Linear(2, 2), decay=0.5)
    with pytest.raises(InputError, match=f"WeightAverage.load: {message}"):
        average.load(sums, steps)
    assert int(average.steps) == 0
    assert not any(value.any() for value in average.sums.values())  # nothing is half loaded
    average.load(SAVED, torch.tensor(1))  # as `steps` is
    assert torch.equal(average.state_dict()["weight"], torch.ones(2, 2))


@pytest.mark.parametrize("steps", [0, 3])
def test_what_it_gave_stays_when_the_network_goes_on(steps):
    """Weights before any step, and counters at any time, are the network's own: copies of them."""
    model, average, _ = walk(steps, 0.9)
    found = average.state_dict()
    before = {name: value.clone() for name, value in found.items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value += 1
    average.update()
    for name, value in found.items():
        assert torch.equal(value, before[name]), name


def test_before_the_first_step_it_is_the_network():
    model = nn.Linear(2, 2)
    average = WeightAverage(model, decay=0.9)
    assert torch.equal(average.state_dict()["weight"], model.weight)


class Remembering(nn.Linear):
    """A layer that saves more than tensors."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.memory = {"seen": 0}

    def get_extra_state(self):
        return self.memory

    def set_extra_state(self, state):
        self.memory = state


@pytest.mark.parametrize("steps", [0, 2])
def test_what_is_no_tensor_keeps_its_last_value(steps):
    model = nn.Sequential(Remembering(), nn.ReLU())
    average = WeightAverage(model, decay=0.5)
    for step in range(steps):
        filled(model, float(step))
        model[0].memory["seen"] = step + 1
        average.update()
    found = average.state_dict()
    model[0].memory["seen"] = 99  # the average is no view of the network
    judged = nn.Sequential(Remembering(), nn.ReLU())
    judged.load_state_dict(found)
    assert judged[0].memory == {"seen": steps}
    if steps:  # (0.5 · 0 + 1 · 1) / 1.5
        assert judged[0].weight.item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential()])
def test_a_network_without_weights_is_refused(model):
    with pytest.raises(InputError, match="WeightAverage: `model` must have weights"):
        WeightAverage(model, decay=0.5)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1])
def test_bad_decays_are_refused(decay):
    with pytest.raises(InputError, match="`decay` must"):
        WeightAverage(nn.Linear(2, 2), decay=decay)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
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


@pytest.mark.parametrize("beside", [False, True])
def test_complex_weights_are_averaged(beside):
    """As of a Fourier layer, alone or beside real ones."""
    model = nn.ModuleList([nn.Linear(1, 1, bias=False, dtype=torch.complex64)])
    model.extend([nn.Linear(1, 1, bias=False)] * beside)
    average = WeightAverage(model, decay=0.5)
    for value in (1.0 + 2.0j, 4.0 - 1.0j):
        for layer in model:
            layer.weight.data.fill_(value if layer.weight.is_complex() else value.real)
        average.update()
    found = average.state_dict()
    assert found["0.weight"].dtype == torch.complex64
    assert found["0.weight"].item() == pytest.approx(3.0)  # (0.5 (1 + 2i) + 1 (4 - i)) / 1.5
    if beside:
        assert found["1.weight"].item() == pytest.approx(3.0)


def test_sums_that_were_saved_in_half_precision_still_load():
    average = WeightAverage(nn.Linear(1, 1, bias=False).bfloat16(), decay=0.5)
    average.load({"weight": torch.tensor([[0.5]], dtype=torch.bfloat16)}, 1)
    assert average.state_dict()["weight"].item() == 1.0


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(memory_format=torch.channels_last),
        lambda model: model.bfloat16(),
        lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(4, 3, 3, 3))),
        lambda model: model.load_state_dict(nn.Conv2d(3, 4, 3).state_dict(), assign=True),
    ],
    ids=["memory format", "cast", "parameter", "assign"],
)
def test_it_follows_a_network_whose_tensors_are_replaced(change):
    model = nn.Conv2d(3, 4, 3)
    average = WeightAverage(model, decay=0.5)
    filled(model, 1.0)
    average.update()
    change(model)
    filled(model, 4.0)
    average.update()
    for name, value in average.state_dict().items():  # (0.5 · 1 + 1 · 4) / 1.5
        assert value.dtype == model.state_dict()[name].dtype
        assert torch.equal(value, torch.full_like(value, 3.0)), name


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda model: model.to("meta"), "`weight` is now torch.float32 on meta"),
        (lambda model: model.double(), "`weight` is now torch.float64"),
        (
            lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(3, 2))),
            r"`weight` is now torch.float32 on cpu, shape \(3, 2\)",
        ),
        (
            lambda model: setattr(model, "extra", nn.Linear(1, 1)),
            "it has got or lost extra.bias, extra.weight",
        ),
    ],
)
def test_a_network_that_it_can_not_follow_is_refused(change, came):
    model = nn.Linear(2, 2)
    average = WeightAverage(model, decay=0.5)
    change(model)
    with pytest.raises(InputError, match=f"has changed.*{came}.*make the WeightAverage after"):
        average.update()


def test_a_network_may_go_elsewhere_when_it_has_trained():
    model = nn.Linear(2, 2)
    average = WeightAverage(model, decay=0.5)
    filled(model, 2.0)
    average.update()
    model.to("meta")
    assert torch.equal(average.state_dict()["weight"], torch.full((2, 2), 2.0))


def test_sums_stay_where_they_are_and_float32_weights_are_not_copied():
    """A captured step needs the same tensors each time."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = WeightAverage(model, decay=0.9)
    places = [value.data_ptr() for value in (*average.sums.values(), average.steps)]
    with torch.profiler.profile(profile_memory=True) as seen:
        average.update()
    made = sum(event.self_cpu_memory_usage > 0 for event in seen.key_averages())
    assert made == 0
    assert [value.data_ptr() for value in (*average.sums.values(), average.steps)] == places
