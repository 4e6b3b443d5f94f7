"""Baked torch modules: the adjusted predictions, the record, and the way back."""

import copy
import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from longtail import (
    ClassPrior,
    InputError,
    bake_logit_adjustment,
    bake_record,
    bake_weight_normalization,
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
    wanted = outputs(model, x) - tau * LOG_PI
    got = outputs(baked, x)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_array_equal(got.argmax(1), wanted.argmax(1))
    assert np.mean(got.argmax(1) != outputs(model, x).argmax(1)) > 0.1
    same_bytes(model.state_dict(), before)  # the original is untouched
    restored = unbake(baked)
    same_bytes(restored.state_dict(), before)
    assert restored[2].bias is None if not bias else True
    assert bake_record(restored) is None


def test_target_prior_and_costs():
    q, c = np.array([0.1, 0.1, 0.2, 0.3, 0.3]), np.array([1.0, 2.0, 1.0, 1.0, 5.0])
    model = network()
    baked = bake_logit_adjustment(
        model, PRIOR, tau=0.8, target_prior=ClassPrior.from_probs(q), costs=c
    )
    x = torch.randn(100, 20)
    wanted = outputs(model, x) - 0.8 * (LOG_PI - np.log(q) - np.log(c))
    np.testing.assert_allclose(outputs(baked, x), wanted, atol=1e-5)
    assert bake_record(baked).settings["costs"] == c.tolist()


@pytest.mark.parametrize("bias_mode", ["scale", "keep", "drop"])
@pytest.mark.parametrize("norms", [None, [1.0, 2.0, 0.5, 0.1, 4.0], PRIOR])
def test_weight_normalization(bias_mode, norms):
    model = network()
    tau, layer = 0.7, model[2]
    baked = bake_weight_normalization(
        model, tau=tau, norms=norms, bias_mode=bias_mode, layer="2" if norms is None else None
    )
    nu = {
        None: layer.weight.detach().double().norm(dim=1).numpy(),
    }.get(norms if norms is None else "given")
    if nu is None:
        nu = COUNTS / COUNTS.sum() if norms is PRIOR else np.array(norms)
    x = torch.randn(1000, 20)
    f, b = outputs(model, x), layer.bias.detach().double().numpy()
    wanted = {
        "scale": f / nu**tau,
        "keep": (f - b) / nu**tau + b,
        "drop": (f - b) / nu**tau,
    }[bias_mode]
    np.testing.assert_allclose(outputs(baked, x), wanted, atol=1e-5, rtol=1e-5)
    same_bytes(unbake(baked).state_dict(), model.state_dict())


def test_weight_normalization_without_a_bias():
    model = network(bias=False)
    baked = bake_weight_normalization(model, layer="2")
    assert baked[2].bias is None
    np.testing.assert_allclose(baked[2].weight.detach().norm(dim=1).numpy(), 1.0, rtol=1e-5)
    same_bytes(unbake(baked).state_dict(), model.state_dict())
    with pytest.raises(InputError, match="bias_mode='keep' needs `bias`"):
        bake_weight_normalization(model, layer="2", bias_mode="keep")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_round_once(dtype):
    model = network(dtype=dtype)
    baked = bake_logit_adjustment(model, PRIOR)
    wanted = torch.as_tensor(model[2].bias.detach().double().numpy() - LOG_PI).to(dtype)
    assert baked[2].bias.dtype == dtype
    assert baked[2].bias.detach().equal(wanted)
    same_bytes(unbake(baked).state_dict(), model.state_dict())


class Pretrained(nn.Sequential):
    """As transformers' models are: saved without their architecture, loaded with what fits."""

    def save_pretrained(self, folder):
        pass


def test_a_new_bias_that_loading_drops_is_told_of():
    model = Pretrained(*network(bias=False))
    message = "layer 2 had no bias and has one now.* when it is saved and loaded again, or"
    with pytest.warns(UserWarning, match=message) as caught:
        bake_logit_adjustment(model, PRIOR)
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bake_logit_adjustment(Pretrained(*network()), PRIOR)
        bake_logit_adjustment(network(bias=False), PRIOR)


def test_one_output_for_two_classes():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([90, 10]), tau=2.0)
    shift = (baked[2].bias - model[2].bias).item()
    assert shift == pytest.approx(2 * np.log(9), rel=1e-6)
    with pytest.raises(InputError, match="one weight vector for both classes"):
        bake_weight_normalization(model, layer="2")


