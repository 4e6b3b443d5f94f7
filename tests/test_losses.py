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
        bound = contract.alpha[y] * float32_bound(f, contract.delta, contract.scale)
        assert_within(value[i], expected, bound)
        assert_within(grad[i], slope, contract.scale * bound)


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
        expected, slope, _ = soft_loss(f, q, contract.alpha, contract.delta, contract.scale)
        bound = (q @ contract.alpha) * float32_bound(f, contract.delta, contract.scale)
        assert_within(value[i], expected, bound)
        assert_within(grad[i], slope, contract.scale * bound)


def test_a_thousand_classes_stay_within_the_bound():
    prior = ClassPrior.from_counts(np.maximum(1, 5000 * 0.99 ** np.arange(1000)).astype(int))
    margin = margins.logit_adjusted_adaptive(prior, tau=1.3) + margins.balanced(prior)
    logits = randn(2, 1000, scale=5.0, dtype=torch.float32)
    logits[1, 7] += 80
    target, q = torch.tensor([7, 7]), torch.zeros(2, 1000)
    q[:, [0, 7, 999]] = torch.tensor([0.2, 0.5, 0.3])  # each class is O(C²) for the oracle
    delta = margin.matrix()
    for kind in (target, q):
        value, grad = value_and_grad(
            losses.pairwise_margin_loss, logits, kind, margin, reduction="none"
        )
        for i, f in enumerate(logits.double().numpy()):
            expected, slope, size = 0.0, np.zeros(1000), 0.0
            for y, part in ((7, 1.0),) if kind is target else ((0, 0.2), (7, 0.5), (999, 0.3)):
                one, rise = pairwise_loss(f, y, margin.alpha, delta)
                expected, slope = expected + part * one, slope + part * rise
                size += part * margin.alpha[y]
            bound = size * float32_bound(f, delta)
            assert_within(value[i], expected, bound)
            assert_within(grad[i], slope, bound)


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
    weight = torch.tensor([0.5, 2.0, 0.3 if form == "dense" else 0.0, 1.5], dtype=torch.float64)
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
DENSE = Margin.from_matrix(np.zeros((4, 4)))
BAD_INPUT = {
    "narrow margin": (
        lambda: losses.pairwise_margin_loss(OK[:, :3], Y, margins.softmax(PRIOR)),
        r"the loss has 4 classes but the logits have 3 columns, shape \(2, 3\)",
    ),
    "narrow prior": (
        lambda: losses.LogitAdjustedLoss(PRIOR)(torch.zeros(32, 5), torch.zeros(32).long()),
        r"the loss has 4 classes but the logits have 5 columns, shape \(32, 5\); pass "
        r"num_classes=5 to ClassPrior.from_labels if a class has no examples.",
    ),
    "one column, which would broadcast": (
        lambda: losses.logit_adjusted_loss(torch.zeros(2, 1), Y, PRIOR),
        "the loss has 4 classes but the logits have 1 columns",
    ),
    "tokens with the classes last": (
        lambda: losses.LogitAdjustedLoss(PRIOR)(torch.zeros(2, 9, 4), torch.zeros(2, 9).long()),
        r"4 classes but the logits have 9 columns, shape \(2, 9, 4\); the classes must be the "
        r"second axis: moveaxis\(logits, -1, 1\).",
    ),
    "prior is counts": (
        lambda: losses.balanced_loss(OK, Y, [9, 1]),
        "`prior` must be a ClassPrior; got list",
    ),
    "margin is a prior": (
        lambda: losses.PairwiseMarginLoss(PRIOR),
        r"`margin` must be a Margin; got ClassPrior.*margins\.",
    ),
    "unknown reduction": (
        lambda: losses.LogitAdjustedLoss(PRIOR, reduction="avg"),
        "`reduction` must be one of 'none', 'mean', 'sum'; got 'avg'",
    ),
    "unknown impl": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, impl="cuda"),
        "`impl` must be one of 'auto', 'torch'; got 'cuda'",
    ),
    "label smoothing above 1": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, label_smoothing=1.5),
        r"`label_smoothing` must lie in \[0, 1\]; got 1.5",
    ),
    "too few labels, smoothed, with a margin that moves the target": (
        lambda: losses.adaptive_loss(OK, Y[:1], PRIOR, label_smoothing=0.1),
        r"one class index for each row .* its shape is \(1,\) and theirs \(2, 4\)",
    ),
    "weight of another length": (
        lambda: losses.logit_adjusted_loss(OK, Y, PRIOR, weight=torch.ones(3)),
        r"class weights must be a torch tensor with one value per class, shape \(4,\); "
        r"got \(3,\)",
    ),
    "weight is a list": (
        lambda: losses.LogitAdjustedLoss(PRIOR, weight=[1.0] * 4),
        "class weights must be a torch tensor.*got list",
    ),
    "threshold as a count": (
        lambda: losses.equalized_threshold_loss(OK, Y, PRIOR, threshold=20),
        r"`threshold` must lie in \[0, 1\]; got 20",
    ),
    "gamma above 1": (
        lambda: losses.EqualizedThresholdLoss(PRIOR, threshold=0.1, gamma=2),
        r"`gamma` must lie in \[0, 1\]; got 2",
    ),
    "called as Trainer calls its loss": (
        lambda: losses.LogitAdjustedLoss(PRIOR)({"logits": OK}, Y, num_items_in_batch=2),
        r"compute_loss_func=TrainerLoss\(loss\)",
    ),
    "a dictionary of outputs": (
        lambda: losses.LogitAdjustedLoss(PRIOR)({"logits": OK}, Y),
        r"Elsewhere pass outputs\['logits'\]",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_clear_error(case):
    call, message = BAD_INPUT[case]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("make", "target", "error"),
    [
        (losses.LogitAdjustedLoss, torch.tensor([0, 4]), "Target 4 is out of bounds"),
        (losses.LogitAdjustedLoss, torch.tensor([-1, 0]), "Target -1 is out of bounds"),
        (losses.AdaptiveLoss, torch.tensor([0, 4]), "out of bounds"),
        (losses.AdaptiveLoss, torch.tensor([-1, 0]), "out of bounds"),
        (lambda _: losses.PairwiseMarginLoss(DENSE), torch.tensor([0, 4]), "out of range"),
        (losses.LogitAdjustedLoss, Y.float(), "Long or Byte|scalar type Long"),
        (losses.LogitAdjustedLoss, Y.bool(), "Bool"),
        (losses.LogitAdjustedLoss, Y[:1], "batch_size"),
        (losses.LogitAdjustedLoss, F.one_hot(Y, 4), "floating point type for target"),
    ],
)
def test_bad_targets_get_torch_s_own_errors(make, target, error):
    with pytest.raises((IndexError, RuntimeError, ValueError), match=error):
        make(PRIOR)(OK, target)


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


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="smoothing_label"):
        losses.logit_adjusted_loss(OK, Y, PRIOR, smoothing_label=0.1)
    with pytest.raises(TypeError, match="smoothing_label"):
        losses.LogitAdjustedLoss(PRIOR, smoothing_label=0.1)
