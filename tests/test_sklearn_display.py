"""The plot of the score against tau."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB

from longtail import TauCurveDisplay
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402


@pytest.fixture
def rows():
    X, y = load_wine(return_X_y=True)
    return X[:150, :2], y[:150]


def test_an_exact_curve_is_drawn_in_steps(rows):
    model = LogitAdjustedClassifierCV(GaussianNB()).fit(*rows)
    display = TauCurveDisplay.from_estimator(model, name="wine", color="C3")
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(x, model.tau_curve_.exact.breakpoints)
    np.testing.assert_array_equal(y[:-1], 1 - model.tau_curve_.exact.values)
    assert display.line_.get_drawstyle() == "steps-post"
    assert display.line_.get_color() == "C3"
    texts = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert texts == ["wine", f"chosen: tau = {model.best_tau_:.2f}"]
    assert display.ax_.get_ylabel() == "held-out balanced accuracy"
    pyplot.close(display.figure_)


def test_a_grid_is_drawn_on_given_axes(rows):
    model = LogitAdjustedClassifierCV(GaussianNB(), scoring="f1_macro", tau_grid=[0, 1, 2])
    figure, ax = pyplot.subplots()
    display = TauCurveDisplay.from_estimator(model.fit(*rows), ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert display.line_.get_xdata().tolist() == [0, 1, 2]
    assert ax.get_ylabel() == "held-out f1 macro"
    pyplot.close(figure)


def test_only_a_fitted_choice_has_a_curve(rows):
    with pytest.raises(NotFittedError):
        TauCurveDisplay.from_estimator(LogitAdjustedClassifierCV(GaussianNB()))
    with pytest.raises(NotFittedError):
        TauCurveDisplay.from_estimator(LogitAdjustedClassifier(GaussianNB()).fit(*rows))


def test_the_tables_of_the_page_are_those_of_the_record():
    root = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location("make_page", root / "benchmarks/make_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (root / "docs/sklearn.md").read_text()
    assert module.aims() in page
    assert module.leads() in page
