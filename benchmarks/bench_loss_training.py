"""Short trainings with the loss kernels and without them: do they end alike, and how fast?

    python benchmarks/bench_loss_training.py --record results/bench_loss_training.json  # < 1 min
    python benchmarks/bench_loss_training.py --show results/bench_loss_training.json
    ... --show results/bench_loss_training.json --into docs/kernels.md
    TRITON_INTERPRET=1 python benchmarks/bench_loss_training.py --small --record FILE   # no GPU

A small network learns generated classes with a long tail by the logit-adjusted loss:
with `impl="torch"` and with `impl="triton"`, from the same weights on the same batches, for each
seed. The loss comes from logits, or from features and the classifier's weights in chunks of rows
(`linear_cross_entropy`); both in bfloat16, under autocast with weights in float32, and in float32.
As a measure of what rounding alone does, torch trains once more with the rows of every batch in
reverse order. What a training has come to is judged in float32 torch for all of them: the loss over
the whole training set, and the balanced error on held-out examples. On a GPU a step is one CUDA
graph, and nothing in a training waits for the device.
"""

import argparse
import itertools
import json
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import longtail
from bench_losses import put_into
from longtail import ClassPrior, metrics
from longtail.data.profiles import exponential_counts
from longtail.kernels import available
from longtail.kernels.linear_cross_entropy import linear_cross_entropy
from longtail.losses import LogitAdjustedLoss
from longtail.report.compare import mean_interval
from machine import processor_name

FORMS = ("logits", "features")
DTYPES = ("bfloat16", "float32")
# Arm: implementation, and whether the rows of a batch are reversed.
ARMS = {"torch": ("torch", False), "kernel": ("triton", False), "reordered": ("torch", True)}
STEPS_SHOWN = (1, 2, 5, 20, 50, 100, 250)
WARM_UP = 3  # steps before capture
NOT_MEASURED = "Not measured on this version."


class Setting(NamedTuple):
    """How large everything is."""

    classes: tuple[int, ...] = (1203, 8142)
    seeds: int = 10
    steps: int = 250
    batch: int = 512
    inputs: int = 64
    width: int = 128
    depth: int = 2  # hidden layers
    largest: int = 50  # examples of the most frequent class; the rarest has one
    held_out: int = 4  # examples of every class
    spread: float = 0.7  # of the classes' means, where the noise is 1
    rate: float = 2.0
    chunks: int = 3  # of a batch, where the loss comes from features


SMALL = Setting(
    classes=(37,), seeds=2, steps=4, batch=8, inputs=8, width=12, largest=20, held_out=2, rate=0.5
)


class Data(NamedTuple):
    """Examples on the device; labels from the most frequent class to the rarest."""

    inputs: torch.Tensor
    target: torch.Tensor
    held_inputs: torch.Tensor
    held_target: torch.Tensor
    prior: ClassPrior


def make_data(classes, setting, device):
    """Normal clouds around random means, of exponentially falling sizes."""
    counts = exponential_counts(
        setting.largest, num_classes=classes, imbalance_ratio=setting.largest
    )
    rng = torch.Generator().manual_seed(classes)
    means = setting.spread * torch.randn(classes, setting.inputs, generator=rng)

    def examples(sizes):
        target = torch.repeat_interleave(torch.arange(classes), torch.as_tensor(sizes))
        noise = torch.randn(len(target), setting.inputs, generator=rng)
        return (means[target] + noise).to(device), target.to(device)

    train = examples(counts)
    held_out = examples(np.full(classes, setting.held_out))
    return Data(*train, *held_out, ClassPrior.from_counts(counts))


class Network(nn.Module):
    """Inputs -> normalised ReLU features -> one logit per class."""

    def __init__(self, classes, setting):
        super().__init__()
        wide = [setting.inputs] + [setting.width] * setting.depth
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(wide)]
        self.hidden = nn.ModuleList(layers)
        self.head = nn.Linear(setting.width, classes)

    def features(self, x):
        for layer in self.hidden:
            x = F.relu(F.layer_norm(layer(x), (layer.out_features,)))
        return x

    @torch.no_grad()
    def start(self, rng):
        """Set the weights anew, in place: a captured step knows where they lie."""
        for layer in (*self.hidden, self.head):
            scale = (2 / layer.in_features) ** 0.5
            layer.weight.copy_(scale * torch.randn(layer.weight.shape, generator=rng))
            layer.bias.zero_()


