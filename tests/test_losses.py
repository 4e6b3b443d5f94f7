"""Values of the losses: against oracles, against torch, their special cases, bad input.

How they live in torch (modules, compile, transforms, devices) is in `test_losses_torch`.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from longtail import ClassPrior, InputError, Margin, losses, margins
from loss_contract import CONTRACTS, NUM_CLASSES
from oracles import float32_bound, smoothed, soft_loss
from test_margins import PI, PRIOR

contracts = pytest.mark.parametrize("contract", CONTRACTS, ids=str)
TARGET = torch.tensor([0, 1, 2, 3, 3, 0])


def randn(*shape, seed=0, scale=3.0, dtype=torch.float64):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def probabilities(*shape, seed=1, dim=1):
    return randn(*shape, seed=seed, scale=1.0).softmax(dim)


def value_and_grad(loss, logits, *args, **options):
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, *args, **options)
    (grad,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), grad


def assert_within(got, expected, bound):
    """|got − expected| ≤ bound, elementwise."""
    got, expected = got.double().numpy(), np.asarray(expected)
    assert np.isfinite(got).all()
    excess = np.abs(got - expected) / bound
    assert excess.max() <= 1.0, f"{excess.max():.2f} times the bound"


# --- against the oracle: value and gradient, within what float32 allows ---------------------------

LOGITS = {
    "near": lambda: randn(6, NUM_CLASSES, seed=2, dtype=torch.float32),
    "wide": lambda: randn(6, NUM_CLASSES, seed=3, scale=25.0, dtype=torch.float32),
    "ahead by 80": lambda: randn(6, NUM_CLASSES, dtype=torch.float32) + 80 * F.one_hot(TARGET, 4),
    "behind by 80": lambda: randn(6, NUM_CLASSES, dtype=torch.float32) - 80 * F.one_hot(TARGET, 4),
    "ties": lambda: torch.zeros(6, NUM_CLASSES),
}


def logits_for(contract, which):
    """The scale of LDAM is for cosines; elsewhere it would leave float32's range."""
    return LOGITS[which]() / (contract.scale if contract.scale != 1.0 else 1.0)


@pytest.mark.parametrize("which", LOGITS)
@pytest.mark.parametrize("kind", ["index", "smoothed", "slightly smoothed", "probabilities"])
@contracts
def test_loss_and_gradient_match_the_oracle(contract, kind, which):
    logits = logits_for(contract, which)
    epsilon = {"smoothed": 0.1, "slightly smoothed": 1e-6}.get(kind, 0.0)
    target = probabilities(6, NUM_CLASSES).float() if kind == "probabilities" else TARGET
    options = {"label_smoothing": epsilon, "reduction": "none"}
    for value, grad in (
        value_and_grad(contract.function, logits, target, **options),
        value_and_grad(contract.module(**options), logits, target),
    ):
        for i, f in enumerate(logits.double().numpy()):
            q = smoothed(target[i].numpy(), NUM_CLASSES, epsilon)
            expected, slope, _ = soft_loss(f, q, contract.alpha, contract.delta, contract.scale)
            bound = (q @ contract.alpha) * float32_bound(f, contract.delta, contract.scale)
            assert_within(value[i], expected, bound)
            assert_within(grad[i], slope, contract.scale * bound)


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
def test_the_largest_class_s_margin_counts_where_its_probability_rounds_to_one(kind):
    """Adaptive at π = 1e-6: the target leads by 30 and its margin of 31.6 takes the lead away.

    1 − p is 1e-13 there, so what is computed from a rounded p misses the loss by 1.6.
    """
    prior = ClassPrior.from_probs([1e-6, 0.5 - 1e-6, 0.5])
    margin, f = margins.adaptive(prior), np.array([30.0, 0.0, 0.0])
    target = torch.tensor([1.0, 0.0, 0.0]) if kind == "soft" else torch.tensor(0)
    epsilon = 0.1 if kind == "smoothed" else 0.0
    q = smoothed(0, 3, epsilon)
    value, grad = value_and_grad(
        losses.pairwise_margin_loss,
        torch.tensor(f).float(),
        target,
        margin,
        label_smoothing=epsilon,
    )
    expected, slope, _ = soft_loss(f, q, margin.alpha, margin.matrix())
    assert expected > 1.6
    bound = float32_bound(f, margin.matrix())
    assert_within(value, expected, bound)
    assert_within(grad, slope, bound)


@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(1, 6),
    spread=st.sampled_from([0.1, 5.0, 60.0]),
    scale=st.sampled_from([1.0, 0.3, 7.0]),
    dense=st.booleans(),
    epsilon=st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=60, deadline=None)
