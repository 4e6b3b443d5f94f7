"""Sampled softmax against the equation: each draw, their expectation, and the limit of many."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from longtail import ClassPrior, InputError, Margin, losses, margins
from longtail.losses import SampledSoftmaxLoss, sampled_softmax_loss
from loss_contract import CONTRACTS, NUM_CLASSES
from test_margins import PRIOR

WIDTH = 3
Q = ClassPrior.from_probs([0.1, 0.2, 0.3, 0.4])
TARGET = torch.tensor([0, 1, 2, 3, 3])
SAMPLED = torch.tensor([2, 0, 2, 3, 1])


def randn(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


FEATURES, WEIGHT, BIAS = (
    randn(*shape, seed=i) for i, shape in enumerate(((5, WIDTH), (NUM_CLASSES, WIDTH), (4,)))
)


def oracle(f, y, alpha, delta, q, drawn, scale=1.0):
    """α_y·log[1 + Σ_{j drawn, j≠y} exp(s·(Δ_{yj} + f_j − f_y)) / (m·q_j)] and its gradient in f."""
    pushes = np.zeros(len(f))
    for j in drawn:
        if j != y:
            pushes[j] += np.exp(scale * (delta[y][j] + f[j] - f[y])) / (len(drawn) * q[j])
    total = pushes.sum()
    grad = alpha[y] * scale * pushes / (1 + total)
    grad[y] = -alpha[y] * scale * total / (1 + total)
    return alpha[y] * np.log1p(total), grad


def value_and_grads(call, *tensors):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    value = call(*leaves)
    return value.detach(), torch.autograd.grad(value.sum(), leaves)


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_a_draw_is_what_the_equation_says(contract):
    scale = contract.scale**0.5

    def loss(features, weight, bias):
        given = {"sampled": SAMPLED, "bias": bias / scale**2, "reduction": "none"}
        margin = margins.by_name(contract.name, PRIOR, **contract.settings)
        return sampled_softmax_loss(
            features / scale, weight / scale, TARGET, Q, margin=margin, **given
        )

    value, (features, weight, bias) = value_and_grads(loss, FEATURES, WEIGHT, BIAS)
    logits = (F.linear(FEATURES, WEIGHT, BIAS) / scale**2).numpy()
    found = [
        oracle(f, y, contract.alpha, contract.delta, Q.probs, SAMPLED.tolist(), contract.scale)
        for f, y in zip(logits, TARGET.tolist(), strict=True)
    ]
    slopes = torch.tensor(np.array([g for _, g in found])) / scale**2
    torch.testing.assert_close(value, torch.tensor([v for v, _ in found]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(features, slopes @ WEIGHT, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weight, slopes.t() @ FEATURES, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(bias, slopes.sum(0), rtol=1e-9, atol=1e-12)


def test_the_expected_gradient_is_the_equation_s_over_all_draws():
    """Every draw of m = 3 from 4 classes with its probability: the exact expectation."""
    margin, delta = margins.logit_adjusted(PRIOR), margins.logit_adjusted(PRIOR).matrix()
    logits = F.linear(FEATURES, WEIGHT, BIAS).numpy()
    full = losses.pairwise_margin_loss(torch.tensor(logits), TARGET, margin, reduction="none")
    mean, wanted, unbiased = 0.0, 0.0, 0.0
    for drawn in itertools.product(range(NUM_CLASSES), repeat=3):
        chance = np.prod(Q.probs[list(drawn)])
        value, (grad,) = value_and_grads(
            lambda features, drawn=drawn: sampled_softmax_loss(
                features, WEIGHT, TARGET, Q, sampled=torch.tensor(drawn), bias=BIAS,
                margin=margin, reduction="none",
            ),
            FEATURES,
        )  # fmt: skip
        slopes = [
            oracle(f, y, np.ones(4), delta, Q.probs, drawn)[1]
            for f, y in zip(logits, TARGET.tolist(), strict=True)
        ]
        mean = mean + chance * grad
        wanted = wanted + chance * torch.tensor(np.array(slopes)) @ WEIGHT
        unbiased = unbiased + chance * value.expm1()
    torch.testing.assert_close(mean, wanted, rtol=1e-9, atol=1e-12)
    # The sum over the negatives has the full loss's as its expectation.
    torch.testing.assert_close(unbiased, full.expm1(), rtol=1e-9, atol=1e-12)


def test_classes_are_drawn_with_their_probabilities():
    prior = ClassPrior.from_probs(np.array([1, 2, 4, 8, 16, 32]) / 63)
    loss = SampledSoftmaxLoss(prior, num_sampled=20_000, generator=torch.Generator().manual_seed(1))
    drawn = loss.draw()
    counts = np.bincount(drawn.numpy(), minlength=6)
    expected = 20_000 * prior.probs
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # chi-square, 5 degrees: p = 0.001
    again = loss.draw()
    assert not torch.equal(drawn, again)


def test_options_mean_what_they_mean_to_torch():
    """Uniform q and each class once, m = C: the full loss, so torch's own is the reference."""
    q, every = ClassPrior.uniform(NUM_CLASSES), torch.arange(NUM_CLASSES)
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    logits = FEATURES @ WEIGHT.t()
    for options in ({}, {"ignore_index": 3}, {"reduction": "sum"}, {"reduction": "none"}):
        for class_weight in (None, weight):
            got = sampled_softmax_loss(
                FEATURES, WEIGHT, TARGET, q, sampled=every, class_weight=class_weight, **options
            )
            wanted = F.cross_entropy(logits, TARGET, weight=class_weight, **options)
            torch.testing.assert_close(got, wanted)
    nothing = torch.full_like(TARGET, -100)
    assert sampled_softmax_loss(FEATURES, WEIGHT, nothing, q, num_sampled=2).isnan()


