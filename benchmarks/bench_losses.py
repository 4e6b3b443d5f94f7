"""The logit-adjusted loss and its gradient on a GPU: our kernels against other ways.

    python benchmarks/bench_losses.py --record results/bench_losses.json   # measure, ~3 min
    python benchmarks/bench_losses.py --show results/bench_losses.json     # print the tables
    ... --record results/bench_losses.json --part linear                   # renew a part of it
    ... --show results/bench_losses.json --draw docs/kernels/losses.svg    # and draw
    ... --show results/bench_losses.json --into docs/kernels.md            # and put into the page
    ... --record results/bench_losses.json --part eager    # eager wall time of this machine, ~1 min
    ... --show results/bench_losses.json --into docs/train-pytorch.md --part eager

The part "eager" compares a step of `LogitAdjustedLoss`, forward and backward, in float32, with
`F.cross_entropy(logits + b, target)` by wall time, b = log π made beforehand: short bursts of both
in turns, and the median of the ratios of neighbours. On a CPU it takes one thread, and the time is
that thread's own, in which other processes have no share.

Logits are bfloat16; a step is forward and backward. The floor is what no implementation can do
without: logits read once and gradient written once, at the speed of a copy between buffers of that
size in the same run. Device time is that of graph replays over several sets of buffers, which
exceed the cache and lie in different places (where alone makes some percent). A graph holds many
steps, for a replay takes 10 to 25 µs to begin. (A step that waits for the device can't be captured:
events around it instead.) From features all are replayed in turns, so that a drift of the
GPU meets them alike. Wall time is that of one eager step, synchronised, or from features that
between events around it, both with the host's share. Errors are against float64 on the same logits.
Launches are counted at the very end: a process that has been profiled once takes some 7% longer for
every step after.
"""

import argparse
import functools
import importlib
import importlib.metadata
import json
import platform
import time
import warnings
from pathlib import Path

import numpy
import torch
from torch.nn import functional as F

import longtail
import machine
from longtail.kernels.linear_cross_entropy import linear_cross_entropy
from longtail.losses import LogitAdjustedLoss
from longtail.losses.pairwise import Numbers, family_loss

# Benchmark: rows and classes.
SHAPES = {
    "ImageNet-LT, small batch": (256, 1000),
    "ImageNet-LT": (4096, 1000),
    "LVIS": (8192, 1204),
    "iNaturalist 2018, small batch": (512, 8142),
    "iNaturalist 2018": (4096, 8142),
    "100,000 classes": (4096, 100_000),
}
LINEAR = {"131,072 classes": (1024, 131_072), "2,800,000 classes": (512, 2_800_000)}
DIMENSION = 768
PARTS = ("logits", "linear")
EAGER = {
    "cpu": [(32, 10), (128, 100), (1024, 1000), (256, 32_000)],
    "cuda": [(32, 10), (256, 1000), (512, 8142), (4096, 1000), (4096, 8142), (4096, 100_000)],
}
TARGETS = ("class indices", "label smoothing", "class probabilities")
OURS = "longtail"


def one_line(logits, target, b):
    return F.cross_entropy(logits + b, target)


def plain(logits, target, b):
    return F.cross_entropy(logits, target)


def ours(logits, target, b, impl="auto"):
    numbers = Numbers(len(b), None, b, None, None, None, 1.0, impl=impl)
    return family_loss(logits, target, numbers)


def reference(logits, target, b):
    return ours(logits, target, b, impl="torch")


def ours_linear(x, w, y, b):
    return linear_cross_entropy(x, w, y, bias=b, reduction="sum") / len(y)


def peers(n, classes, compile_from):
    """Name: function of (logits, target, offset); a string says why a peer is absent."""
    torch._dynamo.config.recompile_limit = 64  # above it, compiled code would be eager code
    found = {
        OURS: ours,
        "torch.compile": torch.compile(one_line, dynamic=False)
        if n * classes >= compile_from
        else "not measured",
        "torch eager": one_line,
        "F.cross_entropy, no offset": plain,
        "longtail, impl='torch'": reference,
    }
    try:
        liger = importlib.import_module("liger_kernel.ops.cross_entropy")
        call = liger.LigerCrossEntropyFunction.apply
        found["Liger, no offset, in place"] = lambda f, y, b: call(f, y, None)[0]
    except Exception as error:
        found["Liger, no offset, in place"] = f"absent: {error}"
    found["Quack"] = "absent: needs nvidia-cutlass-dsl, which is not on the machine"
    return found


