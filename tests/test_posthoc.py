"""The equations of post-hoc adjustment, three array libraries, and each likely mistake."""

from __future__ import annotations

import copy
import pickle
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline

from longtail import margins
from longtail._checks import InputError
from longtail.posthoc import (
    LOG_ZERO,
    AdjustedTwiceWarning,
    adjust_logits,
    adjusted_twice,
    adjustment,
    leaves_little,
    log_probs,
    normalize_weights,
    scale_temperature,
    tau_left,
)
from longtail.priors import ClassPrior

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

PRIOR = ClassPrior.from_counts([900, 90, 10])
TARGET = ClassPrior.from_probs([0.2, 0.3, 0.5])
NORMS = np.array([2.0, 1.0, 0.5])
BIAS = np.array([1.0, 0.0, -1.0])
# Class frequencies of each of the five rows of `random_logits`, not summing to 1.
BY_ROW = np.random.default_rng(5).uniform(0.1, 3.0, size=(5, 3))


def random_logits(shape=(5, 3), seed=0):
    return np.random.default_rng(seed).normal(scale=3.0, size=shape)


# --- equations ----------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [-1.0, 0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("q", [None, TARGET, BY_ROW], ids=["uniform", "one", "by row"])
@pytest.mark.parametrize("costs", [None, [1.0, 5.0, 20.0]])
def test_adjust_logits_is_equation_9(tau, q, costs):
    """One number at a time, f_y − τ (log π_y − log q_y − log c_y)."""
    logits = random_logits()
    got = adjust_logits(logits, PRIOR, tau=tau, target_prior=q, costs=costs)
    for i, y in np.ndindex(5, 3):
        shift = np.log(PRIOR.probs[y]) - np.log(1.0 if costs is None else costs[y])
        if q is TARGET:
            shift -= np.log(TARGET.probs[y])
        elif q is not None:
            shift -= np.log(BY_ROW[i, y] / (BY_ROW[i, 0] + BY_ROW[i, 1] + BY_ROW[i, 2]))
        assert got[i, y] == pytest.approx(logits[i, y] - tau * shift, rel=1e-13, abs=1e-13)
    if q is not BY_ROW:
        vector = adjustment(PRIOR, tau=tau, target_prior=q, costs=costs)
        np.testing.assert_array_equal(got, logits + vector)


def test_rows_of_one_target_prior_are_that_prior():
    logits, rows = random_logits((2, 4, 3)), np.tile(TARGET.probs, (2, 4, 1))
    one = adjust_logits(logits, PRIOR, tau=1.5, target_prior=TARGET)
    np.testing.assert_allclose(adjust_logits(logits, PRIOR, tau=1.5, target_prior=7 * rows), one)


def test_target_priors_by_row_may_be_traced():
    def call(f, q):
        return adjust_logits(f, PRIOR, target_prior=q)

    wanted = call(random_logits(), BY_ROW)
    f, q = jnp.asarray(random_logits()), jnp.asarray(BY_ROW)
    np.testing.assert_allclose(jax.jit(call)(f, q), wanted, rtol=1e-5)
    tensors = torch.tensor(random_logits()), torch.tensor(BY_ROW, requires_grad=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    np.testing.assert_allclose(compiled(*tensors).detach(), wanted)
    assert torch.autograd.gradcheck(call, tensors)


def test_uniform_target_differs_by_a_constant_only():
    logits = random_logits()
    plain = adjust_logits(logits, PRIOR, tau=2.0)
    uniform = adjust_logits(logits, PRIOR, tau=2.0, target_prior=ClassPrior.uniform(3))
    np.testing.assert_allclose(np.ptp(plain - uniform, axis=1), 0.0, atol=1e-12)
    assert np.abs(plain - uniform).max() > 1.0
    np.testing.assert_array_equal(adjustment(PRIOR), -PRIOR.log_probs)  # tau is 1 unless given
    np.testing.assert_array_equal(adjust_logits(logits, PRIOR), logits - PRIOR.log_probs)
    np.testing.assert_allclose(normalize_weights(logits, norms=NORMS), logits / NORMS)


@pytest.mark.parametrize("mode", ["scale", "keep", "drop"])
@pytest.mark.parametrize("tau", [-0.5, 0.0, 1.0, 2.0])
def test_normalize_weights_is_equation_3_with_each_bias_mode(mode, tau):
    logits = random_logits((2, 4, 3))
    got = normalize_weights(logits, norms=NORMS, tau=tau, bias=BIAS, bias_mode=mode)
    for place in np.ndindex(2, 4, 3):
        f, b, scale = logits[place], BIAS[place[-1]], NORMS[place[-1]] ** tau
        expected = {"scale": f / scale, "keep": (f - b) / scale + b, "drop": (f - b) / scale}
        assert got[place] == pytest.approx(expected[mode], rel=1e-12)
    got = normalize_weights(logits, norms=PRIOR, tau=tau)
    np.testing.assert_allclose(got, logits / PRIOR.probs**tau, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 8.0))
