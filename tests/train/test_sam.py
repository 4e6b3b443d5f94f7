"""Sharpness-aware steps against the equation, in slow float64; back to the same bits."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import InputError
from longtail.train.sam import SAM

X = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 4


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(180, 4)).double()
    return model.to(memory_format=torch.channels_last)


def gradient(model):
    model.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def by_hand(model, *, rho, lr):
    """w − lr ∇ℓ(w + ρ g/‖g‖), with NumPy's norm over all parameters together."""
    slow = copy.deepcopy(model)
    g = gradient(slow)
    norm = np.sqrt(sum((value.numpy() ** 2).sum() for value in g.values()))
    start = {name: p.detach().clone() for name, p in slow.named_parameters()}
    with torch.no_grad():
        for name, p in slow.named_parameters():
            p += rho * g[name] / norm
    away = gradient(slow)
    return {name: value - lr * away[name] for name, value in start.items()}


@pytest.mark.parametrize("rho", [0.05, 2.0])
@pytest.mark.parametrize("way", ["closure", "by hand"])
def test_a_step_is_the_equation(rho, way):
    """With a closure, batch norm's statistics are learned in the first pass only."""
    model, once = network(), network()
    expected = by_hand(model, rho=rho, lr=0.1)
    plain = by_hand(once, rho=0.0, lr=0.1)
    gradient(once)  # one pass
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=rho, model=model)
    if way == "closure":
        before = F.cross_entropy(copy.deepcopy(model)(X), Y).item()
        assert float(sam.step(lambda: backward(model))) == pytest.approx(before)
    else:
        backward(model)
        sam.first_step()
        backward(model)
        sam.second_step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)
        assert value.grad is None
    assert any(not torch.allclose(expected[name], plain[name]) for name in plain)
    if way == "closure":
        for name, value in once[1].named_buffers():
            assert torch.equal(model[1].get_buffer(name), value), name


@pytest.mark.parametrize("failing", [1, 2])
def test_a_closure_that_fails_leaves_the_weights_and_the_next_step_goes_on(failing):
    model = network()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    expected = by_hand(model, rho=1.0, lr=0.1)
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=1.0, model=model)
    calls = []

    def closure():
        calls.append(1)
        loss = backward(model)
        if len(calls) == failing:
            raise KeyboardInterrupt  # after backward, which left gradients
        return loss

    with pytest.raises(KeyboardInterrupt):
        sam.step(closure)
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]), name
    sam.step(closure)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


def backward(model):
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    return loss


def test_gradients_from_before_are_refused():
    model = network()
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)
    backward(model)
    with pytest.raises(InputError, match="there are gradients already"):
        sam.step(lambda: backward(model))


# With a GradScaler: the same steps as without, and none where a gradient overflows.

OVERFLOWING = 2.0**127  # times any loss above 2, more than float32 holds


def pieces(*, init_scale=2.0**16, growth_interval=2000, scaler=True):
    model = network().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    own = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    return model, own, SAM(optimizer, rho=0.1, scaler=own if scaler else None)


def scaled(model, scaler=None, times=1.0):
    loss = times * F.cross_entropy(model(X.float()), Y)
    (loss if scaler is None else scaler.scale(loss)).backward()
    return loss


def two_passes(model, sam, scaler=None, *, clipped):
    scaled(model, scaler)
    sam.first_step()
    scaled(model, scaler)
    if clipped:
        if scaler is not None:
            scaler.unscale_(sam.optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    sam.second_step()


@pytest.mark.parametrize("way", ["closure", "by hand", "clipped"])
def test_steps_are_those_without_a_scaler(way):
    model, scaler, sam = pieces(growth_interval=2)  # the scale changes on the way
    plain_model, _, plain = pieces(scaler=False)
    for _ in range(6):
        if way == "closure":
            loss = sam.step(lambda: scaled(model, scaler))
            torch.testing.assert_close(loss, plain.step(lambda: scaled(plain_model)))
        else:
            two_passes(model, sam, scaler, clipped=way == "clipped")
            two_passes(plain_model, plain, clipped=way == "clipped")
        scaler.update()
    assert scaler.get_scale() == 2.0**19
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain_model.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overflowing", [1, 2])
def test_a_pass_that_overflows_skips_the_step(overflowing):
    """Also in the first pass, whose direction is unknown then; the statistics stay numbers."""
    model, scaler, sam = pieces(init_scale=OVERFLOWING)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    passes = []

    def closure():
        passes.append(1)
        # What overflows in the first pass does so in the second, on the same batch.
        times = 100.0 if len(passes) >= overflowing else 1e-9
        return scaled(model, scaler, times)

    sam.step(closure)
    scaler.update()
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert not sam.optimizer.state
    assert scaler.get_scale() == OVERFLOWING / 2


def test_a_scaler_that_was_not_updated_is_refused():
    """torch would take the gradients of the second pass for unscaled ones, or fail half way."""
    model, scaler, sam = pieces()
    sam.step(lambda: scaled(model, scaler))
    with pytest.raises(InputError, match=r"SAM\.first_step: .* scaler\.update\(\) .*unscale_"):
        sam.step(lambda: scaled(model, scaler))