def linear_peers():
    found = {
        OURS: ours_linear,
        "logits, then longtail": lambda x, w, y, b: ours(x @ w.t(), y, b),
        "logits, then torch eager": lambda x, w, y, b: one_line(x @ w.t(), y, b),
        "logits, then torch.compile": torch.compile(
            lambda x, w, y, b: one_line(x @ w.t(), y, b), dynamic=False
        ),
    }
    own = getattr(F, "linear_cross_entropy", None)
    found["F.linear_cross_entropy, no offset"] = (
        f"absent: not in torch {torch.__version__}"
        if own is None
        else lambda x, w, y, b: own(x, w, y)
    )
    try:
        liger = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
        call = liger.LigerFusedLinearCrossEntropyFunction.apply
        found["Liger, no offset"] = lambda x, w, y, b: call(x, w, y)[0]
    except Exception as error:
        found["Liger, no offset"] = f"absent: {error}"
    return found


def spread(values):
    """Median, 20th and 80th percentile."""
    ordered = sorted(values)
    at = [ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in (0.5, 0.2, 0.8)]
    return [round(v, 3) for v in at]


def device_times(calls, *, of_a_graph, capture=True, repeats=20):
    """Microseconds per call, under graph replay if the calls can be captured.

    Args:
        calls: one for each set of buffers.
        of_a_graph: how many a graph holds, a multiple of theirs.
        capture: false for calls that wait for the device.
        repeats: of the graph.
    """
    calls = list(calls) * (of_a_graph // len(calls) if capture else 1)
    run = captured(calls).replay if capture else functools.partial(one_by_one, calls)
    for _ in range(3):
        run()
    return [between_events(run) / len(calls) for _ in range(repeats)]


def one_by_one(calls):
    for call in calls:
        call()


def captured(calls):
    """A graph of some calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def between_events(run):
    """Microseconds on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end)


def replayed_in_turns(steps, *, of_a_graph=8, repeats=40):
    """Microseconds of each step by its name, all under graph replay, one after the other.

    What does not fit into memory beside the others is left out.
    """
    graphs = {}
    for key, step in steps.items():
        try:
            graphs[key] = captured([step] * of_a_graph)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    times = {key: [] for key in graphs}
    for _ in range(repeats):
        for key, graph in graphs.items():
            graph.replay()  # so that its own data are in the cache, as far as they can be
            times[key].append(between_events(graph.replay) / of_a_graph)
    return times


def wall_times(call, repeats=30):
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return times


def waits(call):
    """How often a step waits for the device."""
    call()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(w.message) for w in caught)


def launches(calls):
    """Kernels (and copies and fills) of one step of each call, from one profile.

    A kernel of a kind that none of them launches marks where the next one begins.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for call in calls:
            torch.cuda._sleep(1000)
            call()
            torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    counts = []
    for event in sorted(events, key=lambda e: e.time_range.start):
        if "spin_kernel" in event.name:
            counts.append(0)
        elif counts:
            counts[-1] += 1
    return counts


def peak(call):
    """Bytes that a step needs at most beyond what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def relative(found, exact):
    return float(f"{((found.double() - exact).norm() / exact.norm()).item():.3e}")


