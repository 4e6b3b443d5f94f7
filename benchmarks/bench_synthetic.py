"""The synthetic study's batched solver against a loop over scikit-learn's LogisticRegression.

    python benchmarks/bench_synthetic.py [--record results/bench_synthetic.json]

Both fit softmax without a penalty to the same 100 training samples of the paper's problem, on
one thread. They take turns within one run; what counts is the ratio of processor times.
scikit-learn is run twice: as it comes, and to a tolerance at which the two solutions can be
compared, since its default stops a few thousandths away from the minimiser.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy
import sklearn
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import longtail
from longtail import ClassPrior, margins
from machine import processor_name

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies are run from a checkout

from studies import synthetic


def batched(features, target):
    priors = [ClassPrior.from_labels(labels, num_classes=2) for labels in target]
    return synthetic.fit(features, target, [margins.softmax(prior) for prior in priors])


def loop(features, target, **settings):
    rows = []
    for x, y in zip(features, target, strict=True):
        model = LogisticRegression(C=np.inf, **settings).fit(x, y)
        rows.append([*model.coef_[0], model.intercept_[0]])
    return np.array(rows)


def timed(function):
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - processor


def measure(repeats):
    train = synthetic.sample(synthetic.TRIALS, synthetic.TRAIN)
    contenders = {
        "longtail, batched": lambda: batched(*train),
        "scikit-learn, lbfgs": lambda: loop(*train),
        "scikit-learn, lbfgs, tol=1e-8": lambda: loop(*train, tol=1e-8),
        "scikit-learn, newton-cholesky": lambda: loop(*train, solver="newton-cholesky"),
    }
    runs = {name: [] for name in contenders}
    solutions = {}
    for _ in range(repeats):
        for name, function in contenders.items():
            solutions[name], wall, processor = timed(function)
            runs[name].append((wall, processor))
    ours = solutions["longtail, batched"]
    base = float(np.median([r[1] for r in runs["longtail, batched"]]))
    return {
        name: {
            "wall_seconds": round(float(np.median([r[0] for r in times])), 4),
            "processor_seconds": round(float(np.median([r[1] for r in times])), 4),
            "times_ours": round(float(np.median([r[1] for r in times])) / base, 2),
            "largest_difference": float(f"{np.abs(solutions[name] - ours).max():.2e}"),
        }
        for name, times in runs.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="write the measurements here, as JSON")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with threadpool_limits(1):
        fits = measure(options.repeats)
        _, wall, processor = timed(synthetic.compute)
    record = {
        "fits": fits,
        "study": {"wall_seconds": round(wall, 2), "processor_seconds": round(processor, 2)},
        "problem": "100 samples of 10,000 points, two features, 5% rare",
        "threads": 1,
        "repeats": options.repeats,
        "processor": processor_name(),
        "versions": {
            "longtail": longtail.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }
    print(json.dumps(record, indent=1))
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
