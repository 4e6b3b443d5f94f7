"""What is said about adjusted predictions: sentences, tables, and the page."""

import json
import re

import numpy as np
import pytest

from longtail import ClassPrior, InputError
from longtail.predictions import adjust_predictions, from_arrays
from longtail.report import adjusting as texts
from longtail.report import charts
from longtail.report._plotly import class_hover, class_ticks
from longtail.report.sections import ClassAxis, ClassErrors, Frequencies, Series

PRIOR = ClassPrior.from_counts([900, 90, 10])


def result(
    *, strength=2.0, scale=1.0, examples=600, prior=PRIOR, names=("cat", "dog", "emu"), **settings
):
    target = np.arange(examples) % 3
    noise = np.random.default_rng(0).normal(size=(examples, 3))
    logits = scale * (noise + PRIOR.log_probs) + abs(scale) * strength * np.eye(3)[target]
    source = from_arrays(logits, target, kind="logits", class_names=names, name="p.npz")
    return adjust_predictions(source, prior, n_bootstrap=50, **settings)


def test_the_conclusion_says_what_the_interval_says():
    found = result()
    change = found.balanced
    assert change.difference.high < 0
    assert texts.conclusion(found) == (
        f"The balanced error falls from {100 * change.before.value:.1f}% to "
        f"{100 * change.after.value:.1f}%, by {-100 * change.difference.value:.1f} points "
        f"(95% interval {-100 * change.difference.high:.1f} to "
        f"{-100 * change.difference.low:.1f}): more than chance."
    )
    assert "rises from" in texts.conclusion(result(tau=-1.0))
    assert "leave these predictions as they are" in texts.conclusion(result(tau=-1.0))
    assert "a difference within chance" in texts.conclusion(result(tau=0.0))
    aimed = result(target_prior=ClassPrior.from_probs([0.2, 0.3, 0.5]))
    assert texts.conclusion(aimed).startswith("The error under the target frequencies falls from")


def test_every_way_of_judging_is_named():
    assert (
        "judged by cross-fitting, each of 4 folds with the tau" in texts.summary(result(folds=4))[1]
    )
    assert (
        "chosen on 300 examples and judged on the 300 others"
        in texts.summary(result(tune_on=0.5))[1]
    )
    assert texts.summary(result(tau=0.5))[1] == "tau = 0.5, as given."
    effective = texts.summary(result(tau=0.5, effective=True))[1]
    assert effective == (
        "tau = 0.5, as given; judged by cross-fitting the prior. The prior is what the model shows "
        "to have learnt, its mean prediction."
    )


def test_weak_evidence_is_said():
    few = texts.summary(result(examples=12))
    assert "3 classes were judged on fewer than 5 examples" in " ".join(few)
    bound = texts.summary(result(bounds=(0.0, 0.3)))
    assert any("touches the bounds 0 and 0.3: consider wider ones" in text for text in bound)


def test_few_examples_that_decide_about_tau_are_told():
    target = np.repeat([0, 1, 2], [900, 90, 10])
    logits = np.random.default_rng(0).normal(size=(1000, 3)) + 2.0 * np.eye(3)[target]
    source = from_arrays(logits + PRIOR.log_probs, target, kind="logits", class_names=list("abc"))
    said = "In effect 13 of the examples decide about tau, those of rare classes, so its interval"
    told = texts.summary(adjust_predictions(source, PRIOR, n_bootstrap=50))
    assert any(text.startswith(said) for text in told)
    for silent in ({"n_bootstrap": 0}, {"tau": 1.0}):
        assert not any(
            "narrow" in t for t in texts.summary(adjust_predictions(source, PRIOR, **silent))
        )
    assert not any("narrow" in text for text in texts.summary(result()))


def test_where_tau_changes_nothing_wider_bounds_are_not_advised():
    said = " ".join(texts.summary(result(scale=1e5)))
    assert "Every tau within the bounds 0 and 4 is equally good" in said
    assert "consider wider" not in said


def test_tables_hold_the_numbers_of_the_result():
    found = result()
    errors, changed = texts.tables(found)
    assert [row[0].strip() for row in errors.rows] == [
        "balanced", "many (over 100)", "medium (20 to 100)", "few (under 20)", "as they come",
    ]  # fmt: skip
    assert errors.rows[0][3] == f"{100 * found.balanced.before.value:.1f}"
    assert errors.rows[3][4] == f"{100 * found.groups['few'].after.value:.1f}"
    assert changed.rows[0][:3] == ("emu", "10", "200")
    assert changed.rows[-1][0] == "cat"
    long = result(names=("cat", "dog", "a very long name of a class"))
    assert texts.most_changed(long).rows[0][0] == "a very long name of a class"
    assert texts.most_changed(long, width=80).rows[0][0] == "a very long name …"
    alike = result(names=tuple(f"a very long name of {animal}" for animal in ("cat", "dog", "emu")))
    for width, cut in ((80, True), (120, False)):
        shown = [row[0] for row in texts.tables(alike, width=width)[1].rows]
        assert len(set(shown)) == len(shown) == 3
        assert any("…" in name for name in shown) == cut
        assert max(map(len, shown)) <= (18 if cut else 23)