def measure_logits(name, n, classes, *, quick, compile_from):
    torch.manual_seed(0)
    size = n * classes * 2
    sets = max(3, min(256, int(1.2e9 // (2 * size))))
    logits = [
        (3 * torch.randn(n, classes, device="cuda")).bfloat16().requires_grad_()
        for _ in range(sets)
    ]
    targets = [torch.randint(classes, (n,), device="cuda") for _ in range(sets)]
    b = torch.randn(classes, device="cuda")
    spare = [torch.empty_like(f) for f in logits]

    steps = sets * max(1, max(8, min(64, int(4e9 // size))) // sets)
    pairs = zip(logits, spare, strict=True)
    copies = [lambda f=f, to=to: to.copy_(f.detach()) for f, to in pairs]
    floor = device_times(copies, of_a_graph=steps)
    del spare, copies
    row = {"rows": n, "classes": classes, "sets": sets, "steps": steps}
    row |= {"floor_us": spread(floor), "peers": {}}
    row["copy_TB_per_s"] = round(2 * size / spread(floor)[0] / 1e6, 3)
    exact, calls = {}, {}
    for key, call in peers(n, classes, compile_from).items():
        if isinstance(call, str) or (quick and key not in (OURS, "F.cross_entropy, no offset")):
            row["peers"][key] = call if isinstance(call, str) else "not measured"
            continue
        row["peers"][key] = measure_peer(key, call, logits, targets, b, row, exact, quick=quick)
        calls[key] = call
        print(f"{name:32} {key:28} {json.dumps(row['peers'][key])}", flush=True)
    return row, calls


def count_launches(row, calls):
    """Put into a row how many launches a step of each of its peers has."""
    logits = torch.randn(row["rows"], row["classes"], device="cuda").bfloat16().requires_grad_()
    target = torch.randint(row["classes"], (row["rows"],), device="cuda")
    b = torch.randn(row["classes"], device="cuda")
    steps = [
        lambda call=call: torch.autograd.grad(call(logits, target, b), logits)
        for call in calls.values()
    ]
    for step in steps:  # what is made once, such as compiled code, is made here
        step()
    counts = launches(steps)
    if len(counts) == len(steps):  # else the profiler has lost some
        for key, number in zip(calls, counts, strict=True):
            row["peers"][key]["launches"] = number


def measure_peer(key, call, logits, targets, b, row, exact, *, quick):
    def step(i=0):
        return torch.autograd.grad(call(logits[i], targets[i], b), logits[i])[0]

    # Some peers write the gradient over the logits, which are put back at the end.
    kept = logits[0].detach().clone()
    with_offset = "no offset" not in key
    if with_offset not in exact:
        f = kept.double().requires_grad_()
        loss = F.cross_entropy(f + b.double() if with_offset else f, targets[0])
        exact[with_offset] = loss.detach(), torch.autograd.grad(loss, f)[0]
        del f, loss
    loss = call(logits[0], targets[0], b)
    (grad,) = torch.autograd.grad(loss, logits[0])
    record = {
        "loss_error": relative(loss.detach(), exact[with_offset][0]),
        "gradient_error": relative(grad, exact[with_offset][1]),
    }
    del loss, grad  # a graph that lives on this stream can't be captured on another
    record["synchronisations"] = waits(step)
    record["graph"] = record["synchronisations"] == 0  # what waits can't be captured
    steps = [lambda i=i: step(i) for i in range(len(logits))]
    times = device_times(steps, of_a_graph=row["steps"], capture=record["graph"])
    record["device_us"] = spread(times)
    record["share_of_floor"] = round(row["floor_us"][0] / record["device_us"][0], 3)
    record["wall_us"] = spread(wall_times(step, 10 if quick else 20))
    record["peak_MB"] = round(peak(step) / 1e6, 1)
    with torch.no_grad():
        logits[0].copy_(kept)
    return record


def measure_linear(name, n, classes, *, quick):
    torch.manual_seed(0)
    x = torch.randn(n, DIMENSION, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = (torch.randn(classes, DIMENSION, device="cuda") / DIMENSION**0.5).bfloat16()
    w.requires_grad_()
    y = torch.randint(classes, (n,), device="cuda")
    b = torch.randn(classes, device="cuda")
    row = {"rows": n, "classes": classes, "dimension": DIMENSION, "peers": {}}
    rows = slice(0, 64)
    with torch.no_grad():
        exact = F.cross_entropy(x[rows].double() @ w.double().t() + b.double(), y[rows])
    steps = {}
    for key, call in linear_peers().items():
        if isinstance(call, str) or (quick and not key.startswith((OURS, "logits, then long"))):
            row["peers"][key] = call if isinstance(call, str) else "not measured"
            continue

        def step(call=call):
            return torch.autograd.grad(call(x, w, y, b), (x, w))

        try:
            grads = 2 * (x.numel() + w.numel())
            step()
            record = {"peak_MB_beyond_gradients": round((peak(step) - grads) / 1e6, 1)}
            record["wall_us"] = spread(eager_times(step, 5 if quick else 15))
            record["synchronisations"] = waits(step)
            if "no offset" not in key:
                with torch.no_grad():
                    loss = call(x[rows], w, y[rows], b)
                record["loss_error"] = relative(loss, exact)
            if not record["synchronisations"]:
                steps[key] = step
        except torch.OutOfMemoryError:
            record = "out of memory"
            torch.cuda.empty_cache()
        row["peers"][key] = record
        print(f"{name:32} {key:28} {json.dumps(record)}", flush=True)
    for key, times in replayed_in_turns(steps, of_a_graph=8 if n * classes < 1e9 else 2).items():
        row["peers"][key]["device_us"] = spread(times)
        print(f"{name:32} {key:28} {row['peers'][key]['device_us']}", flush=True)
    return row


def eager_times(step, repeats):
    """Microseconds between events around an eager step, which is long enough for that."""
    times = []
    while len(times) < (repeats if sum(times) < 2e6 else 3):  # 2 s, but at least three steps
        times.append(between_events(step))
    return times


def eager_pair(device, rows, classes, kind):
    """A step of our loss, and one of the line that it stands for."""
    prior = longtail.ClassPrior.from_counts(1 + 5000 * 0.999 ** numpy.arange(classes) // 1)
    b = torch.tensor(prior.log_probs, dtype=torch.float32, device=device)
    epsilon = 0.1 if kind == "label smoothing" else 0.0
    loss = LogitAdjustedLoss(prior, label_smoothing=epsilon).to(device)
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=draw).to(device).requires_grad_()
    target = torch.randint(classes, (rows,), generator=draw).to(device)
    if kind == "class probabilities":
        target = torch.randn(rows, classes, generator=draw).softmax(1).to(device)

    def our_step():
        logits.grad = None
        loss(logits, target).backward()

    def line():
        logits.grad = None
        F.cross_entropy(logits + b, target, label_smoothing=epsilon).backward()

    return our_step, line


def eager(device, *, seconds=3.0):
    """Microseconds of both for each shape and kind of target, and the median of their ratios."""
    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.thread_time

    def burst(step, count):
        wait()
        begin = clock()
        for _ in range(count):
            step()
        wait()
        return 1e6 * (clock() - begin) / count

    rows = {}
    for n, classes in EAGER[device]:
        for kind in TARGETS:
            steps = eager_pair(device, n, classes, kind)
            for step in (*steps, *steps, *steps):
                step()
            count = max(1, int(2000 / burst(steps[1], 3)))
            found, end = [], time.perf_counter() + seconds
            while len(found) < 10 or time.perf_counter() < end:
                order = steps if len(found) % 2 else steps[::-1]
                pair = [burst(step, count) for step in order]
                found.append(pair if len(found) % 2 else pair[::-1])
            mine, theirs = zip(*found, strict=True)
            row = {"ours_us": spread(mine), "line_us": spread(theirs)}
            row["ratio"] = spread(x / y for x, y in found)
            rows.setdefault(f"{n} x {classes}", {})[kind] = row
            print(f"{device} {n} x {classes}, {kind}: {json.dumps(row)}", flush=True)
    name = torch.cuda.get_device_name() if device == "cuda" else machine.machine()["device"]
    return {"device": name, "torch": torch.__version__, "rows": rows}


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


def liger_version():
    try:
        return importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return None


def measure(path, *, parts, quick, compile_from):
    """The record, written as it grows; parts that are not asked for stay as they are."""
    import triton

    record = {
        "device": torch.cuda.get_device_name(),
        "type": "bfloat16",
        "times": "median, 20th and 80th percentile",
        "quick": quick,
        "versions": {
            "longtail": longtail.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "liger_kernel": liger_version(),
        },
        "logits": {},
        "linear": {},
    }
    if parts != PARTS:
        if not path.exists():
            raise SystemExit(f"{path} is not there yet; measure all of it first, without --part.")
        kept, alike = json.loads(path.read_text()), ("device", "versions", "quick")
        if any(kept[key] != record[key] for key in alike):
            raise SystemExit(f"{path} differs in one of {', '.join(alike)}; measure all of it.")
        record = kept
    calls = {}
    for name, (n, classes) in SHAPES.items() if "logits" in parts else ():
        record["logits"][name], calls[name] = measure_logits(
            name, n, classes, quick=quick, compile_from=compile_from
        )
        path.write_text(json.dumps(record, indent=1) + "\n")
    for name, (n, classes) in LINEAR.items() if "linear" in parts else ():
        record["linear"][name] = measure_linear(name, n, classes, quick=quick)
        path.write_text(json.dumps(record, indent=1) + "\n")
    for name in calls:
        count_launches(record["logits"][name], calls[name])
        path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def tables(record):
    """The record as two tables in Markdown."""
    lines = [
        f"{record['device']}, torch {record['versions']['torch']}, Triton "
        f"{record['versions']['triton']}; forward and backward, bfloat16 logits.",
        "",
        "| rows × classes | floor | implementation | device time | of floor | eager wall | "
        "memory | launches |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["logits"].values():
        shape, floor = f"{row['rows']:,} × {row['classes']:,}", f"{row['floor_us'][0]:.1f} µs"
        for key, peer in row["peers"].items():
            if isinstance(peer, str):
                continue
            device = share = "–"  # of what can't be captured: the host's share is in its times
            if peer["graph"]:
                device = f"{peer['device_us'][0]:,.1f} µs"
                share = f"{100 * peer['share_of_floor']:.1f}%"
            lines.append(
                f"| {shape} | {floor} | {key} | {device} | {share} | "
                f"{peer['wall_us'][0]:,.0f} µs | {peer['peak_MB']:,.0f} MB | "
                f"{peer.get('launches', '–')} |"
            )
            shape = floor = ""
    lines += [
        "",
        f"From features of dimension {DIMENSION}, with the gradients of features and weights:",
        "",
        "| rows × classes | implementation | device time | eager wall | "
        "memory beyond the gradients |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for row in record["linear"].values():
        shape = f"{row['rows']:,} × {row['classes']:,}"
        for key, peer in row["peers"].items():
            if isinstance(peer, str):
                continue
            device, wall = (
                f"{peer[kind][0] / 1000:.2f} ms" if kind in peer else "–"
                for kind in ("device_us", "wall_us")
            )
            lines.append(
                f"| {shape} | {key} | {device} | {wall} | "
                f"{peer['peak_MB_beyond_gradients']:,.0f} MB |"
            )
            shape = ""
    told = "Device time is under graph replay (– for what waits for the device, which can't be "
    told += "captured); eager wall is one step with the host's share."
    lines += ["", told]
    absent = {
        f"{key}: {peer.removeprefix('absent: ')}"
        for part in PARTS
        for row in record[part].values()
        for key, peer in row["peers"].items()
        if isinstance(peer, str) and peer.startswith("absent")
    }
    if absent:
        lines += ["", "Absent: " + "; ".join(sorted(absent)) + "."]
    return "\n".join(lines)


def draw(record, path):
    """Share of the floor by shape and implementation."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "longtail"
    import matplotlib.pyplot as plt

    shapes = [f"{row['rows']:,} × {row['classes']:,}" for row in record["logits"].values()]
    names = list(next(iter(record["logits"].values()))["peers"])
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    drawn = 0
    for name in names:
        peers = [row["peers"][name] for row in record["logits"].values()]
        # What can't be captured in a graph was timed with the host's share: no fair bar.
        if all(isinstance(peer, str) or not peer["graph"] for peer in peers):
            continue
        shares = [0 if isinstance(peer, str) else 100 * peer["share_of_floor"] for peer in peers]
        places = [i + 0.16 * (drawn - 2) for i in range(len(shapes))]
        axes.bar(places, shares, width=0.15, label=name)
        drawn += 1
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_ylabel("% of the copy's speed")
    axes.axhline(100, color="grey", linewidth=0.8)
    axes.set_title(f"Loss and gradient on one {record['device']}, bfloat16", fontsize=10)
    axes.set_ylim(0, 130)
    axes.legend(fontsize=8, ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def put_into(page, text, *, mark):
    """Put the tables between the page's marks."""
    start, end = f"<!-- {mark} -->\n", "<!-- end -->"
    before, rest = page.read_text().split(start)
    page.write_text(before + start + text + "\n" + end + rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure, and write this file")
    parser.add_argument("--show", type=Path, help="print the tables of a record")
    parser.add_argument("--draw", type=Path, help="with --show: draw the record into this file")
    parser.add_argument("--into", type=Path, help="with --show: put the tables into this page")
    parser.add_argument(
        "--part",
        choices=(*PARTS, "eager"),
        help="with --record: measure this part only, into a full record; with --into: put in this",
    )
    parser.add_argument("--quick", action="store_true", help="a trial run: few peers, few repeats")
    parser.add_argument(
        "--compile-from",
        type=int,
        default=0,
        help="measure torch.compile from this many logits on; it takes seconds for each shape",
    )
    options = parser.parse_args()
    if options.record is not None and options.part == "eager":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found = eager(device)
        record = json.loads(options.record.read_text()) if options.record.exists() else {}
        record.setdefault("eager", {})[device] = found
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print(eager_table(record))
    elif options.record is not None:
        record = measure(
            options.record,
            parts=(options.part,) if options.part else PARTS,
            quick=options.quick,
            compile_from=options.compile_from,
        )
        print(tables(record))
    elif options.show is not None:
        record = json.loads(options.show.read_text())
        if options.part == "eager":
            print(eager_table(record))
            if options.into is not None:
                put_into(options.into, eager_table(record), mark="bench_losses eager")
            return
        print(tables(record))
        if options.draw is not None:
            draw(record, options.draw)
        if options.into is not None:
            put_into(options.into, tables(record), mark="bench_losses")
    else:
        parser.error("say --record FILE or --show FILE")


if __name__ == "__main__":
    main()
