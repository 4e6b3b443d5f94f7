"""An epoch of a linear head on embeddings in a file, against a bare loop on the same rows.

    python benchmarks/bench_embeddings.py --rows 100000             # prints
    python benchmarks/bench_embeddings.py --record results/bench_embeddings.json
    python benchmarks/bench_embeddings.py --show results/bench_embeddings.json
    python benchmarks/bench_embeddings.py --heads 10 --record results/bench_embeddings_heads.json
    python benchmarks/bench_embeddings.py --shuffled --rows 700000 --width 768

The bare loop gathers the rows of a batch from the mapped file, and does the two matrix products
and F.cross_entropy; no optimizer, no loss but softmax, no checks. Ours is `loop.Training`, as
`longtail train` runs it. Both take the same batches of an epoch, in turns, a part of the epoch
at a time. Memory is the most that the process had beyond the file's mapped pages, of which
Linux keeps count. Beside the wall's time, which neighbours disturb, stands the processors'.
With --heads that many seeds train together, from the command line into their folders, on a GPU
where there is one. With --shuffled rows are only read, in random order, plainly and announced to
`read_ahead`; the system's cache is emptied after every half gigabyte, as if the file were larger
than memory.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from longtail.data import embeddings
from longtail.data.embeddings import read_embeddings
from longtail.train.loop import Training, take_step
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident, as_tensor
from longtail.train.recipe import get_recipe
from machine import machine

CPU = torch.device("cpu")


def write_features(folder, rows, width, classes):
    """features.npy and its labels, written a part at a time; a test part of a few rows."""
    random = np.random.default_rng(0)
    path = folder / "features.npy"
    whole = np.lib.format.open_memmap(path, "w+", np.float32, (rows, width))
    for start in range(0, rows, 2**14):
        part = whole[start : start + 2**14]
        part[:] = random.standard_normal(part.shape, dtype=np.float32)
    whole.flush()
    share = np.geomspace(100, 1, classes)
    labels = random.choice(classes, rows, p=share / share.sum())
    labels[:classes] = np.arange(classes)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "test_features.npy", whole[:classes])
    np.save(folder / "test_labels.npy", labels[:classes])
    return path


def clocks():
    return np.array([time.perf_counter(), time.process_time()])


def own_bytes():
    """Return the memory of the process beside mapped files."""
    status = Path("/proc/self/status").read_text().splitlines()
    (anonymous,) = (line.split()[1] for line in status if line.startswith("RssAnon"))
    return 1024 * int(anonymous)


class Watch(threading.Thread):
    """The largest `own_bytes` while it runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.done = 0, threading.Event()

    def run(self):
        while not self.done.wait(0.02):
            self.most = max(self.most, own_bytes())


def bare_step(features, labels, weight, bias, rows):
    x = features[rows]
    loss = F.cross_entropy(F.linear(x, weight, bias), labels[rows])
    loss.backward()
    weight.grad = bias.grad = None


