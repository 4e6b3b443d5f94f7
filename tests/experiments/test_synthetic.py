"""The paper's synthetic study: closed forms against integrals, and every published value."""

import json
import math
import time

import numpy as np
import pytest
from scipy.integrate import quad

from longtail import ClassPrior, InputError
from longtail.experiments import synthetic
from longtail.experiments.synthetic import Settings
from longtail.posthoc import adjust_logits, normalize_weights


@pytest.fixture(scope="module")
def study():
    return synthetic.run()


def phi(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


def integrated_error(separator, *, sigma):
    """Balanced error by integrating over x1, where x2 alone decides."""
    first, second, bias = separator
    missed = []
    for center in (-1.0, 1.0):

        def wrong(x1, center=center):
            edge = -(first * x1 + bias) / second
            above = 1 - phi((edge - center) / sigma)  # P(x2 > edge)
            positive = above if second > 0 else 1 - above
            density = math.exp(-((x1 - center) ** 2) / (2 * sigma**2))
            density /= sigma * math.sqrt(2 * math.pi)
            return density * (positive if center < 0 else 1 - positive)

        missed.append(quad(wrong, center - 9 * sigma, center + 9 * sigma, epsabs=1e-11)[0])
    return sum(missed) / 2


@pytest.mark.parametrize("sigma", [1.0, 1.7])
def test_closed_form_error_against_the_integral(sigma):
    separators = np.array([[2.0, 2.0, 0.0], [1.0, -0.3, 0.4], [-1.0, 0.5, 2.0], [0.1, 0.2, -0.3]])
    closed = synthetic.separator_error(separators, sigma=sigma)
    for separator, error in zip(separators, closed, strict=True):
        assert error == pytest.approx(integrated_error(separator, sigma=sigma), abs=1e-9)


def test_bayes_error_is_what_its_separator_has_and_nothing_is_below():
    assert synthetic.bayes_error() == pytest.approx(phi(-math.sqrt(2)), rel=1e-12)
    assert synthetic.bayes_error(sigma=2.0) == pytest.approx(phi(-math.sqrt(2) / 2), rel=1e-12)
    bayes = synthetic.separator_error(np.array([1.0, 1.0, 0.0]))
    assert bayes == pytest.approx(synthetic.bayes_error(), rel=1e-12)
    others = np.random.default_rng(0).standard_normal((500, 3))
    assert (synthetic.separator_error(others) >= synthetic.bayes_error()).all()


def test_samples_have_the_problem_s_moments_and_do_not_depend_on_other_trials():
    settings = Settings(trials=3, num_train=200_000, num_test=7, rare=0.3, sigma=0.5)
    drawn = synthetic.sample(settings, split="train")
    assert drawn.target.mean() == pytest.approx(0.3, abs=0.003)
    for y, center in ((0, -1.0), (1, 1.0)):
        rows = drawn.features[drawn.target == y]
        np.testing.assert_allclose(rows.mean(axis=0), [center, center], atol=0.01)
        np.testing.assert_allclose(np.cov(rows.T), 0.25 * np.eye(2), atol=0.005)
    fewer = synthetic.sample(
        Settings(trials=2, num_train=200_000, num_test=7, rare=0.3, sigma=0.5), split="train"
    )
    np.testing.assert_array_equal(fewer.features, drawn.features[:2])
    test = synthetic.sample(settings, split="test")
    assert test.features.shape == (3, 7, 2)
    assert not np.isin(test.features, drawn.features).any()


def test_posthoc_separators_are_the_formulas():
    separators = np.random.default_rng(1).standard_normal((5, 3))
    priors = [ClassPrior.from_counts([90 + t, 10]) for t in range(5)]
    for tau in (0.0, 0.5, 1.0, 2.5):
        adjusted = synthetic.adjust(separators, priors, tau=tau)
        modes = {
            m: synthetic.normalize(separators, tau=tau, bias_mode=m) for m in ("scale", "keep")
        }
        dropped = synthetic.normalize(separators, tau=tau, bias_mode="drop")
        for t, (first, second, bias) in enumerate(separators):
            shift = tau * math.log((90 + t) / 10)
            np.testing.assert_allclose(adjusted[t], [first, second, bias + shift], atol=1e-12)
            shrink = (math.hypot(first, second) / 2) ** -tau
            w = [first * shrink, second * shrink]
            np.testing.assert_allclose(modes["scale"][t], [*w, bias * shrink], atol=1e-12)
            np.testing.assert_allclose(modes["keep"][t], [*w, bias], atol=1e-12)
            np.testing.assert_allclose(dropped[t], [*w, 0.0], atol=1e-12)


def test_a_corrected_separator_predicts_as_the_corrected_logits_do():
    generator = np.random.default_rng(2)
    separator, points = generator.standard_normal((1, 3)), generator.standard_normal((400, 2))
    prior = ClassPrior.from_counts([19, 1])
    logits = synthetic.logits_of(separator[0], points)
    np.testing.assert_allclose(logits.sum(axis=1), 0.0, atol=1e-15)
    np.testing.assert_allclose(
        logits[:, 1] - logits[:, 0], points @ separator[0, :2] + separator[0, 2], atol=1e-12
    )
    bias = separator[0, 2] / 2 * np.array([-1.0, 1.0])
    norms = np.full(2, np.linalg.norm(separator[0, :2]) / 2)
    for rows, corrected in [
        (synthetic.adjust(separator, [prior], tau=0.7), adjust_logits(logits, prior, tau=0.7)),
        (
            synthetic.normalize(separator, tau=1.3, bias_mode="keep"),
            normalize_weights(logits, norms=norms, tau=1.3, bias=bias, bias_mode="keep"),
        ),
    ]:
        np.testing.assert_allclose(
            np.diff(corrected, axis=1)[:, 0], points @ rows[0, :2] + rows[0, 2], atol=1e-12
        )


EXPECTED = {
    "softmax": 18.1,
    "adaptive": 16.2,
    "equalized": 8.7,
    "logit-adjusted": 7.88,
    "posthoc-logit-adjusted": 7.88,
    "posthoc-weight-normalized": 18.1,
}


def test_the_paper_s_problem_gives_the_known_errors(study):
    values = study.to_dict()
    assert values["bayes_error"] == pytest.approx(7.865, abs=5e-4)
    for name, error in EXPECTED.items():
        assert values["methods"][name]["mean"] == pytest.approx(error, abs=0.2), name
        assert values["sampled"][name]["mean"] == pytest.approx(error, abs=0.4), name
    for name in ("logit-adjusted", "posthoc-logit-adjusted", "balanced"):
        excess = values["methods"][name]["mean"] - values["bayes_error"]
        assert 0 < excess < 0.05


def test_means_and_deviations_are_over_trials_in_percent(study):
    values = study.to_dict()
    errors = 100 * study.errors["adaptive"]
    assert errors.shape == (100,)
    mean = sum(errors) / 100
    deviation = math.sqrt(sum((e - mean) ** 2 for e in errors) / 99)
    assert values["methods"]["adaptive"]["mean"] == pytest.approx(mean, rel=1e-12)
    assert values["methods"]["adaptive"]["std"] == pytest.approx(deviation, rel=1e-9)
    assert set(values["methods"]["adaptive"]) == {"mean", "std"}


def test_posthoc_and_loss_have_the_same_separator(study):
    np.testing.assert_allclose(
        study.separators["posthoc-logit-adjusted"], study.separators["logit-adjusted"], atol=1e-6
    )
    assert study.to_dict()["posthoc_minus_loss_separator"] < 1e-6


def test_curves_over_tau(study):
    values = study.to_dict()
    tau, curves = values["curves"]["tau"], values["curves"]
    at = {t: tau.index(t) for t in (0.0, 0.5, 1.0, 2.0)}
    keep = curves["posthoc-weight-normalized/keep"]["mean"]
    for t, error in ((0.5, 21.7), (1.0, 26.3), (2.0, 37.5)):
        assert keep[at[t]] == pytest.approx(error, abs=0.2)
    scale = curves["posthoc-weight-normalized/scale"]["mean"]
    np.testing.assert_allclose(scale, values["methods"]["softmax"]["mean"], atol=1e-9)
    drop = curves["posthoc-weight-normalized/drop"]["mean"]
    np.testing.assert_allclose(drop, 7.87, atol=0.02)
    adjusted = curves["posthoc-logit-adjusted"]["mean"]
    assert tau[int(np.argmin(adjusted))] == 1.0
    for curve in (adjusted, keep):
        assert curve[0] == pytest.approx(values["methods"]["softmax"]["mean"], abs=1e-9)
    headline = values["methods"]["posthoc-logit-adjusted"]["mean"]
    assert adjusted[at[1.0]] == pytest.approx(headline, rel=1e-12)
    modes = values["weight_normalization"]
    assert modes["scale"]["mean"] == values["methods"]["posthoc-weight-normalized"]["mean"]
    assert modes["keep"]["mean"] == pytest.approx(keep[at[1.0]], rel=1e-12)


def test_dropping_the_bias_is_an_artefact_of_centres_symmetric_about_the_origin(monkeypatch):
    monkeypatch.setattr(synthetic, "CENTERS", synthetic.CENTERS + 1.0)
    moved = synthetic.run(settings=Settings(trials=5), tau=[1.0])
    assert moved.errors["posthoc-logit-adjusted"].mean() < moved.bayes_error + 1e-3
    assert moved.errors["posthoc-weight-normalized/drop"].mean() > moved.bayes_error + 0.05


def test_sampled_errors_are_those_of_the_test_sample():
    settings = Settings(trials=2, num_train=3000, num_test=500, rare=0.2)
    small = synthetic.run(settings=settings, tau=[1.0])
    test = synthetic.sample(settings, split="test")
    for trial in range(2):
        first, second, bias = small.separators["equalized"][trial]
        wrong, seen = [0, 0], [0, 0]
        for x, y in zip(test.features[trial], test.target[trial], strict=True):
            seen[y] += 1
            wrong[y] += int(first * x[0] + second * x[1] + bias > 0) != y
        expected = (wrong[0] / seen[0] + wrong[1] / seen[1]) / 2
        assert small.sampled["equalized"][trial] == pytest.approx(expected, rel=1e-12)


def test_the_same_seed_gives_the_same_study_and_another_another():
    def numbers(seed):
        settings = Settings(trials=2, num_train=2000, num_test=300, seed=seed)
        return json.dumps(synthetic.run(settings=settings, tau=[0.0, 1.0]).to_dict())

    assert numbers(3) == numbers(3)
    assert numbers(3) != numbers(4)


def test_to_dict_is_plain_json(study):
    values = study.to_dict()
    assert json.loads(json.dumps(values)) == values


def test_progress_goes_from_nothing_to_everything():
    calls = []
    synthetic.run(
        settings=Settings(trials=1, num_train=2000, num_test=300),
        tau=[1.0],
        progress=lambda *call: calls.append(call),
    )
    dones, totals, whats = zip(*calls, strict=True)
    assert list(dones) == list(range(totals[-1] + 1))
    assert len(set(totals)) == 1
    assert "solving logit-adjusted" in whats


def test_one_trial_has_no_spread():
    settings = Settings(trials=1, num_train=2000, num_test=300)
    assert synthetic.run(settings=settings, tau=[1.0]).to_dict()["methods"]["softmax"]["std"] == 0.0


@pytest.mark.slow
def test_the_study_takes_seconds():
    began = time.process_time()
    synthetic.run()
    assert time.process_time() - began < 10  # of the 20 that two cores may take


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 0}, "`trials` must be a whole number above zero; got 0"),
        ({"num_train": 2.5}, "`num_train` must be a whole number above zero; got 2.5"),
        ({"num_test": True}, "`num_test` must be a whole number"),
        ({"rare": 0.0}, "`rare` must lie strictly between 0 and 1"),
        ({"rare": 1.5}, r"`rare` must lie in \[0, 1\]; got 1.5"),
        ({"sigma": 0.0}, "`sigma` must be above zero; got 0"),
        ({"sigma": float("nan")}, "`sigma` must be finite; got nan"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=f"synthetic.Settings: {message}"):
        Settings(**settings)


def test_a_trial_of_one_class_is_named():
    with pytest.raises(InputError, match=r"trial\(s\) 0.* drew one class only; raise `num_train`"):
        synthetic.run(settings=Settings(trials=2, num_train=2))
    with pytest.raises(InputError, match=r"drew one class only; raise `num_test`, 1 now"):
        synthetic.run(settings=Settings(trials=2, num_train=2000, num_test=1))


def test_separable_samples_are_refused():
    with pytest.raises(InputError, match="a line separates the classes"):
        synthetic.run(settings=Settings(trials=1, sigma=0.1))


def test_unknown_split():
    with pytest.raises(InputError, match="`split` must be one of 'train', 'test'; got 'valid'"):
        synthetic.sample(Settings(trials=1), split="valid")
