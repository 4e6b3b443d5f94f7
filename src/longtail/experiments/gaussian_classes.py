"""The Gaussian classes of the simulation at full class count: drawing them, the Bayes rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail._checks import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo mean, in percent, and its standard error."""

    mean: float
    se: float


def true_weights(centers: FloatArray) -> FloatArray:
    """The Bayes rule for balanced classes as rows (w_y, b_y) = (μ_y, −‖μ_y‖²/2).

    Up to what all classes share, log p(x|y) of a Gaussian with unit covariance is μ_y·x − ‖μ_y‖²/2.

    Args:
        centers: μ, shape (num_classes, dimension).

    Returns:
        Shape (num_classes, dimension + 1).

    Examples:
        >>> true_weights(np.array([[1.0, 2.0], [0.0, 1.0]]))
        array([[ 1. ,  2. , -2.5],
               [ 0. ,  1. , -0.5]])
    """
    biases = -0.5 * np.square(centers).sum(axis=1, keepdims=True)
    return np.concatenate([centers, biases], axis=1)


def shifted(weights: FloatArray, by: FloatArray) -> FloatArray:
    """Rows (w_y, b_y) with something added to each bias."""
    moved = weights.copy()
    moved[:, -1] += by
    return moved


def plug_in(
    features: NDArray[np.float32], target: IntArray, *, scale: float, num_classes: int
) -> FloatArray:
    """`true_weights` with estimated centres, shrunk as their distribution asks: where to start.

    Args:
        features: shape (examples, dimension).
        target: shape (examples,), every class present.
        scale: standard deviation of the centres' coordinates.
        num_classes: L.
    """
    counts = np.bincount(target, minlength=num_classes)[:, None]
    sums = np.stack(
        [np.bincount(target, weights=column, minlength=num_classes) for column in features.T],
        axis=1,
    )
    return true_weights(sums / (counts + scale**-2))


def sample(
    centers: FloatArray, counts: IntArray, generator: np.random.Generator
) -> tuple[NDArray[np.float32], IntArray]:
    """Draw so many examples of each class.

    Args:
        centers: shape (num_classes, dimension).
        counts: shape (num_classes,).
        generator: of random numbers.

    Returns:
        Features, shape (examples, dimension), and classes, in order of class.

    Examples:
        >>> x, y = sample(np.zeros((2, 3)), np.array([1, 2]), np.random.default_rng(0))
        >>> x.shape, y
        ((3, 3), array([0, 1, 1]))
    """
    target = np.repeat(np.arange(len(counts)), counts)
    features = generator.standard_normal((len(target), centers.shape[1]), dtype=np.float32)
    features += centers.astype(np.float32)[target]
    return features, target


def _logits(
    features: NDArray[np.float32], weights: FloatArray, device: torch.device | str
) -> Iterator[torch.Tensor]:
    """Logits of all points, piece by piece."""
    import torch

    matrix = torch.as_tensor(weights[:, :-1].T, dtype=torch.float32, device=device).contiguous()
    biases = torch.as_tensor(weights[:, -1], dtype=torch.float32, device=device)
    rows = max(1, (1 << 22) // len(weights))
    for first in range(0, len(features), rows):
        piece = torch.as_tensor(features[first : first + rows], device=device)
        yield torch.addmm(biases, piece, matrix)


def decide(
    features: NDArray[np.float32], weights: FloatArray, *, device: torch.device | str = "cpu"
) -> IntArray:
    """The class that affine logits choose at each point."""
    found = [logits.argmax(1).cpu().numpy() for logits in _logits(features, weights, device)]
    return np.concatenate(found)


def bayes_balanced_error(
    features: NDArray[np.float32],
    weights: FloatArray,
    *,
    per_class: int,
    device: torch.device | str = "cpu",
) -> Estimate:
    """The least balanced error of any classifier, E[1 − max_y p(x|y)/Σ_j p(x|j)], by Monte Carlo.

    Args:
        features: balanced test points in order of class.
        weights: the log densities, see `true_weights`.
        per_class: points of each class.
        device: where to compute.

    Returns:
        The mean in percent and its standard error.

    Examples:
        >>> centers = np.array([[-1.0, -1.0], [1.0, 1.0]])
        >>> x, _ = sample(centers, np.full(2, 50_000), np.random.default_rng(0))
        >>> found = bayes_balanced_error(x, true_weights(centers), per_class=50_000)
        >>> abs(found.mean - 7.865) < 4 * found.se < 0.3  # Φ(−√2)
        True
    """
    pieces = [
        (1.0 - logits.softmax(1).amax(1)).double().cpu().numpy()
        for logits in _logits(features, weights, device)
    ]
    return estimate(np.concatenate(pieces), per_class=per_class)


def estimate(values: NDArray[Any], *, per_class: int) -> Estimate:
    """Mean over classes of a value at each point, with the error of sampling within classes.

    Args:
        values: at points in order of class, as many of each.
        per_class: how many.

    Returns:
        In percent.

    Examples:
        >>> estimate(np.array([0.0, 1.0, 1.0, 1.0]), per_class=2)
        Estimate(mean=75.0, se=25.0)
    """
    by_class = np.asarray(values, dtype=np.float64).reshape(-1, per_class)
    variance = by_class.var(axis=1, ddof=1) / per_class if per_class > 1 else np.nan
    se = np.sqrt(np.sum(variance)) / len(by_class)
    return Estimate(100.0 * float(by_class.mean()), 100.0 * float(se))