def measure(rows, width, classes, *, method, parts):
    with tempfile.TemporaryDirectory() as name:
        path = write_features(Path(name), rows, width, classes)
        started = own_bytes()
        watch = Watch()
        watch.start()
        seconds = time.perf_counter()
        images, _ = read_embeddings(path)
        read = time.perf_counter() - seconds
        recipe = get_recipe("embeddings")
        planner = Planner(
            recipe, Method.of(method), images.labels, np.arange(rows), images.prior, seed=0
        )
        data = Resident(images, CPU)
        training = Training([planner], data)
        features, labels = as_tensor(images)[:, :, 0, 0], torch.from_numpy(images.labels)
        weight = (0.01 * torch.randn(classes, width)).requires_grad_()
        bias = torch.zeros(classes, requires_grad=True)
        batches = planner.plan(0).images.rows.split(recipe.batch_size)
        steps = range(len(batches))
        for at in steps[:2]:  # warm
            bare_step(features, labels, weight, bias, batches[at])
        ours, bare = [], []  # seconds of each part, by the wall's clock and the processors'
        begin = clocks()
        training.load(0)
        begin = clocks() - begin  # an epoch's plan
        # Whole blocks, so that a part has the making of its own batches.
        each = training.block * max(1, len(steps) // training.block // parts)
        for first in range(0, len(steps), each):
            part = steps[first : first + each]
            for turn in (0, 1) if len(ours) % 2 else (1, 0):
                started_at = clocks()
                if turn:
                    for at in part:
                        take_step(training, at)
                else:
                    for at in part:
                        bare_step(features, labels, weight, bias, batches[at])
                (ours if turn else bare).append(clocks() - started_at)
        watch.done.set()
        watch.join()
        wall, cpu = zip(*(one / other for one, other in zip(ours, bare, strict=True)), strict=True)
        all_bare, all_ours = sum(bare), sum(ours) + begin
        return {
            "rows": rows,
            "width": width,
            "classes": classes,
            "method": method,
            "batch_size": recipe.batch_size,
            "threads": torch.get_num_threads(),
            "read_s": read,
            **{
                name: {
                    "bare_s": float(all_bare[k]),
                    "ours_s": float(all_ours[k]),
                    "ratio": float(all_ours[k] / all_bare[k]),
                    "of_parts": {
                        "median": statistics.median(parts),
                        "least": min(parts),
                        "most": max(parts),
                    },
                }
                for k, (name, parts) in enumerate((("wall", wall), ("processors", cpu)))
            },
            "memory_mb": (watch.most - started) / 1e6,
        }


def measure_heads(rows, width, classes, *, heads):
    """Wall time of `longtail train` with that many seeds, reading and writing included."""
    with tempfile.TemporaryDirectory() as name:
        path = write_features(Path(name), rows, width, classes)
        command = [sys.executable, "-m", "longtail", "train", "--dataset", path, "--seeds", heads]
        command += ["--method", "logit-adjusted", "--out", Path(name) / "runs", "--json"]
        words = list(map(str, command))
        started = time.perf_counter()
        # Its messages, and why it fails if it does, go to the terminal.
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - started
        runs = json.loads(done.stdout)["runs"]
    return {
        "rows": rows,
        "width": width,
        "classes": classes,
        "heads": heads,
        "epochs": runs[0]["spec"]["recipe"]["values"]["epochs"],
        "device": runs[0]["device"],
        "seconds": seconds,
        "training_seconds": sum(run["seconds"] for run in runs),
    }


def bytes_read():
    """Return how much this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def measure_shuffled(rows, width, *, batch=20 * 256, seconds=15.0, cache=2**29):
    """Rows a second of a shuffled epoch over a file larger than memory."""
    embeddings._outgrows_memory = lambda features: True
    order = np.random.default_rng(0).permutation(rows)
    found = {"rows": rows, "width": width}
    with tempfile.TemporaryDirectory() as name:
        path = write_features(Path(name), rows, width, 10)
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        for way in ("plain", "announced"):
            features = np.lib.format.open_memmap(path, mode="r")
            announce = embeddings.read_ahead(features) if way == "announced" else lambda rows: None
            done, spent, before, emptied = 0, 0.0, bytes_read(), -cache
            while done < rows and spent < seconds:
                if bytes_read() - emptied >= cache:
                    features._mmap.madvise(mmap.MADV_DONTNEED)
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                    emptied = bytes_read()
                started = time.perf_counter()
                some = order[done : done + batch]
                announce(order[done : done + 2 * batch])
                features[some].sum()
                done, spent = done + len(some), spent + time.perf_counter() - started
            size = done * 4 * width
            found[way] = {"rows_s": done / spent, "read": (bytes_read() - before) / size}
        os.close(handle)
    return found


def show(record):
    print(f"{record['machine']['device']}, torch {record['machine']['torch']}")
    for row in record["rows"]:
        print(
            f"{row['rows']:,} x {row['width']}, {row['classes']:,} classes, {row['method']}, "
            f"batches of {row['batch_size']}, {row['threads']} thread(s); read and checked in "
            f"{row['read_s']:.1f} s; {row['memory_mb']:,.0f} MB beyond the file"
        )
        for name in ("wall", "processors"):
            one, parts = row[name], row[name]["of_parts"]
            print(
                f"  {name:10} bare {one['bare_s']:6.1f} s, ours {one['ours_s']:6.1f} s, ratio "
                f"{one['ratio']:.2f} (parts {parts['median']:.2f}, {parts['least']:.2f} to "
                f"{parts['most']:.2f})"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", type=int, default=12, help="turns that the two take")
    parser.add_argument("--heads", type=int, help="time so many heads together instead")
    parser.add_argument("--shuffled", action="store_true", help="time the reading of rows instead")
    parser.add_argument("--record", type=Path, help="also write the record here")
    parser.add_argument("--show", type=Path, help="print a record")
    given = parser.parse_args()
    if given.heads or given.shuffled:
        if given.shuffled:
            found = measure_shuffled(given.rows, given.width)
        else:
            found = measure_heads(given.rows, given.width, given.classes, heads=given.heads)
        print(json.dumps(found, indent=1))
        if given.record:
            given.record.write_text(json.dumps(found, indent=1) + "\n")
        return
    if given.show:
        show(json.loads(given.show.read_text()))
        return
    torch.set_num_threads(given.threads)
    about = machine()
    about["device"] = about["device"].replace("one thread used", f"{given.threads} threads used")
    record = {"machine": about | {"torch": torch.__version__}, "rows": []}
    for method in ("softmax", "logit-adjusted"):
        sizes = {"method": method, "parts": given.parts}
        record["rows"].append(measure(given.rows, given.width, given.classes, **sizes))
    show(record)
    if given.record:
        given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
