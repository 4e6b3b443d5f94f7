"""Device time of the loss kernel on a GPU, against torch's own cross-entropy of `logits + b`.

    python benchmarks/bench_kernels.py --record results/bench_kernels.json   # measure, a minute
    python benchmarks/bench_kernels.py --show results/bench_kernels.json --into docs/kernels.md

A step is forward and backward, under graph replay. The floor is what no implementation can do
without: the logits read once and the gradient written once, at the speed of a copy between buffers
of that size in the same run.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch.nn import functional as F

from longtail.kernels.cross_entropy import cross_entropy

SHAPES = [(65536, 1000), (8192, 1204), (4096, 8000), (4096, 8142), (4096, 100_000)]
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
    return statistics.median(times[3:])


def measure(rows, classes, dtype):
    """Times of the floor, the kernel and torch for logits of a shape."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(rows, classes, device="cuda")).to(dtype).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")
    b = torch.randn(classes, device="cuda")
    copy = torch.empty_like(logits)

    def ours():
        torch.autograd.grad(cross_entropy(logits, target, bias=b, reduction="mean"), logits)

    def line():
        torch.autograd.grad(F.cross_entropy(logits + b, target), logits)

    return {
        "rows": rows,
        "classes": classes,
        "type": str(dtype).removeprefix("torch."),
        "floor_us": device_us(lambda: copy.copy_(logits.detach())),
        "kernel_us": device_us(ours),
        "torch_us": device_us(line),
    }


def table(record):
    """The record in Markdown."""
    lines = [
        f"{record['device']}, torch {record['torch']}, Triton {record['triton']}; forward and "
        f"backward, device time.",
        "",
        "| rows × classes | type | floor | kernel | of floor | torch eager | of torch |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        ours, line = row["kernel_us"], row["torch_us"]
        peer = ("–", "–") if line is None else (f"{line:,.0f} µs", f"{ours / line:.2f}")
        lines.append(
            f"| {row['rows']:,} × {row['classes']:,} | {row['type']} | {row['floor_us']:,.0f} µs "
            f"| {ours:,.0f} µs | {row['floor_us'] / ours:.0%} | {peer[0]} | {peer[1]} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure, and write this file")
    parser.add_argument("--show", type=Path, help="print the table of a record")
    parser.add_argument("--into", type=Path, help="with --show: put the table into this page")
    options = parser.parse_args()
    if options.record is not None:
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
        options.record.write_text(json.dumps(record, indent=1) + "\n")
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
