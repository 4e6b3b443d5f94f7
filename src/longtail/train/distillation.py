"""How far a network's predictions are from its teachers': the loss of distillation.

Teachers and their logits come from elsewhere; here is only the divergence, for any two tensors.
"""

from __future__ import annotations

from longtail import _checks
from longtail._checks import InputError

_checks.require("torch", extra="torch", caller=__name__)

from torch import Tensor


def distillation_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    log_prior: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """T² times the Kullback-Leibler divergence from the teachers' predictions (Hinton 2015).

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
            of one number, or that has one for each row of classes, of a shape that broadcasts to
            that of `logits` with a last axis of 1; its values are not looked at, which would wait
            for a device.
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
    caller = "distillation_loss"
    if isinstance(temperature, Tensor):
        if temperature.ndim:
            _check_shape(temperature, logits, 1, caller=caller, name="temperature")
        squared: Tensor | float = temperature.square().squeeze(-1)
    else:
        temperature = _checks.positive(temperature, caller, name="temperature")
        squared = temperature**2
    _checks.choice(reduction, ("mean", "none"), caller, name="reduction")
    if teacher_logits.ndim and logits.shape[-1] != teacher_logits.shape[-1]:
        raise InputError(
            f"{caller}: the teachers have {teacher_logits.shape[-1]} classes but the logits have "
            f"{logits.shape[-1]} columns, shape {tuple(logits.shape)}."
        )
    classes = logits.shape[-1]
    _check_shape(teacher_logits, logits, classes, caller=caller, name="teacher_logits")
    if log_prior is not None:
        _check_shape(log_prior, logits, classes, caller=caller, name="log_prior")
    student, teacher = (z.float() if z.dtype.itemsize < 4 else z for z in (logits, teacher_logits))
    teacher = teacher.detach()
    if log_prior is not None:
        student, teacher = student + log_prior, teacher + log_prior
    log_q, log_p = ((z / temperature).log_softmax(-1) for z in (student, teacher))
    p = log_p.exp()
    # 0 log 0 = 0, so that classes may be masked; torch's kl_div would make it NaN.
    terms = (p * (log_p - log_q)).masked_fill(p == 0, 0.0)
    divergence = squared * terms.sum(-1)
    return divergence.mean() if reduction == "mean" else divergence


def _check_shape(values: Tensor, logits: Tensor, last: int, *, caller: str, name: str) -> None:
    """Refuse what does not broadcast to the logits' shape, or would make them broadcast to its own.

    Only shapes: the loss is part of captured steps, in which values can't be looked at.
    """
    shape, whole = tuple(values.shape), tuple(logits.shape)
    wanted = (*whole[:-1], last)
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    broadcasts = len(shape) <= len(whole) and all(mine in (1, theirs) for mine, theirs in pairs)
    if not broadcasts or shape[-1:] != (last,):
        raise InputError(
            f"{caller}: `{name}` must have shape {wanted}, or one that broadcasts to it and ends "
            f"in {last}, for logits of shape {whole}; its shape is {shape}."
        )
