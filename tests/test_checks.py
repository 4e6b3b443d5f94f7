"""Logits told from probabilities, and their width, through the public functions."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from longtail import ClassPrior, InputError, _checks, adjust_logits, metrics
from longtail.losses import LogitAdjustedLoss
from longtail.posthoc import log_probs
from longtail.shift import effective_prior, estimate_prior, fit_bias_corrected_temperature
from longtail.tuning import fit_temperature, tune_tau

PRIOR = ClassPrior.from_counts(np.geomspace(5000, 50, 10).astype(int))
TARGET = np.arange(400) % 10
LOGITS = np.random.default_rng(0).normal(size=(400, 10)) + 3 * np.eye(10)[TARGET] + PRIOR.log_probs
PROBS = torch.softmax(torch.tensor(LOGITS), 1)

WANT_LOGITS = {
    "tune_tau": lambda x: tune_tau(x, TARGET, PRIOR, n_bootstrap=0),
    "fit_temperature": lambda x: fit_temperature(x, TARGET),
    "fit_bias_corrected_temperature": lambda x: fit_bias_corrected_temperature(x, TARGET),
    "evaluate": lambda x: metrics.evaluate(TARGET, x),
}
WANT_PROBS = {
    "evaluate": lambda x: metrics.evaluate(TARGET, x, inputs="probs").log_loss,
    "estimate_prior": lambda x: estimate_prior(x, PRIOR).prior.probs,
    "effective_prior": lambda x: effective_prior(x).probs,
}
ROUGH = {
    "float16": PROBS.half(),
    "bfloat16 of JAX": jnp.asarray(PROBS.numpy()).astype(jnp.bfloat16),
    "bfloat16 made float32": PROBS.bfloat16().float().numpy(),
}


@pytest.mark.parametrize("dtype", ROUGH)
def test_rough_probabilities_are_seen_for_what_they_are(dtype):
    for call in WANT_LOGITS.values():
        with pytest.raises(InputError, match="look like probabilities"):
            call(ROUGH[dtype])


@pytest.mark.parametrize("dtype", ROUGH)
@pytest.mark.parametrize("caller", WANT_PROBS)
def test_rough_probabilities_are_taken_where_probabilities_are_wanted(caller, dtype):
    np.testing.assert_allclose(WANT_PROBS[caller](ROUGH[dtype]), WANT_PROBS[caller](PROBS), 0.05)


@pytest.mark.parametrize("dtype", ROUGH)
def test_a_rough_mean_of_probabilities_is_a_prior(dtype):
    prior = ClassPrior.from_probs(_checks.as_numpy(ROUGH[dtype]).mean(0))
    np.testing.assert_allclose(prior.probs, PROBS.mean(0), 0.02)
    assert prior.probs.sum() == pytest.approx(1, abs=1e-15)


def test_rows_that_are_off_by_more_than_rounding_are_no_probabilities():
    off = (PROBS * 1.006).clamp(max=1.0).float()
    for call in WANT_LOGITS.values():
        call(off)
    for call in WANT_PROBS.values():
        with pytest.raises(InputError, match="must sum to 1"):
            call(off)


def test_a_probability_may_exceed_1_by_rounding_alone():
    certain = np.nextafter(np.float32(1), np.float32(2))
    assert certain > 1
    prior = effective_prior(np.array([[certain, 0.0], [0.5, 0.5]], dtype=np.float32))
    np.testing.assert_allclose(prior.probs, [0.75, 0.25], rtol=1e-6)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\], but 1\.00001 occurs"):
        effective_prior(np.array([[1.00001, 0.0], [0.5, 0.5]]))


@pytest.mark.parametrize("caller", [name for name in WANT_LOGITS if name != "evaluate"])
def test_probabilities_with_zeros_get_there_by_the_messages(caller):
    """As a user would: do what the refusal says."""
    votes = PROBS.numpy().round(1)
    probs = votes / votes.sum(1, keepdims=True)
    with np.errstate(divide="ignore"), pytest.raises(InputError, match="is -inf") as refused:
        WANT_LOGITS[caller](np.log(probs))
    assert "longtail.posthoc.log_probs(probs)" in str(refused.value)
    WANT_LOGITS[caller](log_probs(probs))


TWO = ClassPrior.from_counts([900, 100])
BINARY = TARGET % 2
ONE_SCORE = {
    "adjust_logits": lambda x: adjust_logits(x, TWO),
    "tune_tau": lambda x: tune_tau(x, BINARY, TWO, n_bootstrap=0),
    "LogitAdjustedLoss": lambda x: LogitAdjustedLoss(TWO)(torch.tensor(x), torch.tensor(BINARY)),
}


@pytest.mark.parametrize("caller", ONE_SCORE)
def test_one_score_of_two_classes_is_told_to_become_two(caller):
    with pytest.raises(InputError, match=r"has 2 classes but .* 1 column.* d / 2"):
        ONE_SCORE[caller](LOGITS[:, :1])
