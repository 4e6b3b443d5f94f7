"""A step of the last layer with very many classes: seconds and memory of a process.

    python benchmarks/bench_sharded.py                      # two processes on the CPU
    python benchmarks/bench_sharded.py --device cuda        # a process to each GPU
    python benchmarks/bench_sharded.py --show results/bench_sharded.json

A step is forward, backward and SGD with momentum, of the last layer alone: features of 256
dimensions come in and their gradient goes out. The batch is the same for all ways: `rows` examples
in total, which the sharded head sees whole on every process. Each way runs in processes of its
own; time is the median over the steps of the slowest process, memory the most that any process
held beyond features and targets: weights, gradients, momentum, logits and whatever comes by (on a
CPU the resident memory, on a GPU torch's own count).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh

from longtail import ClassPrior, margins
from longtail.losses import LogitAdjustedLoss, SampledSoftmaxLoss, linear_cross_entropy
from longtail.train.sharded_head import ShardedHead
from machine import machine

DIMENSION = 256
CLASSES = (100_000, 1_000_000)
NEGATIVES = 8192


def prior_of(classes):
    """Frequencies that fall as 1/rank."""
    return ClassPrior.from_weights([1 / (rank + 1) for rank in range(classes)])


def whole_layer(classes, device, dtype, mesh):
    head = nn.Linear(DIMENSION, classes, device=device, dtype=dtype)
    loss = LogitAdjustedLoss(prior_of(classes)).to(device)
    return head, lambda features, target: loss(head(features), target)


def linear_kernel(classes, device, dtype, mesh):
    head = nn.Linear(DIMENSION, classes, device=device, dtype=dtype)
    loss = LogitAdjustedLoss(prior_of(classes)).to(device)
    return head, lambda features, target: linear_cross_entropy(
        features, head.weight, target, loss, bias=head.bias
    )


def sharded_head(classes, device, dtype, mesh):
    head = ShardedHead(DIMENSION, classes, mesh=mesh, device=device, dtype=dtype)
    loss = LogitAdjustedLoss(prior_of(classes)).to(device)
    return head, lambda features, target: head.loss(features, target, loss)


def sampled(classes, device, dtype, mesh):
    head = nn.Linear(DIMENSION, classes, device=device, dtype=dtype)
    prior = prior_of(classes)
    loss = SampledSoftmaxLoss(prior, num_sampled=NEGATIVES, margin=margins.logit_adjusted(prior))
    loss = loss.to(device)
    return head, lambda features, target: loss(features, head.weight, target, bias=head.bias)


WAYS = {
    "nn.Linear, then the loss": whole_layer,
    "linear_cross_entropy": linear_kernel,
    f"sampled softmax, {NEGATIVES} negatives": sampled,
    "ShardedHead": sharded_head,
}


def mark(device):
    """Start to watch the memory; what is held already."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def highest(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return resident("VmHWM")


def resident(what):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(x for x in status.splitlines() if x.startswith(what)).split()[1])


def steps(way, classes, options, device, mesh, count):
    """Seconds of each step."""
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    head, loss = WAYS[way](classes, device, dtype, mesh)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    features = torch.randn(options.rows, DIMENSION, dtype=dtype).to(device).requires_grad_()
    target = torch.randint(classes, (options.rows,)).to(device)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(features, target).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(rank, way, classes, options, processes, folder):
    """One process of those that take a way; its record goes into the folder."""
    torch.set_num_threads(1)
    cuda = options.device == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    mesh = None
    if cuda:
        torch.cuda.set_device(device)
    if way == "ShardedHead":
        distributed.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=processes,
        )
        mesh = init_device_mesh(options.device, (processes,))
    steps(way, 1000, options, device, mesh, 2)  # what torch loads at first use
    before = mark(device)
    seconds = steps(way, classes, options, device, mesh, options.steps)
    found = {"seconds": statistics.median(seconds[1:]), "bytes": highest(device) - before}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if mesh is not None:
        distributed.barrier()
        distributed.destroy_process_group()
    if not cuda:
        os._exit(0)  # gloo's threads may hang in an orderly end of the interpreter


def record_of(way, classes, options):
    processes = options.processes if way == "ShardedHead" else 1
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(measure, (way, classes, options, processes, folder), nprocs=processes)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]
    return {
        "way": way,
        "processes": processes,
        "classes": classes,
        "seconds": max(f["seconds"] for f in found),
        "peak_mb": max(f["bytes"] for f in found) / 1e6,
    }


def show(record):
    print(f"{record['device']}; torch {record['torch']}; {record['rows']} rows, {record['dtype']}")
    print(f"{'classes':>9} {'way':>34} {'processes':>10} {'ms':>9} {'MB a process':>13}")
    for case in record["cases"]:
        print(
            f"{case['classes']:9,} {case['way']:>34} {case['processes']:10} "
            f"{1000 * case['seconds']:9.1f} {case['peak_mb']:13,.0f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=Path("results/bench_sharded.json"))
    parser.add_argument("--show", type=Path, help="print a record instead of measuring")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, help="of the sharded head; 2, or one to a GPU")
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--rows", type=int, default=256, help="examples of a step")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    cuda = options.device == "cuda"
    if options.processes is None:
        options.processes = torch.cuda.device_count() if cuda else 2
    record = {
        **machine(),
        "torch": torch.__version__,
        "rows": options.rows,
        "dimension": DIMENSION,
        "dtype": options.dtype,
        "cases": [],
    }
    if cuda:
        record["device"] = torch.cuda.get_device_name()
    for classes in options.classes:
        for way in WAYS:
            record["cases"].append(record_of(way, classes, options))
            print(json.dumps(record["cases"][-1]), file=sys.stderr, flush=True)
    temporary = options.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.rename(options.record)
    show(record)


if __name__ == "__main__":
    main()
