"""Training steps on one GPU: cohorts of runs as CUDA graphs, against the plain eager loop.

    python benchmarks/bench_cohort.py --data cifar10-lt.parquet --record results/bench_cohort.json
    python benchmarks/bench_cohort.py --data cifar10-lt.parquet --ingredients \\
        --record results/bench_ingredients.json
    python benchmarks/bench_cohort.py --show results/bench_cohort.json

CIFAR-10-LT, ResNet-32, batch 128, bfloat16. A model-step is the wall time of a whole epoch over
its steps and runs, planning and reading the losses included, evaluation apart. The plain loop
takes the same step as anyone would write it: eagerly, with torch's autocast, batch norm and
optimiser. It also measures whether the two train alike: losses step by step in float32, and the
balanced test error of short trainings over five seeds. With --ingredients it measures, instead,
what the ingredients of the strong recipe cost a cohort.
"""

import argparse
import json
import platform
import statistics
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F

import longtail
from longtail import data, metrics, models
from longtail.data.images import LongTailedData
from longtail.kernels import norm_act
from longtail.report.compare import mean_interval
from longtail.train.cuda_graphs import place
from longtail.train.engine import network_logits
from longtail.train.loop import Training, run_epoch, take_step
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe

DEVICE = torch.device("cuda")
AUGMENTATION = {
    "trivial_augment": True,
    "cutout": 16,
    "cutmix": 0.5,
    "mix_partner": "minority",
}
INGREDIENTS = {
    "without": {},
    "SAM": {"sam_rho": 0.1},
    "all augmentation": AUGMENTATION,
    "weight average": {"ema_decay": 0.999},
    "SAM, all augmentation, weight average": {
        "sam_rho": 0.1,
        "ema_decay": 0.999,
        **AUGMENTATION,
    },
}
SHORT = {"epochs": 8, "warmup_epochs": 1, "milestones": ((5, 0.1), (7, 0.01))}


def torch_norm_act(x, weight, bias, mean, var, **how):
    """The same network with torch's own batch norm."""
    y = F.batch_norm(x, mean, var, weight, bias, how["training"], how["momentum"], how["eps"])
    y = y if how["residual"] is None else y + how["residual"]
    return F.relu(y) if how.get("relu", True) else y


def torch_conv(x, weight, *, stride, groups):
    return F.conv2d(x, weight, None, stride, 1, 1, groups), None


def torch_shortcut(x, *, groups):
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, x.shape[1] // 2, x.shape[1] // 2))


def planners(images, seeds, recipe, method="softmax"):
    everything = np.arange(len(images))
    return [
        Planner(recipe, Method.of(method), images.labels, everything, images.prior, seed=seed)
        for seed in seeds
    ]


def stepper(images, resident, *, seeds, recipe, graphs=True, precision="bfloat16"):
    """Runs that differ in their seeds, stepping as one."""
    return place(
        lambda: Training(
            planners(images, seeds, recipe), resident, precision=precision, device=DEVICE
        ),
        device=DEVICE,
        graphs=graphs,
    )


@contextmanager
def plainly():
    """The network in torch's own operations."""
    with (
        mock.patch.object(norm_act, "norm_act", torch_norm_act),
        mock.patch.object(
            norm_act, "norm_act_fork", lambda *a, **k: (torch_norm_act(*a, **k),) * 2
        ),
        mock.patch.object(models.resnet, "grouped_conv", torch_conv),
        mock.patch.object(models.resnet, "pad_shortcut", torch_shortcut),
    ):
        yield


