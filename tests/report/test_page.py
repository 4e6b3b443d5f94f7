"""The page without a browser: its numbers, its parts, and that it is one whole file."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from longtail import ClassPrior, InputError
from longtail.report import arrange, charts, page, sections, tau_charts
from longtail.report._plotly import DARK
from longtail.report.compare import compare
from longtail.runs import DataSpec, Part, RecipeSpec, RunSpec, RunWriter
from page_factory import digits_root, digits_runs

pytest.importorskip("plotly")
pytest.importorskip("jinja2")


class Document(HTMLParser):
    """Elements with attributes, ids and the text outside scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts, self._inside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        inside = self._inside[-1] if self._inside else ""
        (self.scripts if inside in ("script", "style") else self.text).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def compared():
    return compare(digits_runs())


@pytest.fixture(scope="module")
def text(compared):
    return page.build(compared, command="longtail report runs --out report.html")


@pytest.fixture(scope="module")
def document(text):
    return Document(text)


@pytest.fixture(scope="module")
def data(text):
    found = re.search(r'id="page-data">(.*?)</script>', text, re.S)
    return json.loads(found.group(1))


def class_errors(logits, target, num_classes):
    """Error of each class, counted one by one."""
    predicted = np.argmax(logits, axis=1)
    return np.array([np.mean(predicted[target == k] != k) for k in range(num_classes)])


def test_every_position_of_the_slider_has_the_error_of_the_adjusted_logits(compared, data):
    runs = compared.row("softmax").runs
    order = np.argsort(-runs[0].prior.probs, kind="stable")
    groups = [k for k in runs[0].prior.groups().values() if len(k)]
    chosen = [row.taus.mean() for row in compared.rows if row.taus is not None]
    taus = np.union1d(np.arange(81) / 20, chosen)
    assert data["slider"]["taus"] == pytest.approx(taus, abs=0.0005 + 1e-9)
    for i, method in enumerate(data["slider"]["methods"]):
        for place, tau in enumerate(taus):
            errors = []
            for run in runs:
                logits, target, _ = run.logits("test")
                logits = logits.astype(np.float64)
                if i == 0:
                    adjusted = logits - tau * run.prior.log_probs
                else:
                    adjusted = logits / run.head.norms.astype(np.float64) ** tau
                errors.append(class_errors(adjusted, target, 10))
            mean = 100 * np.mean(errors, axis=0)
            assert method["classes"][place] == pytest.approx(mean[order], abs=5e-4)
            expected = [mean.mean(), *(mean[k].mean() for k in groups)]
            assert method["groups"][place] == pytest.approx(expected, abs=5e-4)
    assert data["slider"]["taus"][data["slider"]["start"]] == 1.0


def test_the_buttons_stand_at_the_chosen_taus(compared, data):
    for method, name in zip(data["slider"]["methods"], compared.curves, strict=True):
        places = dict(method["presets"])
        taus = data["slider"]["taus"]
        assert taus[places["no adjustment"]] == 0.0
        assert taus[places["theory"]] == 1.0
        for source in ("held-out", "oracle"):
            chosen = compared.row(name, tau_source=source).taus.mean()
            assert taus[places[source]] == pytest.approx(chosen, abs=0.0005 + 1e-9)


def test_the_curve_marks_the_held_out_and_the_oracle_tau(compared):
    curves = arrange.tau_curves(compared)
    for line, method in zip(curves.lines, compared.curves, strict=True):
        for choice, source in ((line.chosen, "held-out"), (line.oracle, "oracle")):
            row = compared.row(method, tau_source=source)
            assert choice.tau == pytest.approx(row.taus.mean())
            assert (choice.low, choice.high) == (row.taus.min(), row.taus.max())
            assert choice.error == pytest.approx(100 * row.errors.mean())
        by_hand = [c(0.5) for c in compared.curves[method].values()]
        place = int(np.argmin(np.abs(curves.taus - 0.5)))
        assert line.mean[place] == pytest.approx(100 * np.mean(by_hand))
        assert line.low[place] == pytest.approx(100 * min(by_hand))
    chart = tau_charts.tau_curves(curves, start=1.0)
    symbols = [t["marker"]["symbol"] for t in chart.data if "marker" in t]
    assert symbols == ["diamond", "diamond", "star", "star"]
    assert "held-out" in chart.label


def test_the_charts_show_the_comparisons_numbers(compared, data):
    shown = arrange.shown_rows(compared)
    for trace, row in zip(data["charts"]["chart-classes"]["data"], shown, strict=True):
        order = np.argsort(-compared.runs[0].prior.probs, kind="stable")
        assert trace["y"] == pytest.approx(100 * row.per_class[order], abs=5e-4)
    for trace, row in zip(data["charts"]["chart-groups"]["data"], shown, strict=True):
        expected = [100 * v for v in compared.group_errors(row).values()]
        assert trace["y"] == pytest.approx(expected, abs=5e-4)
    for trace, row in zip(data["charts"]["chart-methods"]["data"], compared.rows, strict=True):
        assert trace["x"] == pytest.approx([100 * row.errors.mean()], abs=5e-4)
    norms = data["charts"]["chart-norms"]["data"][0]
    heads = [run.head.norms for run in compared.row("softmax").runs]
    assert norms["y"] == pytest.approx(np.mean(heads, axis=0), abs=5e-4)


