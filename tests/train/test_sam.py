"""Sharpness-aware steps against the equation, in slow float64; back to the same bits."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import InputError
from longtail.train.sam import SAM, Perturbation

X = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 4


def network(seed=0, norm=True):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5) if norm else nn.Identity()]
    layers += [nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)]
    model = nn.Sequential(*layers).double()
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
    slopes = gradient(once)  # one pass
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
    plain = {name: p.detach() - 0.1 * slopes[name] for name, p in once.named_parameters()}
    assert any(not torch.allclose(expected[name], plain[name]) for name in plain)
    if way == "closure":
        for name, value in once[1].named_buffers():
            assert torch.equal(model[1].get_buffer(name), value), name


@pytest.mark.parametrize("rho", [0.5, (0.5, 0.1, 2.0)], ids=["one for all", "one for each"])
def test_networks_side_by_side_have_norms_of_their_own(rho):
    """Parameters joined along the first axis, of several shapes and memory formats."""
    shapes = [(4, 3, 3, 3), (4,), (6, 4), (2, 1, 1, 5)]
    random = torch.Generator().manual_seed(0)
    parts = [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(3)]
    slopes = [
        [torch.randn(shape, generator=random) * 10.0**n for shape in shapes] for n in range(3)
    ]
    joined = []
    for index in range(len(shapes)):
        p = nn.Parameter(torch.cat([part[index] for part in parts]))
        g = torch.cat([slope[index] for slope in slopes])
        if p.ndim == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
            g = g.contiguous(memory_format=torch.channels_last) if index else g  # one other
        p.grad = g
        joined.append(p)
    Perturbation(joined, rho=rho, parts=3).go()
    for n, own in enumerate((rho,) * 3 if isinstance(rho, float) else rho):
        norm = np.sqrt(sum((g.double().numpy() ** 2).sum() for g in slopes[n]))
        for index, p in enumerate(joined):
            expected = parts[n][index].double() + own * slopes[n][index].double() / norm
            torch.testing.assert_close(p.detach().chunk(3)[n].double(), expected, atol=1e-6, rtol=0)


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


def twice(sam, model):
    backward(model)
    sam.first_step()
    backward(model)
    sam.first_step()


def accumulate(sam, model):
    backward(model)
    sam.step(lambda: backward(model))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (accumulate, "SAM does not go with gradients that are accumulated from outside"),
        (twice, "first_step: called twice in a row; .* gradients of several can't be accumulated"),
        (lambda sam, _: sam.second_step(), "first_step must come before"),
    ],
)
def test_misuse_is_refused(call, message):
    model = network(norm=False)
    with pytest.raises(InputError, match=message):
        call(SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1), model)
