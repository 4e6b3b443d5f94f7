"""The divergence from teachers against the equation, and its gradient."""

import numpy as np
import pytest
import torch

from longtail.train.distillation import distillation_loss

RANDOM = torch.Generator().manual_seed(0)
STUDENT, TEACHER = (3 * torch.randn(5, 4, generator=RANDOM, dtype=torch.float64) for _ in range(2))
LOG_PRIOR = torch.tensor([0.6, 0.3, 0.07, 0.03], dtype=torch.float64).log()


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("adjusted", [False, True])
def test_value_and_gradient_are_the_equation(temperature, adjusted):
    shift = LOG_PRIOR.numpy() if adjusted else 0.0
    p, q = (softmax((z.numpy() + shift) / temperature) for z in (TEACHER, STUDENT))
    expected = temperature**2 * (p * np.log(p / q)).sum(-1)
    logits = STUDENT.clone().requires_grad_()
    options = {"temperature": temperature, "log_prior": LOG_PRIOR if adjusted else None}
    each = distillation_loss(logits, TEACHER, reduction="none", **options)
    np.testing.assert_allclose(each.detach().numpy(), expected, rtol=1e-9)
    mean = distillation_loss(logits, TEACHER, **options)
    assert float(mean.detach()) == pytest.approx(expected.mean())
    (grad,) = torch.autograd.grad(mean, logits)
    np.testing.assert_allclose(grad.numpy(), temperature * (q - p) / 5, rtol=1e-7, atol=1e-12)


INF = float("inf")


@pytest.mark.parametrize("adjusted", [False, True], ids=["plain", "adjusted"])
@pytest.mark.parametrize("temperature", [0.5, 2.0, torch.tensor([[0.5], [2.0], [1.0], [4.0]])])
def test_classes_without_probability_count_for_nothing(temperature, adjusted):
    """0 log 0 = 0: of masked classes, of the teacher alone or of both, only the others are left."""
    z = [[0.0, 1.0, -INF, 3.0], [1.0, 2.0, -INF, 0.0], [0.5, 1.0, 2.0, 3.0], [1.0] * 4]
    t = [[0.0, 2.0, -INF, 1.0], [1.0, 0.0, -1e9, 2.0], [0.0, 2.0, -INF, 1.0], [0.0] + [-INF] * 3]
    z, t = torch.tensor(z), torch.tensor(t)
    prior = LOG_PRIOR.float() if adjusted else torch.zeros(4)
    warm = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (4, 1))
    p, q = (softmax((value + prior).double().numpy() / warm) for value in (t, z))
    terms = np.zeros((4, 4))
    seen = p > 0
    terms[seen] = p[seen] * np.log(p[seen] / q[seen])
    logits = z.clone().requires_grad_()
    loss = distillation_loss(
        logits, t, temperature=temperature, log_prior=prior if adjusted else None, reduction="none"
    )
    loss.sum().backward()
    np.testing.assert_allclose(loss.detach(), warm[:, 0] ** 2 * terms.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(logits.grad, warm * (q - p), rtol=1e-5, atol=1e-6)
