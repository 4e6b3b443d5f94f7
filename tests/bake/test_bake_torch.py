"""Baked torch modules and state dicts: the adjusted predictions, the record, and the way back."""

import copy
import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from longtail import (
    AdjustedTwiceWarning,
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
    losses,
    unbake,
)

COUNTS = np.array([5000, 1200, 300, 70, 9])
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PI = np.log(COUNTS / COUNTS.sum())


def network(*, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5, bias=bias)).to(dtype).eval()


def outputs(model, x):
    with torch.no_grad():
        return model(x).double().numpy()


def same_bytes(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].view(torch.uint8).equal(other[name].view(torch.uint8)), name


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tau", [1.0, 0.37, -1.0])
def test_predictions_are_the_adjusted_ones(bias, tau):
    model = network(bias=bias)
    before = copy.deepcopy(model.state_dict())
    baked = bake_logit_adjustment(model, PRIOR, tau=tau)
    x = torch.randn(10_000, 20, generator=torch.Generator().manual_seed(1))
    wanted, got = outputs(model, x) - tau * LOG_PI, outputs(baked, x)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_array_equal(got.argmax(1), wanted.argmax(1))
    same_bytes(model.state_dict(), before)  # the original is untouched
    same_bytes(unbake(baked).state_dict(), before)


@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
@pytest.mark.parametrize("norms", [None, [1.0, 2.0, 0.5, 0.1, 4.0], PRIOR])
def test_weight_normalization(bias_mode, norms):
    model, x = network(), torch.randn(500, 20)
    baked = bake_weight_normalization(model, tau=0.8, norms=norms, bias_mode=bias_mode, layer="2")
    nu = PRIOR.probs if norms is PRIOR else norms
    nu = np.linalg.norm(model[2].weight.detach().double(), axis=1) if nu is None else nu
    f, b = outputs(model, x), model[2].bias.detach().double().numpy()
    scale = np.asarray(nu) ** -0.8
    wanted = {"scale": f * scale, "keep": (f - b) * scale + b, "drop": (f - b) * scale}[bias_mode]
    np.testing.assert_allclose(outputs(baked, x), wanted, rtol=1e-4, atol=1e-4)
    same_bytes(unbake(baked).state_dict(), model.state_dict())


def test_one_output_for_two_classes():
    model = nn.Sequential(nn.Linear(4, 1))
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([900, 100]))
    np.testing.assert_allclose((baked[0].bias - model[0].bias).detach(), np.log(9), rtol=1e-6)


def test_several_heads():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(20, 5), nn.Linear(20, 5)

        def forward(self, x):
            return self.first(x), self.second(x)

    model, x = Two(), torch.randn(30, 20)
    with pytest.raises(InputError, match=r"can't be told.*, or several"):
        bake_logit_adjustment(model, PRIOR, inputs=x)
    baked = bake_logit_adjustment(model, PRIOR, layer=["first", "second"], inputs=x)
    for old, new in zip(model(x), baked(x), strict=True):
        np.testing.assert_allclose((new - old).detach(), np.tile(-LOG_PI, (30, 1)), atol=1e-5)
    same_bytes(unbake(baked).state_dict(), model.state_dict())
    one = bake_logit_adjustment(model, PRIOR, layer="second", inputs=x)
    assert one.first.bias.equal(model.first.bias)
    assert bake_record(one).where == "second"


