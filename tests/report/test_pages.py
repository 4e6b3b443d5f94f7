"""The pages without a browser: their numbers, their parts, and that each is one whole file."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.conformal import PredictionSets
from longtail.report import adjusting, pages
from longtail.report.compare import compare
from page_factory import adjusted_predictions, digits_comparison
from run_factory import class_errors, make_run, make_spec

COMMAND = "longtail report runs --out report.html"


@pytest.fixture
def compared():
    return digits_comparison()


@pytest.fixture(scope="module")
def text():
    return pages.runs_page(digits_comparison(), command=COMMAND).render()


@pytest.fixture(scope="module")
def data(text):
    return page_data(text)


def page_data(text):
    return json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.S)[1])


def test_positions_of_the_slider_have_the_errors_of_the_adjusted_logits(compared, data):
    runs = compared.rows[0].runs
    order = np.argsort(-runs[0].prior.probs, kind="stable")
    groups = [k for k in runs[0].prior.groups().values() if len(k)]
    chosen = [row.taus.mean() for row in compared.rows if row.taus is not None]
    taus = np.union1d(np.arange(81) / 20, chosen)
    assert data["slider"]["taus"] == pytest.approx(taus, abs=0.0005 + 1e-9)
    assert data["slider"]["taus"][data["slider"]["start"]] == 1.0
    for i, method in enumerate(data["slider"]["methods"]):
        for place, tau in list(enumerate(taus))[::6]:
            errors = []
            for run in runs:
                logits, target, _ = run.logits("test")
                logits = logits.astype(np.float64)
                if i == 0:
                    adjusted = logits - tau * run.prior.log_probs
                else:
                    adjusted = logits / run.head.norms.astype(np.float64) ** tau
                errors.append(class_errors(adjusted, target))
            mean = 100 * np.mean(errors, axis=0)
            assert method["classes"][place] == pytest.approx(mean[order], abs=5e-4)
            expected = [mean.mean(), *(mean[k].mean() for k in groups)]
            assert method["groups"][place] == pytest.approx(expected, abs=5e-4)


def test_the_charts_show_the_comparisons_numbers(compared, data):
    shown = pages.shown_rows(compared)
    order = np.argsort(-compared.runs[0].prior.probs, kind="stable")
    for trace, row in zip(data["charts"]["chart-per-class"]["data"], shown, strict=True):
        assert trace["y"] == pytest.approx(100 * row.per_class[order], abs=5e-4)
    for trace, row in zip(data["charts"]["chart-groups"]["data"], shown, strict=True):
        expected = [100 * v for v in compared.group_errors(row).values()]
        assert trace["y"] == pytest.approx(expected, abs=5e-4)
    for trace, row in zip(data["charts"]["chart-errors"]["data"], compared.rows, strict=True):
        assert trace["x"] == pytest.approx([100 * row.errors.mean()], abs=5e-4)
    norms = data["charts"]["chart-weight-norms"]["data"][0]
    heads = [run.head.norms for run in compared.rows[0].runs]
    assert norms["y"] == pytest.approx(np.mean(heads, axis=0)[order], abs=5e-4)


def test_sets_are_chosen_on_held_out_examples_and_judged_on_the_test_set(compared, data):
    (chart,) = [c for id, c in data["charts"].items() if id == "chart-coverage"]
    order = np.argsort(-compared.runs[0].prior.probs, kind="stable")
    covered = []
    for run in compared.held_out.values():
        sets = PredictionSets().fit(*run.logits("held-out")[:2], run.prior)
        logits, target, _ = run.logits("test")
        held = sets.predict(logits)[np.arange(len(target)), target]
        covered.append([100 * held[target == y].mean() for y in order])
    assert chart["data"][1]["y"] == pytest.approx(np.mean(covered, axis=0), abs=5e-4)


def test_reliability_is_counted_over_all_seeds(compared, data):
    hits, seen = np.zeros(15), np.zeros(15)
    for run in compared.rows[0].runs:
        scores = run.logits("test").logits.astype(np.float64)
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        for p, label in zip(probs, compared.target, strict=True):
            b = min(int(np.ceil(p.max() * 15)) - 1, 14)
            seen[b] += 1
            hits[b] += int(p.argmax() == label)
    shown = seen >= 10
    drawn = data["charts"]["chart-reliability"]["data"][1]
    assert drawn["y"] == pytest.approx(100 * hits[shown] / seen[shown], abs=5e-4)


def test_the_page_refers_to_nothing_outside_itself(text):
    bare = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    for value in re.findall(r'(?:src|href|action)="([^"]*)"', bare):
        assert value.startswith(("#", "data:")), value
    assert "default-src 'none'" in bare
    assert "url(" not in bare
    assert "@import" not in bare


def test_structure_for_people_who_do_not_see_it(text):
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    ids = re.findall(r' id="([^"]*)"', body)
    assert len(ids) == len(set(ids))
    assert re.findall(r"<h(\d)", body) == ["1", *["2"] * 9]
    labels = re.findall(r'class="chart"[^>]* role="img" aria-label="([^"]*)"', body)
    assert len(labels) == 10
    assert min(map(len, labels)) > 20
    assert 'label for="tau-knob"' in body
    assert body.count("<caption>") == body.count("<table>")


def test_hostile_names_stay_text(tmp_path):
    names = [
        "</script><script>alert(1)</script>",
        "<!--plotly--><img src=x onerror=alert(1)>",
        "a&b",
    ]
    run = make_run(tmp_path, make_spec(dataset="digits-lt", method="softmax"), class_names=names)
    text = pages.runs_page(compare([run]), title="<b>T</b>").render()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<title>&lt;b&gt;T&lt;/b&gt;</title>" in text


# ---------------------------------------------------------------------------- predictions


@pytest.mark.parametrize("settings", [{}, {"tune_on": 0.5}, {"tau": 1.0}, {"folds": 3}])
def test_the_page_shows_the_same_numbers(settings):
    found = adjusted_predictions(**settings)
    html = pages.adjusted_page(found, command="longtail adjust p.npz").render()
    assert adjusting.conclusion(found) in html
    assert "longtail adjust p.npz" in html
    slider = page_data(html)["slider"]
    place = int(np.argmin(np.abs(np.array(slider["taus"]) - found.tau)))
    assert slider["start"] == place
    judged = 100 * found.judged_curve(slider["taus"][place])
    assert slider["methods"][0]["groups"][place][0] == pytest.approx(judged, abs=0.01)


def test_shares_are_not_shown_as_training_examples():
    found = adjusted_predictions()
    assert "chart-frequencies" in pages.adjusted_page(found).charts
    learnt = replace(found, prior=ClassPrior.from_probs(found.prior.probs))
    assert "chart-frequencies" not in pages.adjusted_page(learnt).charts
