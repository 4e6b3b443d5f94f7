"""SAM with a GradScaler: the same steps as without, and none where a gradient overflows."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import InputError
from longtail.train.sam import SAM

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
OVERFLOWING = 2.0**127  # times any loss above 2, more than float32 holds


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def pieces(*, init_scale=2.0**16, growth_interval=2000, scaled=True):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    return model, scaler, SAM(optimizer, rho=0.1, scaler=scaler if scaled else None)


def backward(model, scaler=None, *, times=1.0):
    loss = times * F.cross_entropy(model(X), Y)
    (loss if scaler is None else scaler.scale(loss)).backward()
    return loss


def by_hand(model, sam, scaler=None, *, clipped):
    backward(model, scaler)
    sam.first_step()
    backward(model, scaler)
    if clipped:
        if scaler is not None:
            scaler.unscale_(sam.optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    sam.second_step()


@pytest.mark.parametrize("way", ["closure", "by hand", "clipped"])
def test_steps_are_those_without_a_scaler(way):
    model, scaler, sam = pieces(growth_interval=2)  # the scale changes on the way
    plain_model, _, plain = pieces(scaled=False)
    for _ in range(6):
        if way == "closure":
            loss = sam.step(lambda: backward(model, scaler))
            torch.testing.assert_close(loss, plain.step(lambda: backward(plain_model)))
        else:
            by_hand(model, sam, scaler, clipped=way == "clipped")
            by_hand(plain_model, plain, clipped=way == "clipped")
        scaler.update()
    assert scaler.get_scale() == 2.0**19
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain_model.state_dict()[name], rtol=1e-6, atol=1e-7)


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
        return backward(model, scaler, times=times)

    sam.step(closure)
    scaler.update()
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert not sam.optimizer.state
    assert scaler.get_scale() == OVERFLOWING / 2


def test_a_scaler_that_was_not_updated_is_refused():
    """torch would take the gradients of the second pass for unscaled ones, or fail half way."""
    model, scaler, sam = pieces()
    sam.step(lambda: backward(model, scaler))
    with pytest.raises(InputError, match=r"SAM\.first_step: .* scaler\.update\(\) .*unscale_"):
        sam.step(lambda: backward(model, scaler))