def test_reliability_is_counted_over_all_seeds(compared):
    found = arrange.calibration(compared)
    row = compared.row("softmax")
    assert found.series[0].label == "softmax (ERM)"
    hits, seen = np.zeros(15), np.zeros(15)
    for scored in row.scored:
        scores = scored.logits.astype(np.float64)
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        for p, label in zip(probs, compared.target, strict=True):
            b = min(int(np.ceil(p.max() * 15)) - 1, 14)
            seen[b] += 1
            hits[b] += int(p.argmax() == label)
    np.testing.assert_array_equal(found.counts[0], seen)
    filled = seen > 0
    np.testing.assert_allclose(found.accuracy[0][filled], 100 * hits[filled] / seen[filled])


def test_weight_norms_and_their_correlation(compared):
    found = arrange.weight_norms(compared)
    counts = compared.runs[0].prior.counts
    norms = np.mean([run.head.norms for run in compared.row("softmax").runs], axis=0)
    x, y = np.log(counts) - np.log(counts).mean(), norms - norms.mean()
    assert found.correlations[0] == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)))
    assert [s.label for s in found.series] == ["softmax (ERM)", "logit adjusted"]


def test_the_same_runs_give_the_same_bytes(text, compared):
    again = page.build(compared, command="longtail report runs --out report.html")
    assert again == text
    code = (
        "import sys, hashlib; from longtail.runs import find_runs\n"
        "from longtail.report import page;"
        "t = page.build(find_runs(sys.argv[1]), command=sys.argv[2]);"
        "print(hashlib.sha256(t.encode()).hexdigest())"
    )
    typed = "longtail report runs --out report.html"
    out = subprocess.run(
        [sys.executable, "-c", code, str(digits_root()), typed],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "77", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert out.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_the_page_refers_to_nothing_outside_itself(document):
    for tag, attributes in document.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name, "")
            assert value is None or value.startswith(("#", "data:")) or not value, (tag, value)
    policy = [m["content"] for m in document.all("meta") if m.get("http-equiv")]
    assert policy
    assert policy[0].startswith("default-src 'none'")
    style = document.scripts[0]
    assert "url(" not in style
    assert "@import" not in style


def test_structure_for_people_who_do_not_see_it(document):
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert document.all("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch("h[1-6]", tag)]
    assert levels == [1] + [2] * 8
    plots = [a for a in document.all("div") if a.get("class") == "chart"]
    assert len(plots) == 9
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in plots)
    assert {"for": "tau-knob"} in document.all("label")
    assert document.all("input")[-1]["aria-describedby"] == "tau-says"
    assert len(document.all("caption")) == len(document.all("table"))
    for cell in document.all("th"):
        assert cell["scope"] in ("col", "row", "rowgroup")


def test_it_says_what_happened_on_what_and_how_to_repeat_it(compared, document):
    said = " ".join(" ".join(document.text).split())
    from longtail.report import comparison as texts

    for sentence in texts.summary(compared):
        assert sentence in said
    for fact in (
        "314 examples of 10 classes",
        "600 test examples, 60 per class",
        "114 against 2",
        "small-conv, 38,282 parameters",
        "epochs 3",
        "2 (0, 1)",
        "on 20% of each class",
        "cpu",
        "longtail train digits",
        "longtail report runs --out report.html",
        compared.runs[0].data[:16],
        *(run.name for run in compared.runs),
    ):
        assert fact in said, fact


def test_the_tables_say_the_bias_mode(document):
    said = " ".join(" ".join(document.text).split())
    note = "Weight norm. divides the whole logit, bias included (bias mode: scale)."
    assert said.count(note) == 2  # the results, and the errors of each class


def test_commands_are_counted_and_one_that_trains_stands_alone(compared):
    def again(**options):
        text = page.build(compared, **options)
        return text[text.index('id="again"') :]

    two = again(command="longtail report runs --force")
    assert "The first command trains the runs; the last makes this page" in two
    assert two.count("longtail train digits") == 1
    one = again(command="longtail demo --force", trains=True)
    assert "This trains the runs and makes this page from them:" in one
    assert "longtail train digits" not in one
    run = replace(compared.runs[0], record={**compared.runs[0].record, "command": "longtail x"})
    several = replace(compared, runs=(run, *compared.runs[1:]))
    text = page.build(several)
    assert "The first 2 commands train the runs; the last makes this page" in text


def test_oracle_rows_stand_apart(text):
    bodies = re.findall(r"<tbody>(.*?)</tbody>", text, re.S)
    oracle = [body for body in bodies if "oracle τ" in body]
    assert len(oracle) == 1
    assert "Oracle: τ chosen on the test set itself" in oracle[0]
    assert 'class="strong"' not in oracle[0]
    assert "τ held-out" not in oracle[0]