def test_any_margin_matches_the_oracle_in_float64(seed, classes, spread, scale, dense, epsilon):
    rng = np.random.default_rng(seed)
    alpha = rng.uniform(0.1, 3.0, classes)
    a, b = rng.normal(0, 3, (2, classes))
    delta = rng.normal(0, 3, (classes, classes)) if dense else a[:, None] + b
    margin = Margin(
        alpha=alpha,
        positive=a * (not dense),
        negative=b * (not dense),
        dense=delta if dense else None,
        scale=scale,
    )
    logits = torch.tensor(rng.normal(0, spread, (3, classes)) / scale)
    index = torch.tensor(rng.integers(0, classes, 3))
    soft = torch.tensor(rng.dirichlet(np.ones(classes), 3))
    for target in (index, soft):
        value, grad = value_and_grad(
            losses.pairwise_margin_loss,
            logits,
            target,
            margin,
            label_smoothing=epsilon,
            reduction="none",
        )
        for i in range(3):
            q = smoothed(target[i].numpy(), classes, epsilon)
            expected, slope, _ = soft_loss(logits[i].numpy(), q, alpha, delta, scale)
            np.testing.assert_allclose(value[i], expected, rtol=1e-12, atol=1e-11)
            np.testing.assert_allclose(grad[i], slope, rtol=1e-12, atol=1e-11 * scale)


# --- against torch.nn.functional.cross_entropy ----------------------------------------------------

SHAPES = [(NUM_CLASSES,), (5, NUM_CLASSES), (2, NUM_CLASSES, 2, 3)]


def targets_like(shape, kind):
    dim = min(len(shape) - 1, 1)
    if kind == "probabilities":
        return probabilities(*shape, dim=dim)
    outer, draw = shape[:dim] + shape[dim + 1 :], torch.Generator().manual_seed(4)
    target = torch.randint(NUM_CLASSES, outer, generator=draw)
    if kind == "with ignored" and outer:
        target.view(-1)[::2] = -100
    return torch.full_like(target, -100) if kind == "all ignored" else target


