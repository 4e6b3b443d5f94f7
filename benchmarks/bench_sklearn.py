"""Logit adjustment against the other ways to treat rare classes in scikit-learn.

    python benchmarks/bench_sklearn.py --record results/bench_sklearn.json   # measure, ~15 min
    python benchmarks/bench_sklearn.py --show results/bench_sklearn.json     # print the tables

Long-tailed samples of scikit-learn's own data are drawn 20 times; each time every method is fitted
on the same rows and judged by the balanced error on all the others. What counts are paired
differences, with 95% t-intervals over the samples. Seconds are processor time on one thread.
A second part records what the treatments of exact zeros do, the evidence behind ScoreReader.
"""

import argparse
import json
import os
import platform
import re
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import imblearn
import numpy as np
import scipy
import sklearn
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline
from scipy.special import log_softmax
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, TunedThresholdClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import longtail
from longtail import ClassPrior, balanced_error
from longtail.sklearn import LogitAdjustedClassifier, LogitAdjustedClassifierCV
from longtail.sklearn._scores import ScoreReader
from longtail.tuning import TauCurve, TauIntervals
from machine import processor_name

# Name: loader, size of the largest class, ratio of largest to smallest (as far as sizes allow).
DATA = {
    "digits": (load_digits, 150, 50),
    "wine": (load_wine, 30, 10),
    "breast cancer": (load_breast_cancer, 240, 20),
}
FOLDS, TURNS = 5, 3
THRESHOLD, ON_MARGINS = "tuned threshold", "... on margins"


def class_sizes(largest, ratio, num_classes):
    """An exponential profile, n_i = int(n_max ratio^(−i / (L − 1)))."""
    steps = np.arange(num_classes) / (num_classes - 1)
    return [int(n) for n in largest * float(ratio) ** -steps + 1e-9]


def draw(name, seed):
    """A long-tailed sample for training; everything else is for judging.

    Which class is rare changes from sample to sample, except that of the two in the breast-cancer
    data the malignant one is always rare.
    """
    load, largest, ratio = DATA[name]
    X, y = load(return_X_y=True)
    num_classes = int(y.max()) + 1
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_classes) if num_classes > 2 else np.array([1, 0])
    sizes = class_sizes(largest, ratio, num_classes)
    parts = [rng.permutation(np.flatnonzero(y == c))[:n] for c, n in zip(order, sizes, strict=True)]
    train = rng.permutation(np.concatenate(parts))
    rest = np.setdiff1d(np.arange(len(y)), train)
    return X[train], y[train], X[rest], y[rest]


def scaled(*steps):
    return make_pipeline(StandardScaler(), *steps)


def bases(seed):
    """Name: function that puts steps (a sampler, perhaps none) before the classifier."""
    forest = RandomForestClassifier(100, random_state=seed)
    # At the default of 20 rows per leaf, boosting can't split wine's 42 rows at all.
    boosting = HistGradientBoostingClassifier(
        max_iter=50, min_samples_leaf=5, early_stopping=False, random_state=seed
    )
    return {
        "LogisticRegression": (scaled, LogisticRegression(max_iter=1000)),
        "RandomForest": (make_pipeline, forest),
        "HistGradientBoosting": (make_pipeline, boosting),
    }


def contenders(build, classifier, seed, smallest, binary):
    """Name: unfitted classifier, for one base."""
    folds = StratifiedKFold(FOLDS)

    def on(*steps):
        return build(*steps, clone(classifier))  # pipelines share what they are given

    balanced = clone(classifier).set_params(class_weight="balanced")
    smote = SMOTE(k_neighbors=min(5, smallest - 1), random_state=seed)
    methods = {
        "plain": on(),
        "class weights": build(balanced),
        "oversampling": on(RandomOverSampler(random_state=seed)),
        "SMOTE": on(smote),
        "tau = 1": LogitAdjustedClassifier(on()),
        "tuned tau": LogitAdjustedClassifierCV(on(), cv=folds),
    }
    if binary:
        rival = TunedThresholdClassifierCV(on(), scoring="balanced_accuracy", cv=folds)
        methods[THRESHOLD] = rival
        if hasattr(classifier, "decision_function"):
            # Its 100 thresholds are evenly spaced, which suits margins better than probabilities
            # that are all near 0 or 1.
            methods[ON_MARGINS] = clone(rival).set_params(response_method="decision_function")
    return methods


def measure_methods(samples):
    table = {}
    for name in DATA:
        for seed in range(samples):
            X, y, X_rest, y_rest = draw(name, seed)
            smallest = int(np.bincount(y).min())
            binary = y.max() == 1
            for base, (build, classifier) in bases(seed).items():
                methods = contenders(build, classifier, seed, smallest, binary)
                # The tuned methods take turns, so that a busy moment can't favour one.
                turns = TURNS if binary else 1
                seconds = {method: [] for method in methods}
                for turn in range(turns):
                    for method, model in methods.items():
                        if turn == 0 or method in ("tuned tau", THRESHOLD, ON_MARGINS):
                            seconds[method].append(fit_seconds(model, X, y))
                cell = table.setdefault(name, {}).setdefault(base, {})
                for method, model in methods.items():
                    figures = cell.setdefault(method, {"error": [], "seconds": []})
                    refused = None in seconds[method]
                    error = None if refused else balanced_error(y_rest, model.predict(X_rest))
                    figures["error"].append(None if refused else round(error, 6))
                    figures["seconds"].append(None if refused else round(min(seconds[method]), 5))
                    if method == "tuned tau":
                        figures.setdefault("tau", []).append(round(model.best_tau_, 4))
            print(f"{name}: sample {seed + 1} of {samples}", flush=True)
    return table


