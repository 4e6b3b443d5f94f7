"""What the losses compute: against oracles, against torch, their special cases, bad input.

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
from loss_contract import CONTRACTS, MODULES, NUM_CLASSES
from oracles import float32_bound, pairwise_loss, smoothed, soft_loss
from test_margins import DELTA, PI, PRIOR

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


def assert_within(got, expected, bound, terms=None):
    """|got − expected| ≤ bound · terms, elementwise; below float32's normal range anything goes."""
    got, expected = got.double().numpy(), np.asarray(expected)
    terms = np.abs(expected) if terms is None else terms
    assert np.isfinite(got).all()
    tiny = np.finfo(np.float32).tiny
    excess = np.abs(got - expected) / (bound * terms + tiny)
    assert excess.max() <= 1.0, f"{excess.max():.2f} times the bound"


def test_every_named_margin_has_a_function_and_a_module():
    assert list(MODULES) == list(margins.MARGINS)
    for name, module in MODULES.items():
        function = f"{name.replace('-', '_')}_loss"
        assert function in losses.__all__
        assert module.__name__.lower() == function.replace("_", "")
        assert module.__name__ in losses.__all__


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
@pytest.mark.parametrize("form", ["function", "module"])
@contracts
def test_class_index_loss_and_gradient_match_the_oracle(contract, form, which):
    logits = logits_for(contract, which)
    loss = contract.function if form == "function" else contract.module(reduction="none")
    options = {"reduction": "none"} if form == "function" else {}
    value, grad = value_and_grad(loss, logits, TARGET, **options)
    for i, y in enumerate(TARGET.tolist()):
        f = logits[i].double().numpy()
        expected, slope = pairwise_loss(f, y, contract.alpha, contract.delta, contract.scale)
        bound = float32_bound(f, contract.delta, contract.scale)
        assert_within(value[i], expected, bound)
        assert_within(grad[i], slope, bound)


@pytest.mark.parametrize("which", LOGITS)
@pytest.mark.parametrize("kind", ["smoothed", "slightly smoothed", "probabilities", "one-hot"])
@contracts
def test_soft_target_loss_and_gradient_match_the_oracle(contract, kind, which):
    logits, epsilon = logits_for(contract, which), 0.0
    if "smoothed" in kind:
        target, epsilon = TARGET, 0.1 if kind == "smoothed" else 1e-6
    else:
        target = probabilities(6, NUM_CLASSES) if kind == "probabilities" else F.one_hot(TARGET, 4)
        target = target.float()
    value, grad = value_and_grad(
        contract.function, logits, target, label_smoothing=epsilon, reduction="none"
    )
    for i in range(len(logits)):
        f = logits[i].double().numpy()
        q = smoothed(target[i].numpy(), NUM_CLASSES, epsilon)
        expected, slope, terms = soft_loss(f, q, contract.alpha, contract.delta, contract.scale)
        bound = float32_bound(f, contract.delta, contract.scale)
        assert_within(value[i], expected, bound)
        assert_within(grad[i], slope, bound, terms)


@pytest.mark.parametrize("target_kind", ["index", "soft"])
def test_a_thousand_classes_stay_within_the_bound(target_kind):
    counts = np.maximum(1, 5000 * 0.99 ** np.arange(1000)).astype(int)
    prior = ClassPrior.from_counts(counts)
    margin = margins.logit_adjusted_adaptive(prior, tau=1.3) + margins.balanced(prior)
    logits = randn(5, 1000, scale=5.0, dtype=torch.float32)
    logits[1, 7] += 80
    target = torch.tensor([0, 7, 999, 500, 7])
    if target_kind == "soft":
        target = (probabilities(5, 1000) * 0.5 + F.one_hot(target, 1000) * 0.5).float()
    value, grad = value_and_grad(
        losses.pairwise_margin_loss, logits, target, margin, reduction="none"
    )
    delta = margin.matrix()
    for i in range(2 if target_kind == "soft" else 5):  # the oracle is O(C²) in Python
        f = logits[i].double().numpy()
        if target_kind == "soft":
            few = np.argsort(-target[i].numpy())[:3]  # a few classes carry the whole target
            q = np.zeros(1000)
            q[few] = target[i].numpy()[few]
            one, slope = value_and_grad(
                losses.pairwise_margin_loss, logits[i], torch.tensor(q).float(), margin
            )
            expected, expected_slope, terms = 0.0, np.zeros(1000), np.zeros(1000)
            for y in few:
                v, g = pairwise_loss(f, y, margin.alpha, delta)
                expected, expected_slope = expected + q[y] * v, expected_slope + q[y] * g
                terms += np.abs(q[y] * g)
            assert_within(one, expected, float32_bound(f, delta))
            assert_within(slope, expected_slope, float32_bound(f, delta), terms)
        else:
            expected, expected_slope = pairwise_loss(f, int(target[i]), margin.alpha, delta)
            assert_within(value[i], expected, float32_bound(f, delta))
            assert_within(grad[i], expected_slope, float32_bound(f, delta))


