"""The experiment on separable classes: its parts against other solvers, its claims as tests."""

import numpy as np
import pytest
from scipy.optimize import minimize

from longtail import ClassPrior, InputError, margins
from longtail.experiments import affine, separable

SETTINGS = separable.Settings(trials=12, penalties=(1e-1, 1e-4, 1e-8))


@pytest.fixture(scope="module")
def study():
    return separable.run(settings=SETTINGS)


@pytest.fixture(scope="module")
def tiny_penalties():
    return separable.run(settings=separable.Settings(trials=4, penalties=(1e-8, 1e-14)))


def small_sample(seed=3):
    features, target = separable.sample(separable.Settings(trials=1, common=40, rare=8, seed=seed))
    return features[0], target[0]


def test_each_class_stays_on_its_side_and_is_a_cut_gaussian():
    features, target = separable.sample(separable.Settings(trials=1, common=40_000, rare=20_000))
    along = features[0].sum(axis=1) / np.sqrt(2)
    assert np.all((along > 0) == (target[0] == 1))
    whole = np.random.default_rng(1).normal(np.sqrt(2), 1.0, 400_000)
    expected = whole[whole > 0]
    for side in (along[target[0] == 1], -along[target[0] == 0]):
        assert side.mean() == pytest.approx(expected.mean(), abs=0.02)
        assert side.std() == pytest.approx(expected.std(), abs=0.02)
    across = (features[0, :, 0] - features[0, :, 1]) / np.sqrt(2)
    assert across.mean() == pytest.approx(0.0, abs=0.02)
    assert across.std() == pytest.approx(1.0, abs=0.02)


def test_a_trial_does_not_depend_on_how_many_there_are():
    few = separable.sample(separable.Settings(trials=2, common=9, rare=3))[0]
    many = separable.sample(separable.Settings(trials=5, common=9, rare=3))[0]
    np.testing.assert_array_equal(few, many[:2])


def test_balanced_error_is_what_sampling_finds():
    features, target = separable.sample(
        separable.Settings(trials=1, common=200_000, rare=200_000, seed=9)
    )
    for row in (
        [1.0, 0.7, 0.2],
        [0.4, 1.0, -0.3],
        [1.0, 1.0, 0.5],
        [1.0, 1.0, 0.0],
        [1.0, -0.2, 1.0],
    ):
        separator = np.array(row)
        predicted = features[0] @ separator[:2] + separator[2] > 0
        sampled = 0.5 * (np.mean(predicted[target[0] == 0]) + np.mean(~predicted[target[0] == 1]))
        assert float(separable.balanced_error(separator)) == pytest.approx(sampled, abs=2.5e-3)


def test_the_maximum_margin_is_the_quadratic_programmes():
    features, target = small_sample()
    sign = 2.0 * target - 1.0
    found = minimize(
        lambda z: 0.5 * z[:2] @ z[:2],
        np.array([1.0, 1.0, 0.0]),
        jac=lambda z: np.array([z[0], z[1], 0.0]),
        constraints={
            "type": "ineq",
            "fun": lambda z: sign * (features @ z[:2] + z[2]) - 1.0,
            "jac": lambda _: sign[:, None] * np.column_stack([features, np.ones(len(sign))]),
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    hard = separable.hard_margin(features, target)
    np.testing.assert_allclose(hard.separator, found.x, rtol=1e-4, atol=1e-4)
    assert abs(hard.middle @ hard.separator[:2] + hard.separator[2]) < 1e-6


def test_uneven_margins_are_the_quadratic_programmes_too():
    features, target = small_sample()
    sign, wanted = 2.0 * target - 1.0, np.where(target == 1, 1.5, 0.5)
    found = minimize(
        lambda z: 0.5 * z[:2] @ z[:2],
        np.array([1.0, 1.0, 0.0]),
        jac=lambda z: np.array([z[0], z[1], 0.0]),
        constraints={
            "type": "ineq",
            "fun": lambda z: sign * (features @ z[:2] + z[2]) - wanted,
            "jac": lambda _: sign[:, None] * np.column_stack([features, np.ones(len(sign))]),
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    hard = separable.hard_margin(features, target)
    np.testing.assert_allclose(separable.uneven(hard, 1.5, 0.5), found.x, rtol=1e-4, atol=1e-4)
    assert float(hard.position(found.x)) == pytest.approx(0.5, abs=1e-3)


def test_position_is_zero_in_the_middle_and_one_at_the_samples():
    hard = separable.hard_margin(np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([0, 1]))
    lines = np.array([[1.0, 0.0, -2.0], [1.0, 0.0, 0.0], [3.0, 0.0, -12.0], [1.0, 0.5, -1.0]])
    np.testing.assert_allclose(hard.position(lines), [0.0, 1.0, -1.0, 0.5], atol=1e-6)


def test_penalised_fits_minimise_the_penalised_loss():
    features, target = small_sample()
    prior, penalty = ClassPrior.from_labels(target), 1e-2
    sign = 2.0 * target - 1.0
    for name in (*separable.LOSSES, "ldam"):
        loss = margins.by_name(name, prior, **({"scale": 3.0} if name == "ldam" else {}))
        delta = loss.matrix()[target, 1 - target]

        def objective(z, loss=loss, delta=delta):
            g = sign * (features @ z[:2] + z[2])
            losses = loss.alpha[target] * np.logaddexp(0.0, loss.scale * (delta - g))
            return losses.mean() + 0.5 * penalty * z[:2] @ z[:2]

        found = affine.fit(features[None], target[None], [loss], penalty=penalty)[0]
        best = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_weights_change_nothing_under_the_hinge_loss(study):
    assert study.weighted_difference < 1e-6
    np.testing.assert_allclose(study.errors["hinge-weights"], study.errors["hinge"], atol=1e-9)


def test_hinge_margins_move_the_separator_by_their_ratio(study):
    quarter = (SETTINGS.common / SETTINGS.rare) ** 0.25
    assert study.hinge_position == pytest.approx((quarter - 1) / (quarter + 1))
    gain = study.errors["hinge"] - study.errors["hinge-margins"]
    assert gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(len(gain))


@pytest.mark.parametrize("name", separable.LOSSES)
def test_weights_and_logit_margins_fade_with_the_penalty(study, tiny_penalties, name):
    """Cross-entropies come to the maximum margin, whatever their weights and margins."""
    far, near = np.median(np.abs(study.positions[name]), axis=0)[1:]
    assert near < 0.7 * far
    assert near < 0.5
    before, after = np.median(np.abs(tiny_penalties.positions[name]), axis=0)
    assert after < max(0.75 * before, 0.02)  # adaptive passes through zero on its way


def test_while_the_norm_is_bounded_weights_and_margins_do_move_it(study):
    plain = np.median(study.positions["softmax"], axis=0)[1]
    for name in ("balanced", "logit-adjusted"):
        assert np.median(study.positions[name], axis=0)[1] > plain + 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: separable.Settings(rare=0), "`rare` must be a whole number, at least 1; got 0"),
        (lambda: separable.Settings(penalties=()), "`penalties` is empty"),
        (lambda: separable.Settings(penalties=(0.0,)), "`penalties` must be above zero"),
        (
            lambda: separable.hard_margin(
                np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), np.array([0, 1, 0, 1])
            ),
            "no line separates the classes",
        ),
        (
            lambda: affine.fit(
                np.zeros((1, 2, 2)),
                np.array([[0, 1]]),
                [margins.softmax(ClassPrior.uniform(2))],
                penalty=-1.0,
            ),
            "affine.fit: `penalty` must not be negative; got -1",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
