"""Names, tables and sentences about a comparison, on numbers chosen for the purpose."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from longtail import ClassPrior
from longtail.margins import MARGINS
from longtail.report import comparison as texts
from longtail.report.compare import Comparison, Row, Scored
from longtail.report.page import _tiles
from longtail.runs import DataSpec
from longtail.runs.ensemble import ensemble_spec

PRIOR = ClassPrior.from_counts([200, 50, 5])


def row(method, errors, *, source=None, detail="", taus=None):
    """Per-class errors of each seed, shape (seeds, 3)."""
    scored = tuple(
        Scored(seed, None if taus is None else taus[seed], np.asarray(values), lambda: None)
        for seed, values in enumerate(errors)
    )
    return Row(method, source, detail, scored, ())


def comparison(*rows, split="test"):
    spec = SimpleNamespace(dataset=SimpleNamespace(name="some-lt"))
    run = SimpleNamespace(spec=spec, prior=PRIOR)
    return Comparison(rows, np.arange(3), (run,), {}, {}, split)


SOFTMAX = row("softmax", [[0.0, 0.3, 0.6], [0.0, 0.24, 0.6], [0.06, 0.3, 0.6]])
BETTER = row("logit-adjusted", [[0.03, 0.2, 0.28], [0.03, 0.14, 0.25], [0.09, 0.2, 0.31]])
NOISY = row("balanced", [[0.0, 0.0, 0.0], [0.0, 0.3, 0.6], [0.1, 0.3, 0.62]])
ORACLE = row("posthoc-logit-adjusted", [[0.0, 0.0, 0.1]] * 3, source="oracle", taus=[1.0, 1.5, 2.0])


def test_two_sentences_with_an_interval_that_excludes_zero():
    first, second = texts.summary(comparison(SOFTMAX, BETTER, ORACLE))
    assert first == (
        "Trained on some-lt with plain softmax, the model gets 30.0% of an average class wrong: "
        "2.0% where a class has many training examples (over 100), 60.0% where it has few "
        "(under 20)."
    )
    differences = BETTER.errors - SOFTMAX.errors
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / np.sqrt(3)
    low, high = (100 * (-differences.mean() + sign * half) for sign in (-1, 1))
    assert second == (
        "Logit adjusted, which never saw the test set, gets 17.0% wrong: "
        f"13.0 points lower (95% interval over 3 paired seeds: {low:.1f} to {high:.1f}), "
        "and as the interval excludes zero, that is more than the seeds' noise."
    )


def test_an_interval_with_zero_in_it_is_no_difference():
    worse = row("equalized", 0.1 + np.array([s.per_class for s in SOFTMAX.scored]))
    _, second = texts.summary(comparison(SOFTMAX, NOISY, worse))
    assert second.startswith(
        "Of the 2 other methods that never saw the test set, balanced does best, with 21.3%: 8.7 "
    )
    assert second.endswith("as the interval includes zero, these seeds show no difference.")
    assert "−" in second  # the interval's lower end


def test_methods_that_learnt_from_the_images_are_not_said_never_to_have_seen_them():
    _, alone = texts.summary(comparison(SOFTMAX, BETTER, split="train"))
    assert alone.startswith("Logit adjusted, which learnt from these very images, gets 17.0% wrong")
    _, best = texts.summary(comparison(SOFTMAX, BETTER, NOISY, split="train"))
    assert best.startswith("Of the 2 other methods that learnt from these very images, logit adj")
    assert "never saw" not in alone + best


def test_the_best_of_several_was_picked_and_has_a_wider_interval():
    worse = [row(name, np.full((3, 3), 0.9)) for name in ("adaptive", "balanced", "equalized")]
    _, second = texts.summary(comparison(SOFTMAX, BETTER, *worse, ORACLE))
    differences = BETTER.errors - SOFTMAX.errors
    half = stats.t.ppf(1 - 0.025 / 4, 2) * differences.std(ddof=1) / np.sqrt(3)
    low, high = (100 * (-differences.mean() + sign * half) for sign in (-1, 1))
    assert (
        "(95% interval over 3 paired seeds, wider since it was picked among 4 by these errors: "
        f"{low:.1f} to {high:.1f})"
    ) in second


@pytest.mark.parametrize("others", [1, 4, 8])
def test_where_no_method_differs_the_best_is_seldom_called_better(others):
    rng = np.random.default_rng(others)
    names = [name for name in MARGINS if name != "softmax"][:others]
    claims = 0
    for _ in range(1000):
        rows = [row(name, 0.15 + 0.01 * rng.normal(size=(5, 1))) for name in ("softmax", *names)]
        sentence = texts._winner_sentence(comparison(*rows), rows[0], texts.best(comparison(*rows)))
        claims += "more than the seeds' noise" in sentence
    assert claims / 1000 <= 0.04


def test_the_note_counts_the_seeds_of_each_row():
    one, two = row("adaptive", [[0.1] * 3]), row("balanced", [[0.1] * 3] * 2)
    assert texts.tables(comparison(SOFTMAX, one, two))[0].note.startswith(
        "Mean over 1 to 3 seeds ±"
    )
    assert texts.tables(comparison(SOFTMAX, BETTER))[0].note.startswith("Mean over 3 seeds ±")
    assert texts.tables(comparison(one))[0].note.startswith("One seed: ")


def test_the_note_names_held_out_runs_that_are_left_out():
    runs = tuple(SimpleNamespace(name=f"some-lt/softmax-s{seed}-0a1b2c3d") for seed in range(2))
    compared = replace(comparison(SOFTMAX, BETTER), left_out={"epochs: 1 against 6": runs})
    sentence = (
        "Left out: some-lt/softmax-s0-0a1b2c3d, some-lt/softmax-s1-0a1b2c3d (epochs: 1 against 6)."
    )
    assert sentence in texts.tables(compared)[0].note
    assert sentence in texts.headline(compared, compared.rows).note
    assert "Left out" not in texts.tables(comparison(SOFTMAX, BETTER))[0].note


def test_one_seed_gives_no_interval():
    one = comparison(
        row("softmax", [[0.0, 0.3, 0.6]]), row("adaptive", [[0.0, 0.2, 0.4]]), split="val"
    )
    assert texts.summary(one)[1] == (
        "Adaptive, which never saw the val set, gets 20.0% wrong: "
        "10.0 points lower, but one seed gives no interval, so this may be noise."
    )
    table = texts.headline(one, one.rows)
    assert [line[1:3] for line in table.rows] == [("30.0", ""), ("20.0", "−10.0")]
    assert "there are no intervals" in table.note


def ensemble_row(errors, seeds):
    """The mean of one network of each seed."""
    names = [f"some-lt/balanced-s{seed}-0a1b2c3d" for seed in seeds]
    run = SimpleNamespace(members=tuple(names), spec=ensemble_spec(DataSpec("some-lt"), names))
    return replace(row("ensemble", [errors]), runs=(run,))


def test_an_ensemble_is_no_seed():
    one = comparison(SOFTMAX, ensemble_row([0.0, 0.1, 0.2], (1, 2)))
    assert texts.summary(one)[1] == (
        "Ensemble, which never saw the test set, gets 10.0% wrong: 20.0 points lower than "
        "softmax's mean over the same 2 seeds; it is the mean of 2 networks and has no interval, "
        "so this may be noise."
    )
    table = texts.headline(one, one.rows)
    assert table.rows[1][1:3] == ("10.0", "−20.0")
    assert table.note.startswith("Mean over 3 seeds ±")
    assert "Ensemble: the mean of several networks' logits" in table.note
    other = comparison(SOFTMAX, ensemble_row([0.0, 0.1, 0.2], (2, 3)))
    assert texts.headline(other, other.rows).rows[1][1:3] == ("10.0", "")
    assert texts.summary(other)[1].endswith(
        "gets 10.0% wrong; it is the mean of 2 networks, and softmax was not trained with all of "
        "their seeds to compare it to."
    )
    alone = comparison(ensemble_row([0.0, 0.1, 0.2], (1, 2)))
    assert texts.tables(alone)[0].note.startswith("Ensemble: ")


def test_nothing_beats_softmax():
    worse = row("equalized", 0.1 + np.array([s.per_class for s in SOFTMAX.scored]))
    assert texts.summary(comparison(SOFTMAX, worse, ORACLE))[1] == (
        "No other method has a lower balanced error here."
    )


def test_without_softmax_there_is_nothing_to_compare_to():
    first, second = texts.summary(comparison(BETTER, NOISY))
    assert first == "Of 2 methods, logit adjusted has the lowest balanced error, 17.0%."
    assert "plain softmax" in second
    assert texts.headline(comparison(BETTER), (BETTER,)).rows[0][2] == ""


def test_without_softmax_methods_are_compared_over_the_seeds_that_all_have():
    """Five seeds, of which the first is a hard one, against that one alone."""
    five = row("equalized", np.array([0.30, 0.12, 0.13, 0.13, 0.13])[:, None].repeat(3, axis=1))
    one = row("adaptive", [[0.28] * 3])
    compared = comparison(five, one)
    assert texts.best(compared) is one
    assert texts.summary(compared)[0] == (
        "Of 2 methods, adaptive has the lowest balanced error, 28.0% with the one seed that all "
        "share (each has 1 to 5); this may be noise."
    )
    two = row("adaptive", [[0.28] * 3, [0.10] * 3])
    assert texts.summary(comparison(five, two))[0] == (
        "Of 2 methods, adaptive has the lowest balanced error, 19.0%, over the 2 seeds that all "
        "share (each has 2 to 5); this may be noise."
    )


def test_with_softmax_the_winner_is_picked_over_the_seeds_that_all_have():
    """Where the second seed is a hard one, who was trained with the first alone seems to win."""
    base = row("softmax", np.array([0.30, 0.50, 0.40])[:, None].repeat(3, axis=1))
    three = row("equalized", np.array([0.10, 0.32, 0.20])[:, None].repeat(3, axis=1))
    one = row("adaptive", [[0.12] * 3])
    compared = comparison(base, three, one)
    assert texts.best(compared) is three
    assert texts.summary(compared)[1].startswith(
        "Of the 2 other methods that never saw the test set, equalized does best, with 10.0% "
        "(with the one seed that all share): 19.3 points lower (95% interval over 3 paired seeds, "
    )
    assert [float(tile.value.rstrip("%")) for tile in _tiles(compared)[:2]] == [30.0, 10.0]
    assert {tile.note for tile in _tiles(compared)[:2]} == {
        "balanced error (with the one seed that all share)"
    }
    two = row("adaptive", [[0.31] * 3, [0.52] * 3])
    assert texts.summary(comparison(base, two))[1] == (
        "No other method has a lower balanced error here (over the 2 seeds that all share)."
    )


def test_with_softmax_a_method_of_other_seeds_is_held_against_it_over_those_they_share():
    base = row("softmax", [[0.3] * 3] * 2)
    paired = row("equalized", [[0.1] * 3] * 2)
    apart = row("adaptive", [[0.2] * 3])
    apart = replace(apart, scored=(replace(apart.scored[0], seed=7),))
    assert texts.summary(comparison(base, paired, apart))[1].startswith(
        "Of the 2 other methods that never saw the test set, equalized does best, with 10.0% "
        "(they share no seed): 20.0 points lower (95% interval over 2 paired seeds, "
    )
    assert texts.summary(comparison(base, apart))[1].endswith(
        "gets 20.0% wrong; it shares no seed with softmax, so the difference has no interval."
    )


def test_without_softmax_and_common_seeds_the_lowest_may_be_noise():
    one, other = row("equalized", [[0.3] * 3]), row("adaptive", [[0.28] * 3])
    assert texts.summary(comparison(one, other))[0].endswith(
        "adaptive has the lowest balanced error, 28.0%, but it is of one seed and may be noise."
    )
    other = replace(other, scored=(replace(other.scored[0], seed=7),))
    assert texts.summary(comparison(one, other))[0].endswith(
        "28.0%; they share no seed (each has 1), so this may be noise."
    )
    together = ensemble_row([0.0, 0.1, 0.2], (1, 2))
    assert texts.summary(comparison(one, together))[0].endswith(
        "ensemble has the lowest balanced error, 10.0%; it is the mean of 2 networks, so this may "
        "be noise."
    )
    assert texts.summary(comparison(one))[0] == (
        "The one method, equalized, has a balanced error of 30.0%."
    )


def test_the_oracle_is_never_the_best_and_is_named_in_every_table():
    compared = comparison(SOFTMAX, BETTER, ORACLE)
    assert texts.best(compared) is BETTER
    for table in texts.tables(compared):
        assert table.rows[2][0] == "post-hoc logit adj. (oracle τ)"
    assert "nobody has in use" in texts.tables(compared)[0].note


def test_the_headline_table():
    compared = comparison(SOFTMAX, BETTER, ORACLE)
    table = texts.headline(compared, compared.rows)
    half = 100 * stats.t.ppf(0.975, 2) * BETTER.errors.std(ddof=1) / np.sqrt(3)
    assert table.rows[1][1] == f"17.0 ± {half:.1f}"
    assert table.rows[2][1] == "3.3 ± 0.0"
    assert table.rows[2][3] == "1.50 (1.00–2.00)"
    assert table.rows[0][4:] == ("2.0", "28.0", "60.0")
    assert all(len(line) == len(table.header) for line in table.rows)


@pytest.mark.parametrize(
    ("method", "source", "detail", "expected"),
    [
        ("softmax", None, "", "softmax (ERM)"),
        ("logit-adjusted", None, "tau=2", "logit adjusted (tau=2)"),
        ("ldam+drw", None, "", "LDAM + DRW"),
        (
            "class-balanced+drw",
            None,
            "beta=0.9, drw_beta=0.99, drw_start=7, paper",
            "class-balanced + DRW (beta=0.9, DRW beta=0.99, DRW start=7, paper)",
        ),
        ("consistent", None, "delta=(1.0, 0.5)", "consistent (delta=1/0.5)"),
        ("consistent", None, "delta=(1.0, 2.5, 1e-05, 4.0)", "consistent (delta=1/2.5/1e-05/…)"),
        ("posthoc-logit-adjusted", "fixed", "", "post-hoc logit adj. (τ = 1)"),
        (
            "posthoc-weight-normalized",
            "held-out",
            "bias scale",
            "post-hoc weight norm. (τ held-out)",
        ),
        (
            "posthoc-weight-normalized",
            "oracle",
            "bias drop",
            "post-hoc weight norm. (bias drop, oracle τ)",
        ),
    ],
)
def test_names_of_rows(method, source, detail, expected):
    assert texts.name(row(method, [[0.0] * 3], source=source, detail=detail)) == expected


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("scale", "divides the whole logit, bias included"),
        ("keep", "divides the weights and keeps the bias"),
        ("drop", "drops the bias and divides the weights"),
    ],
)
def test_every_table_says_which_bias_mode_weight_normalization_used(mode, words):
    rows = [
        row("posthoc-weight-normalized", [[0.0, 0.1, 0.2]] * 3, source=source,
            detail=f"bias {mode}", taus=[1.0] * 3)
        for source in ("fixed", "oracle")
    ]  # fmt: skip
    compared = comparison(SOFTMAX, *rows)
    sentence = f"Weight norm. {words} (bias mode: {mode})."
    for table in (*texts.tables(compared), texts.headline(compared, compared.rows)):
        assert table.note.count(sentence) == 1
    plain = comparison(SOFTMAX, BETTER)
    for table in (*texts.tables(plain), texts.headline(plain, plain.rows)):
        assert "bias" not in table.note


def test_a_change_has_a_true_minus_and_no_signed_zero():
    assert texts.percent(-0.0001) == "0.0"
    assert texts.percent(-0.05) == "−5.0"
