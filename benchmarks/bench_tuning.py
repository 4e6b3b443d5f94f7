"""The exact tau curve against a naive grid of argmaxes, and its memory on a memory-mapped file.

    python benchmarks/bench_tuning.py               # measure, print, write the record
    python benchmarks/bench_tuning.py --skip-file   # without the 4 GB temporary file
    python benchmarks/bench_tuning.py --show results/bench_tuning.json

The naive way, in the logits' own dtype: for 101 taus from 0 to 4, argmax(logits − tau · log π) and
the balanced error of the predictions. Both ways run on one thread, in turns, on the same arrays;
the table has medians over the turns, the ratio with wall-clock and with processor seconds. The
file part runs in a process of its own and samples its anonymous memory (RssAnon) every 2 ms; one
plain argmax over the same file, also from a warm cache, is the yardstick for time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from longtail import ClassPrior, tune_tau
from machine import machine

TAUS = np.linspace(0.0, 4.0, 101)
SHAPES = [(200_000, 100), (100_000, 1000)]
FILE_SHAPE = (1_000_000, 1000)
TURNS = 3


def problem(examples, classes, dtype, *, shuffled=False, seed=0):
    """Logits of a model that has learnt the prior along with the classes."""
    rng = np.random.default_rng(seed)
    counts = np.geomspace(5000, 5, classes).astype(int)
    if shuffled:
        rng.shuffle(counts)
    prior = ClassPrior.from_counts(counts)
    target = rng.integers(0, classes, examples)
    logits = rng.standard_normal((examples, classes), dtype=np.float32).astype(dtype)
    logits += prior.log_probs.astype(dtype)
    logits[np.arange(examples), target] += 3.0
    return logits, target, prior


def naive_errors(logits, target, prior):
    """The balanced error at 101 taus, as one would write it at first."""
    log_prior = prior.log_probs.astype(logits.dtype)
    sizes = np.bincount(target)
    errors = []
    for tau in TAUS.astype(logits.dtype):
        predicted = np.argmax(logits - tau * log_prior, axis=1)
        wrong = np.bincount(target[predicted != target], minlength=len(sizes))
        errors.append(np.mean(wrong / sizes))
    return np.array(errors)


def timed(function):
    wall, own = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - own


def compare(examples, classes, dtype, shuffled):
    """Times of the naive grid, the exact curve, and the curve with its bootstrap interval."""
    logits, target, prior = problem(examples, classes, dtype, shuffled=shuffled)
    ways = {
        "grid": lambda: naive_errors(logits, target, prior),
        "curve": lambda: tune_tau(logits, target, prior, select="minimum", n_bootstrap=0),
        "curve_and_bootstrap": lambda: tune_tau(logits, target, prior),
        "argmax": lambda: np.argmax(logits, axis=1),
    }
    seconds = {name: ([], []) for name in ways}
    results = {}
    for _ in range(TURNS):
        for name, way in ways.items():
            results[name], wall, own = timed(way)
            seconds[name][0].append(wall)
            seconds[name][1].append(own)
    wall = {name: statistics.median(times[0]) for name, times in seconds.items()}
    own = {name: statistics.median(times[1]) for name, times in seconds.items()}
    grid, best = results["grid"], results["curve"]
    return {
        "examples": examples,
        "classes": classes,
        "dtype": np.dtype(dtype).name,
        "class_order": "shuffled" if shuffled else "by frequency",
        "wall_seconds": wall,
        "processor_seconds": own,
        "times_faster_wall": wall["grid"] / wall["curve"],
        "times_faster_processor": own["grid"] / own["curve"],
        "times_faster_with_bootstrap_wall": wall["grid"] / wall["curve_and_bootstrap"],
        "times_one_argmax_wall": wall["curve"] / wall["argmax"],
        "cells": len(best.curve.values),
        "tau": best.tau,
        "error": best.error,
        "least_error_on_the_grid": float(grid.min()),
        # In float32 the grid itself rounds; in float64 this is rounding of the mean alone.
        "largest_difference_to_the_grid": float(np.abs(best.curve(TAUS) - grid).max()),
    }


def anonymous_megabytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not report RssAnon")


class Peak:
    """Samples the anonymous memory of this process while it is entered."""

    def __enter__(self):
        self.start = self.most = anonymous_megabytes()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self):
        while not self.stop.wait(0.002):
            self.most = max(self.most, anonymous_megabytes())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.most = max(self.most, anonymous_megabytes())


def write_file(path):
    """Logits of FILE_SHAPE, a piece at a time."""
    examples, classes = FILE_SHAPE
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=FILE_SHAPE)
    targets = []
    for start in range(0, examples, 50_000):
        logits, target, _ = problem(50_000, classes, np.float32, seed=start)
        array[start : start + 50_000] = logits
        targets.append(target)
    array.flush()
    np.save(f"{path}.target.npy", np.concatenate(targets))


def measure_file(path):
    """Runs in a process of its own: time and memory of tune_tau on the mapped file."""
    logits, target = np.load(path, mmap_mode="r"), np.load(f"{path}.target.npy")
    prior = problem(1000, FILE_SHAPE[1], np.float32)[2]
    tune_tau(logits[:5000], target[:5000], prior, criterion="ece")  # imports
    np.argmax(logits, axis=1)  # warms the cache
    seconds = {"argmax": [], "argmax again": [], "tune_tau": [], "tune_tau again": []}
    memory = []
    for _ in range(TURNS):
        # A fresh map pays for mapping its pages; the second time they are there.
        logits = np.load(path, mmap_mode="r")
        for name in ("argmax", "argmax again"):
            seconds[name].append(timed(lambda m=logits: np.argmax(m, axis=1))[1:])
        logits = np.load(path, mmap_mode="r")
        for name in ("tune_tau", "tune_tau again"):
            with Peak() as peak:
                result, *times = timed(lambda m=logits: tune_tau(m, target, prior))
            seconds[name].append(times)
            memory.append(peak.most - peak.start)
            tau, cells = result.tau, len(result.curve.values)
            del result
    wall, own = ({name: statistics.median(t[k] for t in times) for name, times in seconds.items()}
                 for k in (0, 1))  # fmt: skip
    record = {
        "examples": FILE_SHAPE[0],
        "classes": FILE_SHAPE[1],
        "dtype": "float32",
        "wall_seconds": wall,
        "processor_seconds": own,
        "times_one_argmax_wall": wall["tune_tau"] / wall["argmax"],
        "times_one_argmax_processor": own["tune_tau"] / own["argmax"],
        "times_one_argmax_again_wall": wall["tune_tau again"] / wall["argmax again"],
        "peak_rss_anon_beyond_start_mb": max(memory),
        "tau": tau,
        "cells": cells,
    }
    print(json.dumps(record))


def file_record(folder):
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = str(Path(place) / "logits.npy")
        write_file(path)
        out = subprocess.run(
            [sys.executable, __file__, "--measure-file", path],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return json.loads(out.stdout.splitlines()[-1])


def show(record):
    print(f"{record['machine']['device']}; numpy {record['machine']['numpy']}")
    print(f"{'logits':>24} {'class order':>13} {'grid s':>8} {'curve s':>8} {'faster':>7} "
          f"{'(cpu)':>7} {'with bootstrap':>15} {'x argmax':>9}")  # fmt: skip
    for row in record["against_the_grid"]:
        name = f"{row['examples']} x {row['classes']} {row['dtype']}"
        wall = row["wall_seconds"]
        print(
            f"{name:>24} {row['class_order']:>13} {wall['grid']:8.2f} {wall['curve']:8.3f} "
            f"{row['times_faster_wall']:7.1f} {row['times_faster_processor']:7.1f} "
            f"{row['times_faster_with_bootstrap_wall']:15.1f} {row['times_one_argmax_wall']:9.1f}"
        )
    row = record.get("memory_mapped")
    if row:
        print(
            f"memory map {row['examples']} x {row['classes']} {row['dtype']}: "
            f"{row['wall_seconds']['tune_tau']:.2f} s with bootstrap, "
            f"{row['times_one_argmax_wall']:.1f} times one argmax pass "
            f"({row['wall_seconds']['argmax']:.2f} s; with all pages mapped before, "
            f"{row['times_one_argmax_again_wall']:.1f} times "
            f"{row['wall_seconds']['argmax again']:.2f} s), peak RssAnon "
            f"+{row['peak_rss_anon_beyond_start_mb']:.0f} MB"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=Path("results/bench_tuning.json"))
    parser.add_argument("--show", type=Path, help="print a record instead of measuring")
    parser.add_argument("--skip-file", action="store_true")
    parser.add_argument("--folder", default=None, help="for the 4 GB temporary file")
    parser.add_argument("--measure-file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_file:
        measure_file(options.measure_file)
        return
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    record = {"machine": machine(), "turns": TURNS, "against_the_grid": []}
    for shape in SHAPES:
        for dtype, shuffled in ((np.float32, False), (np.float32, True), (np.float64, False)):
            record["against_the_grid"].append(compare(*shape, dtype, shuffled))
    if not options.skip_file:
        record["memory_mapped"] = file_record(options.folder)
    options.record.parent.mkdir(exist_ok=True)
    temporary = options.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.rename(options.record)
    show(record)


if __name__ == "__main__":
    main()
