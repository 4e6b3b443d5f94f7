"""The page on large data sets says what the record says."""

from pathlib import Path

import pytest

from longtail._checks import InputError
from longtail.data.large import LARGE
from longtail.experiments.large_simulation import LIMIT, POSTHOC
from longtail.report import large_page, large_simulation

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study():
    return large_page.read(ROOT)


def test_the_page_is_what_the_record_says(study):
    text = (ROOT / large_page.PAGE).read_text()
    assert large_page.block(study) in text, "run: python -m longtail.report.large_page"
    assert (ROOT / large_page.FIGURE).with_suffix(".svg").exists()


def test_the_record_is_of_the_real_class_sizes(study):
    assert study.datasets()[0] == "imagenet-lt"
    for name in study.datasets():
        facts, known = study.sizes[name], LARGE[name]
        assert facts["source"] == "file"
        assert (facts["classes"], facts["examples"]) == (known.num_classes, known.sizes["train"])
        assert study.multiples(name)[0] == 1
        assert len(study.of(name, 1)) >= 1


def test_what_the_page_claims_in_its_own_words(study):
    text = (ROOT / large_page.PAGE).read_text()
    assert f"Gaussian in {study.settings['dimension']} dimensions" in text
    assert study.settings["ridge"] == 1.0  # matches how the centres were drawn
    for name in study.datasets():
        for trial in study.of(name, 1):
            assert "27 to 30% of the points" in text
            assert 27 < trial.bayes.mean < 30
            assert trial.bayes.se < 0.05
            assert max(trial.gradients.values()) <= 10 * study.settings["tolerance"]
            assert trial.disagreement < 1.0
            # Adjustment helps at the real sizes, and only it leads to Bayes.
            assert trial.excess[POSTHOC].mean < trial.excess["softmax"].mean
            assert trial.excess[LIMIT].mean > 20 * trial.excess[LIMIT].se
            few = {method: groups["few"] for method, groups in trial.groups.items()}
            assert few["logit-adjusted"] < few["softmax"]
        first, *_, last = (study.of(name, m) for m in (1, *study.multiples(name)))
        for method in (POSTHOC, "logit-adjusted"):
            shrunk = large_simulation.excess(last, method).mean
            assert shrunk <= large_simulation.excess(first, method).mean


def test_writing_replaces_the_part_between_the_marks(study, tmp_path):
    pytest.importorskip("matplotlib")
    for path in (large_page.RECORD, large_page.PAGE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / large_page.RECORD).write_text((ROOT / large_page.RECORD).read_text())
    page = tmp_path / large_page.PAGE
    page.write_text(f"above\n{large_page.BEGIN}\nold\n{large_page.END}\nbelow\n")
    written = large_page.write(tmp_path)
    assert page.read_text() == f"above\n{large_page.block(study)}\nbelow\n"
    assert [path.suffix for path in written] == [".md", ".svg", ".png"]
    page.write_text("no marks")
    with pytest.raises(InputError, match=r"large-scale\.md must have the lines"):
        large_page.write(tmp_path)
