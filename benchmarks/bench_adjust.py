"""`longtail adjust` on a large file: time against one argmax pass, memory, per format and way.

    python benchmarks/bench_adjust.py                 # writes results/bench_adjust.json
    python benchmarks/bench_adjust.py --show results/bench_adjust.json

The file is 1,000,000 x 1000 float32 logits, 4 GB, read from a warm cache through a memory map;
writing adjusted predictions is left out. The yardstick is one argmax pass over the same map in
the fastest plain form: chunk by chunk, since argmax over the whole map first copies it. Both
sides alternate within one process, so that whatever else runs on the machine slows both; the
median and the least ratio of the turns are recorded. Memory is the process's whole anonymous
memory (RssAnon), sampled every 2 ms.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bench_tuning import FILE_SHAPE, Peak, problem, write_file
from longtail import ClassPrior
from longtail.predictions import adjust_predictions, from_arrays, open_predictions
from machine import machine

TURNS = 5
ROWS = 4096


def argmax_pass(path):
    scores = np.load(path, mmap_mode="r")
    for start in range(0, len(scores), ROWS):
        np.argmax(scores[start : start + ROWS], axis=1)


def timed(function):
    wall, own = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - own


def ways(path, target, sorted_prior, shuffled_prior):
    """Each way of adjusting, as a function that opens the file anew."""

    def adjust(prior, **settings):
        found = open_predictions(path, kind="logits", labels=target)
        return adjust_predictions(found, prior, **settings)

    found = {}
    for order, prior in (("by frequency", sorted_prior), ("shuffled", shuffled_prior)):
        for workers in sorted({1, len(os.sched_getaffinity(0))}):
            found[f"cross-fit, classes {order}, {workers} threads"] = lambda p=prior, w=workers: (
                adjust(p, workers=w)
            )
    found["split, classes by frequency, 1 threads"] = lambda: adjust(
        sorted_prior, tune_on=0.5, workers=1
    )
    return found


def measure_file(path):
    """Runs in a process of its own."""
    target = np.load(f"{path}.target.npy")
    prior = problem(1000, FILE_SHAPE[1], np.float32)[2]
    shuffled = ClassPrior.from_counts(np.random.default_rng(0).permutation(prior.counts))
    small = from_arrays(np.load(path, mmap_mode="r")[:5000], target[:5000], kind="logits")
    adjust_predictions(small, prior, missing="skip")  # imports and first calls
    argmax_pass(path)  # warms the cache
    candidates = ways(path, target, prior, shuffled)
    turns = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, way in candidates.items():
            _, wall, own = timed(lambda: argmax_pass(path))
            with Peak() as peak:
                result, *seconds = timed(way)
            turns[name].append((*seconds, wall, own, peak.most, result.tau))
            del result
    counts = f"{path}.counts.txt"
    np.savetxt(counts, prior.counts, fmt="%d")
    name = "the whole command, start included"
    turns[name] = []
    for _ in range(TURNS):
        _, wall, own = timed(lambda: argmax_pass(path))
        seconds, memory = command_line(path, counts)
        turns[name].append((seconds, float("nan"), wall, own, memory, None))
    print(json.dumps({name: summary(rows) for name, rows in turns.items()}))


def command_line(path, counts):
    """Seconds and peak memory of the whole command, from its start to its end."""
    script = Path(sys.executable).with_name("longtail")
    words = ["adjust", path, "--logits", "--labels", f"{path}.target.npy", "--counts", counts]
    start, most = time.perf_counter(), 0.0
    child = subprocess.Popen(
        [script, *words, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while child.poll() is None:
        status = Path(f"/proc/{child.pid}/status")
        with contextlib.suppress(OSError, ProcessLookupError):
            lines = [line for line in status.read_text().splitlines() if "RssAnon" in line]
            most = max(most, *(int(line.split()[1]) / 1024 for line in lines), 0.0)
        time.sleep(0.005)
    if child.returncode:
        raise RuntimeError(f"longtail adjust failed with {child.returncode}")
    return time.perf_counter() - start, most


def summary(rows):
    walls, owns, argmax, argmax_own, memory, taus = zip(*rows, strict=True)
    ratios = [a / b for a, b in zip(walls, argmax, strict=True)]
    return {
        "wall_seconds": statistics.median(walls),
        **({} if np.isnan(owns[0]) else {"processor_seconds": statistics.median(owns)}),
        "argmax_wall_seconds": statistics.median(argmax),
        "argmax_processor_seconds": statistics.median(argmax_own),
        "times_one_argmax": statistics.median(ratios),
        "times_one_argmax_least": min(ratios),
        "times_one_argmax_most": max(ratios),
        "peak_rss_anon_mb": max(memory),
        **({} if taus[0] is None else {"tau": taus[0]}),
    }


def file_record(folder, path=None):
    with tempfile.TemporaryDirectory(dir=folder) as place:
        if path is None:
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
    about = record["machine"]
    rows, classes = record["shape"]
    print(f"{about['device']}; numpy {about['numpy']}; {rows:,} x {classes} float32")
    print(f"{'':44} {'seconds':>8} {'x argmax':>9} {'least':>6} {'RssAnon':>9}")
    for name, row in record["ways"].items():
        print(
            f"{name:44} {row['wall_seconds']:8.2f} {row['times_one_argmax']:9.1f} "
            f"{row['times_one_argmax_least']:6.1f} {row['peak_rss_anon_mb']:6.0f} MB"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=Path("results/bench_adjust.json"))
    parser.add_argument("--show", type=Path, help="print a record instead of measuring")
    parser.add_argument("--folder", default=None, help="for the 4 GB temporary file")
    parser.add_argument("--file", help="measure on this file, written by an earlier call")
    parser.add_argument("--measure-file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_file:
        measure_file(options.measure_file)
        return
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    about = {**machine(), "device": machine()["device"].split(", one thread")[0]}
    record = {"machine": about, "turns": TURNS, "shape": FILE_SHAPE}
    record["ways"] = file_record(options.folder, options.file)
    options.record.parent.mkdir(exist_ok=True)
    temporary = options.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.rename(options.record)
    show(record)


if __name__ == "__main__":
    main()