def test_long_names_stay_apart_below_the_charts():
    pytest.importorskip("plotly")
    names = [f"Carnivora/Felidae/Panthera {k}" for k in ("leo", "onca", "pardus", "uncia")] * 3
    names = [f"{name} {i}" for i, name in enumerate(names)]
    axis = ClassAxis.of(ClassPrior.from_counts(np.arange(12, 0, -1)), names)
    ticks = class_ticks(axis)
    assert len(set(ticks["ticktext"])) == 12
    assert all(": <span" in text for text in ticks["ticktext"])  # leaning, so in one line
    assert ticks["ticklabeloverflow"] == "allow"
    short = class_ticks(ClassAxis.of(ClassPrior.from_counts([3, 2, 1]), ["cat", "dog", "emu"]))
    assert short["ticktext"][0].startswith("cat<br>")


def test_quotes_of_names_are_quotes_in_charts_and_tags_no_tags():
    pytest.importorskip("plotly")
    axis = ClassAxis.of(ClassPrior.from_counts([3, 2, 1]), ['a "b"', "it's", "<b>&amp;"])
    ticks, hover = class_ticks(axis)["ticktext"], class_hover(axis)
    assert ticks[0].startswith('a "b"<br>')
    assert hover[0].startswith('class a "b", ')
    assert hover[1].startswith("class it's, ")
    assert hover[2].startswith("class &lt;b&gt;&amp;amp;, ")


@pytest.mark.parametrize(("classes", "each"), [(400, "20"), (410, "about 20")])
def test_groups_of_many_classes_are_not_called_classes(classes, each):
    pytest.importorskip("plotly")
    counts = np.linspace(1000, 2, classes).astype(int)
    axis = ClassAxis.of(ClassPrior.from_counts(counts))
    section = Frequencies(axis, axis.mean(counts.astype(float)))
    assert charts.frequencies(section).label == (
        f"Bar chart: training examples per class, from 1,000 down to 2; a bar is the mean of a "
        f"group of {each} classes."
    )
    series = (Series("before", "#000000"),)
    chart, table = charts.class_blocks(ClassErrors(axis, series, np.full((1, 20), 50.0)), "")
    assert chart.chart.label == (
        f"Lines: error of each group of {each} classes, most frequent first. Rarest group: "
        f"before 50.0%."
    )
    assert table.caption == f"The numbers: error of each group of {each} classes in percent"


def page_data(html):
    return json.loads(re.search(r'id="page-data">(.*?)</script>', html, re.DOTALL)[1])


@pytest.mark.parametrize("settings", [{}, {"tune_on": 0.5}, {"tau": 1.0}, {"folds": 3}])
def test_the_page_shows_the_same_numbers(tmp_path, settings):
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page

    found = result(**settings)
    path = adjusting_page.write(found, tmp_path / "page.html", command="longtail adjust p.npz")
    html = path.read_text()
    assert f"{100 * found.balanced.after.value:.1f}%" in html
    assert texts.conclusion(found) in html
    assert "longtail adjust p.npz" in html
    data = page_data(html)
    slider = data["slider"]
    place = int(np.argmin(np.abs(np.array(slider["taus"]) - found.tau)))
    assert slider["start"] == place
    judged = 100 * found.judged_curve(slider["taus"][place])
    assert slider["methods"][0]["groups"][place][0] == pytest.approx(judged, abs=0.01)
    with pytest.raises(InputError, match="exists; pass --force"):
        adjusting_page.write(found, path)
    again = adjusting_page.write(found, path, command="longtail adjust p.npz", force=True)
    assert again.read_text() == html