def test_tau_is_temperature(seed, tau):
    logits = random_logits((20, 3), seed)
    one = adjust_logits(logits, PRIOR, tau=tau)
    two = adjust_logits(scale_temperature(logits, temperature=tau), PRIOR, tau=1.0)
    np.testing.assert_allclose(one, tau * two, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(one.argmax(1), two.argmax(1))


@pytest.mark.parametrize("seed", range(8))
def test_classes_that_tie_get_the_same_adjustment(seed):
    # π_y / (q_y c_y) is the same for all; the logarithms add up to it with rounding.
    rng = np.random.default_rng(seed)
    costs, target = rng.integers(1, 30, 6), ClassPrior.from_counts(rng.integers(1, 99, 6))
    prior = ClassPrior.from_weights(target.probs * costs)
    assert np.ptp(adjustment(prior, target_prior=target, costs=costs)) == 0
    assert np.ptp(adjustment(ClassPrior.from_weights(costs), costs=costs)) == 0
    # The same of a target prior alone: a third of each class's weight, and twice that of one.
    thirds = ClassPrior.from_weights(target.probs * [2, 1, 1, 1, 1, 1] / 3)
    assert np.ptp(adjustment(thirds, target_prior=target)[1:]) == 0


# --- array libraries ----------------------------------------------------------------------

CALLS = {
    "adjust": lambda f: adjust_logits(f, PRIOR, tau=1.5, target_prior=TARGET, costs=[1, 2, 3]),
    "by row": lambda f: adjust_logits(f, PRIOR, tau=1.5, target_prior=np.ones(f.shape) + BIAS / 2),
    "scale": lambda f: normalize_weights(f, norms=NORMS, tau=1.5),
    "keep": lambda f: normalize_weights(f, norms=NORMS, bias=BIAS, bias_mode="keep"),
    "drop": lambda f: normalize_weights(f, norms=NORMS, bias=BIAS, bias_mode="drop"),
    "temperature": lambda f: scale_temperature(f, temperature=1.7),
}
CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@CALL
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", ">f8"])
def test_dtype_library_and_values(call, dtype):
    logits = random_logits((400, 3))
    given = [] if dtype == "bfloat16" else [logits.astype(dtype)]
    if dtype != ">f8":
        given.append(torch.tensor(logits).to(getattr(torch, dtype)))
    for one in given:
        before = copy.deepcopy(one)
        got = call(one)
        assert (type(got), got.dtype) == (type(one), one.dtype)
        assert (one == before).all()
        # One rounding of the float64 result: half precision does its work in float32.
        exact = call(torch.as_tensor(one.astype("d") if dtype == ">f8" else one).double())
        values = torch.as_tensor(got.astype("d") if dtype == ">f8" else got)
        if dtype.endswith("float16"):
            assert (values == exact.to(values.dtype)).double().mean() >= 0.997
        else:
            torch.testing.assert_close(values.double(), exact, rtol=1e-6, atol=1e-6)


@CALL
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_jax_without_x64(call, dtype):
    logits = jnp.asarray(random_logits(), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a float64 on the way would warn of its truncation
        got, jitted = call(logits), jax.jit(call)(logits)
    assert isinstance(got, jax.Array)
    assert got.dtype == logits.dtype
    exact = call(np.asarray(logits, dtype=np.float64))
    eps = float(jnp.finfo(dtype).eps)
    for result in (got, jitted):
        error = np.abs(np.asarray(result, dtype=np.float64) - exact)
        assert np.all(error <= 4 * eps * (1 + np.abs(exact)))


@CALL
def test_gradients_flow(call):
    logits = torch.tensor(random_logits(), requires_grad=True)
    assert torch.autograd.gradcheck(call, (logits,))
    slope = jax.grad(lambda f: call(f).sum())(jnp.ones((2, 3), dtype=jnp.float32))
    assert np.all(np.asarray(slope) > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_torch_compile_in_one_graph(dtype):
    def model(logits, tau, prior):
        adjusted = adjust_logits(logits, prior, tau=tau, target_prior=TARGET)
        return scale_temperature(normalize_weights(adjusted, norms=PRIOR), temperature=2.0)

    torch.compiler.reset()  # each prior of any test is compiled for itself, up to a limit
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    logits = torch.tensor(random_logits()).to(dtype)
    for tau in (1.0, 0.5):
        torch.testing.assert_close(compiled(logits, tau, PRIOR), model(logits, tau, PRIOR))
    for k in (1, 2):  # a prior that comes to lie where another one was
        prior = ClassPrior.from_probs([k / 10, 0.4, 0.6 - k / 10])
        torch.testing.assert_close(compiled(logits, 1.0, prior), model(logits, 1.0, prior))
        del prior


def test_torch_compile_sees_a_changed_array():
    # Arrays are not baked into the graph as immutable priors are.
    norms = NORMS.copy()
    compiled = torch.compile(
        lambda f: adjust_logits(normalize_weights(f, norms=norms), PRIOR, costs=norms),
        backend="aot_eager",
    )
    logits = torch.tensor(random_logits())
    first = compiled(logits)
    norms *= 2
    wanted = adjust_logits(normalize_weights(logits, norms=norms), PRIOR, costs=norms)
    torch.testing.assert_close(compiled(logits), wanted)
    assert not torch.equal(first, wanted)


def test_any_leading_shape_and_lists():
    for shape in [(3,), (0, 3), (2, 5, 7, 3)]:
        assert adjust_logits(np.zeros(shape), PRIOR).shape == shape
    np.testing.assert_array_equal(
        adjust_logits([[2.0, 1.0, 0.0]], PRIOR), np.array([[2.0, 1.0, 0.0]]) - PRIOR.log_probs
    )


# --- probabilities in place of logits -----------------------------------------------------

PROBS = np.random.default_rng(3).dirichlet(np.ones(3), size=40)


@pytest.mark.parametrize(
    "probs",
    [
        PROBS.reshape(4, 10, 3),
        PROBS[:2].tolist(),
        torch.nn.Parameter(torch.tensor(PROBS)),
        jnp.asarray(PROBS),
    ],
    ids=["numpy", "list", "torch", "jax"],
)
def test_probabilities_are_refused(probs):
    for call in (CALLS["adjust"], CALLS["temperature"]):
        with pytest.raises(InputError, match=r"longtail.posthoc.log_probs\(probs\)"):
            call(probs)


@pytest.mark.parametrize("row", [PROBS[0], torch.tensor(PROBS[:1])], ids=["numpy", "torch"])
def test_one_row_like_probabilities_may_be_chance(row):
    with pytest.warns(UserWarning, match="every row of `logits`.*logarithm") as caught:
        result = adjust_logits(row, PRIOR)
    assert caught[0].filename == __file__
    np.testing.assert_allclose(result, np.asarray(row) - PRIOR.log_probs)


@pytest.mark.filterwarnings("error")
def test_logits_near_probabilities_pass_without_a_word():
    one_off = PROBS.copy()
    one_off[1, 0] += 0.01
    for logits in (PROBS - 1, np.log(PROBS), one_off, torch.tensor(one_off), np.ones((0, 3))):
        adjust_logits(logits, PRIOR)


def test_values_that_are_not_at_hand_are_not_looked_at():
    def call(f):
        return adjust_logits(f, PRIOR)

    probs = torch.tensor(PROBS)
    wanted = probs - torch.tensor(PRIOR.log_probs)
    torch.testing.assert_close(torch.vmap(call)(probs), wanted)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(probs), wanted)
    assert call(probs.to("meta")).shape == wanted.shape
    for transformed in (jax.jit(call), jax.vmap(call)):
        np.testing.assert_allclose(transformed(jnp.asarray(PROBS)), wanted, rtol=1e-5)


@pytest.mark.parametrize("tau", [0.0, 1.0, 4.0])
def test_a_class_of_probability_zero_never_wins(tau):
    prior = ClassPrior.from_counts([10**6, 10**3, 1])
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 - 1e-3, 0.0, 1e-3]])
    adjusted = adjust_logits(log_probs(probs), prior, tau=tau)
    assert np.all(probs[np.arange(3), adjusted.argmax(1)] > 0)
    exported = probs.astype(np.float32)  # 0 stays 0 where an exported graph multiplies
    weights = np.exp(adjustment(prior, tau=tau))
    np.testing.assert_array_equal(adjusted.argmax(1), (exported * weights).argmax(1))
    assert log_probs(0.0) == LOG_ZERO == np.log(np.float64(np.finfo(np.float32).tiny))
    np.testing.assert_array_equal(log_probs(torch.tensor(probs[1, :2])), np.log(probs[1, :2]))


