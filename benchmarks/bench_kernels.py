"""Device time of the loss kernel on a GPU, against torch's own cross-entropy of `logits + b`.

    python benchmarks/bench_kernels.py --out results       # measure, about two minutes
    python benchmarks/bench_kernels.py --show results/bench_kernels.json --into docs/kernels.md

A step is forward and backward, under graph replay. The floor is the least that any implementation
needs: the logits read once and the gradient written once, at the speed of a copy between buffers
of that size in the same run.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch.nn import functional as F

from longtail.kernels.cross_entropy import cross_entropy

SHAPES = [(65_536, 1000), (8192, 1204), (4096, 8142), (4096, 100_000)]
WAYS = ("floor", "kernel", "torch", "compile")
MARK = "bench_kernels"


def device_us(call, repeats=20, per=8):
    """Median time of a call in microseconds, without the host's share."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(per):
            call()
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / per)
    return round(statistics.median(times[3:]), 2)


def measure(rows, classes, dtype):
    """Times of the floor, the kernel and torch for logits of a shape."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(rows, classes, device="cuda")).to(dtype).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")
    b, count = torch.randn(classes, device="cuda"), torch.tensor(rows, device="cuda")
    copy = torch.empty_like(logits)
    torch.compiler.reset()
    compiled = torch.compile(lambda f: F.cross_entropy(f + b, target), dynamic=False)
    calls = {
        "floor": lambda: copy.copy_(logits.detach()),
        "kernel": lambda: step(cross_entropy(logits, target, bias=b, divisor=count)),
        "torch": lambda: step(F.cross_entropy(logits + b, target)),
        "compile": lambda: step(compiled(logits)),
    }

    def step(loss):
        torch.autograd.grad(loss, logits)

    row = {"rows": rows, "classes": classes, "type": str(dtype).removeprefix("torch.")}
    row |= {f"{way}_us": device_us(calls[way]) for way in WAYS}
    print(json.dumps(row), flush=True)
    return row


def table(record):
    """The record in Markdown."""
    lines = [
        f"{record['device']}, torch {record['torch']}, Triton {record['triton']}; forward and "
        f"backward, device time.",
        "",
        "| rows × classes | type | floor | kernel | of floor | torch eager | torch.compile |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        floor, kernel, *peers = (row.get(f"{way}_us") for way in WAYS)
        cells = [
            f"{row['rows']:,} × {row['classes']:,}", row["type"], f"{floor:,.0f} µs",
            f"{kernel:,.0f} µs", f"{floor / kernel:.0%}",
            *("–" if peer is None else f"{peer:,.0f} µs" for peer in peers),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="measure; the folder of bench_kernels.json")
    parser.add_argument("--show", type=Path, help="print the table of a record")
    parser.add_argument("--into", type=Path, help="with --show: put the table into this page")
    options = parser.parse_args()
    if options.out is not None:
        import triton

        record = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "rows": [
                measure(*shape, dtype)
                for dtype in (torch.bfloat16, torch.float32)
                for shape in SHAPES
            ],
        }
        (options.out / "bench_kernels.json").write_text(json.dumps(record, indent=1) + "\n")
        print(table(record))
    if options.show is not None:
        text = table(json.loads(options.show.read_text()))
        print(text)
        if options.into is not None:
            before, rest = options.into.read_text().split(f"<!-- {MARK} -->\n")
            options.into.write_text(
                f"{before}<!-- {MARK} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
            )


if __name__ == "__main__":
    main()
