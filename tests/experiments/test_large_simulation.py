"""The simulation at full class count, in small, against closed forms and plain NumPy."""

import functools
import json

import numpy as np
import pytest
from scipy.stats import norm

from longtail import ClassPrior
from longtail._checks import InputError
from longtail.experiments import gaussian_classes
from longtail.experiments import large_simulation as simulation
from longtail.experiments.large_simulation import LIMIT, POSTHOC, Settings, Study, Trial

pytest.importorskip("torch")
CLASSES = 50
COUNTS = np.maximum(3, 600 / np.arange(1, CLASSES + 1)).astype(np.int64)
SETTINGS = Settings(
    dimension=6,
    scales={"imagenet-lt": 1.6},
    multiples={"imagenet-lt": (1, 30)},
    trials=2,
    test_points=20_000,
    tolerance=0.03,
)


@functools.cache
def small_study():
    return simulation.run(
        settings=SETTINGS, datasets=["imagenet-lt"], class_counts={"imagenet-lt": COUNTS}
    )


@pytest.mark.parametrize("distance", [0.8, 2.0, 3.5])
def test_the_bayes_error_of_two_classes_has_a_closed_form(distance):
    centers = np.zeros((2, 5))
    centers[1] = distance / np.sqrt(5)
    points, answers = gaussian_classes.sample(centers, np.full(2, 40_000), np.random.default_rng(0))
    weights = gaussian_classes.true_weights(centers)
    exact = 100 * norm.cdf(-distance / 2)
    found = gaussian_classes.bayes_balanced_error(points, weights, per_class=40_000)
    assert abs(found.mean - exact) < 4 * found.se < 1.0
    # The share of wrong decisions estimates the same, with more noise.
    wrong = gaussian_classes.decide(points, weights) != answers
    sampled = gaussian_classes.estimate(wrong, per_class=40_000)
    assert abs(sampled.mean - exact) < 4 * sampled.se
    assert sampled.se > found.se


def test_standard_errors_are_those_of_repeated_sampling():
    centers = 1.2 * np.random.default_rng(3).standard_normal((8, 3))
    weights = gaussian_classes.true_weights(centers)
    found = []
    for seed in range(200):
        points, _ = gaussian_classes.sample(centers, np.full(8, 25), np.random.default_rng(seed))
        found.append(gaussian_classes.bayes_balanced_error(points, weights, per_class=25))
    spread = np.std([one.mean for one in found], ddof=1)
    assert spread == pytest.approx(np.mean([one.se for one in found]), rel=0.2)


def test_decisions_are_those_of_the_densities():
    random = np.random.default_rng(4)
    centers = random.standard_normal((9, 4))
    points, _ = gaussian_classes.sample(centers, np.full(9, 30), random)
    distances = np.linalg.norm(points[:, None] - centers[None], axis=2)
    nearest = distances.argmin(axis=1)
    np.testing.assert_array_equal(
        gaussian_classes.decide(points, gaussian_classes.true_weights(centers)), nearest
    )


def test_adjusting_the_true_posterior_gives_bayes():
    centers = np.random.default_rng(5).standard_normal((CLASSES, 6))
    log_prior = ClassPrior.from_counts(COUNTS).log_probs
    exact = gaussian_classes.true_weights(centers)
    posterior = gaussian_classes.shifted(exact, log_prior)
    points, _ = gaussian_classes.sample(centers, np.full(CLASSES, 20), np.random.default_rng(6))
    adjusted = gaussian_classes.shifted(posterior, -log_prior)
    np.testing.assert_array_equal(
        gaussian_classes.decide(points, adjusted), gaussian_classes.decide(points, exact)
    )
    assert (
        gaussian_classes.decide(points, posterior) != gaussian_classes.decide(points, exact)
    ).any()


def test_the_plug_in_rule_shrinks_the_means_of_the_classes():
    features = np.array([[2.0], [4.0], [-3.0]], dtype=np.float32)
    found = gaussian_classes.plug_in(features, np.array([0, 0, 1]), scale=2.0, num_classes=2)
    centers = np.array([6.0 / 2.25, -3.0 / 1.25])
    np.testing.assert_allclose(found, np.stack([centers, -(centers**2) / 2], axis=1))


def test_more_examples_lead_to_bayes_with_adjustment_only():
    study = small_study()
    for few, many in zip(*(study.of("imagenet-lt", m) for m in (1, 30)), strict=True):
        for adjusted in (POSTHOC, "logit-adjusted"):
            assert many.excess[adjusted].mean < 0.3 * few.excess[adjusted].mean
            assert abs(many.excess[adjusted].mean) < 0.5
            assert few.errors[adjusted].mean < few.errors["softmax"].mean
        # ERM tends to the posterior with its prior, which is no Bayes rule for balanced classes.
        assert many.excess["softmax"].mean > 5 * many.excess["logit-adjusted"].mean
        assert many.excess["softmax"].mean == pytest.approx(many.excess[LIMIT].mean, abs=0.5)
        assert few.groups["softmax"]["few"] > few.groups["logit-adjusted"]["few"]


def test_post_hoc_adjustment_and_the_loss_are_one_rule():
    for trial in small_study().trials:
        assert trial.disagreement < 0.2
        assert max(trial.gradients.values()) <= 10 * SETTINGS.tolerance


def test_a_trials_parts_fit_together():
    trial = small_study().trials[0]
    sizes = [len(g) for g in ClassPrior.from_counts(COUNTS).groups().values()]
    for method in simulation.METHODS:
        mean = np.average(list(trial.groups[method].values()), weights=sizes)
        assert mean == pytest.approx(trial.errors[method].mean)
        difference = trial.errors[method].mean - trial.errors["bayes"].mean
        assert trial.excess[method].mean == pytest.approx(difference)
        assert len(trial.bins[method]) == simulation.BINS
    gap = trial.bayes.mean - trial.errors["bayes"].mean
    assert abs(gap) < 4 * trial.errors["bayes"].se
    assert trial.bins["softmax"][-1] > trial.bins["softmax"][0]


def test_multiples_share_their_centres_and_test_points():
    one, other = (small_study().of("imagenet-lt", m) for m in (1, 30))
    assert [t.bayes for t in one] == [t.bayes for t in other]
    assert one[0].bayes != one[1].bayes


def test_a_trial_does_not_depend_on_the_others():
    alone = simulation.run_trial("imagenet-lt", COUNTS, multiple=1, settings=SETTINGS, seed=1)
    assert alone.errors == small_study().of("imagenet-lt", 1)[1].errors


def test_json_and_back():
    study = small_study()
    text = json.dumps(study.to_dict(), allow_nan=False)
    again = Study.from_dict(json.loads(text))
    assert again.to_dict() == study.to_dict()
    assert isinstance(again.trials[0], Trial)
    facts = again.sizes["imagenet-lt"]
    assert (facts["classes"], facts["examples"], facts["source"]) == (50, COUNTS.sum(), "given")


def test_what_is_refused():
    with pytest.raises(InputError, match="`datasets` must be one of"):
        simulation.run(datasets=["places-lt"])
    with pytest.raises(InputError, match="no scale or no multiples for 'inaturalist'"):
        simulation.run(settings=SETTINGS, datasets=["inaturalist"])
    for wrong in ({"trials": 0}, {"ridge": 0.0}, {"multiples": {"imagenet-lt": (0,)}}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Settings(**wrong)