def test_the_gradient_may_be_sparse():
    dense, sparse = nn.Linear(WIDTH, NUM_CLASSES), nn.Linear(WIDTH, NUM_CLASSES)
    sparse.load_state_dict(dense.state_dict())
    for layer, flag in ((dense, False), (sparse, True)):
        given = {"sampled": torch.tensor([0, 3]), "bias": layer.bias, "sparse": flag}
        features = FEATURES[:2].float()
        sampled_softmax_loss(features, layer.weight, TARGET[:2], Q, **given).backward()
    assert sparse.weight.grad.is_sparse
    assert sorted(set(sparse.weight.grad._indices().flatten().tolist())) == [0, 1, 3]
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    torch.testing.assert_close(sparse.bias.grad, dense.bias.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_module_is_the_function_with_its_own_draws(dtype):
    def seeded():
        draw = torch.Generator().manual_seed(5)
        return {"num_sampled": 7, "margin": margins.adaptive(PRIOR), "generator": draw}

    loss = SampledSoftmaxLoss(Q, class_weight=torch.ones(4), **seeded()).to(dtype)
    assert loss.log_q.dtype == loss.alpha.dtype == torch.float32
    assert loss.cumulative.dtype == torch.float64
    features, weight = FEATURES.to(dtype), WEIGHT.to(dtype)
    value = loss(features, weight, TARGET)
    assert value.dtype == dtype
    torch.testing.assert_close(value, sampled_softmax_loss(features, weight, TARGET, Q, **seeded()))
    given = {"sampled": loss.draw(), "margin": margins.adaptive(PRIOR)}
    assert given["sampled"].shape == (7,)
    torch.testing.assert_close(
        loss(features, weight, TARGET, sampled=given["sampled"]),
        sampled_softmax_loss(features, weight, TARGET, Q, **given),
    )
    assert list(loss.state_dict()) == ["class_weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampled": SAMPLED}, "pass one of `num_sampled`"),
        ({"margin": margins.softmax(ClassPrior.uniform(3))}, "`margin` has 3 classes"),
        ({"margin": Margin.from_matrix(np.zeros((4, 4)))}, "`margin` is dense"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        sampled_softmax_loss(FEATURES, WEIGHT, TARGET, Q, num_sampled=2, **options)
