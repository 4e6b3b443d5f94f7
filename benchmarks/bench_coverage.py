"""Coverage of the intervals, and false alarms of the tests of a shift, by simulation.

    python benchmarks/bench_coverage.py               # simulate, print, write the record
    python benchmarks/bench_coverage.py --show results/bench_coverage.json

Four parts, all at the level of 95% and all of data whose truth is known:

- the balanced error and the change that an adjustment makes to it, as `longtail adjust` shows
  them: errors drawn class by class from rates that are given;
- tau as `tune_tau` chooses it: classes that are Gaussian, logits that are exact, so that the best
  tau is 1 whatever the held-out data;
- the tests of "no shift" in `estimate_prior`: the same classes, and target data that are mixed
  like the training data, so that every alarm is a false one.
"""

import argparse
import itertools
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.special import softmax

from longtail import ClassPrior, estimate_prior, tune_tau
from longtail.predictions.estimates import estimate
from machine import machine

LEVEL = 0.95
SAMPLES = {"error": 2000, "tau": 200, "shift": 400}

CLASSES = (2, 3, 10, 100)
# Examples of the largest and the smallest class; between them sizes fall geometrically.
SIZES = ((1, 1), (2, 2), (5, 5), (20, 20), (100, 100), (1000, 1000),
         (20, 2), (100, 1), (100, 10), (1000, 4), (5000, 4), (5000, 50))  # fmt: skip
# Of the largest and the smallest class.
RATES = ((0.0, 0.0), (0.01, 0.01), (0.1, 0.1), (0.3, 0.3), (0.5, 0.5), (0.9, 0.9),
         (0.02, 0.3), (0.1, 0.8), (0.3, 0.05))  # fmt: skip

SEPARATIONS = (1.5, 3.0)  # of the classes' means, in deviations
TAU_CLASSES = (2, 3, 10, 30)
HELD_OUT = ((20, 20), (100, 100), (500, 500), (100, 5), (500, 5), (2000, 5), (500, 50), (2000, 200))
SHIFT_CLASSES = (2, 3, 10, 30)
# With so many classes a few examples of each are many in all.
MANY_CLASSES = (300,)
FEW_OF_EACH = ((1, 1), (2, 2), (5, 5), (12, 1))
SHIFT_HELD_OUT = (200, 1000, 5000)
IMBALANCE = 100


def sizes_between(most, least, classes):
    return np.maximum(np.rint(np.geomspace(most, least, classes)).astype(int), 1)


def error_cells(rng):
    """Coverage of a plain error, for every number of classes, sizes and rates."""
    for classes, (most, least), (head, tail) in itertools.product(CLASSES, SIZES, RATES):
        counts = sizes_between(most, least, classes)
        rates = np.linspace(head, tail, classes)
        wrong = rng.binomial(counts, rates, size=(SAMPLES["error"], classes))
        share = np.full(classes, 1 / classes)
        held = covered(((one, None) for one in wrong), counts, share, rates.mean())
        yield cell(held, classes=classes, counts=[most, least], rates=[head, tail])


def change_cells(rng):
    """The same of a difference: examples that an adjustment breaks less those that it fixes."""
    for classes, (most, least), (head, tail) in itertools.product(CLASSES, SIZES, RATES):
        counts = sizes_between(most, least, classes)
        broken, fixed = np.linspace(head, tail, classes) / 2, np.linspace(tail, head, classes) / 2
        chances = np.stack([broken, fixed, 1 - broken - fixed], 1)
        drawn = rng.multinomial(counts, chances, size=(SAMPLES["error"], classes))
        share = np.full(classes, 1 / classes)
        pairs = ((one[:, 0], one[:, 1]) for one in drawn)
        held = covered(pairs, counts, share, (broken - fixed).mean())
        yield cell(held, classes=classes, counts=[most, least], rates=[head, tail])


def covered(events, counts, share, truth):
    """Return whether each sample's interval holds the truth, up to rounding."""
    found = (estimate(plus, minus, counts, share, level=LEVEL) for plus, minus in events)
    return [one.low - 1e-12 <= truth <= one.high + 1e-12 for one in found]


def cell(held, **what):
    return what | {"held": float(np.mean(held)), "samples": len(held)}