def fit_seconds(model, X, y):
    """Processor seconds of one fit; None where the model refuses these rows.

    TunedThresholdClassifierCV does where all probabilities of a fold are nearly the same.
    """
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        try:
            model.fit(X, y)
        except ValueError as error:
            if "constant predictions" not in str(error):
                raise
            return None
    return time.process_time() - start


# ---------------------------------------------------------------- exact zeros

VOTERS = {
    "forest, 100 trees": lambda s: RandomForestClassifier(100, random_state=s),
    "forest, 20 trees": lambda s: RandomForestClassifier(20, random_state=s),
    "forest, leaves of 3": lambda s: RandomForestClassifier(
        100, min_samples_leaf=3, random_state=s
    ),
    "extra trees": lambda s: ExtraTreesClassifier(100, random_state=s),
    "5 neighbours": lambda s: scaled(KNeighborsClassifier(5)),
    "one tree": lambda s: DecisionTreeClassifier(random_state=s),
}


def put(floor):
    """Zeros become `floor(smallest positive, prior)`; the rest stays."""

    def logits(p, prior, smallest):
        return np.log(np.where(p > 0, p, floor(smallest, prior.probs)))

    return logits


def mixed(share):
    """Everything is mixed with a fixed distribution, `share(prior)` of it."""

    def logits(p, prior, smallest):
        return np.log(p + share(prior.probs))

    return logits


TREATMENTS = {
    "this package: min(m, prior / 5) / 2": lambda p, prior, smallest: ScoreReader(
        "predict_proba", smallest
    ).logits(p, prior),
    "1e-300": put(lambda m, pi: 1e-300),
    "1e-15": put(lambda m, pi: 1e-15),
    "1e-6": put(lambda m, pi: 1e-6),
    "half the smallest positive, m / 2": put(lambda m, pi: m / 2),
    "prior / 1000": put(lambda m, pi: pi / 1000),
    "add prior / 1000 to all": mixed(lambda pi: pi / 1000),
    "add prior / 10 to all": mixed(lambda pi: pi / 10),
    "add 0.01 / L to all": mixed(lambda pi: 0.01 / len(pi)),
}


def spread(p, classes, num_classes):
    full = np.zeros((len(p), num_classes))
    full[:, classes] = p
    return full


def measure_zeros(samples):
    table = {}
    for name in DATA:
        for voter, make in VOTERS.items():
            for seed in range(samples):
                X, y, X_rest, y_rest = draw(name, seed)
                answers = cross_fitted(make(seed), X, y)
                model = make(seed).fit(X, y)
                probs = model.predict_proba(X_rest)
                for treatment, logits in TREATMENTS.items():
                    figures = judge_treatment(logits, answers, probs, y, y_rest)
                    cell = table.setdefault(name, {}).setdefault(voter, {})
                    cell = cell.setdefault(treatment, {key: [] for key in figures})
                    for key, value in figures.items():
                        cell[key].append(round(value, 5))
            print(f"zeros: {name}, {voter}", flush=True)
    return table


def cross_fitted(model, X, y):
    """(probabilities, labels, training counts) of each fold."""
    num_classes = int(y.max()) + 1
    answers = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        for train, held_out in StratifiedKFold(FOLDS).split(X, y):
            model = clone(model).fit(X[train], y[train])
            p = spread(model.predict_proba(X[held_out]), model.classes_, num_classes)
            answers.append((p, y[held_out], np.bincount(y[train], minlength=num_classes)))
    return answers


def judge_treatment(logits, answers, probs, y, y_rest):
    smallest = min(p[p > 0].min() for p, _, _ in answers)
    parts = []
    for p, held_out, counts in answers:
        prior = ClassPrior.from_counts(counts)
        parts.append(TauIntervals.from_logits(logits(p, prior, smallest), held_out, prior))
    tau = TauCurve(TauIntervals.merge(parts), bounds=(0.0, 4.0)).minimizer()[0]
    prior = ClassPrior.from_labels(y)
    f = logits(probs, prior, smallest)
    at_one = f - prior.log_probs
    losses = -log_softmax(at_one, axis=1)[np.arange(len(f)), y_rest]
    return {
        "error at tau = 1": balanced_error(y_rest, at_one),
        "error at tuned tau": balanced_error(y_rest, f - tau * prior.log_probs),
        "balanced log-loss at tau = 1": float(
            np.mean([losses[y_rest == c].mean() for c in range(prior.num_classes)])
        ),
    }


# ---------------------------------------------------------------- tables


