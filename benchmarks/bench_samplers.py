"""Class samplers on ten million labels: seconds to build, seconds and memory of an epoch.

    python benchmarks/bench_samplers.py               # measure, print, write the record
    python benchmarks/bench_samplers.py --show results/bench_samplers.json

Each case runs in a process of its own, on one thread; seconds are processor seconds, medians over
the epochs. The yardstick is torch's way to the same class frequencies, `torch.multinomial` over
one weight per example, which is what WeightedRandomSampler draws an epoch with; its limit is 2^24
examples.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from longtail.data.samplers import RULES, ClassSampler
from machine import machine

EXAMPLES = 10_000_000
CLASSES = (1000, 8142, 1_000_000)
IMBALANCE = 500
EPOCHS = 5


def labels(classes):
    """Exponentially falling class sizes, in random order."""
    shares = np.geomspace(1, 1 / IMBALANCE, classes)
    counts = np.maximum((shares / shares.sum() * EXAMPLES).astype(np.int64), 1)
    counts[0] += EXAMPLES - counts.sum()
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), counts))


def timed(function):
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def memory_mb(what):
    """VmRSS is what the process holds, VmHWM the most it held since the last `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith(what)).split()[1]) / 1024


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


def measure(rule, classes):
    target = labels(classes)
    if rule == "torch.multinomial":
        return measure_torch(target)
    before = forget_peak()
    settings = {"epochs": 10} if rule == "progressive" else {}
    sampler, build = timed(lambda: ClassSampler(target, rule=rule, **settings))
    seconds = [timed(lambda e=epoch: sampler.indices(e))[1] for epoch in range(1, EPOCHS + 1)]
    return {
        "build_seconds": build,
        "epoch_seconds": sorted(seconds)[EPOCHS // 2],
        "slowest_epoch_seconds": max(seconds),
        "examples_per_epoch": len(sampler),
        "peak_mb_beyond_labels": memory_mb("VmHWM") - before,
    }


def measure_torch(target):
    import torch

    torch.set_num_threads(1)
    before = forget_peak()
    weights, build = timed(lambda: torch.from_numpy(1.0 / np.bincount(target)[target]))
    seconds = [
        timed(lambda: torch.multinomial(weights, len(target), replacement=True))[1]
        for _ in range(EPOCHS)
    ]
    return {
        "build_seconds": build,
        "epoch_seconds": sorted(seconds)[EPOCHS // 2],
        "slowest_epoch_seconds": max(seconds),
        "examples_per_epoch": len(target),
        "peak_mb_beyond_labels": memory_mb("VmHWM") - before,
    }


def show(record):
    print(f"{record['machine']['device']}; numpy {record['machine']['numpy']}")
    print(f"{'rule':>18} {'classes':>9} {'build s':>8} {'epoch s':>8} {'slowest':>8} {'MB':>6}")
    for row in record["cases"]:
        print(
            f"{row['rule']:>18} {row['classes']:9} {row['build_seconds']:8.2f} "
            f"{row['epoch_seconds']:8.2f} {row['slowest_epoch_seconds']:8.2f} "
            f"{row['peak_mb_beyond_labels']:6.0f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=Path("results/bench_samplers.json"))
    parser.add_argument("--show", type=Path, help="print a record instead of measuring")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
        return
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    record = {"machine": machine(), "examples": EXAMPLES, "imbalance": IMBALANCE, "cases": []}
    for classes in CLASSES:
        for rule in (*RULES, "torch.multinomial"):
            out = subprocess.run(
                [sys.executable, __file__, "--measure", rule, str(classes)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found = json.loads(out.stdout)
            record["cases"].append({"rule": rule, "classes": classes, **found})
    temporary = options.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.rename(options.record)
    show(record)


if __name__ == "__main__":
    main()