@pytest.mark.parametrize("form", ["function", "module", "dense"])
@pytest.mark.parametrize("kind", ["index", "with ignored", "all ignored", "probabilities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_zero_margin_is_cross_entropy_in_every_combination_of_options(shape, kind, form):
    logits, target = randn(*shape), targets_like(shape, kind)
    weight = torch.tensor([0.5, 2.0, 0.3 if form == "dense" else 0.0, 1.5], dtype=torch.float64)
    zero = Margin.from_matrix(np.zeros((NUM_CLASSES, NUM_CLASSES)))
    for w, ignore, epsilon, reduction in itertools.product(
        [None, weight], [-100, 1] if kind == "index" else [-100], [0.0, 0.1, 1.0],
        ["mean", "sum", "none"],
    ):  # fmt: skip
        options = {
            "weight": w,
            "ignore_index": ignore,
            "label_smoothing": epsilon,
            "reduction": reduction,
        }
        if form == "function":
            ours = value_and_grad(losses.softmax_loss, logits, target, PRIOR, **options)
        elif form == "module":
            ours = value_and_grad(losses.SoftmaxLoss(PRIOR, **options), logits, target)
        else:
            ours = value_and_grad(losses.pairwise_margin_loss, logits, target, zero, **options)
        theirs = value_and_grad(F.cross_entropy, logits, target, **options)
        for got, expected in zip(ours, theirs, strict=True):
            assert got.shape == expected.shape, options
            torch.testing.assert_close(
                got, expected, rtol=1e-12, atol=1e-14, equal_nan=True, msg=str(options)
            )


def test_narrow_labels_never_wrap_around_to_the_ignored_one():
    """-100 in uint8 is 156, and 255 in int8 is -1."""
    logits, target = torch.zeros(2, 200), torch.tensor([156, 3], dtype=torch.uint8)
    expected = F.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses.softmax_loss(logits, target, reduction="none"), expected)
    with pytest.raises(IndexError, match="Target -1 is out of bounds"):
        losses.softmax_loss(logits, torch.tensor([-1, 3], dtype=torch.int8), ignore_index=255)
    ignored = losses.softmax_loss(logits, target, reduction="none", ignore_index=156)
    assert ignored.tolist() == [0.0, float(expected[1])]


def test_classes_ruled_out_by_minus_infinity_do_what_torch_does():
    logits = randn(3, NUM_CLASSES)
    logits[0, 1:] = -torch.inf  # the target is the only class left
    logits[1, 3] = -torch.inf
    target = torch.tensor([0, 0, 1])
    ours = value_and_grad(losses.softmax_loss, logits, target)
    theirs = value_and_grad(F.cross_entropy, logits, target)
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


@contracts
def test_reductions_and_class_weights(contract):
    logits, w = randn(6, NUM_CLASSES), torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    target = TARGET.clone()
    target[2] = -100
    each = contract.function(logits, target, reduction="none")
    assert each[2] == 0.0
    weighted = contract.function(logits, target, weight=w, reduction="none")
    counted = torch.where(target < 0, 0.0, w[target.clamp_min(0)])
    torch.testing.assert_close(weighted, each * counted)
    torch.testing.assert_close(contract.function(logits, target, reduction="sum"), each.sum())
    # α does not enter the denominator of the mean; torch's weight does.
    torch.testing.assert_close(contract.function(logits, target), each.sum() / 5)
    torch.testing.assert_close(
        contract.function(logits, target, weight=w), weighted.sum() / counted.sum()
    )


# --- many classes, half precision -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["logit_adjusted", "adaptive"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_additive_margins_never_build_a_class_by_class_matrix(epsilon, name):
    classes = 200_000  # its square would be 160 GB
    prior = ClassPrior.from_counts(np.arange(1, classes + 1))
    logits = torch.zeros(2, classes, requires_grad=True)
    target, margin = torch.tensor([0, classes - 1]), getattr(margins, name)(prior)
    loss = losses.pairwise_margin_loss(logits, target, margin, label_smoothing=epsilon)
    loss.backward()
    rivals = np.exp(margin.negative).sum() - np.exp(margin.negative)
    each = np.log1p(rivals * np.exp(margin.positive))
    expected = (1 - epsilon) * (each[0] + each[-1]) / 2 + epsilon * each.mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert logits.grad.sum().abs() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@contracts
def test_half_precision_logits_are_computed_with_in_float32(contract, kind, dtype):
    logits = randn(6, NUM_CLASSES, scale=3.0 / contract.scale).to(dtype)
    target = probabilities(6, NUM_CLASSES) if kind == "soft" else TARGET
    epsilon = 0.1 if kind == "smoothed" else 0.0
    for module in (contract.module, lambda **o: lambda f, y: contract.function(f, y, **o)):
        loss = module(label_smoothing=epsilon, reduction="none")
        value, grad = value_and_grad(loss, logits, target)
        assert value.dtype == grad.dtype == dtype
        # The exact result on the same rounded logits, rounded once.
        exact, slope = value_and_grad(
            contract.function, logits.double(), target, label_smoothing=epsilon, reduction="none"
        )
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(value.double(), exact, rtol=0.51 * eps + 1e-5, atol=1e-7)
        torch.testing.assert_close(grad.double(), slope, rtol=0.51 * eps + 1e-5, atol=1e-6)


# --- the stochastic threshold form ----------------------------------------------------------------


def threshold(logits, target, *, seed=0, **options):
    draw = torch.Generator().manual_seed(seed)
    return losses.equalized_threshold_loss(logits, target, PRIOR, generator=draw, **options)


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
def test_threshold_form_drops_rare_competitors_and_never_the_target(kind):
    logits = randn(6, NUM_CLASSES)
    target = probabilities(6, NUM_CLASSES) if kind == "soft" else TARGET
    epsilon = 0.1 if kind == "smoothed" else 0.0
    dropped_a_target = False
    for seed in range(5):
        value, grad = value_and_grad(
            threshold, logits, target, seed=seed, threshold=0.1, gamma=0.6,
            label_smoothing=epsilon, reduction="none",
        )  # fmt: skip
        chance = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed))
        kept = ~(torch.tensor(PI < 0.1) & (chance < 0.6)).numpy()
        for i in range(len(logits)):
            q = smoothed(target[i].numpy(), NUM_CLASSES, epsilon)
            dropped_a_target |= bool((q > 0)[~kept[i]].any())
            expected, slope, _ = soft_loss(
                logits[i].numpy(), q, np.ones(4), np.zeros((4, 4)), kept=kept[i]
            )
            assert value[i].item() == pytest.approx(expected, rel=1e-10)
            np.testing.assert_allclose(grad[i], slope, rtol=1e-9, atol=1e-12)
    assert dropped_a_target, "the draws never tested that a target stays"


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_with_no_competitor_left_loss_and_gradient_are_zero(kind, dtype):
    target = probabilities(6, NUM_CLASSES).to(dtype) if kind == "soft" else TARGET
    options = {"label_smoothing": 0.1 if kind == "smoothed" else 0.0, "gamma": 1.0}
    value, grad = value_and_grad(
        threshold, randn(6, NUM_CLASSES, dtype=dtype), target, threshold=1.0, **options
    )
    assert value == 0.0
    assert (grad == 0.0).all()


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "target", "options", "message"),
    [
        (torch.zeros(32, 5), torch.zeros(32).long(), {}, "num_classes=5 to ClassPrior.from_labels"),
        (torch.zeros(2, 9, 4), torch.zeros(2, 9).long(), {}, r"moveaxis\(logits, -1, 1\)"),
        (torch.zeros(6, 4), TARGET, {"label_smoothing": 1.5}, r"must lie in \[0, 1\]; got 1.5"),
    ],
)
def test_bad_input(logits, target, options, message):
    with pytest.raises(InputError, match=message):
        losses.logit_adjusted_loss(logits, target, PRIOR, **options)


def test_a_loss_called_as_trainer_calls_its_loss_names_the_wrapper():
    with pytest.raises(InputError, match=r"compute_loss_func=TrainerLoss\(loss\)"):
        losses.LogitAdjustedLoss(PRIOR)({"logits": randn(6, 4)}, TARGET, num_items_in_batch=2)