def of_both(first, second):
    """Two lists of figures as arrays, less the samples that either method refused."""
    first, second = (np.array(values, dtype=float) for values in (first, second))
    kept = np.isfinite(first) & np.isfinite(second)
    return first[kept], second[kept]


def paired(first, second):
    """Mean and half-width of the 95% t-interval of first − second."""
    first, second = of_both(first, second)
    values = first - second
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)


def show(record):
    print(f"Balanced error (%), mean of {record['samples']} samples; in brackets the gain over")
    print("plain in points, with its paired 95% interval; then processor seconds of one fit.\n")
    for name, by_base in record["methods"].items():
        sizes = record["protocol"][name]["class sizes"]
        print(f"{name}: {len(sizes)} classes, training sizes {sizes}")
        for base, methods in by_base.items():
            plain = methods["plain"]["error"]
            for method, figures in methods.items():
                error, _ = of_both(figures["error"], figures["error"])
                seconds, _ = of_both(figures["seconds"], figures["seconds"])
                gain, half = paired(plain, figures["error"])
                text = "" if method == "plain" else f"({100 * gain:+5.1f} ± {100 * half:3.1f})"
                note = f"  tau {np.median(figures['tau']):.2f}" if "tau" in figures else ""
                if refused := len(plain) - len(error):
                    note += f"  (refused {refused} of {len(plain)} samples)"
                print(
                    f"  {base if method == 'plain' else '':<21}{method:<16}"
                    f"{100 * error.mean():6.1f} {text:<15}{seconds.mean():8.3f} s{note}"
                )
        print()
    show_claims(record["methods"])
    show_zeros(record["zeros"])


def show_claims(methods):
    print("What is claimed:")
    for base, cell in methods["digits"].items():
        for method in ("tau = 1", "tuned tau"):
            mean, half = (100 * x for x in paired(cell["plain"]["error"], cell[method]["error"]))
            print(
                f"  digits, {base}, {method}: gain {mean:.1f} ± {half:.1f} points, "
                f"at least 2: {'yes' if mean >= 2 else 'NO'}"
            )
    for base, cell in methods["breast cancer"].items():
        for rival in (THRESHOLD, ON_MARGINS):
            if rival in cell:
                show_duel(base, cell["tuned tau"], rival, cell[rival])
    print()


def show_duel(base, own, rival, other):
    mean, half = (100 * x for x in paired(own["error"], other["error"]))
    log_ratio, spread = paired(*map(np.log, of_both(own["seconds"], other["seconds"])))
    verdict = "no different" if abs(mean) <= half else "better" if mean < 0 else "WORSE"
    print(
        f"  breast cancer, {base}, tuned tau less {rival.replace('...', THRESHOLD)}: "
        f"{mean:+.2f} ± {half:.2f} points, {verdict}; time ratio {np.exp(log_ratio):.3f} "
        f"({np.exp(log_ratio - spread):.3f} to {np.exp(log_ratio + spread):.3f}), "
        f"no slower: {'yes' if log_ratio <= spread else 'NO'}"
    )


def show_zeros(table):
    print("What to put in place of p = 0; means over all data, voters and samples:")
    treatments = next(iter(next(iter(table.values())).values()))
    keys = list(next(iter(treatments.values())))
    print(f"  {'':<38}" + "".join(f"{key:>30}" for key in keys))
    for treatment in treatments:
        means = [
            np.mean([cell[treatment][key] for voters in table.values() for cell in voters.values()])
            for key in keys
        ]
        texts = [
            f"{100 * m:.2f}%" if "error" in k else f"{m:.3f}"
            for k, m in zip(keys, means, strict=True)
        ]
        print(f"  {treatment:<38}" + "".join(f"{text:>30}" for text in texts))


def describe(samples):
    versions = {
        "python": platform.python_version(),
        "longtail": longtail.__version__,
        "scikit-learn": sklearn.__version__,
        "imbalanced-learn": imblearn.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    protocol = {}
    for name, (load, largest, ratio) in DATA.items():
        num_classes = int(load(return_X_y=True)[1].max()) + 1
        sizes = class_sizes(largest, ratio, num_classes)
        protocol[name] = {"ratio": ratio, "class sizes": sizes, "test": "all other rows"}
    return {
        "what": "balanced error and fit time of scikit-learn classifiers on long-tailed samples",
        "device": processor_name(),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "versions": versions,
        "samples": samples,
        "folds": FOLDS,
        "protocol": protocol,
    }


def write(record, path):
    """One line per list of figures: a text that can be read and compared."""
    text = json.dumps(record, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure and write the record here")
    parser.add_argument("--show", type=Path, help="print the tables of a record")
    parser.add_argument("--samples", type=int, default=20, help="how many to draw (20)")
    arguments = parser.parse_args()
    if arguments.record:
        samples = arguments.samples
        record = {
            **describe(samples),
            "methods": measure_methods(samples),
            "zeros": measure_zeros(min(samples, 10)),
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        write(record, arguments.record)
    path = arguments.show or arguments.record
    if path is None:
        parser.error("pass --record PATH to measure or --show PATH to print")
    show(json.loads(path.read_text()))


if __name__ == "__main__":
    main()
