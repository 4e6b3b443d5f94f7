"""Sharpness-aware steps against the equation, in slow float64; back to the same bits."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import InputError
from longtail.train.sam import SAM, Perturbation, frozen_statistics

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
    model = network()
    expected = by_hand(model, rho=rho, lr=0.1)
    plain = {
        n: p.detach() - 0.1 * g
        for (n, p), g in zip(
            model.named_parameters(), gradient(copy.deepcopy(model)).values(), strict=True
        )
    }
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=rho, model=model)

    def closure():
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    if way == "closure":
        before = F.cross_entropy(copy.deepcopy(model)(X), Y).item()
        assert float(sam.step(closure)) == pytest.approx(before)
    else:
        closure()
        sam.first_step()
        closure()
        sam.second_step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)
        assert value.grad is None
    assert any(not torch.allclose(expected[name], plain[name]) for name in plain)


def test_statistics_are_learned_in_the_first_pass_only():
    model = network()
    once = copy.deepcopy(model)
    once(X)
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=1.0, model=model)

    def closure():
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    sam.step(closure)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(model[1], name), getattr(once[1], name)), name
    with pytest.raises(RuntimeError, match="stop"), frozen_statistics(model):
        raise RuntimeError("stop")
    assert model[1].running_mean is not None
    assert list(model.state_dict()) == list(once.state_dict())


def test_the_way_back_is_exact():
    model = network(norm=False).float()
    before = [p.detach().clone() for p in model.parameters()]
    F.cross_entropy(model(X.float()), Y).backward()
    there = Perturbation(model.parameters(), rho=1 / 3)
    there.go()
    away = [p.detach() - q for p, q in zip(model.parameters(), before, strict=True)]
    length = sum(float((part.double() ** 2).sum()) for part in away) ** 0.5
    assert length == pytest.approx(1 / 3, rel=1e-4)
    there.back()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


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


def test_networks_side_by_side_whose_parameters_have_gradients_by_turns():
    """As many numbers as before, but in other places: none is scaled by a neighbour's norm."""
    sizes = (2, 4, 6)  # of each of two networks: the first two have as many as the third
    joined = [nn.Parameter(torch.zeros(2 * size)) for size in sizes]
    there = Perturbation(joined, rho=[0.5, 3.0], parts=2)
    for some in ((0, 1), (2,), (0, 1)):
        for index, p in enumerate(joined):
            slopes = torch.ones(2, sizes[index]) * torch.tensor([[1.0], [10.0]])
            p.grad = slopes.flatten() if index in some else None
        there.go()
        for index, p in enumerate(joined):
            moved = np.array([0.5, 3.0]) / np.sqrt(6) * (index in some)
            expected = np.repeat(moved, sizes[index])
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-6)
        there.back()


def test_as_many_distances_as_networks():
    p = nn.Parameter(torch.ones(6))
    with pytest.raises(InputError, match=r"one for each of the 3 networks; 2 came"):
        Perturbation([p], rho=[0.1, 0.2], parts=3)
    with pytest.raises(InputError, match="`rho` must be"):
        Perturbation([p], rho=[0.1, 0.0], parts=2)


def test_a_gradient_of_zero_and_parameters_without_one_stay():
    used, unused, scalar = (nn.Parameter(torch.ones(s)) for s in ((2,), (3,), ()))
    used.grad, scalar.grad = torch.zeros(2), torch.zeros(())
    there = Perturbation([used, unused, scalar], rho=0.1)
    there.go()
    assert torch.equal(used, torch.ones(2))
    assert torch.equal(unused, torch.ones(3))
    scalar.grad = torch.tensor(-2.0)
    there.go()
    assert scalar.item() == pytest.approx(0.9)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_gradients_are_those_of_float32(dtype, parts):
    """In float16 a norm of 60000 or more is infinite, and what keeps zero from NaN is zero."""
    for slope in (0.0, 1e-6, 1.0, 60000.0):
        w = nn.Parameter(torch.ones(2 * parts, dtype=dtype))
        w.grad = torch.full_like(w, slope)
        Perturbation([w], rho=1.0, parts=parts).go()
        moved = 0.0 if slope == 0 else 2**-0.5  # two numbers alike, of norm 1
        expected = torch.full((2 * parts,), 1 + moved, dtype=torch.float64).to(dtype)
        torch.testing.assert_close(w.detach(), expected, msg=f"slope {slope}")


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_closure_that_fails_leaves_the_weights_and_the_next_step_goes_on(failing, error):
    model, untouched = network(), network()
    before = {name: value.clone() for name, value in model.named_parameters()}
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=1.0, model=model)
    calls = []

    def closure():
        calls.append(1)
        loss = backward(model)
        if len(calls) == failing:
            raise error("out of memory")  # after backward, which left gradients
        return loss

    with pytest.raises(error, match="out of memory"):
        sam.step(closure)
    assert len(calls) == failing
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]), name
    expected = by_hand(untouched, rho=1.0, lr=0.1)
    sam.step(closure)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


def test_a_closure_without_a_second_backward_is_refused_and_leaves_the_weights():
    """Its loss is computed once and for all outside: nothing would ever be trained."""
    model = network(norm=False)
    before = [p.detach().clone() for p in model.parameters()]
    sam, calls = sam_of(model), []

    def closure():
        calls.append(1)
        return backward(model) if len(calls) == 1 else torch.zeros(())

    with pytest.raises(InputError, match="also every time that a closure is called"):
        sam.step(closure)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    sam.step(lambda: backward(model))