def test_every_colour_of_a_chart_shows_in_the_dark(data):
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    paper = luminance(data["dark"]["#FFFFFF"])
    lines = {
        color
        for chart in data["charts"].values()
        for trace in chart["data"]
        for color in re.findall(r"#[0-9A-Fa-f]{6}", json.dumps(trace))
    }
    assert len(lines) > 4
    for color in lines - {"#FFFFFF"}:
        assert (luminance(DARK.get(color, color)) + 0.05) / (paper + 0.05) >= 3.0, color


def fake_run(root, *, method="softmax", seed=0, counts, norms=True, names=None, held=False):
    counts = np.asarray(counts)
    random = np.random.default_rng([seed, len(method), held])
    target = np.repeat(np.arange(len(counts)), 4)
    prior = ClassPrior.from_counts(counts)
    logits = random.normal(size=(len(target), len(counts))) + 2 * np.eye(len(counts))[target]
    logits += prior.log_probs
    data = DataSpec("fake-lt", held_out=0.2 if held else 0.0)
    spec = RunSpec(data, Part("net"), Part(method), RecipeSpec("none"), seed=seed)
    writer = RunWriter.create(root, spec, prior=prior, data="f" * 64, class_names=names)
    head = {"norms": random.uniform(1, 2, len(counts))} if norms else {}
    writer.write_logits("test", logits.astype(np.float32), target, **head)
    return writer.finish(seconds=1.0)


def test_hostile_names_stay_text(tmp_path):
    names = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a&b"]
    text = page.build([fake_run(tmp_path, counts=[30, 20, 5], names=names)], title="<b>T</b>")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<title>&lt;b&gt;T&lt;/b&gt;</title>" in text


def test_a_thousand_classes_are_shown_in_twenty_groups(tmp_path):
    counts = np.maximum(1000 // np.arange(1, 1001), 1)
    compared = compare([fake_run(tmp_path, counts=counts)])
    slider = arrange.tau_slider(compared)
    assert len(slider.axis) == sections.BINS
    assert sum(map(len, slider.axis.members)) == 1000
    assert slider.methods[0].per_class.shape == (len(slider.taus), 20)
    assert slider.axis.counts[0].startswith("1,000–")
    one = 100 * compared.row("softmax").per_class[:50].mean()
    assert slider.methods[0].per_class[0, 0] == pytest.approx(one)
    text = page.build(compared)
    assert "groups of classes" in text
    assert len(text) < 5.2e6  # most of it is plotly


def test_a_hundred_classes_keep_a_bar_each(tmp_path):
    compared = compare([fake_run(tmp_path, counts=np.arange(100, 0, -1) * 5)])
    chart = tau_charts.slider_classes(arrange.tau_slider(compared))
    assert len(chart.data[0]["y"]) == 100
    assert len(chart.layout["xaxis"]["ticktext"]) == 6
    assert chart.data[1]["type"] == "scatter"  # outlines of so many bars would hide them


def test_equally_frequent_classes_stay_in_order_and_have_no_correlation(tmp_path):
    compared = compare([fake_run(tmp_path, counts=[7, 7, 7, 7])])
    assert arrange.class_axis(compared).names == ("0", "1", "2", "3")
    found = arrange.weight_norms(compared)
    assert np.isnan(found.correlations[0])
    assert "r =" not in charts.weight_norms(found).legend[0].label
    page.build(compared)


def test_pages_of_what_there_is(tmp_path):
    alone = page.build([fake_run(tmp_path / "a", method="balanced", counts=[300, 50, 5])])
    assert 'id="tau"' not in alone
    assert "Without a run trained with plain softmax" in alone
    plain = page.build([fake_run(tmp_path / "b", counts=[300, 50, 5], norms=False)])
    assert 'id="norms"' not in plain
    assert 'type="radio"' not in plain  # one post-hoc method needs no choice
    assert "τ held-out" not in plain
    assert "do not record how they were started" in plain


def test_an_existing_file_asks_for_force(tmp_path, compared):
    file = tmp_path / "deep" / "page.html"
    assert page.write(compared, file) == file
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"page\.html exists; pass --force"):
        page.write(compared, file)
    page.write(compared, file, title="Another", force=True)
    assert file.read_bytes() != before
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_a_missing_extra_names_the_install_command(missing):
    code = (
        "import sys; sys.modules[sys.argv[2]] = None\n"
        "from longtail import MissingExtraError\n"
        "from longtail.runs import find_runs\n"
        "from longtail.report import page\n"
        "try:\n    page.build(find_runs(sys.argv[1]))\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    words = [sys.executable, "-c", code, str(digits_root()), missing]
    out = subprocess.run(words, check=True, capture_output=True, text=True)
    expected = f"needs {missing}, which is not installed; run: pip install 'longtail[report]'"
    assert expected in out.stdout


def test_style_script_and_template_are_in_the_package():
    from importlib.resources import files

    for name in ("template.html.j2", "page.css", "page.js"):
        assert files("longtail.report").joinpath(name).is_file()
