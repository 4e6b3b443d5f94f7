"""Independent labels, as of sigmoid outputs: adjusted logits, the exact curve's tau, the error.

Each label is a problem of two classes, in which the log-odds of its prior take the place of log π.
Targets are matrices as in scikit-learn and torchmetrics, shape (examples, num_labels), 1 where an
example has the label and 0 where it has not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, posthoc
from longtail._checks import FloatArray, InputError
from longtail.priors import ClassPrior
from longtail.tuning import TauIntervals, TauResult, tune_from_intervals


def label_rates(target: Any, *, smoothing: float = 0.0) -> FloatArray:
    """Return the share of examples that have each label, π_k = (n_k + s) / (N + 2s).

    Args:
        target: training labels, shape (examples, num_labels), 0 or 1.
        smoothing: s ≥ 0, examples added with each label and without it.

    Examples:
        >>> label_rates([[1, 0], [1, 0], [0, 1], [1, 0]])
        array([0.75, 0.25])
    """
    target = _indicators(target, name="target")
    smoothing = _checks.not_negative(smoothing, name="smoothing")
    rates: FloatArray = (target.sum(axis=0) + smoothing) / (len(target) + 2.0 * smoothing)
    if len(empty := np.flatnonzero((rates == 0) | (rates == 1))):
        raise InputError(
            f"label(s) {_checks.listing(empty)} occur in all examples or in none, so their "
            f"log-odds are infinite; pass smoothing=1.0, or leave these labels out."
        )
    return rates


def log_odds(probs: Any) -> FloatArray:
    """Return logits of sigmoid probabilities in float64, log(p / (1 − p)), finite at 0 and 1.

    Args:
        probs: any shape, in [0, 1].

    Examples:
        >>> log_odds([0.5, 0.9, 0.0]).round(3)
        array([  0.   ,   2.197, -87.337])
    """
    p = np.asarray(_checks.as_numpy(probs), np.float64)
    p = p.clip(posthoc.SMALLEST_PROB, 1.0 - np.finfo(np.float64).epsneg)
    return np.asarray(np.log(p / (1.0 - p)))


def adjust_multilabel(
    logits: Any, prior: Any, *, tau: float = 1.0, target_prior: Any = None
) -> Any:
    """Return adjusted logits of independent labels: f_k − τ (log-odds of π_k − log-odds of q_k).

    Labels are predicted where these are above 0; with τ = 1, where the sigmoid is above π_k.

    Args:
        logits: f, shape (..., num_labels), floating point, before the sigmoid; NumPy, torch or
            JAX. Of probabilities pass `log_odds(probs)`.
        prior: π, shape (num_labels,), share of the training examples that have each label; see
            `label_rates`.
        tau: τ; 1 is right for calibrated sigmoids, `tune_multilabel` chooses it on held-out data.
        target_prior: q, shape (num_labels,), the shares in the data that the model will meet; None
            means 1/2 each, which is the macro-averaged balanced error.

    Returns:
        Adjusted logits: same shape, dtype, device and array library.

    Examples:
        >>> adjust_multilabel(np.array([[1.0, -3.0], [-1.0, -5.0]]), [0.5, 0.02]).round(3)
        array([[ 1.   ,  0.892],
               [-1.   , -1.108]])
    """
    logits = posthoc._logits(logits, refuse=_refuse_probabilities)
    q = _rates(target_prior, logits.shape[-1], name="target_prior")
    direction = log_odds(_rates(prior, logits.shape[-1], name="prior")) - log_odds(q)
    return posthoc._apply(logits, operator.sub, _checks.tau(tau) * direction)


def macro_balanced_error(target: Any, predictions: Any) -> float:
    """Return the mean over labels of each one's balanced error.

        (1/L) Σ_k ½ (P(predicted | label k absent) + P(not predicted | label k present))

    Args:
        target: true labels, shape (examples, num_labels), 0 or 1.
        predictions: predicted labels, integers or booleans; or logits, which predict a label where
            they are above 0.

    Examples:
        >>> target = [[1, 0], [1, 0], [0, 1], [1, 0]]
        >>> macro_balanced_error(target, [[1, 0], [0, 0], [1, 1], [1, 0]])
        0.333...
        >>> macro_balanced_error(target, np.zeros((4, 2), int))
        0.5
    """
    predictions = _checks.as_numpy(predictions)
    if predictions.dtype.kind == "f":
        predictions = _checked_logits(predictions) > 0
    predictions = _indicators(predictions, name="predictions")
    target = _with_both_answers(target, predictions)
    wrong = target != predictions
    errors = [(wrong & side).sum(axis=0) / side.sum(axis=0) for side in (target, ~target)]
    return float(np.mean(errors))


@dataclass(frozen=True, eq=False)
class MultilabelTauResult(TauResult):
    """A tau for independent labels: a TauResult with two classes for each of them.

    In `counts` and what `curve.per_class` returns, examples without a label come before those with
    it; .reshape(-1, 2) has a row for each label.
    """

    def describe(self, *, class_names: Sequence[str] | None = None) -> str:
        """Return the choice in a few lines of text, as `print` shows it.

        Args:
            class_names: one for each column of the logits; their numbers if absent.
        """
        width = len(self.counts) // 2
        names = range(width) if class_names is None else class_names
        pairs = [f"{name}: {answer}" for name in names for answer in ("no", "yes")]
        text = super().describe(class_names=pairs).replace("(class ", "(label ")
        return text.replace(f"examples of {2 * width} classes", f"answers on {width} labels")


def tune_multilabel(
    logits: Any, target: Any, prior: Any, *, target_prior: Any = None, **settings: Any
) -> MultilabelTauResult:
    """Choose tau of `adjust_multilabel` by the exact curve of `macro_balanced_error`.

    The decision about label k turns at τ = f_k / l_k, with l the log-odds of π, so each is right in
    one interval of τ. The standard error and the bootstrap take an example's labels for independent
    of each other; where mistakes on several labels come together, both are too narrow.

    Args:
        logits: f, shape (examples, num_labels), of examples the model was not trained on.
        target: true labels, shape (examples, num_labels), 0 or 1.
        prior: π, shape (num_labels,), as in `adjust_multilabel`.
        target_prior: q, as in `adjust_multilabel`; the two errors of label k then weigh 1 − q_k
            and q_k instead of 1/2.
        **settings: select, bounds, confidence, n_bootstrap and random_state of `tune_tau`.

    Examples:
        >>> random = np.random.default_rng(0)
        >>> rates = np.array([0.4, 0.1, 0.02])
        >>> target = random.random((2000, 3)) < rates
        >>> evidence = 2.0 * target - 1.0 + random.normal(size=target.shape)
        >>> print(tune_multilabel(2.0 * evidence + log_odds(rates), target, rates))
        tau = 0.8874 (logit adjustment)
          95% bootstrap interval 0.7015 to 0.9225
          balanced error 0.1285 ± 0.0092 (standard error)
          0.2795 at tau = 0, 0.1387 at tau = 1
          6000 held-out answers on 3 labels, fewest 37 (label 2: yes)
          in effect 62 examples decide: the interval is likely too narrow
    """
    logits = _checked_logits(logits)
    target = _with_both_answers(target, logits)
    width = logits.shape[1]
    q = _rates(target_prior, width, name="target_prior")
    direction = log_odds(_rates(prior, width, name="prior")) - log_odds(q)
    if not direction.any():
        raise InputError(
            "`prior` is 1/2 for every label, or the very one to adjust to, so no tau changes any "
            "prediction; pass the shares in the training data."
        )
    with np.errstate(all="ignore"):  # infinities are meant: the decision never turns
        turn = logits.astype(np.float64) / direction
    turn[np.isnan(turn)] = -np.inf
    # A logit of 0 predicts nothing at τ = 0, and a rare label at every τ above.
    turn[(turn == 0) & (direction < 0)] = np.nextafter(0.0, 1.0)
    right_behind = target == (direction < 0)
    intervals = TauIntervals(
        lower=np.where(right_behind, turn, -np.inf).ravel(),
        upper=np.where(right_behind, np.inf, turn).ravel(),
        target=(2 * np.arange(width) + target).ravel(),
        num_classes=2 * width,
        importance=np.stack([1.0 - q, q], axis=1).ravel() / width,
        weight=np.ones(target.size),
    )
    return MultilabelTauResult(**vars(tune_from_intervals(intervals, **settings)))


# --- arguments --------------------------------------------------------------------------------


def _rates(values: Any, num_labels: int, *, name: str) -> FloatArray:
    """Return one share of examples per label, between 0 and 1; 1/2 each for None."""
    if values is None:
        return np.full(num_labels, 0.5)
    if not isinstance(values, ClassPrior):
        rates = _checks.positive_per_class(values, num_labels, name=name)
        if rates.max() < 1:
            return rates
    raise InputError(
        f"`{name}` must be the share of examples that have each label, below 1, as "
        f"label_rates(target) returns it; counts are divided by the number of examples, and a "
        f"ClassPrior is for one label of several classes."
    )


def _indicators(values: Any, *, name: str) -> NDArray[np.bool_]:
    """Return an (examples, num_labels) matrix of 0 and 1, as booleans."""
    array = _checks.as_numpy(values)
    if array.ndim != 2 or not array.size or not ((array == 0) | (array == 1)).all():
        raise InputError(
            f"`{name}` must hold 0 or 1 for each example and label, shape (examples, num_labels); "
            f"its shape is {array.shape}, its values are {_checks.listing(np.unique(array))}. Of "
            f"lists of labels scikit-learn's MultiLabelBinarizer makes such a matrix."
        )
    return np.asarray(array == 1)


def _refuse_probabilities(found: NDArray[Any]) -> None:
    """Refuse values that all lie in [0, 1]; so few may that logits do so by chance."""
    if found.size >= 8 and found.min() >= 0 and found.max() <= 1:
        raise InputError(
            "all `logits` lie in [0, 1], as probabilities do; take their log-odds, "
            "longtail.multilabel.log_odds(probs). Predicted labels are integers or booleans."
        )


def _checked_logits(logits: Any) -> NDArray[Any]:
    """Return finite logits, shape (examples, num_labels)."""
    array = _checks.matrix(logits, finite=False)
    if not np.isfinite(array).all():
        raise InputError(
            "`logits` must be finite; of probabilities take longtail.multilabel.log_odds(probs)."
        )
    _refuse_probabilities(array)
    return array


def _with_both_answers(target: Any, other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the targets, with examples that have each label and examples that have it not."""
    found = _indicators(target, name="target")
    if other.shape != found.shape:
        raise InputError(
            f"`target` must have the shape of the logits or predictions, {other.shape}; its shape "
            f"is {found.shape}."
        )
    both = found.any(axis=0) & ~found.all(axis=0)
    if not both.all():
        raise InputError(
            f"every label needs examples with it and without it, but label(s) "
            f"{_checks.listing(np.flatnonzero(~both))} occur in all examples or in none; hold out "
            f"some of each, or leave these columns out of all arrays."
        )
    return found