def test_the_target_leading_by_80_is_where_the_usual_form_returns_zero():
    logits = torch.tensor([[80.0, 0.0, -1.0]], requires_grad=True)
    target = torch.tensor([0])
    assert F.cross_entropy(logits, target) == 0.0  # lse − x_y has lost every digit
    loss = losses.softmax_loss(logits, target)
    assert loss.item() == pytest.approx(np.log1p(np.exp(-80) + np.exp(-81)), rel=1e-5)
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad[0, 0].item() == pytest.approx(-(np.exp(-80) + np.exp(-81)), rel=1e-5)


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
            expected, slope, terms = soft_loss(logits[i].numpy(), q, alpha, delta, scale)
            np.testing.assert_allclose(value[i], expected, rtol=1e-11, atol=1e-300)
            assert (np.abs(grad[i].numpy() - slope) <= 1e-11 * terms + 1e-300).all()


# --- against torch.nn.functional.cross_entropy ----------------------------------------------------

SHAPES = [(NUM_CLASSES,), (5, NUM_CLASSES), (5, NUM_CLASSES, 3), (2, NUM_CLASSES, 2, 3)]


def targets_like(shape, kind):
    dim = min(len(shape) - 1, 1)
    if kind == "probabilities":
        return probabilities(*shape, dim=dim)
    outer = shape[:dim] + shape[dim + 1 :]
    target = torch.randint(
        NUM_CLASSES, outer, generator=torch.Generator().manual_seed(4), dtype=torch.int64
    )
    if kind == "with ignored" and outer:
        target.view(-1)[::2] = -100
    return target


