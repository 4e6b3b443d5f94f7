"""Loss of distillation: the distance of a network's predictions from its teachers'."""

from __future__ import annotations

from torch import Tensor

from longtail import _checks


def distillation_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    log_prior: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return T² times the Kullback-Leibler divergence from the teachers' predictions (Hinton 2015).

        T² · Σ_y p_y log(p_y / q_y),   p = softmax(z_teacher / T),   q = softmax(z / T)

    With T² the gradient keeps its size whatever T is. With `log_prior` both z have log π added
    first: the two are then compared as predictions for the long-tailed training data, in which
    rare classes weigh little, rather than for balanced data.

    Args:
        logits: z, shape (..., num_classes). Classes that are masked by -inf count for nothing where
            the teachers rule them out too; where they don't, the divergence is infinite.
        teacher_logits: of the same examples, of a shape that broadcasts to that of `logits`;
            of several teachers their mean. No gradient flows into it.
        temperature: T, above 0; the higher, the more the improbable classes count. Or a tensor
            of a shape that broadcasts to that of `logits` with a last axis of 1.
        log_prior: log π, finite, of a shape that broadcasts to that of `logits`.
        reduction: ``mean`` over all examples, or ``none``.

    Returns:
        A scalar, or the shape of `logits` without its last axis.

    Examples:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> distillation_loss(logits, logits)
        tensor(0.)
        >>> distillation_loss(logits, torch.tensor([[0.0, 0.0]]), temperature=2.0)
        tensor(0.4805)
    """
    _checks.choice(reduction, ("mean", "none"), name="reduction")
    if not isinstance(temperature, Tensor):  # one on a device is not looked at
        temperature = _checks.positive(temperature, name="temperature")
    student, teacher = (z.float() if z.dtype.itemsize < 4 else z for z in (logits, teacher_logits))
    teacher = teacher.detach()
    if log_prior is not None:
        student, teacher = student + log_prior, teacher + log_prior
    log_q, log_p = ((z / temperature).log_softmax(-1) for z in (student, teacher))
    p = log_p.exp()
    # 0 log 0 = 0, so that classes may be masked; torch's kl_div would make it NaN.
    terms = (p * (log_p - log_q)).masked_fill(p == 0, 0.0)
    squared = temperature**2
    if isinstance(squared, Tensor) and squared.ndim:
        squared = squared.squeeze(-1)
    divergence = squared * terms.sum(-1)
    return divergence.mean() if reduction == "mean" else divergence
