"""The simulation's tables, sentences and figure say what its numbers say."""

import dataclasses
import functools
import json

import pytest

from longtail.experiments.large_simulation import LIMIT, METHODS, POSTHOC, Estimate, Study, Trial
from longtail.report import large_simulation as report

ERRORS = {"softmax": 40.0, POSTHOC: 33.0, "logit-adjusted": 33.0, LIMIT: 36.0, "bayes": 30.0}


def trial(*, multiple=1, seed=0, dataset="imagenet-lt"):
    """A trial with chosen numbers: estimation costs 3 points at the real sizes."""
    errors = dict(ERRORS)
    if multiple > 1:
        errors |= {"softmax": 36.4, POSTHOC: 30.4, "logit-adjusted": 30.4}
    moved = {name: value + 0.1 * seed for name, value in errors.items()}
    return Trial(
        dataset=dataset,
        multiple=multiple,
        seed=seed,
        bayes=Estimate(30.02, 0.04),
        errors={name: Estimate(value, 0.07) for name, value in moved.items()},
        excess={
            name: Estimate(v - errors["bayes"] + 0.1 * seed, 0.05) for name, v in errors.items()
        },
        groups={n: {"many": v - 10, "medium": v, "few": 2 * v - 20} for n, v in moved.items()},
        bins={name: [value - 10, value, value + 10] for name, value in moved.items()},
        disagreement=0.1 * multiple,
        evaluations={"softmax": 30, "logit-adjusted": 20},
        gradients={"softmax": 0.1, "logit-adjusted": 0.1},
    )


def study(*, multiples=(1, 10), trials=2):
    found = tuple(trial(multiple=m, seed=s) for m in multiples for s in range(trials))
    sizes = {
        "source": "given",
        "classes": 1000,
        "examples": 115_846,
        "largest": 1280,
        "smallest": 5,
        "groups": {"many": 385, "medium": 479, "few": 136},
        "bins": [500.0, 60.0, 9.0],
    }
    return Study(found, {"imagenet-lt": sizes}, {"trials": trials, "tolerance": 0.1})


def test_the_tables_cells():
    rules, sizes = report.tables(study())
    cells = {row[0]: row[1:] for row in rules.rows}
    assert cells["softmax (ERM)"] == ("40.05", "10.05 ± 0.05", "30.1", "40.0", "60.1")
    assert cells["Bayes"][1] == ""
    assert list(cells) == [report.label(name) for name in METHODS]
    assert "115,846 examples, 1,280 to 5 a class" in rules.note
    # Two trials with an error of 0.04 each.
    assert "30.020 with a standard error of 0.028" in rules.note
    named = {row[0]: row[1:] for row in sizes.rows}
    assert named["ImageNet-LT × 10"] == ("6.45 ± 0.05", "0.45 ± 0.05", "0.45 ± 0.05", "1.00")
    assert named["ImageNet-LT × ∞"] == ("6.05 ± 0.05", "0", "0", "0")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("file", "the real class sizes (115,846"),
        ("rebuilt", "class sizes rebuilt from what is published of the real ones (115,846"),
        ("given", "the given class sizes (115,846"),
    ],
)
def test_class_sizes_are_called_real_only_if_they_are(source, words):
    found = study()
    found.sizes["imagenet-lt"]["source"] = source
    assert f"Gaussian features, {words}" in report.tables(found)[0].note


def test_the_sentence():
    (said,) = report.findings(study())
    assert "ERM errs 10.05 points above Bayes and the logit-adjusted loss 3.05" in said
    assert "few examples the loss errs 14.0 points less than ERM" in said
    assert "With 10 times the examples it is 6.45 and 0.45." in said
    assert "ERM stays 6.05 points above Bayes" in said
    assert "all but 1.00% of the test points" in said


def test_a_single_trial_settles_nothing():
    one = study(multiples=(1,), trials=1)
    (said,) = report.findings(one)
    assert "(one trial)" in said
    assert "times the examples" not in said
    assert report.tables(one)[0].rows[0][2] == "10.00 ± 0.05"  # of sampling


@functools.cache
def drawn():
    return report.draw(study())


def test_the_figure_shows_every_rule_and_size():
    pytest.importorskip("matplotlib")
    frequencies, sizes = drawn().axes
    assert {line.get_label() for line in frequencies.lines} == {report.label(m) for m in METHODS}
    assert [tick.get_text() for tick in sizes.get_xticklabels()] == ["×1", "×10", "unlimited"]
    softmax = sizes.lines[0].get_ydata()
    assert list(softmax) == pytest.approx([40.07, 36.47, 36.07])


def test_what_is_written_is_what_was_found(tmp_path):
    pytest.importorskip("matplotlib")
    found = study()
    written = report.write(found, tmp_path)
    assert [path.name for path in written] == list(report.FILES)
    document = json.loads(written[0].read_text())
    assert Study.from_dict(document).to_dict() == found.to_dict()
    assert report.findings(found)[0] in written[1].read_text()
    again = report.write(dataclasses.replace(found), tmp_path / "again")
    assert again[2].read_bytes() == written[2].read_bytes()