@pytest.mark.parametrize("form", ["function", "module", "dense"])
@pytest.mark.parametrize("kind", ["index", "with ignored", "probabilities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_zero_margin_is_cross_entropy_in_every_combination_of_options(shape, kind, form):
    logits, target = randn(*shape), targets_like(shape, kind)
    weight = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
    ignores = [-100] if kind == "probabilities" else [-100, 1, -7]
    zero = Margin.from_matrix(np.zeros((NUM_CLASSES, NUM_CLASSES)))
    for w, ignore, epsilon, reduction in itertools.product(
        [None, weight], ignores, [0.0, 0.1, 1.0], ["mean", "sum", "none"]
    ):
        if kind == "with ignored" and ignore != -100:
            continue
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


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_a_target_all_ignored_does_what_torch_does(reduction, epsilon):
    logits, target = randn(3, NUM_CLASSES), torch.full((3,), -100)
    options = {"reduction": reduction, "label_smoothing": epsilon}
    ours = losses.logit_adjusted_loss(logits, target, PRIOR, **options)
    torch.testing.assert_close(
        ours, F.cross_entropy(logits, target, **options), equal_nan=True, rtol=0, atol=0
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_empty_batch_does_what_torch_does(reduction):
    logits, target = torch.zeros(0, NUM_CLASSES), torch.zeros(0, dtype=torch.int64)
    ours = losses.logit_adjusted_loss(logits, target, PRIOR, reduction=reduction)
    theirs = F.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_integer_targets_of_any_width_are_class_indices():
    logits = randn(6, NUM_CLASSES)
    expected = losses.logit_adjusted_loss(logits, TARGET, PRIOR)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert losses.logit_adjusted_loss(logits, TARGET.to(dtype), PRIOR) == expected


def test_narrow_labels_never_wrap_around_to_the_ignored_one():
    """-100 in uint8 is 156, and 255 in int8 is -1."""
    logits, target = torch.zeros(2, 200), torch.tensor([156, 3], dtype=torch.uint8)
    expected = F.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses.softmax_loss(logits, target, reduction="none"), expected)
    with pytest.raises(InputError, match="but -1 occurs"):
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


# --- laws and special cases -----------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), constant=st.floats(-50, 50))
@settings(max_examples=15, deadline=None)
@contracts
def test_adding_a_constant_to_the_logits_changes_nothing(contract, seed, constant):
    logits, soft = randn(6, NUM_CLASSES, seed=seed), probabilities(6, NUM_CLASSES, seed=seed)
    for target in (TARGET, soft):
        torch.testing.assert_close(
            contract.function(logits + constant, target),
            contract.function(logits, target),
            rtol=1e-9,
            atol=1e-12,
        )


@contracts
def test_one_hot_probabilities_are_class_indices(contract):
    logits = randn(6, NUM_CLASSES)
    index = value_and_grad(contract.function, logits, TARGET)
    one_hot = value_and_grad(contract.function, logits, F.one_hot(TARGET, NUM_CLASSES).double())
    for got, expected in zip(one_hot, index, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


LOG_PI = torch.tensor(PRIOR.log_probs)
ALPHA = torch.tensor(margins.balanced(PRIOR).alpha)
SPECIAL_CASES = {
    "two-parameter, equal taus, is logit-adjusted": (
        lambda f, y: losses.two_parameter_loss(f, y, PRIOR, tau1=0.6, tau2=0.6),
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR, tau=0.6),
    ),
    "two-parameter, tau1 = 0, is equalized": (
        lambda f, y: losses.two_parameter_loss(f, y, PRIOR, tau1=0.0, tau2=0.6),
        lambda f, y: losses.equalized_loss(f, y, PRIOR, tau=0.6),
    ),
    "consistent with delta = pi is logit-adjusted": (
        lambda f, y: losses.consistent_loss(f, y, PRIOR, delta=PI),
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR),
    ),
    "consistent with delta = 1 is balanced": (
        lambda f, y: losses.consistent_loss(f, y, PRIOR, delta=np.ones(4)),
        lambda f, y: losses.balanced_loss(f, y, PRIOR),
    ),
    "logit-adjusted with tau = 0 is softmax": (
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR, tau=0.0),
        lambda f, y: losses.softmax_loss(f, y),
    ),
    "weighted logit-adjusted with tau = 1 is logit-adjusted": (
        lambda f, y: losses.weighted_logit_adjusted_loss(f, y, PRIOR, tau=1.0),
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR),
    ),
    "weighted logit-adjusted with tau = 0 is balanced": (
        lambda f, y: losses.weighted_logit_adjusted_loss(f, y, PRIOR, tau=0.0),
        lambda f, y: losses.balanced_loss(f, y, PRIOR),
    ),
    "logit-adjusted is cross-entropy on shifted logits": (
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR, tau=1.7),
        lambda f, y: F.cross_entropy(f + 1.7 * LOG_PI, y),
    ),
    "tau = -1 is the sampled-softmax correction": (
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR, tau=-1.0),
        lambda f, y: F.cross_entropy(f - LOG_PI, y),
    ),
    "logit-adjusted + adaptive with C = 0 is logit-adjusted": (
        lambda f, y: losses.logit_adjusted_adaptive_loss(f, y, PRIOR, constant=0.0),
        lambda f, y: losses.logit_adjusted_loss(f, y, PRIOR),
    ),
    "balanced is weighted cross-entropy, but for the denominator": (
        lambda f, y: losses.balanced_loss(f, y, PRIOR, reduction="sum"),
        lambda f, y: F.cross_entropy(f, y, weight=ALPHA, reduction="sum"),
    ),
    "ldam with scale 1 is adaptive with the same margins": (
        lambda f, y: losses.ldam_loss(f, y, PRIOR, max_margin=2.0, scale=1.0),
        lambda f, y: losses.adaptive_loss(f, y, PRIOR, constant=2.0 * PI.min() ** 0.25),
    ),
    "a dense margin of the form a + b is the additive one": (
        lambda f, y: losses.pairwise_margin_loss(
            f, y, Margin.from_matrix(margins.two_parameter(PRIOR, tau1=0.3).matrix())
        ),
        lambda f, y: losses.two_parameter_loss(f, y, PRIOR, tau1=0.3),
    ),
    "the threshold form with gamma = 0 is softmax": (
        lambda f, y: losses.equalized_threshold_loss(f, y, PRIOR, threshold=1.0, gamma=0.0),
        lambda f, y: losses.softmax_loss(f, y),
    ),
}


