"""The theory's table, curves and limit, and that the curves' own check can fail."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from longtail import InputError
from longtail.consistency.binary import BinaryLoss, examples
from longtail.experiments import separable, theory

QUICK = separable.Settings(trials=2, common=40, rare=5, penalties=(1e-2, 1e-4))


@pytest.fixture(scope="module")
def result():
    return theory.run(points=199, settings=QUICK)


def test_table_1_has_the_papers_verdicts(result):
    found = {row.name: row.consistent for row in result.rows if row.paper is not None}
    assert found == {
        "weight normalisation": False,
        "adaptive margin": False,
        "equalised margin": False,
        "logit-adjusted threshold": True,
        "logit-adjusted loss": True,
    }
    assert result.agrees_with_paper


def test_the_other_rows(result):
    found = {row.name: row.consistent for row in result.rows if row.paper is None}
    consistent = {"balanced", "weighted logit adjusted", "bounded margin"}
    assert {name for name, verdict in found.items() if verdict} == consistent
    assert None not in found.values()


def test_every_refusal_has_a_witness_with_the_wrong_winner(result):
    for row in result.rows:
        for label, verdict in row.verdicts.items():
            assert (verdict.witness is None) == (verdict.consistent is True)
            if verdict.witness is not None:
                w, prior = verdict.witness, theory.PRIORS[label]
                assert w.should_win == np.argmax(w.eta / prior.probs)
                assert w.wins == np.argmax(w.scores) != w.should_win


def test_a_row_is_consistent_only_if_every_prior_agrees(result):
    good, bad = result.rows[4].verdicts, result.rows[1].verdicts
    mixed = {"two classes": good["two classes"], "three classes": bad["three classes"]}
    assert theory.Row("x", "", None, mixed).consistent is False
    undecided = {"two classes": theory.Verdict("x", None, "unknown.")}
    assert theory.Row("x", "", None, {**good, **undecided}).consistent is None


def test_all_curves_of_the_papers_figures_are_there(result):
    for gamma in (1.0, 8.0):
        for curves, names in (
            (result.links, theory.LINKS),
            (result.inverse_links, theory.LINKS),
            (result.bayes_risks, theory.BAYES_RISKS),
        ):
            assert [c.name for c in curves if c.gamma == gamma] == list(names)
    assert result.bayes_risks[-1].name == "tent"
    assert result.links[0].name == "balanced"


def test_curves_agree_with_direct_minimisation(result):
    assert 0 < result.largest_deviation < 1e-12


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


def test_a_wrong_link_would_show(monkeypatch):
    """The paper's printed link, −log 2 outside of the 1/γ, is caught by the deviation."""
    right = BinaryLoss.link
    monkeypatch.setattr(
        BinaryLoss,
        "link",
        lambda self, p: right(self, p) - (1 - 1 / self.gamma) * math.log(2),
    )
    links, _ = theory._link_curves(0.2, 8.0, np.array([0.1, 0.5]))
    assert all(curve.deviation > 0.5 for curve in links)


def test_the_first_two_links_cross_zero_at_the_prior_and_the_third_does_not(result):
    for gamma in (1.0, 8.0):
        at_zero = {
            c.name: float(np.interp(0.0, c.x, c.y))
            for c in result.inverse_links
            if c.gamma == gamma
        }
        assert at_zero["balanced"] == pytest.approx(0.2, abs=1e-3)
        assert at_zero["unequal-margin"] == pytest.approx(0.2, abs=1e-3)
        assert at_zero["balanced-margin"] < 0.19


def test_bayes_risks_have_maximum_one_and_unequal_margins_change_nothing(result):
    by_name = {(c.name, c.gamma): c.y for c in result.bayes_risks}
    for y in by_name.values():
        assert 0.99 < y.max() <= 1 + 1e-12
    for gamma in (1.0, 8.0):
        np.testing.assert_allclose(
            by_name["unequal-margin", gamma], by_name["logistic", gamma], atol=1e-12
        )
        # Weighting brings the curve closer to the tent.
        tent = by_name["tent", None]
        distance = {n: np.abs(by_name[n, gamma] - tent).max() for n in theory.BAYES_RISKS}
        assert distance["balanced"] < distance["balanced-margin"] < distance["logistic"]


def test_in_the_limit_all_become_consistent_and_the_tent(result):
    assert result.limit_gammas[-1] == math.inf
    for name in ("balanced", "balanced-margin", "balanced-margin-pi"):
        assert result.thresholds[name][-1] == pytest.approx(0.2)
        assert result.tent_distances[name][-1] < 1e-12
        assert np.all(np.diff(result.tent_distances[name]) < 0)
    assert result.thresholds["balanced-margin"][0] < 0.17


def test_everything_is_plain_json(result):
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["agrees_with_paper"] is True
    assert plain["table"][0]["verdicts"]["two classes"]["witness"]["wins"] == 0
    assert plain["limit"]["gamma"][-1] == "inf"
    assert len(plain["links"][0]["x"]) == 199
    assert set(plain["separable"]["balanced_error"]) == {*separable.LOSSES, *separable.HINGES}


def test_progress_counts_up_to_its_total():
    calls = []
    theory.run(points=9, settings=QUICK, progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == list(range(len(calls)))
    assert {total for _, total, _ in calls} == {len(calls) - 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.run(points=1), "theory.run: `points` must be a whole number, at least 2"),
        (lambda: theory.run(gammas=()), "theory.run: `gammas` is empty"),
        (lambda: theory.run(pi=1.0), "`pi` must lie strictly between 0 and 1; got 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
