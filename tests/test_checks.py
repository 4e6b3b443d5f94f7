"""What tells logits from probabilities, through the functions that take one of the two; lists."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from longtail import ClassPrior, InputError, _checks, metrics
from longtail.shift import effective_prior, estimate_prior, fit_bias_corrected_temperature
from longtail.tuning import fit_temperature, tune_tau

PRIOR = ClassPrior.from_counts(np.geomspace(5000, 50, 10).astype(int))
TARGET = np.arange(400) % 10
LOGITS = np.random.default_rng(0).normal(size=(400, 10)) + 3 * np.eye(10)[TARGET] + PRIOR.log_probs
PROBS = torch.softmax(torch.tensor(LOGITS), 1)

WANT_LOGITS = {
    "tune_tau": lambda x: tune_tau(x, TARGET, PRIOR, n_bootstrap=0),
    "tune_tau by log-loss": lambda x: tune_tau(
        x, TARGET, PRIOR, criterion="log_loss", n_bootstrap=0
    ),
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
    "bfloat16": PROBS.bfloat16(),
    "bfloat16 of JAX": jnp.asarray(PROBS.numpy()).astype(jnp.bfloat16),
    "bfloat16 made float32": PROBS.bfloat16().float().numpy(),
}


@pytest.mark.parametrize("dtype", ROUGH)
@pytest.mark.parametrize("caller", WANT_LOGITS)
def test_rough_probabilities_are_seen_for_what_they_are(caller, dtype):
    with pytest.raises(InputError, match="look like probabilities"):
        WANT_LOGITS[caller](ROUGH[dtype])


@pytest.mark.parametrize("dtype", ROUGH)
@pytest.mark.parametrize("caller", WANT_PROBS)
def test_rough_probabilities_are_taken_where_probabilities_are_wanted(caller, dtype):
    np.testing.assert_allclose(WANT_PROBS[caller](ROUGH[dtype]), WANT_PROBS[caller](PROBS), 0.05)


def test_what_is_not_so_rough_has_to_add_up():
    """Rows that are off as rounding to bfloat16 may be, but in numbers that it can't have."""
    off = (PROBS * 1.004).clamp(max=1.0).float()
    assert off.sum(1).max() < PROBS.bfloat16().float().sum(1).max() + 0.01
    for call in WANT_LOGITS.values():
        call(off)
    for call in WANT_PROBS.values():
        with pytest.raises(InputError, match="must sum to 1"):
            call(off)


def test_bfloat16_has_to_add_up_as_well():
    with pytest.raises(InputError, match="must sum to 1"):
        effective_prior((PROBS * 0.9).bfloat16())
    WANT_LOGITS["evaluate"]((PROBS * 0.9).bfloat16())


@pytest.mark.parametrize("caller", [name for name in WANT_LOGITS if name != "evaluate"])
def test_probabilities_with_zeros_get_there_by_the_messages(caller):
    """As a user would: do what the refusal says, twice."""
    votes = PROBS.numpy().round(1)
    probs = votes / votes.sum(1, keepdims=True)
    with pytest.raises(InputError, match="pass their logarithm"):
        WANT_LOGITS[caller](probs)
    with np.errstate(divide="ignore"), pytest.raises(InputError, match="is -inf") as refused:
        WANT_LOGITS[caller](np.log(probs))
    advice = str(refused.value).split("instead: ")[1].split(", with the prior")[0]
    WANT_LOGITS[caller](eval(advice, {"numpy": np, "probs": probs, "prior": PRIOR}))


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, dict.fromkeys])
def test_a_listing_shows_the_first_and_counts_the_rest(kind):
    assert _checks.listing(kind([])) == ""
    assert _checks.listing(kind([3, 7, 9]), most=3) == "3, 7, 9"
    assert _checks.listing(kind([3, 7, 9, 1]), most=3) == "3, 7, 9 and 1 more"


def test_a_listing_looks_at_no_more_than_it_shows():
    class Countable(list):
        def __iter__(self):
            return (self.look(k) for k in range(len(self)))

        def look(self, k):
            assert k < 10
            return self[k]

    assert _checks.listing(Countable([1] * 1000)).endswith("and 990 more")