@pytest.mark.parametrize("target", [TARGET, probabilities(6, NUM_CLASSES)], ids=["index", "soft"])
@pytest.mark.parametrize("case", SPECIAL_CASES)
def test_special_cases(case, target):
    one, two = (value_and_grad(loss, randn(6, NUM_CLASSES), target) for loss in SPECIAL_CASES[case])
    for got, expected in zip(one, two, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_margins_compose_in_one_loss():
    margin = margins.logit_adjusted(PRIOR) + margins.balanced(PRIOR)
    logits = randn(6, NUM_CLASSES)
    each = losses.logit_adjusted_loss(logits, TARGET, PRIOR, reduction="none")
    torch.testing.assert_close(
        losses.pairwise_margin_loss(logits, TARGET, margin, reduction="none"), ALPHA[TARGET] * each
    )


# --- many classes, half precision -----------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_additive_margins_never_build_a_class_by_class_matrix(epsilon):
    classes = 200_000  # its square would be 160 GB
    prior = ClassPrior.from_counts(np.arange(1, classes + 1))
    logits = torch.zeros(2, classes, requires_grad=True)
    loss = losses.logit_adjusted_loss(
        logits, torch.tensor([0, classes - 1]), prior, label_smoothing=epsilon, reduction="sum"
    )
    loss.backward()
    log_pi = prior.log_probs
    hard = -log_pi[0] - log_pi[-1]
    expected = (1 - epsilon) * hard + epsilon * 2 * -log_pi.mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert logits.grad.sum().abs() < 1e-4


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_result_type_is_that_of_cross_entropy(dtype, autocast):
    logits = randn(6, NUM_CLASSES, dtype=dtype)
    module = losses.LogitAdjustedLoss(PRIOR)
    for target in (TARGET, probabilities(6, NUM_CLASSES).to(dtype)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            expected = F.cross_entropy(logits, target).dtype
            assert module(logits, target).dtype == expected
            assert losses.logit_adjusted_loss(logits, target, PRIOR).dtype == expected


def test_autocast_works_from_model_to_gradient():
    model = torch.nn.Linear(5, NUM_CLASSES)
    inputs = randn(6, 5, dtype=torch.float32)
    loss = losses.LogitAdjustedLoss(PRIOR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs)
        value = loss(logits, TARGET)
    value.backward()
    assert logits.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    exact = losses.logit_adjusted_loss(logits.detach().double(), TARGET, PRIOR)
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)
    assert torch.isfinite(model.weight.grad).all()


# --- the stochastic threshold form ----------------------------------------------------------------


def drawn(seed, shape, threshold, gamma):
    """Which competitors a generator with this seed keeps."""
    chance = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    rare = torch.tensor(threshold > PI).reshape(-1, *[1] * (len(shape) - 2))
    return ~(rare & (chance < gamma))


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@pytest.mark.parametrize("form", ["function", "module"])
def test_threshold_form_drops_rare_competitors_and_never_the_target(form, kind):
    shape, setting = (6, NUM_CLASSES), {"threshold": 0.1, "gamma": 0.6}
    logits = randn(*shape)
    target = probabilities(*shape) if kind == "soft" else TARGET
    options = {"label_smoothing": 0.1 if kind == "smoothed" else 0.0, "reduction": "none"}
    dropped_a_target = False
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        if form == "function":
            value, grad = value_and_grad(
                losses.equalized_threshold_loss,
                logits,
                target,
                PRIOR,
                **setting,
                generator=generator,
                **options,
            )
        else:
            module = losses.EqualizedThresholdLoss(PRIOR, **setting, generator=generator, **options)
            value, grad = value_and_grad(module, logits, target)
        kept = drawn(seed, shape, **setting).numpy()
        for i in range(len(logits)):
            q = smoothed(target[i].numpy(), NUM_CLASSES, options["label_smoothing"])
            dropped_a_target |= bool((q > 0)[~kept[i]].any())
            expected, slope, _ = soft_loss(
                logits[i].numpy(), q, np.ones(4), np.zeros((4, 4)), kept=kept[i]
            )
            assert value[i].item() == pytest.approx(expected, rel=1e-10)
            np.testing.assert_allclose(grad[i], slope, rtol=1e-9, atol=1e-12)
    assert dropped_a_target, "the draws never tested that a target stays"


def test_threshold_form_drops_with_the_given_probability():
    logits = torch.zeros(20_000, NUM_CLASSES)
    target = torch.zeros(20_000, dtype=torch.int64)
    loss = losses.equalized_threshold_loss(
        logits,
        target,
        PRIOR,
        threshold=0.05,  # classes 2 and 3
        gamma=0.7,
        generator=torch.Generator().manual_seed(0),
        reduction="none",
    )
    competitors = loss.exp().round().long() - 1
    shares = torch.bincount(competitors, minlength=4) / len(logits)
    # Class 1 always competes; each of two rare ones with probability 0.3.
    expected = torch.tensor([0.0, 0.49, 0.42, 0.09])
    assert shares[0] == 0
    assert (shares - expected).abs().max() < 0.015  # four standard errors


@pytest.mark.parametrize("kind", ["index", "soft", "smoothed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_with_no_competitor_left_loss_and_gradient_are_zero(kind, dtype):
    logits = randn(6, NUM_CLASSES, dtype=dtype)
    target = probabilities(6, NUM_CLASSES).to(dtype) if kind == "soft" else TARGET
    value, grad = value_and_grad(
        losses.equalized_threshold_loss,
        logits,
        target,
        PRIOR,
        threshold=1.0,
        gamma=1.0,
        label_smoothing=0.1 if kind == "smoothed" else 0.0,
    )
    assert value == 0.0
    assert (grad == 0.0).all()


def test_threshold_form_draws_for_every_position_of_an_image():
    logits = torch.zeros(2, NUM_CLASSES, 8, 8)
    target = torch.zeros(2, 8, 8, dtype=torch.int64)
    loss = losses.equalized_threshold_loss(
        logits,
        target,
        PRIOR,
        threshold=0.05,
        gamma=0.5,
        generator=torch.Generator().manual_seed(3),
        reduction="none",
    )
    kept = drawn(3, logits.shape, 0.05, 0.5)
    torch.testing.assert_close(loss, kept.sum(1).float().log())
    assert len(loss.unique()) == 3


def test_one_class_has_no_competitor():
    logits = torch.zeros(3, 1, requires_grad=True)
    loss = losses.softmax_loss(logits, torch.zeros(3, dtype=torch.int64), label_smoothing=0.1)
    loss.backward()
    assert loss == 0.0
    assert (logits.grad == 0.0).all()


# --- bad input ------------------------------------------------------------------------------------

OK = torch.zeros(2, NUM_CLASSES)
Y = torch.tensor([0, 1])
BAD_INPUT = {
    "narrow prior": (
        lambda: losses.logit_adjusted_loss(torch.zeros(32, 5), torch.zeros(32).long(), PRIOR),
        r"logit_adjusted_loss: `prior` has 4 classes but the logits have 5 columns, shape "
        r"\(32, 5\); pass num_classes=5 to ClassPrior.from_labels if a class has no examples.",
    ),
    "narrow margin": (
        lambda: losses.pairwise_margin_loss(OK[:, :3], Y, margins.softmax(PRIOR)),
        r"pairwise_margin_loss: the margin has 4 classes but the logits have 3 columns, shape "
        r"\(2, 3\)",
    ),
    "narrow module": (
        lambda: losses.LogitAdjustedLoss(PRIOR)(torch.zeros(2, 5), Y),
        r"LogitAdjustedLoss: the margin has 4 classes but the logits have 5 columns",
    ),
    "tokens with the classes last": (
        lambda: losses.LogitAdjustedLoss(PRIOR)(torch.zeros(2, 9, 4), torch.zeros(2, 9).long()),
        r"4 classes but the logits have 9 columns, shape \(2, 9, 4\); the classes must be the "
        r"second axis: moveaxis\(logits, -1, 1\).",
    ),
    "softmax with a narrow prior": (
        lambda: losses.softmax_loss(torch.zeros(2, 5), Y, PRIOR),
        r"softmax_loss: `prior` has 4 classes but the logits have 5 columns",
    ),
    "prior is counts": (
        lambda: losses.balanced_loss(OK, Y, [9, 1]),
        r"balanced_loss: `prior` must be a ClassPrior; got list",
    ),
    "module's prior is counts": (
        lambda: losses.LDAMLoss(np.array([9, 1])),
        r"LDAMLoss: `prior` must be a ClassPrior; got ndarray",
    ),
    "margin is a prior": (
        lambda: losses.pairwise_margin_loss(OK, Y, PRIOR),
        r"pairwise_margin_loss: `margin` must be a Margin; got ClassPrior.*margins\.",
    ),
    "module's margin is a prior": (
        lambda: losses.PairwiseMarginLoss(PRIOR),
        r"PairwiseMarginLoss: `margin` must be a Margin; got ClassPrior",
    ),
    "float labels": (
        lambda: losses.logit_adjusted_loss(OK, Y.float(), PRIOR),
        r"logit_adjusted_loss: `target` must be integer class labels; their dtype is "
        r"torch.float32; cast them with .long\(\)",
    ),
    "boolean labels": (
        lambda: losses.logit_adjusted_loss(OK, Y.bool(), PRIOR),
        r"must be integer class labels; their dtype is torch.bool",
    ),
    "label too large": (
        lambda: losses.logit_adjusted_loss(OK, torch.tensor([0, 4]), PRIOR),
        r"logit_adjusted_loss: `target` must lie in 0 .. 3, but 4 occurs; labels to leave out "
        r"must equal ignore_index=-100",
    ),
    "negative label": (
        lambda: losses.LogitAdjustedLoss(PRIOR, label_smoothing=0.1)(OK, torch.tensor([-1, 0])),
        r"LogitAdjustedLoss: `target` must lie in 0 .. 3, but -1 occurs",
    ),
    "label too large for a dense margin": (
        lambda: losses.pairwise_margin_loss(
            OK, torch.tensor([0, 4]), Margin.from_matrix(np.zeros((4, 4)))
        ),
        r"pairwise_margin_loss: `target` must lie in 0 .. 3, but 4 occurs",
    ),
    "-100 without ignoring it": (
        lambda: losses.softmax_loss(OK, torch.tensor([0, -100]), ignore_index=0),
        r"softmax_loss: `target` must lie in 0 .. 3, but -100 occurs.*ignore_index=0",
    ),
    "unknown reduction": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, reduction="avg"),
        r"logit_adjusted_loss: `reduction` must be one of 'none', 'mean', 'sum'; got 'avg'",
    ),
    "module's unknown reduction, when made": (
        lambda: losses.LogitAdjustedLoss(PRIOR, reduction="avg"),
        r"LogitAdjustedLoss: `reduction` must be one of 'none', 'mean', 'sum'; got 'avg'",
    ),
    "unknown impl": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, impl="cuda"),
        r"logit_adjusted_loss: `impl` must be one of 'auto', 'torch', 'triton'; got 'cuda'",
    ),
    "module's unknown impl": (
        lambda: losses.LogitAdjustedLoss(PRIOR, impl="cuda"),
        r"LogitAdjustedLoss: `impl` must be one of 'auto', 'torch', 'triton'; got 'cuda'",
    ),
    "the kernel asked for where it can't serve": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, impl="triton"),
        r"logit_adjusted_loss: `impl` is 'triton', but .* impl='torch'",
    ),
    "label smoothing above 1": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, label_smoothing=1.5),
        r"logit_adjusted_loss: `label_smoothing` must lie in \[0, 1\]; got 1.5",
    ),
    "negative label smoothing": (
        lambda: losses.LogitAdjustedLoss(PRIOR, label_smoothing=-0.1),
        r"LogitAdjustedLoss: `label_smoothing` must lie in \[0, 1\]; got -0.1",
    ),
    "probabilities of another shape": (
        lambda: losses.logit_adjusted_loss(OK, torch.ones(2, 3) / 3, PRIOR),
        r"logit_adjusted_loss: `target` must have shape \(2,\) \(class indices\) or \(2, 4\) "
        r"\(class probabilities\) for logits of shape \(2, 4\); its shape is \(2, 3\)",
    ),
    "too few labels": (
        lambda: losses.logit_adjusted_loss(OK, Y[:1], PRIOR),
        r"`target` must have shape \(2,\).*its shape is \(1,\)",
    ),
    "integer one-hot": (
        lambda: losses.logit_adjusted_loss(OK, F.one_hot(Y, 4), PRIOR),
        r"`target` has the shape of the logits, \(2, 4\), so it must hold class probabilities, "
        r"but its dtype is torch.int64; pass target.to\(logits.dtype\)",
    ),
    "probabilities with an index to ignore": (
        lambda: losses.logit_adjusted_loss(OK, torch.ones(2, 4) / 4, PRIOR, ignore_index=1),
        r"`ignore_index` is 1, but `target` holds class probabilities",
    ),
    "logits in the place of probabilities": (
        lambda: losses.logit_adjusted_loss(OK, OK + Y[:, None] * 3.0, PRIOR),
        r"logit_adjusted_loss: `target` has the shape of the logits, so it must hold class "
        r"probabilities, which lie in \[0, 1\], but they go from 0 to 3; pass target.softmax\(1\) "
        r"if these are logits, or class indices of shape \(2,\)",
    ),
    "a negative probability": (
        lambda: losses.BalancedLoss(PRIOR)(OK[0], torch.tensor([0.6, 0.6, -0.1, -0.1])),
        r"BalancedLoss: .* they go from -0.1 to 0.6; pass target.softmax\(0\)",
    ),
    "a probability that is not a number": (
        lambda: losses.softmax_loss(OK, torch.tensor([[0.5, float("nan"), 0.5, 0.0]] * 2)),
        r"softmax_loss: .* lie in \[0, 1\], but NaN occurs",
    ),
    "probabilities out of range, smoothed, of a dense margin": (
        lambda: losses.pairwise_margin_loss(
            OK, OK - 1, Margin.from_matrix(np.zeros((4, 4))), label_smoothing=0.9
        ),
        r"pairwise_margin_loss: .* they go from -1 to -1",
    ),
    "integer logits": (
        lambda: losses.logit_adjusted_loss(OK.long(), Y, PRIOR),
        r"logit_adjusted_loss: `logits` must be floating point; their dtype is torch.int64",
    ),
    "scalar logits": (
        lambda: losses.softmax_loss(torch.tensor(1.0), torch.tensor(0)),
        r"softmax_loss: `logits` must have shape \(N, C\), \(C,\) or .*; got a scalar",
    ),
    "NumPy logits": (
        lambda: losses.logit_adjusted_loss(np.zeros((2, 4)), Y, PRIOR),
        r"logit_adjusted_loss: `logits` must be a torch tensor; got ndarray",
    ),
    "list of labels": (
        lambda: losses.logit_adjusted_loss(OK, [0, 1], PRIOR),
        r"logit_adjusted_loss: `target` must be a torch tensor; got list",
    ),
    "weight of another length": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, weight=torch.ones(3)),
        r"`weight` must be a torch tensor with one value per class, shape \(4,\); "
        r"got shape \(3,\)",
    ),
    "module's weight is a list": (
        lambda: losses.LogitAdjustedLoss(PRIOR, weight=[1.0] * 4),
        r"LogitAdjustedLoss: `weight` must be a torch tensor.*got list",
    ),
    "tau not finite": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, tau=float("nan")),
        r"`tau` must be finite; got nan",
    ),
    "delta of another length": (
        lambda: losses.consistent_loss(OK, Y, PRIOR, delta=DELTA[:3]),
        r"`delta` must have one value per class, 4; it has 3",
    ),
    "threshold as a count": (
        lambda: losses.equalized_threshold_loss(OK, Y, PRIOR, threshold=20),
        r"equalized_threshold_loss: `threshold` must lie in \[0, 1\]; got 20",
    ),
    "gamma above 1": (
        lambda: losses.EqualizedThresholdLoss(PRIOR, threshold=0.1, gamma=2),
        r"EqualizedThresholdLoss: `gamma` must lie in \[0, 1\]; got 2",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_probabilities_may_be_rounded_and_their_sums_are_free(dtype):
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0]]).to(dtype)
    q[0, 0] += torch.finfo(dtype).eps
    logits = torch.zeros(3, NUM_CLASSES, dtype=dtype)
    ours = losses.softmax_loss(logits, q, reduction="none")
    torch.testing.assert_close(ours, F.cross_entropy(logits, q, reduction="none"))


def test_the_gradient_of_hard_probabilities_can_be_checked_numerically():
    q = F.one_hot(TARGET, NUM_CLASSES).double().requires_grad_()
    logits = randn(6, NUM_CLASSES)
    assert torch.autograd.gradcheck(lambda q: losses.logit_adjusted_loss(logits, q, PRIOR), q)


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_clear_error(case):
    call, message = BAD_INPUT[case]
    with pytest.raises(InputError, match=message):
        call()


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="smoothing_label"):
        losses.logit_adjusted_loss(OK, Y, PRIOR, smoothing_label=0.1)
    with pytest.raises(TypeError, match="smoothing_label"):
        losses.LogitAdjustedLoss(PRIOR, smoothing_label=0.1)
