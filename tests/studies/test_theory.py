"""The theory's table, curves and limit, and separable classes against other solvers."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from longtail.consistency.binary import examples
from studies import __main__, theory
from studies._records import ROOT


@pytest.fixture(scope="module")
def curves():
    return theory.curves()


def test_verdicts_are_the_papers_and_every_no_has_a_witness():
    found = theory.verdicts()
    for name, _, _, paper in theory.TABLE:
        for verdict, prior in zip(found[name], theory.PRIORS, strict=True):
            assert paper is None or verdict.consistent == paper
            assert (verdict.witness is None) == (verdict.consistent is True)
            if verdict.witness is not None:
                w = verdict.witness
                assert w.should_win == np.argmax(w.eta / prior.probs)
                assert w.wins == np.argmax(w.scores) != w.should_win
    more = {name for name, _, _, paper in theory.TABLE if paper is None}
    consistent = {name for name in more if all(verdict.consistent for verdict in found[name])}
    assert consistent == {"balanced", "weighted logit adjusted", "bounded margin"}


@pytest.mark.parametrize("name", list(examples(0.2)))
@pytest.mark.parametrize("gamma", [1.0, 8.0])
def test_the_direct_minimiser_is_scipys(name, gamma):
    loss, p = examples(0.2, gamma=gamma)[name], np.array([0.01, 0.15, 0.4, 0.97])
    found = theory.minimize_directly(loss, p)

    def risk(f, prob):
        plus = loss.omega_pos / gamma * math.log1p(math.exp(gamma * (loss.delta_pos - f)))
        minus = loss.omega_neg / gamma * math.log1p(math.exp(gamma * (loss.delta_neg + f)))
        return prob * plus + (1 - prob) * minus

    for prob, score in zip(p, found, strict=True):
        best = minimize_scalar(risk, args=(prob,), bounds=(-15, 15), method="bounded")
        assert risk(score, prob) <= best.fun + 1e-14
        assert score == pytest.approx(best.x, abs=2e-3)


def test_curves_agree_with_direct_minimisation(curves):
    assert all(curve.deviation < 1e-12 for several in curves.values() for curve in several)
    assert [len(several) for several in curves.values()] == [6, 6, 11]


def test_in_the_limit_all_become_consistent_and_the_tent():
    for row in theory.limit_table().rows:
        assert row[-1] == ("0.200" if row[1] == "threshold" else "0.000")


def small_sample(monkeypatch):
    monkeypatch.setattr(theory, "COMMON", 40)
    monkeypatch.setattr(theory, "SCARCE", 8)
    features, target = theory.separable_sample(1)
    return features[0], target[0]


def test_the_population_error_is_what_sampling_finds(monkeypatch):
    monkeypatch.setattr(theory, "COMMON", 200_000)
    monkeypatch.setattr(theory, "SCARCE", 200_000)
    features, target = theory.separable_sample(1)
    for row in ([1.0, 0.7, 0.2], [0.4, 1.0, -0.3], [1.0, 1.0, 0.0], [1.0, -0.2, 1.0]):
        separator = np.array(row)
        predicted = features[0] @ separator[:2] + separator[2] > 0
        sampled = 0.5 * (np.mean(predicted[target[0] == 0]) + np.mean(~predicted[target[0] == 1]))
        assert float(theory.population_error(separator)) == pytest.approx(sampled, abs=2.5e-3)


@pytest.mark.parametrize(("rare", "common"), [(1.0, 1.0), (1.5, 0.5)])
def test_hinge_separators_are_the_quadratic_programmes(monkeypatch, rare, common):
    features, target = small_sample(monkeypatch)
    sign, wanted = 2.0 * target - 1.0, np.where(target == 1, rare, common)
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
    hard = theory.hard_margin(features, target)
    np.testing.assert_allclose(theory.uneven(hard, rare, common), found.x, rtol=1e-4, atol=1e-4)
    expected = (rare - common) / (rare + common)
    assert float(hard.position(found.x)) == pytest.approx(expected, abs=1e-3)


def test_weights_and_logit_margins_fade_with_the_penalty_hinge_margins_stay():
    study = theory.separable(8, (1e-1, 1e-4, 1e-8, 1e-14))
    assert study.weighted_difference < 1e-6
    quarter = (theory.COMMON / theory.SCARCE) ** 0.25
    assert study.hinge_position == pytest.approx((quarter - 1) / (quarter + 1))
    plain = np.median(study.positions["softmax"], axis=0)[1]
    for name, rows in study.positions.items():
        far, near, last = np.median(np.abs(rows), axis=0)[1:]
        assert near < 0.7 * far
        assert last < max(0.75 * near, 0.02)  # adaptive passes through zero on its way
        if name in ("balanced", "logit-adjusted"):
            assert np.median(rows, axis=0)[1] > plain + 0.5


def test_the_page_comes_out_as_it_is_in_the_checkout(tmp_path):
    assert __main__.main(["theory", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "docs/paper-theory.md").read_bytes()
    assert page == (ROOT / "docs/paper-theory.md").read_bytes()
    assert len(list(tmp_path.glob("docs/paper-theory/*.svg"))) == 4
