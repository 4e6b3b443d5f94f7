"""Time of the logit-adjusted loss over that of the line of torch that it stands for.

    python benchmarks/bench_losses.py --out results                 # measure this machine, ~2 min
    python benchmarks/bench_losses.py --out results --part eager    # renew one part
    python benchmarks/bench_losses.py --out results --add FILE      # add another machine's record
    python benchmarks/bench_losses.py --show results/bench_losses.json --into docs/train-pytorch.md

A step is forward and backward. The line is `F.cross_entropy(logits + b, target)`, b = log π made
beforehand. Short bursts of both alternate, and the ratio is the median over neighbours. On a CPU
one thread is used, and the time is that thread's own, in which other processes have no share; on a
GPU it is wall time, the host's share included.

    eager     a step of `LogitAdjustedLoss`, and of the line, in float32
    compiled  a step of a model with either inside one graph of `torch.compile`
    linear    a step of `linear_cross_entropy` from features, and of the layer followed by the loss
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import machine
from longtail import ClassPrior
from longtail.losses import LogitAdjustedLoss, linear_cross_entropy

TARGETS = ("class indices", "label smoothing", "class probabilities")
# Rows and classes; for "linear" the features' width too.
SHAPES = {
    "eager": {
        "cpu": [(32, 10), (128, 100), (1024, 1000), (256, 32_000)],
        "cuda": [(32, 10), (256, 1000), (512, 8142), (4096, 1000), (4096, 8142), (4096, 100_000)],
    },
    "compiled": {
        "cpu": [(128, 100), (1024, 1000)],
        "cuda": [(256, 1000), (4096, 8142), (4096, 100_000)],
    },
    "linear": {
        "cpu": [(256, 32_000, 256), (1024, 8000, 512), (64, 100_000, 128)],
        "cuda": [(4096, 100_000, 768), (1024, 131_072, 768)],
    },
}


def prior_of(classes):
    return ClassPrior.from_counts(1 + 5000 * 0.999 ** numpy.arange(classes) // 1)


def drawn(device, rows, classes):
    """The prior, b, and logits and labels of a batch."""
    prior, draw = prior_of(classes), torch.Generator().manual_seed(0)
    b = torch.tensor(prior.log_probs, dtype=torch.float32, device=device)
    logits = torch.randn(rows, classes, generator=draw).to(device)
    return prior, b, logits, torch.randint(classes, (rows,), generator=draw).to(device)


def eager_pair(device, rows, classes, kind):
    prior, b, logits, target = drawn(device, rows, classes)
    epsilon = 0.1 if kind == "label smoothing" else 0.0
    loss = LogitAdjustedLoss(prior, label_smoothing=epsilon).to(device)
    logits.requires_grad_()
    if kind == "class probabilities":
        target = torch.randn(rows, classes).softmax(1).to(device)

    def ours():
        logits.grad = None
        loss(logits, target).backward()

    def line():
        logits.grad = None
        F.cross_entropy(logits + b, target, label_smoothing=epsilon).backward()

    return ours, line


def compiled_pair(device, rows, classes, _):
    """A network with one hidden layer and its loss as one graph; bfloat16 on a GPU."""
    prior, b, _, target = drawn(device, rows, classes)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    loss = LogitAdjustedLoss(prior).to(device)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes)).to(device, dtype)
    features, leaves = torch.randn(rows, 64).to(device, dtype), list(model.parameters())
    torch.compiler.reset()
    with_loss = torch.compile(lambda x, y: loss(model(x), y), fullgraph=True)
    with_line = torch.compile(lambda x, y: F.cross_entropy(model(x) + b, y), fullgraph=True)
    return (
        lambda: torch.autograd.grad(with_loss(features, target), leaves),
        lambda: torch.autograd.grad(with_line(features, target), leaves),
    )


def linear_pair(device, rows, classes, width):
    prior, _, _, target = drawn(device, rows, classes)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    loss = LogitAdjustedLoss(prior).to(device)
    head = nn.Linear(width, classes, device=device, dtype=dtype)
    x = torch.randn(rows, width).to(device, dtype).requires_grad_()
    leaves = (x, head.weight, head.bias)
    return (
        lambda: torch.autograd.grad(
            linear_cross_entropy(x, head.weight, target, loss, bias=head.bias), leaves
        ),
        lambda: torch.autograd.grad(loss(head(x), target), leaves),
    )


PAIRS = {"eager": eager_pair, "compiled": compiled_pair, "linear": linear_pair}


def compared(device, ours, line, seconds):
    """Microseconds of both, and the ratio: median, 20th and 80th percentile."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.thread_time

    def burst(step, count):
        wait()
        begin = clock()
        for _ in range(count):
            step()
        wait()
        return 1e6 * (clock() - begin) / count

    for _ in range(3):
        ours()
        line()
    count, pairs = max(1, int(500 / burst(line, 3))), []
    end = time.perf_counter() + seconds
    while len(pairs) < 10 or time.perf_counter() < end:
        first, second = (ours, line) if len(pairs) % 2 else (line, ours)
        pair = burst(first, count), burst(second, count)
        pairs.append(pair if first is ours else pair[::-1])
    pairs = numpy.array(pairs)

    def spread(values):
        return [round(float(v), 3) for v in numpy.percentile(values, (50, 20, 80))]

    return {
        "ours_us": spread(pairs[:, 0]),
        "line_us": spread(pairs[:, 1]),
        "ratio": spread(pairs[:, 0] / pairs[:, 1]),
    }