def epoch_seconds(steppers, epochs):
    """Wall time of each of some epochs, after one that is not counted."""
    found = []
    for epoch in range(epochs + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run_epoch(steppers, [epoch] * len(steppers))
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return found[1:]


def model_step(steppers, epochs):
    steps = sum(one.runs * len(one.batch_sizes) for one in steppers)
    times = [1e3 * seconds / steps for seconds in epoch_seconds(steppers, epochs)]
    return {"ms": statistics.median(times), "least": min(times), "most": max(times)}


def kernels_of(one):
    """Kernels of one step by kind: how many for each run, and their time in µs."""
    team = one
    with one.active():
        team.load(0)
        team.prepare(0)
        team.step(team.batch_sizes[0])
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            team.step(team.batch_sizes[0])
            torch.cuda.synchronize()
    kinds = {}
    for event in profile.key_averages():
        name = event.key.lower()
        if not event.self_device_time_total:  # the host's side of a launch
            continue
        kind = next((k for k, words in KINDS.items() if any(w in name for w in words)), "other")
        kind = "batch norm" if name in NORM_KERNELS else kind
        count, total = kinds.get(kind, (0, 0.0))
        kinds[kind] = (count + event.count, total + event.self_device_time_total)
    return {
        kind: {"kernels": n / team.runs, "us": round(us / team.runs, 1)}
        for kind, (n, us) in sorted(kinds.items())
    }


NORM_KERNELS = (
    "moments_kernel",
    "statistics_kernel",
    "forward_kernel",
    "sums_kernel",
    "gradients_kernel",
    "backward_kernel",
)
KINDS = {
    "convolution": ("conv", "gemm", "xmma", "cudnn", "cutlass", "wgrad", "dgrad", "sm90", "sm80"),
    "batch norm": ("norm", "_bn", "welford"),
    "copies": ("memcpy", "memset", "copy"),
}


def speed(images, resident, *, epochs, sizes=(1, 4, 8, 16)):
    recipe, few = get_recipe("tuned"), max(1, epochs // 2)
    found = {"cohorts": {}}
    with plainly():
        one = stepper(images, resident, seeds=[0], recipe=recipe, graphs=False)
        found["plain eager"] = model_step([one], few)
        found["kernels, plain"] = kernels_of(one)
    found["steps"] = len(one.batch_sizes)
    for size in sizes:
        started = time.perf_counter()
        one = stepper(images, resident, seeds=range(size), recipe=recipe)
        torch.cuda.synchronize()
        captured = time.perf_counter() - started
        found["cohorts"][str(size)] = {"capture_s": captured, **model_step([one], epochs)}
        print(size, found["cohorts"][str(size)], flush=True)
        if size == 8:
            found["kernels"] = kernels_of(one)
        del one
        torch.cuda.empty_cache()
    return found


def ingredients(images, resident, *, epochs, names, size=16):
    """Some ingredients in a cohort, against one without any; they take turns twice."""
    found = {}
    for turn in range(2):
        for name in names:
            overrides = INGREDIENTS[name]
            recipe = get_recipe("tuned", **overrides)
            started = time.perf_counter()
            one = stepper(images, resident, seeds=range(size), recipe=recipe)
            torch.cuda.synchronize()
            row = {"capture_s": time.perf_counter() - started, **model_step([one], epochs)}
            row["prepare_s"] = prepare_seconds(one)
            row["memory_GiB"] = torch.cuda.max_memory_allocated() / 2**30
            if turn == 0 or row["ms"] < found[name]["ms"]:
                found[name] = row
            del one
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    for name, row in found.items():
        row["ratio"] = row["ms"] / found["without"]["ms"]
        print(name, row, flush=True)
    return {"runs": size, "rows": found}


def prepare_seconds(one, times=5):
    """Wall time of making all batches of an epoch."""
    found = []
    with one.active():
        for epoch in range(times):
            one.load(epoch)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for number in range(0, len(one.batch_sizes), one.block):
                one.prepare(number)
            torch.cuda.synchronize()
            found.append(time.perf_counter() - started)
    return statistics.median(found)


def step_losses(one, steps):
    """The loss of each of the first steps."""
    with one.active():
        one.load(0)
    found, before = [], 0.0
    for number in range(steps):
        take_step(one, number)
        with one.active():
            total = float(one.totals[0])
        found.append((total - before) / one.batch_sizes[number])
        before = total
    return found


def agreement(images, resident, *, steps=40):
    """Largest relative difference of the float32 losses so far, step by step."""
    recipe = get_recipe("tuned")
    settings = {"recipe": recipe, "precision": "float32"}
    with plainly():
        eager = stepper(images, resident, seeds=[0], graphs=False, **settings)
        plain = step_losses(eager, steps)
        again = step_losses(stepper(images, resident, seeds=[0], graphs=False, **settings), steps)
    graph = step_losses(stepper(images, resident, seeds=range(8), **settings), steps)
    plain, again, graph = map(np.array, (plain, again, graph))
    return {
        "plain eager": plain.tolist(),
        "graph": graph.tolist(),
        "plain eager, again": again.tolist(),
        "difference": (np.abs(graph - plain) / plain).tolist(),
        "difference between two plain": (np.abs(again - plain) / plain).tolist(),
    }


def short_trainings(pair: LongTailedData, resident, *, seeds=5):
    """Balanced test error of short trainings, by both loops, and its paired difference."""
    recipe = get_recipe("tuned", **SHORT)
    images, errors, seconds = pair.train, {}, {}
    for name, graphs in (("plain eager", False), ("graph", True)):
        with nullcontext() if graphs else plainly():
            started = time.perf_counter()
            # The plain loop trains one run after another, as anyone would.
            teams = [range(seeds)] if graphs else [[seed] for seed in range(seeds)]
            steppers = [
                stepper(images, resident, seeds=team, recipe=recipe, graphs=graphs)
                for team in teams
            ]
            for one in steppers:
                for epoch in range(recipe.epochs):
                    run_epoch([one], [epoch])
            torch.cuda.synchronize()
            seconds[name] = time.perf_counter() - started
            errors[name] = []
            for one in steppers:
                with one.active():
                    for member in range(one.runs):
                        logits = network_logits(one.network(member), pair.test, recipe)
                        errors[name].append(metrics.balanced_error(pair.test.labels, logits))
        print(name, errors[name], seconds[name], flush=True)
    gap = mean_interval(np.array(errors["graph"]) - np.array(errors["plain eager"]))
    return {
        "recipe": {"name": "tuned", **SHORT},
        "errors": errors,
        "seconds": seconds,
        "difference": {"mean": gap.mean, "low": gap.low, "high": gap.high},
    }


def measure(path, *, epochs, speed_only=False, names=()):
    pair = data.load(path)
    resident = Resident(pair.train, DEVICE)
    record = {
        "data": {"name": pair.spec.name, "fingerprint": pair.train.fingerprint},
        "device": torch.cuda.get_device_name(),
        "versions": {
            "longtail": longtail.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    if names:
        record["ingredients"] = ingredients(pair.train, resident, epochs=epochs, names=names)
        return record
    record["speed"] = speed(pair.train, resident, epochs=epochs)
    if not speed_only:
        record["agreement"] = agreement(pair.train, resident)
        record["short trainings"] = short_trainings(pair, resident)
    return record


def show_ingredients(found):
    what = f"cohort of {found['runs']}"
    print(f"{what:40}{'ms a model-step':>16}{'ratio':>8}{'batches, s':>12}")
    for name, row in found["rows"].items():
        print(f"{name:40}{row['ms']:16.3f}{row['ratio']:8.2f}{row['prepare_s']:12.3f}")


def show(record):
    print(f"{record['device']}, torch {record['versions']['torch']}; {record['data']['name']}")
    if "ingredients" in record:
        return show_ingredients(record["ingredients"])
    found = record["speed"]
    print(f"{'':24}{'ms a model-step':>16}{'range':>18}")
    rows = [("plain eager loop", found["plain eager"])]
    rows += [(f"cohort of {size}", row) for size, row in found["cohorts"].items()]
    for name, row in rows:
        print(f"{name:24}{row['ms']:16.3f}{row['least']:10.3f} –{row['most']:6.3f}")
    for name in ("kernels, plain", "kernels"):
        parts = [f"{k} {v['kernels']:.0f} ({v['us']:.0f} µs)" for k, v in found[name].items()]
        total = sum(v["kernels"] for v in found[name].values())
        print(f"{name}: {total:.0f} a model-step: {', '.join(parts)}")
    if "agreement" not in record:
        return
    apart = record["agreement"]
    for name in ("difference", "difference between two plain"):
        values = apart[name]
        print(f"float32 {name}: steps 1-5 {max(values[:5]):.1e}, 1-20 {max(values[:20]):.1e}")
    short = record["short trainings"]
    gap = short["difference"]
    print(
        "short trainings, balanced error: "
        + ", ".join(f"{k} {np.mean(v):.2%}" for k, v in short["errors"].items())
        + f"; difference {gap['mean']:+.2%} [{gap['low']:+.2%}, {gap['high']:+.2%}]"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="a frozen file of cifar10-lt")
    parser.add_argument("--record", type=Path, help="measure, and write the record here")
    parser.add_argument("--show", type=Path, help="print the tables of a record")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--speed-only", action="store_true", help="leave the comparisons out")
    parser.add_argument("--ingredients", action="store_true", help="measure those instead")
    parser.add_argument("--only", nargs="+", choices=INGREDIENTS, help="of the ingredients")
    given = parser.parse_args()
    named = [name for name in given.only or INGREDIENTS if name != "without"]
    if given.record:
        record = measure(
            given.data,
            epochs=given.epochs,
            speed_only=given.speed_only,
            names=["without", *named] if given.ingredients else (),
        )
        given.record.write_text(json.dumps(record, indent=1) + "\n")
        show(record)
    elif given.show:
        show(json.loads(given.show.read_text()))
    else:
        parser.error("give --record or --show")


if __name__ == "__main__":
    main()