def test_a_second_backward_that_was_forgotten_can_be_made_up_for():
    model = network(norm=False)
    expected = by_hand(model, rho=0.1, lr=0.1)
    sam = sam_of(model)
    backward(model)
    sam.first_step()
    with pytest.raises(InputError, match=r"backward\(\) must be called in both passes"):
        sam.second_step()
    backward(model)
    sam.second_step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("what", ["float", "None", "tensor"])
def test_a_closure_may_return_what_those_of_optimizers_do(what):
    model = network(norm=False)
    expected = by_hand(model, rho=0.1, lr=0.1)
    first = F.cross_entropy(model(X), Y).item()

    def closure():
        loss = backward(model)
        return {"float": loss.item(), "None": None, "tensor": loss}[what]

    found = sam_of(model).step(closure)
    if what == "tensor":
        assert not found.requires_grad
    assert found is None if what == "None" else float(found) == pytest.approx(first)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


def test_a_step_by_hand_can_be_given_up():
    model = network(norm=False)
    before = [p.detach().clone() for p in model.parameters()]
    sam = sam_of(model)
    backward(model)
    sam.first_step()
    backward(model)
    assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    for _ in range(2):  # the second time there is nothing to give up
        sam.abandon()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        assert all(p.grad is None for p in model.parameters())
    sam.step(lambda: backward(model))


@pytest.mark.parametrize("how", ["added", "unfrozen"])
def test_parameters_that_come_later_are_moved_too(how):
    """A head first and then the layers below it, as in fine-tuning."""
    model = network(norm=False)
    expected = by_hand(model, rho=1.0, lr=0.1)
    if how == "added":
        optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.1)
        sam = SAM(optimizer, rho=1.0)
        optimizer.add_param_group({"params": list(model[0].parameters())})
    else:
        model[0].requires_grad_(False)
        sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=1.0)
        model[0].requires_grad_(True)
    sam.step(lambda: backward(model))
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["cast", "reshaped"])
def test_weights_that_are_changed_later_come_back_to_the_bit(way):
    """A module keeps its parameters when it is cast, so their names and ids say nothing of it."""
    model = network(norm=False).bfloat16()
    sam = sam_of(model)
    model.double()
    if way == "reshaped":
        model[-1].weight.data = torch.randn(4, 180, dtype=torch.float64)[:2]
        model[-1].bias.data = torch.randn(2, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p += 1e-6 * torch.randn_like(p)  # what bfloat16 can't hold
    before = [p.detach().clone() for p in model.parameters()]
    F.cross_entropy(model(X), Y % 2).backward()
    sam.first_step()
    sam.abandon()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert sam.perturbation.rho.dtype == torch.float64
    there = sam.perturbation
    sam.step(lambda: backward(model, Y % 2))
    assert sam.perturbation is there


def test_an_optimizer_may_have_a_scheduler_already():
    model = network(norm=False)
    expected = by_hand(model, rho=1.0, lr=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    SAM(optimizer, rho=1.0).step(lambda: backward(model))
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)


def test_the_distance_can_be_changed_between_steps():
    model = network(norm=False)
    sam = sam_of(model)
    place = sam.perturbation.rho.data_ptr()
    expected = by_hand(model, rho=0.7, lr=0.1)
    sam.rho = 0.7
    sam.step(lambda: backward(model))
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-12)
    assert sam.rho == 0.7
    assert sam.perturbation.rho.data_ptr() == place  # as a captured step needs it
    for bad in (0.0, -1.0, float("nan"), "far"):
        with pytest.raises(InputError, match="SAM: `rho` must be"):
            sam.rho = bad
    assert sam.rho == 0.7
    # Parameters that come later go as far.
    added = nn.Parameter(torch.ones(1, dtype=torch.float64))
    sam.optimizer.add_param_group({"params": [added]})
    sam.step(lambda: backward(model))
    assert sam.perturbation.rho.item() == pytest.approx(0.7)


def test_what_a_step_goes_through_stays_where_it_is():
    """A captured step needs the same tensors each time."""
    model = network(norm=False)
    sam = sam_of(model)
    there = sam.perturbation
    places = [tensor.data_ptr() for tensor in (*there.before, *there.parameters, there.rho)]
    for _ in range(2):
        sam.step(lambda: backward(model))
    assert sam.perturbation is there
    after = [tensor.data_ptr() for tensor in (*there.before, *there.parameters, there.rho)]
    assert after == places


def sam_of(model):
    return SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)


def backward(model, labels=Y):
    loss = F.cross_entropy(model(X), labels)
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
        (lambda sam, _: sam.step(), "`closure` must be given"),
        (accumulate, "SAM does not go with gradients that are accumulated from outside"),
        (twice, "first_step: called twice in a row; .* gradients of several can't be accumulated"),
        (lambda sam, _: sam.second_step(), "first_step must come before"),
        (lambda sam, _: sam.first_step(), "no parameter has a gradient; call backward"),
        (lambda _, model: SAM(torch.optim.SGD(model.parameters()), rho=0), "`rho` must be above"),
        (
            lambda _, model: SAM(torch.optim.LBFGS(model.parameters())),
            r"`optimizer` must be able to step\(\) without a closure; got LBFGS",
        ),
    ],
)
def test_misuse_is_refused(call, message):
    model = network(norm=False)
    with pytest.raises(InputError, match=message):
        call(sam_of(model), model)