def peak(step):
    """Megabytes that a step needs at most beyond what is there before it, on a GPU."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)


def measure(part, device, seconds):
    """The rows of a part: of "eager" one for each kind of target."""
    rows = {}
    for shape in SHAPES[part][device]:
        for kind in TARGETS if part == "eager" else (None,):
            more = shape[2] if len(shape) > 2 else kind
            pair = PAIRS[part](device, *shape[:2], more)
            row = compared(device, *pair, seconds)
            if part == "linear" and device == "cuda":
                row["ours_MB"], row["line_MB"] = (peak(step) for step in pair)
            name = " x ".join(map(str, shape))
            print(f"{part} {device} {name} {kind or ''}: {json.dumps(row)}", flush=True)
            if kind is None:
                rows[name] = row
            else:
                rows.setdefault(name, {})[kind] = row
            del pair
    name = torch.cuda.get_device_name() if device == "cuda" else machine.machine()["device"]
    return {"device": name, "torch": torch.__version__, "rows": rows}


def merged(record, other):
    """A record with the parts and devices of another one put in."""
    return record | {
        part: record.get(part, {}) | found for part, found in other.items() if part in PAIRS
    }


def eager_table(record):
    """The part "eager" of the record in Markdown."""
    lines = []
    for kind, name in (("cpu", "one CPU thread"), ("cuda", None)):
        if kind not in record.get("eager", {}):
            continue
        part = record["eager"][kind]
        lines += [
            "",
            f"{name or part['device']}, torch {part['torch']}: time of one eager step, forward "
            f"and backward in float32, over that of the line.",
            "",
            f"| rows × classes | the line | {' | '.join(TARGETS)} |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for shape, row in part["rows"].items():
            rows, classes = (f"{int(number):,}" for number in shape.split(" x "))
            ratios = " | ".join(f"{row[target]['ratio'][0]:.2f}" for target in TARGETS)
            line = f"{row[TARGETS[0]]['line_us'][0]:,.0f} µs"
            lines.append(f"| {rows} × {classes} | {line} | {ratios} |")
    return "\n".join(lines[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="measure; the folder of bench_losses.json")
    parser.add_argument("--part", choices=tuple(PAIRS), help="with --out: this part only")
    parser.add_argument("--add", type=Path, help="with --out: add this record, measure nothing")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line of the record")
    parser.add_argument("--show", type=Path, help="print the table of a record")
    parser.add_argument("--into", type=Path, help="with --show: put it into this page")
    options = parser.parse_args()
    if options.out is not None:
        torch.set_num_threads(1)
        path = options.out / "bench_losses.json"
        record = json.loads(path.read_text()) if path.exists() else {}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if options.add is not None:
            record = merged(record, json.loads(options.add.read_text()))
        else:
            for part in (options.part,) if options.part else PAIRS:
                found = measure(part, device, options.seconds)
                record = merged(record, {part: {device: found}})
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(eager_table(record))
    elif options.show is not None:
        text = eager_table(json.loads(options.show.read_text()))
        print(text)
        if options.into is not None:
            start, end = "<!-- bench_losses eager -->\n", "<!-- end -->"
            before, rest = options.into.read_text().split(start)
            options.into.write_text(f"{before}{start}{text}\n{end}{rest.split(end, 1)[1]}")
    else:
        parser.error("say --out FOLDER or --show FILE")


if __name__ == "__main__":
    main()
