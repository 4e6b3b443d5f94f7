"""The divergence from teachers against the equation, and its gradient."""

import numpy as np
import pytest
import torch

from longtail.train.distillation import distillation_loss

INF = float("inf")
LOG_PRIOR = torch.tensor([0.6, 0.3, 0.07, 0.03], dtype=torch.float64).log()
# The last three have masked classes: of both, of the teacher all but, of the teacher but one.
STUDENT = [[0.3, -2.0, 4.0, 1.0], [0.0, 1.0, -INF, 3.0], [1.0, 2.0, -INF, 0.0], [1.0] * 4]
TEACHER = [[2.0, 1.0, -3.0, 0.5], [0.0, 2.0, -INF, 1.0], [1.0, 0.0, -1e9, 2.0], [0.0] + [-INF] * 3]


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("adjusted", [False, True], ids=["plain", "adjusted"])
@pytest.mark.parametrize("temperature", [0.5, 2.0, torch.tensor([[0.5], [2.0], [1.0], [4.0]])])
def test_value_and_gradient_are_the_equation(temperature, adjusted):
    """0 log 0 = 0: of masked classes, of the teacher alone or of both, only the others are left."""
    z, t = (torch.tensor(value, dtype=torch.float64) for value in (STUDENT, TEACHER))
    prior = LOG_PRIOR if adjusted else torch.zeros(4)
    warm = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (4, 1))
    p, q = (softmax((value + prior).numpy() / warm) for value in (t, z))
    terms = np.zeros((4, 4))
    seen = p > 0
    terms[seen] = p[seen] * np.log(p[seen] / q[seen])
    expected = warm[:, 0] ** 2 * terms.sum(-1)
    logits = z.clone().requires_grad_()
    options = {"temperature": temperature, "log_prior": prior if adjusted else None}
    each = distillation_loss(logits, t, reduction="none", **options)
    np.testing.assert_allclose(each.detach(), expected, rtol=1e-9, atol=1e-12)
    mean = distillation_loss(logits, t, **options)
    assert float(mean.detach()) == pytest.approx(expected.mean())
    (grad,) = torch.autograd.grad(mean, logits)
    np.testing.assert_allclose(grad, warm * (q - p) / 4, rtol=1e-7, atol=1e-12)
