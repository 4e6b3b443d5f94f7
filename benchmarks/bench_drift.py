"""A monitor of the class mix: false alarms, delays, and its estimators against QuaPy's.

    python benchmarks/bench_drift.py --record results/bench_drift.json   # ~6 min
    python benchmarks/bench_drift.py --page results/bench_drift.json     # write the page's tables

A stream is HORIZON batches of predictions of a model that is overconfident and biased; it has been
calibrated on held-out examples drawn as in training. Without a drift every alarm is false, at most
`level` of the streams should have one. With a drift the mix changes halfway.

QuaPy's estimators (EMQ, PACC and ACC) are compared where `quapy` can be imported; it is not among
the dependencies.
"""

import argparse
import inspect
import json
from collections import deque
from pathlib import Path

import numpy as np

import machine
from longtail import ClassPrior, estimate_prior
from longtail.shift import fit_bias_corrected_temperature

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "drift.md"
LEVEL, HORIZON, WINDOW, STREAMS, DRIFTS = 0.05, 40, 5, 400, 100
# Classes, held-out examples, examples of a batch.
SETTINGS = [(2, 2000, 100), (5, 500, 100), (5, 2000, 100), (5, 2000, 20), (20, 4000, 200)]


def monitor(batches, calibrator, *, level=0.05, horizon=1000, window=5, confidence=None):
    """Estimate the class mix of the last batches; `.shifted` is the alarm."""
    recent = deque(maxlen=window)
    for logits in batches:
        recent.append(calibrator.probs(logits))
        yield estimate_prior(
            np.concatenate(recent),
            calibrator.prior,
            significance=level / horizon,  # so that all of them together hold the level
            confidence=confidence,
        )


class World:
    """Classes whose evidence is Gaussian, a training mix, and a drift to half of its reverse."""

    def __init__(self, classes):
        self.mix = 20.0 ** (-np.arange(classes) / (classes - 1))
        self.mix /= self.mix.sum()
        self.later = 0.5 * self.mix + 0.5 * self.mix[::-1]

    def sample(self, size, mix, random):
        target = random.choice(len(mix), size=size, p=mix)
        evidence = 1.5 * np.eye(len(mix))[target] + random.normal(size=(size, len(mix)))
        return 2.0 * (1.5 * evidence + np.log(self.mix)) + np.linspace(0, 1, len(mix)), target