class GaussianClasses:
    """Classes with the covariance 1, their means `separation` apart in every pair."""

    def __init__(self, classes, separation):
        self.prior = ClassPrior.from_counts(sizes_between(1e6, 1e6 / IMBALANCE, classes))
        # The corners of a simplex: as many dimensions as classes.
        self.means = np.eye(classes) * separation / np.sqrt(2)

    def draw(self, rng, target):
        """Logits under the training prior: log π_y + log p(x | y), up to a constant of x."""
        x = self.means[target] + rng.standard_normal((len(target), self.means.shape[1]))
        return x @ self.means.T - 0.5 * np.sum(self.means**2, 1) + self.prior.log_probs


def tau_cells(rng):
    grid = [
        *itertools.product(TAU_CLASSES, SEPARATIONS, HELD_OUT),
        *itertools.product(MANY_CLASSES, SEPARATIONS, FEW_OF_EACH),
    ]
    for classes, separation, (most, least) in grid:
        world = GaussianClasses(classes, separation)
        target = np.repeat(np.arange(classes), sizes_between(most, least, classes))
        results = [
            tune_tau(world.draw(rng, target), target, world.prior, confidence=LEVEL, random_state=n)
            for n in range(SAMPLES["tau"])
        ]
        held = [one.confidence[0] <= 1.0 <= one.confidence[1] for one in results]
        yield cell(
            held,
            classes=classes,
            counts=[most, least],
            separation=separation,
            tau=float(np.mean([one.tau for one in results])),
            examples=len(target),
            deciding=float(results[0].deciding_examples),
            few=bool(results[0].few_decide),
        )


WAYS = ("em", "bbse")


def shift_cells(rng):
    """False alarms; the held-out data, which BBSE needs, are mixed like the training data."""
    grid = itertools.product(SHIFT_CLASSES, SEPARATIONS, SHIFT_HELD_OUT)
    for classes, separation, examples in grid:
        world = GaussianClasses(classes, separation)
        alarms = {way: [] for way in WAYS}
        for _ in range(SAMPLES["shift"]):
            known, new = (rng.choice(classes, examples, p=world.prior.probs) for _ in range(2))
            known[:classes] = np.arange(classes)  # BBSE needs each class at least once
            source, probs = (softmax(world.draw(rng, target), axis=1) for target in (known, new))
            labelled = {"source_probs": source, "source_target": known}
            for way in WAYS:
                data = labelled if way == "bbse" else {}
                options = {"method": way, "significance": 1 - LEVEL}
                alarms[way].append(estimate_prior(probs, world.prior, **data, **options).shifted)
        for way, found in alarms.items():
            yield {
                "way": way,
                "classes": classes,
                "separation": separation,
                "examples": examples,
                "alarms": float(np.mean(found)),
                "samples": len(found),
            }


PARTS = {"error": error_cells, "change": change_cells, "tau": tau_cells, "shift": shift_cells}


def measure():
    """Every part from a generator of its own, so that one can be simulated again alone."""
    found = {"machine": machine(), "level": LEVEL, "imbalance": IMBALANCE}
    for number, (name, cells) in enumerate(PARTS.items()):
        found[name] = list(cells(np.random.default_rng(number)))
        print(f"{name}: {len(found[name])} settings", flush=True)
    return found


def show(found):
    groups = {
        "error": found["error"],
        "change": found["change"],
        "tau, enough decide": [one for one in found["tau"] if not one["few"]],
        "tau, few decide": [one for one in found["tau"] if one["few"]],
    }
    for name, cells in groups.items():
        held = 100 * np.array([one["held"] for one in cells])
        below = int(np.sum(held < 90))
        print(
            f"{name:20} {len(cells):4} settings: {held.mean():5.1f}% on average, "
            f"{held.min():5.1f} to {held.max():5.1f}%, below 90% in {below}"
        )
    for way in WAYS:
        alarms = 100 * np.array([one["alarms"] for one in found["shift"] if one["way"] == way])
        print(
            f"{way:20} {len(alarms):4} settings: {alarms.mean():5.1f}% false alarms on average, "
            f"{alarms.min():5.1f} to {alarms.max():5.1f}%"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", type=Path, help="print a record instead of simulating")
    parser.add_argument("--record", type=Path, default=Path("results/bench_coverage.json"))
    options = parser.parse_args()
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    record = measure()
    show(record)
    options.record.parent.mkdir(exist_ok=True)
    parts = ",\n ".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items())
    options.record.write_text("{" + parts + "}\n")


def _lines(value):
    """A list of settings with one of them a line, so that records can be compared."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(json.dumps(one) for one in value) + "]"


if __name__ == "__main__":
    main()