@pytest.mark.parametrize(
    ("scale", "settings"),
    [
        (1.0, {}),
        (6.0, {"bounds": (0.0, 10.0)}),
        (6.0, {"bounds": (0.0, 1000.0)}),
        (6.0, {"tau": 6.3}),
        (1.0, {"tau": 300.0}),
        (1.0, {"tau": -1.2}),
        (-0.5, {"bounds": (-4.0, 4.0)}),
    ],
)
def test_the_page_reaches_as_far_as_its_tau(tmp_path, scale, settings):
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page

    found = result(scale=scale, **settings)
    data = page_data(adjusting_page.write(found, tmp_path / "page.html").read_text())
    slider, (method,) = data["slider"], data["slider"]["methods"]
    taus = np.array(slider["taus"])
    assert np.all(np.diff(taus) > 0)
    assert len(taus) <= 90
    assert taus[slider["start"]] == pytest.approx(found.tau, abs=1e-3)
    zero, theory, chosen = (place for _, place in method["presets"])
    assert (taus[zero], taus[theory], chosen) == (0.0, 1.0, slider["start"])
    after = 100 * found.judged_curve(found.tau)
    assert method["groups"][chosen][0] == pytest.approx(after, abs=0.001)
    before = 100 * found.balanced.before.value
    assert method["groups"][zero][0] == pytest.approx(before, abs=0.001)
    assert slider["unadjusted"] == zero
    for name in ("chart-slider-groups", "chart-slider-classes"):
        moving, without = data["charts"][name]["data"]
        key = name.rpartition("-")[2]
        assert (moving["y"], without["y"]) == (method[key][chosen], method[key][zero])
    curve = adjusting_page._curve(found)
    (line,) = curve.lines
    assert curve.taus[0] <= min(0.0, found.tau, *found.fold_taus)
    assert curve.taus[-1] >= max(4.0, found.tau, *found.fold_taus)
    assert line.oracle.error <= min(after, before) + 1e-9
    if found.target_prior is None:
        assert line.oracle.error <= 100 * found.judged_curve.min_value + 1e-9
    chart = data["charts"]["chart-tau"]
    assert chart["layout"]["shapes"][0]["x0"] == pytest.approx(found.tau, abs=1e-3)
    said = adjusting_page.tau_charts.tau_curves(curve, start=found.tau).label
    assert f"{before:.1f}% at τ = 0" in said


@pytest.mark.parametrize("scale", [0.1, 0.02, 3e-4, -0.02])
def test_logits_of_a_small_scale_have_an_axis_and_a_slider_of_their_own(tmp_path, scale):
    """Cosines, say: tau is small, and on an axis to 4 nothing could be seen."""
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page

    found = result(scale=scale, bounds=(-4.0, 4.0))
    assert 0 < abs(found.tau) < 0.2
    data = page_data(adjusting_page.write(found, tmp_path / "page.html").read_text())
    slider, (method,) = data["slider"], data["slider"]["methods"]
    taus = np.array(slider["taus"])
    assert np.all(np.diff(taus) >= 0)  # the chosen and the best may be equal to all digits
    assert 5 <= np.sum(np.abs(taus) <= abs(found.tau)) <= len(taus) / 2
    assert 3 * abs(found.tau) <= np.abs(taus).max() <= 12 * abs(found.tau)
    assert taus[slider["start"]] == pytest.approx(found.tau, rel=0.02)
    assert [name for name, _ in method["presets"]] == ["no adjustment", "chosen"]
    tau_axis = data["charts"]["chart-tau"]["layout"]["xaxis"]["range"]
    assert tau_axis == pytest.approx([taus[0], taus[-1]])
    assert f"{taus[slider['start']]:.{slider['digits']}f}".strip("-0.") != ""


def test_a_page_of_an_ordinary_tau_has_the_grid_of_every_page(tmp_path):
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page
    from longtail.report.sections import SLIDER_TAUS

    found = result(bounds=(0.5, 3.0))
    assert 0.5 < found.tau < 3.0
    slider = adjusting_page._slider(found)
    np.testing.assert_array_equal(np.setdiff1d(slider.taus, SLIDER_TAUS), [found.tau])
    np.testing.assert_allclose(SLIDER_TAUS, np.linspace(0.0, 4.0, 81), atol=1e-12)


def test_a_page_without_counts_or_with_other_aims(tmp_path):
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page

    for k, found in enumerate(
        (
            result(prior=None, effective=True),
            result(target_prior=ClassPrior.from_probs([0.2, 0.3, 0.5])),
            result(names=None),
        )
    ):
        html = adjusting_page.write(found, tmp_path / f"{k}.html").read_text()
        assert "What τ does" in html


def test_class_names_cannot_break_the_page(tmp_path):
    pytest.importorskip("plotly")
    from longtail.report import adjusting_page

    found = result(names=("<b>cat</b>", "</script><script>alert(1)</script>", "emu"))
    html = adjusting_page.write(found, tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in html
    assert "<b>cat</b>" not in html