# --- bad input ----------------------------------------------------------------------------

Z = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: adjust_logits(np.zeros((32, 10)), ClassPrior.uniform(9)),
            "`prior` has 9 classes but the logits have 10 columns",
        ),
        (
            lambda: adjust_logits(torch.zeros(2, 9, 20, 10), ClassPrior.uniform(9)),
            "the classes must be the last axis: moveaxis(logits, 1, -1).",
        ),
        (lambda: adjust_logits(Z.astype(int), PRIOR), "`logits` must be floating point"),
        (lambda: adjust_logits(np.float64(1.0), PRIOR), "got a single float64"),
        (lambda: adjust_logits(Z, [0.9, 0.05, 0.05]), "`prior` must be a ClassPrior; got list"),
        (lambda: adjust_logits(Z, PRIOR, tau=np.nan), "`tau` must be finite; got nan"),
        (lambda: adjust_logits(Z, PRIOR, target_prior=[0.5, 0.3, 0.2]), "`target_prior` must be a"),
        (lambda: adjust_logits(Z, PRIOR, costs=[1, -1, 1]), "above zero, but class 1 has -1"),
        (lambda: adjust_logits(Z, PRIOR, trained_with="ldam"), "`trained_with` must be the Margin"),
        (lambda: normalize_weights(Z, norms=[1.0, 0.0, 1.0]), "`norms` must be finite and above"),
        (lambda: normalize_weights(Z, norms=NORMS, bias_mode="keep"), "'keep' needs `bias`"),
        (lambda: normalize_weights(Z, norms=NORMS, bias_mode="no"), "`bias_mode` must be one of"),
        (lambda: scale_temperature(Z, temperature=0.0), "`temperature` must be above zero; got 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda prior: pickle.loads(pickle.dumps(prior))])
def test_a_copied_prior_adjusts_as_the_first(again):
    prior = again(ClassPrior.from_counts([8, 1, 1]))
    assert prior.counts.tolist() == [8, 1, 1]
    np.testing.assert_array_equal(adjust_logits(Z, prior)[0], -np.log(prior.probs))
    for array in (prior.probs, prior.counts, prior.log_probs):
        assert not array.flags.writeable


# --- adjusting twice: losses --------------------------------------------------------------


@pytest.mark.parametrize(
    "margin",
    [
        margins.logit_adjusted(PRIOR),
        margins.consistent(PRIOR, delta=[1.0, 2.0, 3.0]),
        margins.class_balanced(ClassPrior.from_counts([5000, 500, 50])),  # nearly all of it
        margins.logit_adjusted(PRIOR, tau=2.0),  # and more than that
    ],
    ids=lambda m: m.name,
)
def test_adjusting_twice_warns(margin):
    with pytest.warns(AdjustedTwiceWarning, match=f"'{margin.name}' already aims.*twice") as caught:
        result = adjust_logits(random_logits(), PRIOR, trained_with=margin)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(result, adjust_logits(random_logits(), PRIOR))
    with pytest.warns(AdjustedTwiceWarning, match=r"pass ClassPrior.uniform\(3\) as the prior"):
        adjust_logits(random_logits(), PRIOR, trained_with=margin, target_prior=TARGET)
    assert adjusted_twice(margin, ClassPrior.uniform(3)) is None


@pytest.mark.parametrize(
    ("by_loss", "asked", "little"),
    [
        (0.5, 1.0, False),  # just half
        (0.51, 1.0, True),
        (0.5, 2.0, False),  # what is above 1 no loss does
        (0.7, 0.5, False),
        (0.8, 0.5, True),
    ],
)
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_little_is_left_below_half_of_what_is_asked_for(by_loss, asked, little, precision):
    residual = (-(1 - by_loss) * PRIOR.log_probs).astype(precision)
    assert tau_left(residual, PRIOR) == pytest.approx(1 - by_loss, abs=1e-6)
    assert leaves_little(residual, PRIOR, tau=asked) is little
    assert not leaves_little(residual, ClassPrior.uniform(3), tau=asked)
    if little:
        margin = margins.logit_adjusted(PRIOR, tau=by_loss)
        with pytest.warns(AdjustedTwiceWarning, match=f"take tau = {1 - by_loss:.1f}, or what"):
            adjust_logits(random_logits(), PRIOR, tau=asked, trained_with=margin)


@pytest.mark.parametrize(
    ("margin", "tau"),
    [
        (margins.softmax(PRIOR), 3.0),  # a temperature too
        (margins.adaptive(PRIOR), 1.0),  # inconsistent: adjusting may well help
        (margins.logit_adjusted(PRIOR), 0.49),  # small, as held-out data may ask for
    ],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_no_warning_where_something_is_left_to_correct(margin, tau):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adjust_logits(random_logits(), PRIOR, tau=tau, trained_with=margin)


# --- adjusting twice: classifiers ---------------------------------------------------------


class Settings:
    """An estimator of another package."""

    def __init__(self, **settings):
        self.settings = settings

    def get_params(self, deep=True):
        return self.settings


class Sampler:
    def fit_resample(self, X, y):
        return X, y


class BalancedForest:
    __module__ = "imblearn.ensemble._forest"


X = np.random.default_rng(0).normal(size=(1000, 2)) ** 2
Y = np.repeat([0, 1, 2], [900, 90, 10])
WEIGHTED = LogisticRegression(class_weight="balanced")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (WEIGHTED, "LogisticRegression weighs classes itself (class_weight='balanced')"),
        (Pipeline([("a", "passthrough"), ("b", WEIGHTED)]), "class_weight='balanced'"),
        (FrozenEstimator(WEIGHTED), "class_weight='balanced'"),
        (VotingClassifier([("a", LogisticRegression()), ("b", WEIGHTED)]), "class_weight"),
        (LogisticRegression(class_weight={2: 9.0}), "class_weight={2: 9.0}"),
        (GaussianNB(priors=[0.4, 0.3, 0.3]), "GaussianNB is told more even class frequencies"),
        (Settings(auto_class_weights="Balanced"), "auto_class_weights='Balanced'"),
        (Settings(is_unbalance=True), "is_unbalance=True"),
        (Pipeline([("a", Sampler()), ("b", LogisticRegression())]), "Sampler resamples"),
        (BalancedForest(), "BalancedForest resamples the classes"),
        ("the model has an adjustment baked in", "baked in, so adjusting again favours"),
    ],
)
def test_what_favours_rare_classes_already_is_seen(model, said):
    if hasattr(model, "fit") and not isinstance(getattr(model, "steps", [[0, 0]])[0][1], Sampler):
        model = model.fit(X, Y)
    assert said in adjusted_twice(model, PRIOR)
    assert adjusted_twice(model, PRIOR, tau=0.4) is None
    assert adjusted_twice(model, ClassPrior.uniform(3)) is None


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LogisticRegression(class_weight={0: 1, 1: 1.0, 2: 1}),
        CalibratedClassifierCV(WEIGHTED, cv=2),  # learns the frequencies again
        GaussianNB(priors=[0.89, 0.1, 0.01]),
        Settings(auto_class_weights="None", class_weights=None, is_unbalance=False),
        object(),
    ],
)
def test_what_favours_nothing_is_left_alone(model):
    assert adjusted_twice(model.fit(X, Y) if hasattr(model, "fit") else model, PRIOR) is None


@pytest.mark.parametrize(
    ("weight", "rare", "twice"),
    [(1.5, 1, True), (9.0, 0, False), (0.1, 0, True), (1, 1, False), (None, 1, False)],
)
def test_a_weight_of_positives_counts_where_they_are_rare(weight, rare, twice):
    prior = ClassPrior.from_counts([10, 90] if rare == 0 else [90, 10])
    found = adjusted_twice(Settings(scale_pos_weight=weight), prior)
    assert (found is not None) == twice