class Training:
    """A network and its loss, to be trained from seed after seed by one step, captured on a GPU.

    Args:
        data: from `make_data`.
        setting: sizes.
        form: one of FORMS.
        dtype: one of DTYPES, what the loss is given.
        impl: "torch" or "triton".
    """

    def __init__(self, data, setting, *, form, dtype, impl):
        self.data, self.setting, self.form, self.impl = data, setting, form, impl
        self.device = data.inputs.device
        self.dtype = getattr(torch, dtype)
        self.network = Network(data.prior.num_classes, setting).to(self.device)
        self.criterion = LogitAdjustedLoss(data.prior, impl=impl).to(self.device)
        self.judging = LogitAdjustedLoss(data.prior, impl="torch", reduction="none")
        self.judging.to(self.device)
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=setting.rate, momentum=0.9, fused=on_gpu or None
        )
        shape = (setting.steps, setting.batch)
        self.order = torch.zeros(shape, dtype=torch.long, device=self.device)
        self.losses = torch.zeros(setting.steps, device=self.device)
        self.turn = torch.zeros(1, dtype=torch.long, device=self.device)
        self.run = self._captured() if on_gpu else self._step

    def loss(self, x, y):
        half = self.dtype != torch.float32
        # (Its cache of cast weights would outlive the capture of a step.)
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False
        ):
            features = self.network.features(x).to(self.dtype)
            head = self.network.head
            if self.form == "logits":
                return self.criterion(head(features), y)
            rows = -(-len(x) // self.setting.chunks)
            return linear_cross_entropy(
                features,
                head.weight.to(self.dtype),
                y,
                bias=head.bias,
                offset=self.criterion.negative,
                positive=self.criterion.positive,
                chunk_bytes=rows * head.out_features * features.element_size(),
                impl=self.impl,
            )

    def _step(self):
        rows = self.order.index_select(0, self.turn).squeeze(0)
        x, y = (part.index_select(0, rows) for part in (self.data.inputs, self.data.target))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.losses.index_copy_(0, self.turn, loss.detach().float().reshape(1))
        self.turn += 1

    def _captured(self):
        """The step as one graph, on the stream at hand."""
        for _ in range(WARM_UP):
            self.turn.zero_()
            self._step()
        self.turn.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self._step()
        return self.graph.replay

    def train(self, seed, *, reverse=False):
        """Train from the seed's weights on its batches; the loss of each step, seconds of one."""
        rng = torch.Generator().manual_seed(seed)
        self.network.start(rng)
        examples = len(self.data.target)
        order = torch.randint(examples, tuple(self.order.shape), generator=rng)
        self.order.copy_(order.flip(1) if reverse else order)
        self.turn.zero_()
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        wait(self.device)
        started = time.perf_counter()
        for _ in range(self.setting.steps):
            self.run()
        wait(self.device)
        seconds = (time.perf_counter() - started) / self.setting.steps
        return self.losses.double().cpu().numpy(), seconds

    @torch.no_grad()
    def judge(self, rows=8192):
        """The loss over the training set and the balanced error on held-out examples."""
        total = 0.0
        for x, y in zip(self.data.inputs.split(rows), self.data.target.split(rows), strict=True):
            total = total + self.judging(self.logits(x), y).double().sum()
        found = torch.cat([self.logits(x).argmax(1) for x in self.data.held_inputs.split(rows)])
        error = metrics.balanced_error(
            self.data.held_target.cpu().numpy(),
            found.cpu().numpy(),
            num_classes=self.data.prior.num_classes,
        )
        return float(total) / len(self.data.target), error

    def logits(self, x):
        return self.network.head(self.network.features(x))


def own_stream(device):
    """Where a training has to be made and run: nothing can be captured on the default stream."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(data, setting, *, form, dtype):
    """All arms from all seeds, in turns: what they come to, and how they differ from torch."""
    trainings = {
        impl: Training(data, setting, form=form, dtype=dtype, impl=impl)
        for impl in ("torch", "triton")
    }
    found = {arm: {"loss": [], "error": [], "ms": [], "steps": []} for arm in ARMS}
    for seed in range(setting.seeds):
        for arm, (impl, reverse) in ARMS.items():
            training = trainings[impl]
            steps, seconds = training.train(seed, reverse=reverse)
            loss, error = training.judge()
            for key, value in zip(found[arm], (loss, error, 1e3 * seconds, steps), strict=True):
                found[arm][key].append(value)
    plain = found["torch"]
    row = {"classes": data.prior.num_classes, "dtype": dtype, "form": form, "arms": {}}
    row["examples"] = len(data.target)
    for arm, values in found.items():
        kept = {"loss": values["loss"], "error": values["error"]}
        kept["ms_a_step"] = float(np.median(values["ms"]))
        if arm != "torch":
            for key in ("loss", "error"):
                kept[f"{key}_difference"] = difference(values[key], plain[key])
            kept["step_difference"] = step_difference(values["steps"], plain["steps"])
        row["arms"][arm] = kept
    return row


def difference(values, others):
    """The paired difference over the seeds, with its 95% interval."""
    found = mean_interval(np.array(values) - np.array(others))
    return {"mean": found.mean, "low": found.low, "high": found.high}


def step_difference(losses, others):
    """Largest relative difference of the losses of single steps over the seeds, by step."""
    apart = (np.abs(np.array(losses) - others) / np.abs(others)).max(axis=0)
    return {str(step): float(apart[step - 1]) for step in STEPS_SHOWN if step <= len(apart)}


def measure(setting, device, path):
    """The record, written to the path after every row of it."""
    import triton

    on_gpu = device.type == "cuda"
    record = {
        "device": torch.cuda.get_device_name() if on_gpu else processor_name(),
        "interpreted": not on_gpu,
        "versions": {
            "longtail": longtail.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "setting": setting._asdict(),
        "rows": [],
    }
    started = time.perf_counter()
    with own_stream(device):
        for classes in setting.classes:
            data = make_data(classes, setting, device)
            for dtype, form in itertools.product(DTYPES, FORMS):
                row = compare(data, setting, form=form, dtype=dtype)
                record["rows"].append(row)
                record["seconds"] = round(time.perf_counter() - started, 1)
                path.write_text(json.dumps(record, indent=1) + "\n")
                print(classes, dtype, form, *line(row), sep="  ", flush=True)
    return record


def together(rows):
    """The kernel's relative difference in loss, mean over all settings for each seed: one interval.

    Of many intervals some miss zero by chance; this one has the chance of one.
    """
    apart = [
        np.array(row["arms"]["kernel"]["loss"]) / np.array(row["arms"]["torch"]["loss"]) - 1
        for row in rows
    ]
    return difference(np.mean(apart, axis=0), 0.0)


def interval(found, form, scale=1.0):
    mean, low, high = (format(scale * found[key], form) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]".replace("-", "−")


def includes_zero(found):
    return found["low"] <= 0 <= found["high"]


def line(row):
    """A row's cells after those that say which it is."""
    arms = row["arms"]
    plain, kernel = arms["torch"], arms["kernel"]
    return [
        f"{np.mean(plain['loss']):.4f}",
        interval(kernel["loss_difference"], "+.1e"),
        interval(arms["reordered"]["loss_difference"], "+.1e"),
        f"{100 * np.mean(plain['error']):.2f}",
        interval(kernel["error_difference"], "+.2f", 100),
        f"{plain['ms_a_step']:.2f}",
        f"{kernel['ms_a_step']:.2f}",
    ]


def tables(record):
    """The record in Markdown; what to say where there is none."""
    if record is None:
        return NOT_MEASURED
    rows, setting = record["rows"], record["setting"]
    differences = [
        row["arms"]["kernel"][f"{key}_difference"] for row in rows for key in ("loss", "error")
    ]
    clear = sum(map(includes_zero, differences))
    first = max(
        row["arms"]["kernel"]["step_difference"]["1"] for row in rows if row["dtype"] == "float32"
    )
    where = "in Triton's interpreter" if record["interpreted"] else "a step as one CUDA graph"
    header = [
        "classes", "type", "loss from", "loss, torch", "kernel − torch", "reordered − torch",
        "error, torch", "kernel − torch", "ms a step, torch", "kernel",
    ]  # fmt: skip
    sides = ["---:", "---", "---", *["---:"] * (len(header) - 3)]
    cells = [[f"{r['classes']:,}", r["dtype"], r["form"], *line(r)] for r in rows]
    parts = [
        f"{record['device']}, torch {record['versions']['torch']}, Triton "
        f"{record['versions']['triton']}, {where}: {setting['seeds']} seeds of {setting['steps']} "
        f"steps with batches of {setting['batch']}; loss over the whole training set, balanced "
        "error on held-out examples in percent, differences with their paired 95% intervals.",
        "",
        *(f"| {' | '.join(one)} |" for one in [header, sides, *cells]),
        "",
        f"Of the {len(differences)} intervals of the kernel {clear} include zero; over all "
        "settings together the loss differs by a share of "
        f"{interval(together(rows), '+.1e')}. In float32 the losses of the first step differ "
        f"by {first:.0e} at most.".replace("e-", "e−"),
        "",
        "The record is `results/bench_loss_training.json`.",
    ]
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure, and write this file")
    parser.add_argument("--show", type=Path, help="print the table of a record")
    parser.add_argument("--into", type=Path, help="with --show: put the table into this page")
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    if options.record is not None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if not available(device):
            parser.error("the kernel needs a CUDA device with Triton, or TRITON_INTERPRET=1")
        if device.type == "cpu" and not options.small:
            parser.error("in Triton's interpreter the full size takes days; add --small")
        record = measure(SMALL if options.small else Setting(), device, options.record)
        print(tables(record), f"({record['seconds']} s)", sep="\n")
    elif options.show is not None:
        text = tables(json.loads(options.show.read_text()))
        print(text)
        if options.into is not None:
            put_into(options.into, text, mark="bench_loss_training")
    else:
        parser.error("say --record FILE or --show FILE")


if __name__ == "__main__":
    main()