def stream(world, held, batch, *, drift, calibrate, seed):
    """The first alarm of a stream, or None."""
    random = np.random.default_rng(seed)
    logits, target = world.sample(held, world.mix, random)
    calibrator = fit_bias_corrected_temperature(logits, target)
    if not calibrate:
        calibrator = type(calibrator)(**{**vars(calibrator), "temperature": 1.0, "bias": 0.0})
    mixes = [world.later if drift and n >= HORIZON // 2 else world.mix for n in range(HORIZON)]
    batches = (world.sample(batch, mix, random)[0] for mix in mixes)
    found = monitor(batches, calibrator, level=LEVEL, horizon=HORIZON, window=WINDOW)
    return next((n for n, estimate in enumerate(found) if estimate.shifted), None)


def alarms():
    """Shares of streams with an alarm, and the batches until it comes after a drift."""
    rows = []
    for classes, held, batch in SETTINGS:
        world, row = World(classes), {"classes": classes, "held": held, "batch": batch}
        for name, drift, calibrate, count in (
            ("false", False, True, STREAMS),
            ("uncalibrated", False, False, DRIFTS),
            ("drift", True, True, DRIFTS),
        ):
            first = [
                stream(world, held, batch, drift=drift, calibrate=calibrate, seed=seed)
                for seed in range(count)
                if _every_class(world, held, seed)
            ]
            row[f"{name}_streams"] = len(first)
            row[name] = round(float(np.mean([n is not None for n in first])), 4)
            if drift:
                late = [n - HORIZON // 2 + 1 for n in first if n is not None and n >= HORIZON // 2]
                row["delay"] = [float(np.quantile(late, q)) for q in (0.5, 0.9)] if late else None
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def _every_class(world, held, seed):
    target = world.sample(held, world.mix, np.random.default_rng(seed))[1]
    return len(np.unique(target)) == len(world.mix)


def intervals():
    """Share of 90% intervals that hold the true frequency, of all classes and of the rarest."""
    rows = []
    for classes, held, size in ((2, 1000, 300), (5, 1000, 500), (20, 4000, 1000)):
        world, hits = World(classes), {"em": [], "bbse": []}
        rarest = int(np.argmin(world.later))
        for seed in range(200):
            random = np.random.default_rng(seed)
            logits, target = world.sample(held, world.mix, random)
            if len(np.unique(target)) < classes:
                continue
            calibrator = fit_bias_corrected_temperature(logits, target)
            probs = calibrator.probs(world.sample(size, world.later, random)[0])
            source = {"source_probs": calibrator.probs(logits), "source_target": target}
            for method, found in hits.items():
                more = {"method": method, "confidence": 0.9, **(source if method == "bbse" else {})}
                low, high = estimate_prior(probs, calibrator.prior, **more).interval.T
                found.append((low <= world.later) & (world.later <= high))
        row = {"classes": classes, "held": held, "target": size, "samples": len(hits["em"])}
        for method, found in hits.items():
            row[method] = round(float(np.mean(found)), 4)
            row[f"{method}_rarest"] = round(float(np.mean(found, axis=0)[rarest]), 4)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def against_quapy():
    """Largest distance of an estimate from QuaPy's over 30 samples, by estimator."""
    import quapy
    from quapy.method.aggregative import ACC, EMQ, PACC

    apart = {"EM": [], "PACC": [], "ACC": []}
    for seed in range(30):
        random, world = np.random.default_rng(seed), World(5)
        logits, target = world.sample(2000, world.mix, random)
        calibrator = fit_bias_corrected_temperature(logits, target)
        held = calibrator.probs(logits)
        probs = calibrator.probs(world.sample(1000, world.later, random)[0])
        prior = ClassPrior.from_probs(calibrator.prior.probs)

        def ours(given, source=None, prior=prior, target=target):
            more = {"method": "bbse", "source_probs": source, "source_target": target}
            found = estimate_prior(given, prior, **({} if source is None else more))
            return found.probs

        EMQ.MAX_ITER = 20_000
        apart["EM"].append(ours(probs) - EMQ.EM(prior.probs, probs, epsilon=1e-9)[0])
        hard = [np.eye(5)[each.argmax(1)] for each in (probs, held)]
        for name, (given, source) in {"PACC": (probs, held), "ACC": hard}.items():
            kind, labels = (PACC, source) if name == "PACC" else (ACC, source.argmax(1))
            theirs = ACC.solve_adjustment(
                class_conditional_rates=kind.getPteCondEstim(np.arange(5), target, labels),
                unadjusted_counts=given.mean(axis=0),
                method="inversion",
                solver="minimize",
            )
            apart[name].append(ours(given, source) - theirs)
    largest = {name: float(np.abs(values).max()) for name, values in apart.items()}
    return {"version": quapy.__version__, "samples": 30, "largest_difference": largest}


def alarm_table(record):
    """False alarms and delays in Markdown."""
    lines = [
        "| classes | held out | in a batch | false alarms | found after a drift | "
        "batches until then | false alarms, raw model |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["alarms"]:
        delay = "–" if row["delay"] is None else f"{row['delay'][0]:.0f}"
        lines.append(
            f"| {row['classes']} | {row['held']:,} | {row['batch']} | {row['false']:.1%} | "
            f"{row['drift']:.0%} | {delay} | {row['uncalibrated']:.0%} |"
        )
    return "\n".join(lines)


def interval_table(record):
    """Coverage of the intervals in Markdown."""
    lines = [
        '| classes | held-out | target | `"em"` | rarest class | `"bbse"` | rarest class |',
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["intervals"]:
        cells = [f"{row[key]:,}" for key in ("classes", "held", "target")]
        cells += [f"{row[key]:.0%}" for key in ("em", "em_rarest", "bbse", "bbse_rarest")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def quapy_line(record):
    """Differences from QuaPy in a sentence."""
    found = record["quapy"]
    apart = ", ".join(
        f"{value:.1e} ({name})" for name, value in found["largest_difference"].items()
    )
    return f"QuaPy {found['version']}: largest differences {apart}."


PARTS = {
    "monitor": lambda _: f"```python\n{CODE}```",
    "alarms": alarm_table,
    "intervals": interval_table,
    "quapy": quapy_line,
}
CODE = (
    "from collections import deque\n\nimport numpy as np\nfrom longtail import estimate_prior\n\n"
    + inspect.getsource(monitor)
)


def page(record):
    """The page with its code and tables renewed."""
    text = PAGE.read_text()
    for name, part in PARTS.items():
        mark = f"<!-- {name} -->\n"
        before, rest = text.split(mark)
        text = before + mark + part(record) + "\n<!-- end -->" + rest.split("<!-- end -->", 1)[1]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure, and write this file")
    parser.add_argument("--page", type=Path, help="put the tables of this record into the page")
    options = parser.parse_args()
    if options.record is not None:
        record = {
            **machine.machine(),
            "level": LEVEL,
            "horizon": HORIZON,
            "window": WINDOW,
            "alarms": alarms(),
            "intervals": intervals(),
            "quapy": against_quapy(),
        }
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    if options.page is not None:
        PAGE.write_text(page(json.loads(options.page.read_text())))


if __name__ == "__main__":
    main()