@pytest.mark.parametrize("width", [2, 1])
def test_two_outputs_or_one_for_two_classes_are_not_guessed_between(width):
    """A layer of two may be inside a network that ends in one output; the last of two is meant."""
    prior = ClassPrior.from_counts([90, 10])
    model = nn.Sequential(nn.Linear(3, 3 - width), nn.ReLU(), nn.Linear(3 - width, width))
    if width == 1:
        message = "has 2 outputs, one per class, or 1 for both: '0', '2'; name the one"
        with pytest.raises(InputError, match=message):
            bake_logit_adjustment(model, prior)
    baked = bake_logit_adjustment(model, prior, layer="2" if width == 1 else None)
    shift = (baked[2].bias - model[2].bias).detach().numpy()
    wanted = -prior.log_probs if width == 2 else -np.diff(prior.log_probs)
    np.testing.assert_allclose(shift, wanted, rtol=1e-5)


def test_one_output_beside_two_is_no_last_layer():
    """A value or a gate takes the same features and not the two logits."""
    model = nn.ModuleDict({"head": nn.Linear(3, 2), "value": nn.Linear(3, 1)})
    baked = bake_logit_adjustment(model, ClassPrior.from_counts([90, 10]))
    assert bake_record(baked).where == "head"


def test_a_convolution_that_no_linear_layer_behind_it_can_take():
    model = nn.ModuleDict({"pixels": nn.Conv2d(8, 5, 1), "kind": nn.Linear(8, 7)})
    assert bake_record(bake_logit_adjustment(model, PRIOR)).where == "pixels"


def test_a_convolution_that_a_linear_layer_comes_behind_is_not_the_last():
    model = nn.Sequential(nn.Conv1d(1, 5, 1), nn.Flatten(), nn.Linear(20, 7))
    with pytest.raises(
        InputError, match=r"no linear layer .* 5 outputs.* it has '2' \(7 outputs\)"
    ):
        bake_logit_adjustment(model, PRIOR)
    baked = bake_logit_adjustment(model, PRIOR, layer="0")
    assert bake_record(baked).where == "0"


def test_a_convolution_as_head():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1, bias=False))
    baked = bake_logit_adjustment(model, PRIOR)
    x = torch.randn(2, 3, 9, 9)
    wanted = outputs(model, x) - LOG_PI[:, None, None]
    np.testing.assert_allclose(outputs(baked, x), wanted, atol=1e-5)
    same_bytes(unbake(baked).state_dict(), model.state_dict())


def test_a_shared_parameter_keeps_its_other_use():
    first, last = nn.Linear(5, 5), nn.Linear(5, 5)
    last.weight, last.bias = first.weight, first.bias
    model = nn.Sequential(first, nn.Tanh(), last)
    baked = bake_logit_adjustment(model, PRIOR, layer="2")
    assert baked[0].bias.equal(first.bias)
    x = torch.randn(50, 5)
    np.testing.assert_allclose(outputs(baked, x), outputs(model, x) - LOG_PI, atol=1e-5)


