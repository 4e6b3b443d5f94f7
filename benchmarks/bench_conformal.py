"""Prediction sets on four long tails: coverage by class and size, next to MAPIE and TorchCP.

    python benchmarks/bench_conformal.py --run RUN      # a run folder of CIFAR-100-LT
    python benchmarks/bench_conformal.py --show results/bench_conformal.json

90% are asked for, over 20 splits fixed beforehand. Thresholds are chosen on long-tailed held-out
examples and judged on others, as many of each class as there are:

- digits: logistic regression on long-tailed digits of scikit-learn (10 classes);
- two simulations of 100 classes, ratio 100: the exact posterior of Gaussian classes, and one that
  is too sure and noisy. 5,000 held-out examples, mixed as in training, one of each class at least;
- CIFAR-100-LT: the test logits of a run, half of each class judged, of the other half a long tail
  held out (50 down to 1 of a class).

MAPIE and TorchCP are measured where they are installed.
"""

import argparse
import importlib.metadata
import json
import os
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from longtail import ClassPrior, Run
from longtail.conformal import PredictionSets, evaluate_sets
from machine import machine

COVERAGE, SPLITS, CLASSES, RATIO = 0.9, 20, 100, 100
OURS = {
    "macro": {},
    "clustered": {"method": "clustered"},
    "interpolated": {"method": "interpolated"},
    "classwise": {"method": "classwise"},
    "marginal": {"method": "marginal"},
    "marginal, softmax score": {"method": "marginal", "tau": 0.0},
}


def tail(most, least, classes):
    return np.maximum(np.rint(np.geomspace(most, least, classes)).astype(int), 1)


def take(labels, counts, rng):
    """Places of so many examples of each class, and of all the others."""
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels), dtype=int)
    for y in range(len(counts)):
        mine = order[labels[order] == y]
        rank[mine] = np.arange(len(mine))
    chosen = rank < np.asarray(counts)[labels]
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def digits(rng):
    X, y = load_digits(return_X_y=True)
    train, rest = take(y, tail(80, 8, 10), rng)
    held, rest = take(y[rest], tail(60, 6, 10), rng), rest
    held, test = rest[held[0]], rest[held[1]]
    model = LogisticRegression(max_iter=500).fit(X[train] / 16, y[train])
    logits = model.decision_function(X / 16)
    return logits[held], y[held], logits[test], y[test], ClassPrior.from_labels(y[train])


def simulated(scale, noise):
    prior = ClassPrior.from_counts(tail(1e6, 1e6 / RATIO, CLASSES))
    means = np.random.default_rng(0).normal(size=(CLASSES, 32))
    means *= 3.3 / np.linalg.norm(means, axis=1, keepdims=True)

    def draw(rng):
        def logits(target):
            x = means[target] + rng.normal(size=(len(target), 32))
            exact = x @ means.T - 0.5 * np.sum(means**2, 1) + prior.log_probs
            return scale * exact + noise * rng.normal(size=exact.shape)

        some = rng.choice(CLASSES, size=5000 - CLASSES, p=prior.probs)
        held = np.concatenate([np.arange(CLASSES), some])
        test = np.repeat(np.arange(CLASSES), 100)
        return logits(held), held, logits(test), test, prior

    return draw


def cifar(run):
    logits, target, _ = run.logits("test")
    logits, target = np.asarray(logits, dtype=np.float64), np.asarray(target)

    def draw(rng):
        test, rest = take(target, np.full(CLASSES, 50), rng)
        held, _ = take(target[rest], tail(50, 50 / RATIO, CLASSES), rng)
        held = rest[held]
        return logits[held], target[held], logits[test], target[test], run.prior

    return draw


def ours(name, held, target, test, prior):
    return PredictionSets(coverage=COVERAGE, **OURS[name]).fit(held, target, prior).predict(test)


class Scores(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose features are its logits."""

    def fit(self, X, y):
        self.classes_ = np.arange(X.shape[1])
        return self

    def predict_proba(self, X):
        return softmax(X, axis=1)

    def predict(self, X):
        return X.argmax(axis=1)


def mapie(held, target, test):
    from mapie.classification import SplitConformalClassifier

    model = Scores().fit(held, target)
    sets = SplitConformalClassifier(model, confidence_level=COVERAGE, prefit=True)
    return sets.conformalize(held, target).predict_set(test)[1][:, :, 0].astype(bool)


def torchcp(predictor, score):
    def run(held, target, test):
        import torch
        from torchcp.classification import predictor as predictors
        from torchcp.classification import score as scores

        made = getattr(predictors, predictor)(getattr(scores, score)(), alpha=1 - COVERAGE)
        torch.manual_seed(0)
        made.calculate_threshold(torch.as_tensor(held).float(), torch.as_tensor(target))
        return np.asarray(made.predict_with_logits(torch.as_tensor(test).float())).astype(bool)

    return run


def installed(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def others():
    """Methods of other packages, by name."""
    found = {"MAPIE, LAC": mapie} if installed("mapie") else {}
    if installed("torchcp"):
        found |= {
            "TorchCP, split APS": torchcp("SplitPredictor", "APS"),
            "TorchCP, class-conditional LAC": torchcp("ClassConditionalPredictor", "LAC"),
            "TorchCP, clustered LAC": torchcp("ClusteredPredictor", "LAC"),
        }
    return found


def measured(draw):
    """Each method's means over the splits; the standard error is that of the macro coverage."""
    cells = {}
    for split in range(SPLITS):
        held, target, test, labels, prior = draw(np.random.default_rng(split))
        sets = {name: ours(name, held, target, test, prior) for name in OURS}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sets |= {name: run(held, target, test) for name, run in others().items()}
        for name, members in sets.items():
            found = evaluate_sets(members, labels)
            worst, low = np.nanmin(found.per_class), np.nanmean(found.per_class < 0.5)
            cells.setdefault(name, []).append([found.macro, worst, low, found.macro_size])
    table = {}
    for name, rows in cells.items():
        values = np.array(rows)
        macro, worst, low, size = values.mean(axis=0)
        error = values[:, 0].std(ddof=1) / np.sqrt(SPLITS)
        table[name] = {
            "macro_coverage": macro,
            "standard_error": error,
            "worst_class": worst,
            "classes_below_half": low,
            "size": size,
        }
    return table


def show(record):
    for name, table in record["sets"].items():
        print(f"\n{name}\n{'':32} macro ± 2 SE   worst  below half   size")
        for method, cell in table.items():
            print(
                f"{method:32} {100 * cell['macro_coverage']:5.1f} ± "
                f"{200 * cell['standard_error']:.1f} {100 * cell['worst_class']:9.1f} "
                f"{100 * cell['classes_below_half']:9.1f} {cell['size']:9.2f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run of CIFAR-100-LT with its test logits")
    parser.add_argument("--out", type=Path, default=Path("results/bench_conformal.json"))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        return show(json.loads(options.show.read_text()))
    draws = {
        "digits": digits,
        "simulated, exact": simulated(1.0, 0.0),
        "simulated, too sure": simulated(1.5, 1.0),
    }
    record = {**machine(), "coverage": COVERAGE, "splits": SPLITS}
    record["packages"] = {name: installed(name) for name in ("mapie", "torchcp")}
    if options.run:
        run = Run.open(options.run)
        draws["CIFAR-100-LT"] = cifar(run)
        record["run"] = run.spec.to_json()
    record["sets"] = {name: measured(draw) for name, draw in draws.items()}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return show(record)


if __name__ == "__main__":
    main()