def test_the_state_dict_loads_into_the_plain_network_and_carries_the_record():
    baked = bake_logit_adjustment(network(), PRIOR, tau=1.5)
    file = io.BytesIO()
    torch.save(baked.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    plain = network()
    plain.load_state_dict(state)  # strict: there is no new key
    record = bake_record(state)
    assert (record.method, record.tau, record.where) == ("logit_adjustment", 1.5, "2")
    assert record.settings["prior"] == PRIOR.probs.tolist()
    assert bake_record(network().state_dict()) is None
    assert bake_record(unbake(baked).state_dict()) is None
    assert bake_record(copy.deepcopy(baked)).tau == 1.5


@pytest.mark.filterwarnings("ignore:.*had no bias")
@pytest.mark.parametrize("bias", [True, False])
def test_a_state_dict_in_memory(bias):
    model = network(bias=bias)
    state = bake_logit_adjustment(model.state_dict(), PRIOR)
    other, x = network(), torch.randn(20, 20)
    other.load_state_dict(state)
    np.testing.assert_allclose(outputs(other, x), outputs(model, x) - LOG_PI, atol=1e-5)
    with pytest.raises(InputError, match="the OrderedDict is baked already"):
        bake_logit_adjustment(state, PRIOR)
    same_bytes(unbake(state), model.state_dict())
    with pytest.raises(InputError, match="is not baked"):
        unbake(unbake(state))


def test_a_whole_module_is_deployed_without_longtail(tmp_path):
    baked = bake_logit_adjustment(network(), PRIOR)
    torch.save(baked, tmp_path / "whole.pt")
    code = (
        "import sys, torch; sys.modules['longtail'] = None\n"
        f"model = torch.load({str(tmp_path / 'whole.pt')!r}, weights_only=False)\n"
        "model.load_state_dict(model.state_dict())\n"
        "print(model(torch.ones(1, 20)).argmax().item())"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(ran.stdout) == outputs(baked, torch.ones(1, 20)).argmax()
    loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
    same_bytes(unbake(loaded).state_dict(), network().state_dict())


class Tempered(nn.Module):
    """Divides the logits by a temperature, and gives them as `answer` asks."""

    def __init__(self, temperature, answer):
        super().__init__()
        self.body, self.drop = network(), nn.Dropout(0.5)
        self.temperature, self.answer = temperature, answer

    def forward(self, x):
        return self.answer(self.drop(self.body(x)) / self.temperature)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        (lambda f: f, lambda x: x),
        (lambda f: {"logits": f}, lambda x: {"x": x}),
        (lambda f: (f, 1), lambda x: (x,)),
    ],
    ids=["tensor", "dict", "tuple"],
)
def test_inputs_check_the_whole_module(answer, form):
    x = form(torch.randn(30, 20))
    right, wrong = Tempered(1.0, answer), Tempered(2.0, answer)
    baked = bake_logit_adjustment(right, PRIOR, inputs=x)
    assert (baked.training, baked.drop.training, baked.body.training) == (True, True, False)
    with pytest.warns(UserWarning, match=r"only layer body\.2 was checked.* pass `inputs=`"):
        bake_logit_adjustment(wrong, PRIOR)
    with pytest.raises(InputError, match="the model does not give the adjusted logits"):
        bake_logit_adjustment(wrong, PRIOR, inputs=x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("end", [nn.Softmax, nn.LogSoftmax])
def test_inputs_check_a_module_that_ends_in_a_softmax(end, dtype):
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = network(dtype=dtype)
    with torch.no_grad():
        plain[2].weight *= 20  # probabilities of 0 among them
    model = nn.Sequential(plain, end(-1))
    got = torch.as_tensor(outputs(bake_logit_adjustment(model, PRIOR, inputs=x), x))
    wanted = torch.softmax(torch.as_tensor(outputs(plain, x) - LOG_PI), -1)
    got = got.exp() if end is nn.LogSoftmax else got
    torch.testing.assert_close(got, wanted, atol=0.05 if dtype.itemsize == 2 else 1e-5, rtol=0.0)
    if dtype.itemsize > 2:
        with pytest.raises(InputError, match="does not give the adjusted logits"):
            bake_logit_adjustment(nn.Sequential(plain, end(0)), PRIOR, inputs=x)


def test_refuses_to_undo_what_is_not_there_or_changed():
    with pytest.raises(InputError, match="the Sequential is not baked"):
        unbake(network())
    baked = bake_logit_adjustment(network(), PRIOR)
    with torch.no_grad():
        baked[2].bias += 1e-3
    assert bake_record(baked).tau == 1  # trained on from there, it may be
    with pytest.raises(InputError, match="the bias was changed after it was baked"):
        unbake(baked)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (network, {"prior": ClassPrior.from_counts([9, 1, 1])},
         "linear layer of 3 outputs"),
        (network, {"layer": "fc"}, "no linear layer 'fc'; the model has '2'"),
        (network, {"prior": [9, 1]}, "`prior` must be a ClassPrior; got list"),
        (lambda: network(dtype=torch.float16), {"tau": 1e5}, "would not be finite in F16"),
        (lambda: nn.Sequential(nn.Conv2d(4, 5, 1), nn.AvgPool2d(7)), {}, "pass `inputs=`"),
    ],
)  # fmt: skip
def test_bad_input(model, settings, message):
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model(), **{"prior": PRIOR, **settings})


# ---- modules that hold their loss --------------------------------------------------------------


def holding(loss):
    """As a LightningModule holds its loss."""
    model = network()
    model.add_module("criterion", loss)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    return model


def test_a_module_that_holds_a_loss_for_the_balanced_error_warns():
    model = holding(losses.LogitAdjustedLoss(PRIOR))
    with pytest.warns(AdjustedTwiceWarning, match="already aims at the balanced error") as found:
        bake_logit_adjustment(model, PRIOR)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (losses.SoftmaxLoss(PRIOR), losses.LogitAdjustedLoss(PRIOR, tau=0.5)):
            bake_logit_adjustment(holding(loss), PRIOR)


def test_a_convolution_as_head():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1))
    x = torch.randn(2, 3, 8, 8)
    baked = bake_logit_adjustment(model, PRIOR)
    wanted = outputs(model, x) - LOG_PI[:, None, None]
    np.testing.assert_allclose(outputs(baked, x), wanted, atol=1e-5)
    bake_logit_adjustment(nn.Sequential(model, nn.Softmax(1)), PRIOR, inputs=x)


def test_a_layer_whose_weights_are_computed():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(20, 5))
    model, x = (
        nn.Sequential(network()[:2], nn.Linear(32, 20), layer, nn.Dropout()).eval(),
        torch.randn(9, 20),
    )
    baked = bake_logit_adjustment(model, PRIOR)
    np.testing.assert_allclose(outputs(baked, x), outputs(model, x) - LOG_PI, atol=1e-5)
    same_bytes(unbake(baked).state_dict(), model.state_dict())


@pytest.mark.parametrize("norm", [nn.LayerNorm(5), nn.BatchNorm1d(5, eps=3.0)], ids=repr)
def test_norms_behind_the_layer_are_refused(norm):
    model = nn.Sequential(network(), norm).eval()
    for given in ({}, {"inputs": torch.randn(30, 20)}):
        with pytest.raises(InputError, match="does not give the adjusted logits"):
            bake_logit_adjustment(model, PRIOR, **given)