def test_the_state_dict_loads_into_the_plain_network_and_carries_the_record():
    model = network()
    baked = bake_logit_adjustment(model, PRIOR, tau=1.5)
    file = io.BytesIO()
    torch.save(baked.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    plain = network()
    plain.load_state_dict(state)  # strict: there is no new key
    x = torch.randn(10, 20)
    np.testing.assert_array_equal(outputs(plain, x), outputs(baked, x))
    record = bake_record(state)
    assert (record.method, record.tau, record.where) == ("logit_adjustment", 1.5, "2")
    assert record.settings["prior"] == PRIOR.probs.tolist()
    assert bake_record(model.state_dict()) is None
    assert bake_record(unbake(baked).state_dict()) is None
    assert bake_record(copy.deepcopy(baked)).tau == 1.5


def test_a_whole_module_is_deployed_without_longtail(tmp_path):
    baked = bake_logit_adjustment(network(), PRIOR)
    x = torch.ones(1, 20)
    torch.save(baked, tmp_path / "whole.pt")
    code = (
        "import sys, torch; sys.modules['longtail'] = None\n"
        f"model = torch.load({str(tmp_path / 'whole.pt')!r}, weights_only=False)\n"
        "model.load_state_dict(model.state_dict())\n"
        "print(model(torch.ones(1, 20)).argmax().item())"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(ran.stdout) == outputs(baked, x).argmax()
    loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert bake_record(loaded).tau == 1.0
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
    "answer",
    [lambda f: f, lambda f: {"logits": f}, lambda f: (f, 1)],
    ids=["tensor", "dict", "tuple"],
)
@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_inputs_check_the_whole_module(answer, form):
    x = form(torch.randn(30, 20))
    right, wrong = Tempered(1.0, answer), Tempered(2.0, answer)
    baked = bake_logit_adjustment(right, PRIOR, inputs=x)
    modes = [(part.training, part.drop.training, part.body.training) for part in (right, baked)]
    assert modes == [(True, True, False)] * 2
    bake_logit_adjustment(wrong, PRIOR)  # the layer itself is right
    message = "after baking, the model does not give the adjusted logits"
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(wrong, PRIOR, inputs=x)
    with pytest.raises(InputError, match="on `inputs` the model must give logits of shape"):
        bake_logit_adjustment(Tempered(1.0, lambda f: f[0]), PRIOR, inputs=x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("end", [nn.Softmax, nn.LogSoftmax])
def test_inputs_check_a_module_that_ends_in_a_softmax(end, dtype):
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = network(dtype=dtype)
    with torch.no_grad():
        plain[2].weight *= 20  # probabilities of 0 among them
    model = nn.Sequential(plain, end(-1))
    baked = bake_logit_adjustment(model, PRIOR, inputs=x)
    wanted = torch.softmax(torch.as_tensor(outputs(plain, x) - LOG_PI), -1)
    got = torch.as_tensor(outputs(baked, x))
    got = got.exp() if end is nn.LogSoftmax else got
    torch.testing.assert_close(got, wanted, atol=0.05 if dtype.itemsize == 2 else 1e-5, rtol=0.0)
    refused = "the model does not give the adjusted logits"
    with pytest.raises(InputError, match=refused):
        bake_logit_adjustment(Tempered(2.0, end(-1)).to(dtype), PRIOR, inputs=x)
    if dtype.itemsize > 2:
        with pytest.raises(InputError, match=refused):
            bake_logit_adjustment(nn.Sequential(plain, end(0)), PRIOR, inputs=x)
        with pytest.raises(InputError, match=refused):
            bake_weight_normalization(model, norms=PRIOR, inputs=x)


def test_inputs_check_pixels_behind_a_softmax():
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Softmax(1))
    bake_logit_adjustment(model, PRIOR, inputs=torch.randn(2, 3, 4, 6))


def test_inputs_of_tokens_and_of_pixels():
    tokens = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 5))
    bake_logit_adjustment(tokens, PRIOR, inputs=torch.zeros(2, 3, dtype=torch.long))
    pixels = nn.Conv2d(3, 5, 1)
    bake_logit_adjustment(pixels, PRIOR, inputs=torch.randn(2, 3, 5, 4))


def test_a_baked_module_still_exports():
    baked = bake_logit_adjustment(network(), PRIOR)
    x = torch.randn(4, 20)
    wanted = outputs(baked, x)
    exported = torch.export.export(baked, (x,)).module()
    np.testing.assert_allclose(outputs(exported, x), wanted, atol=1e-6)


def test_refuses_to_bake_twice():
    baked = bake_logit_adjustment(network(), PRIOR)
    message = (
        r"bake_logit_adjustment: the model is baked already: logit adjustment with tau = 1, "
        r"added to the bias of layer 2; .* unbake \(on the command line: --undo\)"
    )
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(baked, PRIOR)
    with pytest.raises(InputError, match="is baked already"):
        bake_weight_normalization(baked, layer="2")


WRAPPED = {
    "DataParallel": nn.DataParallel,
    "a softmax behind": lambda model: nn.Sequential(model, nn.Softmax(-1)),
    "AveragedModel": torch.optim.swa_utils.AveragedModel,
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_undoing_what_was_put_into_another_module_or_taken_out(wrap):
    plain, baked = network(), bake_logit_adjustment(network(), PRIOR)
    back = unbake(wrap(baked))
    same_bytes(dict(back.named_parameters()), dict(wrap(plain).named_parameters()))
    assert bake_record(back) is None
    taken_out = next(
        part
        for part in bake_logit_adjustment(wrap(plain), PRIOR).children()
        if list(part.children())
    )
    same_bytes(unbake(taken_out).state_dict(), plain.state_dict())
    head = bake_logit_adjustment(plain[2], PRIOR)
    same_bytes(unbake(nn.Sequential(*plain[:2], head)).state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    "bake",
    [bake_logit_adjustment, lambda model, prior: bake_weight_normalization(model, norms=prior)],
)
def test_a_baked_module_that_loads_its_old_weights_is_not_baked(bake):
    plain, reused = network(), bake(network(), PRIOR)
    reused.load_state_dict(plain.state_dict())
    assert bake_record(reused) is None
    assert bake_record(reused.state_dict()) is None
    with pytest.raises(InputError, match="the model is not baked"):
        unbake(reused)
    again = bake(reused, PRIOR)
    same_bytes(again.state_dict(), bake(plain, PRIOR).state_dict())
    assert len(again[2]._state_dict_hooks) == 1
    same_bytes(unbake(again).state_dict(), plain.state_dict())
    nothing = bake_logit_adjustment(plain, PRIOR, tau=0.0)  # the same weights, and yet baked
    assert bake_record(nothing).tau == 0


def test_other_weights_in_a_baked_module_say_the_way_out():
    reused = bake_logit_adjustment(network(), PRIOR)
    reused.load_state_dict({key: 2 * value for key, value in network().state_dict().items()})
    assert bake_record(reused).tau == 1  # trained on from there, it may be
    with pytest.raises(
        InputError, match=r"if other weights.* load them into a network built anew\.$"
    ):
        unbake(reused)


def test_refuses_to_undo_what_is_not_there_or_changed():
    with pytest.raises(InputError, match="unbake: the model is not baked"):
        unbake(network())
    baked = bake_logit_adjustment(network(), PRIOR)
    with torch.no_grad():
        baked[2].bias += 1e-3
    with pytest.raises(InputError, match="the bias of 2 is not what was baked: it was changed"):
        unbake(baked)


def filled(value):
    model = network()
    nn.init.constant_(model[2].weight, value)
    return model


def uncopyable():
    model = network()
    model.kept = model[2].weight * 2
    return model


def parametrized_bias():
    return nn.utils.parametrize.register_parametrization(nn.Linear(5, 5), "bias", nn.Identity())


def quantized():
    return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (network, {"prior": ClassPrior.from_counts([9, 1, 1])}, "no linear layer of the model has "
         r"3 outputs, one per class; it has '2' \(5 outputs\), '0' \(32 outputs\)"),
        (network, {"layer": "fc"}, "has no linear layer 'fc'; it has '2'"),
        (network, {"layer": "0"}, "`prior` has 5 classes but the model has 32 outputs"),
        (lambda: nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)), {},
         "more than one linear layer of the model has 5 outputs, one per class: '0', '1'; name"),
        (lambda: nn.Sequential(nn.ReLU()), {}, "the model has no linear layer"),
        (lambda: nn.Linear(5, 5, device="meta"), {}, "the weights of the layer are not there yet"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), {}, "is parametrized"),
        (lambda: nn.utils.spectral_norm(nn.Linear(5, 5)), {}, "is parametrized"),
        (lambda: parametrized_bias(), {}, "is parametrized or pruned"),
        (lambda: prune.identity(nn.Linear(5, 5), "bias"), {}, "or pruned.* prune.r"),
        (network, {"inputs": torch.ones(2, 5)}, "can't be run on the given `inputs` .RuntimeError: "
         "mat1 and mat2 shapes cannot be multiplied .*; pass what it is called with: a tensor,"),
        (network, {"inputs": np.ones((2, 20))}, "can't be run on the given `inputs` .TypeError: "),
        (lambda: torch.jit.trace(network(), torch.ones(1, 20)), {}, "TorchScript .* script or"),
        (lambda: nn.Linear(5, 4), {}, r"it has one layer \(4 outputs\)"),
        (lambda: filled(float("nan")), {}, "gives NaN before anything is baked"),
        (lambda: uncopyable(), {}, r"the model can't be copied \(Only Tensors created"),
        (network, {"output": "y"}, "`output` is for ONNX models"),
        (network, {"out": "x.onnx"}, "`out` is for files"),
        (network, {"prior": [9, 1]}, "`prior` must be a ClassPrior; got list"),
        (network, {"tau": "much"}, "`tau` must be a number"),
        (lambda: object(), {}, "`model` must be a torch module, an ONNX model, .* got object"),
        (lambda: network(dtype=torch.float16), {"tau": 1e5}, "would not be finite in F16"),
    ],
)  # fmt: skip
def test_bad_input(model, settings, message):
    with pytest.raises(InputError, match=message):
        bake_logit_adjustment(model(), **{"prior": PRIOR, **settings})


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_module_is_refused():
    with pytest.raises(InputError, match=r"is a quantized layer .* before you quantize it"):
        bake_logit_adjustment(quantized(), PRIOR)


def test_without_a_width_the_layer_must_be_named():
    with pytest.raises(InputError, match="more than one linear layer of the model can be meant"):
        bake_weight_normalization(network())
