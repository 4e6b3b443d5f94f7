"""Large-scale training on one GPU: this trainer against a bare torch loop, and from real files.

    python benchmarks/bench_large.py --record results/bench_large.json
    python benchmarks/bench_large.py --show results/bench_large.json

ResNet-50 and -152 on images of 224 pixels, bfloat16, channels last, SGD with momentum, fused. Both
loops step on the same bytes on the device, normalise them and take turns. The bare one is what
anyone would write: torch's own modules, autocast, cross-entropy, backward, step. Files are JPEGs of
the size of ImageNet's, decoded on all cores. Hours are those of the tables' runs at the measured
rates. Every part is written to the record when it is done, and the slow compilation of ResNet-152
begins only if `--minutes` leaves time for it.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import longtail
from longtail.data.lists import ListedImages
from longtail.data.photos import RandomCrop
from longtail.data.streaming import default_workers, training_stream
from longtail.kernels import available
from longtail.train.cuda_graphs import place
from longtail.train.loop import take_step
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.recipe import get_recipe
from longtail.train.streamed import StreamedTraining, Streaming
from machine import processor_name

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the checkout, for its studies

from studies.large import SETTINGS, gpu_hours

CLASSES = {"imagenet-lt": 1000, "inaturalist": 8142}
DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}
SLOW = 200.0  # seconds that compiling and measuring ResNet-152 may take


class Block(nn.Module):
    """A bottleneck of torch's own modules, under torchvision's names."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            shortcut = nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Plain(nn.Module):
    """The bare loop's network; it has the parameters of `longtail.models`."""

    def __init__(self, depths, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for number, depth in enumerate(depths):
            width, blocks = 64 << number, []
            for block in range(depth):
                blocks.append(Block(inputs, width, 2 if number and not block else 1))
                inputs = 4 * width
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, pixels, mean, std):
        x = (pixels.float() / 255 - mean) / std
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean(dim=(2, 3)))


class Setting:
    """Device, batch of bytes, and number of steps of one measurement."""

    def __init__(self, device, *, batch, size, steps, rounds):
        self.device, self.batch, self.size = device, batch, size
        self.steps, self.rounds = steps, rounds
        self.precision = "bfloat16"
        pixels = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8)
        self.pixels = pixels.permute(0, 3, 1, 2).to(device)  # channels last

    def labels(self, num_classes):
        draw = torch.Generator().manual_seed(0)
        return torch.randint(0, num_classes, (self.batch,), generator=draw).to(self.device)

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class OnDevice(StreamedTraining):
    """The trainer, with a batch that is on the device already in the place of a stream."""

    batch: tuple

    def _read(self, epoch):
        return repeat([self.batch])


def placed(make, device):
    """A training on its device, its steps uncaptured."""
    return place(make, device=device, graphs=False) if device.type == "cuda" else make()


def trainer(setting, model, *, num_classes, compiled):
    """A function that takes one step of this trainer."""
    count = max(setting.batch * (setting.steps + 4), num_classes)
    labels = np.arange(count) % num_classes
    names = tuple(map(str, range(num_classes)))
    data = ListedImages(Path("none"), ["none.jpg"] * count, labels, names)
    sizes = {"batch_size": setting.batch, "image_size": setting.size}
    recipe = get_recipe("imagenet-lt", model=model, **sizes)
    method = Method.of("logit-adjusted")
    planner = Planner(recipe, method, labels, np.arange(count), data.prior, seed=0)
    how = Streaming(workers=0, micro_batch=setting.batch, compile=compiled)
    options = {"precision": setting.precision, "device": setting.device, "how": how}
    make = partial(OnDevice, planner, data, **options)
    stepper = placed(make, setting.device)
    stepper.batch = setting.pixels, setting.labels(num_classes)

    def begin():
        with stepper.active():
            stepper.load(0)

    return begin, partial(take_step, stepper)


def bare(setting, model, *, num_classes, compiled):
    """A function that takes one step of the bare loop."""
    device, recipe = setting.device, get_recipe("imagenet-lt")
    network = Plain(DEPTHS[model], num_classes).to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (recipe.mean, recipe.std))
    on_gpu = device.type == "cuda"
    settings = {"momentum": 0.9, "weight_decay": recipe.weight_decay, "fused": on_gpu or None}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, **settings)
    forward = torch.compile(network, dynamic=False) if compiled else network
    labels = setting.labels(num_classes)

    def step(_):
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(forward(setting.pixels, mean, std), labels)
            loss.backward()
            optimizer.step()

    return lambda: None, step


def rates_of(setting, loops):
    """Images per second of each loop: medians over rounds in which the loops take turns."""
    found = {name: [] for name in loops}
    seconds = {}
    for name, (begin, step) in loops.items():  # compilation, choice of algorithms
        started = time.perf_counter()
        begin()
        for number in range(3):
            step(number)
        setting.wait()
        seconds[name] = time.perf_counter() - started
    for _ in range(setting.rounds):
        for name, (begin, step) in loops.items():
            begin()
            step(0)
            setting.wait()
            started = time.perf_counter()
            for number in range(1, setting.steps + 1):
                step(number)
            setting.wait()
            taken = time.perf_counter() - started
            found[name].append(setting.batch * setting.steps / taken)
    return {
        name: {
            "images_per_second": statistics.median(rates),
            "least": min(rates),
            "most": max(rates),
            "first_steps_s": seconds[name],
        }
        for name, rates in found.items()
    }


def against_bare(setting, model, *, compiled):
    options = {"num_classes": CLASSES["imagenet-lt"], "compiled": compiled}
    loops = {
        "trainer": trainer(setting, model, **options),
        "bare loop": bare(setting, model, **options),
    }
    found = rates_of(setting, loops)
    both = [found[name]["images_per_second"] for name in ("trainer", "bare loop")]
    return {**found, "ratio": both[0] / both[1]}


def trainer_rate(setting, model, *, num_classes, compiled):
    loop = trainer(setting, model, num_classes=num_classes, compiled=compiled)
    return rates_of(setting, {"trainer": loop})["trainer"]


def write_jpegs(folder, count, *, width=500, height=375):
    """Photograph-like files, about as many bytes a pixel as ImageNet's have."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width] / width
    for number in range(count):
        waves = [np.sin(a * x + b * y + c) for a, b, c in random.uniform(1, 40, (3, 3))]
        noise = random.normal(0, 14, (height, width, 3))
        pixels = np.clip(np.stack(waves, axis=-1) * 90 + 128 + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=85)
    return [f"{number}.jpg" for number in range(count)]


@contextmanager
def jpegs(files, num_classes):
    """A long list of a few files, as a data set."""
    with tempfile.TemporaryDirectory() as folder:
        listed = write_jpegs(Path(folder), files) * (200_000 // files)
        names = tuple(map(str, range(num_classes)))
        yield ListedImages(Path(folder), listed, np.arange(len(listed)) % num_classes, names)


def loader_rate(*, files, seconds, size, workers=None):
    """Images per second from JPEG files to crops in memory, with nothing to consume them."""
    with jpegs(files, 2) as data:
        size_of = sum(Path(data.file(i)).stat().st_size for i in range(files)) / files
        view = RandomCrop(size)
        stream = training_stream(data, batch_size=64, view=view, workers=workers, pin_memory=False)
        batches, count = iter(stream), 0
        for _ in range(2 * max(stream.workers, 1)):  # the workers have begun
            next(batches)
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            count += len(next(batches).labels)
        taken = time.perf_counter() - started
        del batches, stream
    return {
        "images_per_second": count / taken,
        "workers": default_workers() if workers is None else workers,
        "bytes_a_file": size_of,
        "pixels": [500, 375],
    }


def from_files(setting, model, *, files, seconds, workers=None):
    """Images per second of the trainer as it is, from JPEG files to gradients; not compiled."""
    sizes = {"batch_size": setting.batch, "image_size": setting.size}
    recipe, method = get_recipe("imagenet-lt", model=model, **sizes), Method.of("logit-adjusted")
    with jpegs(files, CLASSES["imagenet-lt"]) as data:
        kept = np.arange(len(data))
        planner = Planner(recipe, method, data.labels, kept, data.prior, seed=0)
        how = Streaming(workers=workers, micro_batch=setting.batch, compile=False)
        options = {"precision": setting.precision, "device": setting.device, "how": how}
        make = partial(StreamedTraining, planner, data, **options)
        stepper = placed(make, setting.device)
        with stepper.active():
            stepper.load(0)
        for number in range(3):
            take_step(stepper, number)
        setting.wait()
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            take_step(stepper, 3 + done)
            done += 1
        setting.wait()
        return {"images_per_second": done * setting.batch / (time.perf_counter() - started)}


def hours(record):
    """GPU hours of a run of every column: the networks' rates, less what a larger head costs.

    A larger head makes nothing faster: a ratio above 1 is noise.
    """
    head = min(1.0, record.get("head of inaturalist", 1.0))
    found = {}
    for one in SETTINGS:
        rates = record["rates"]
        rate = rates.get(f"{one.model}, compiled") or rates[f"{one.model}, eager"]
        share = head if one.dataset == "inaturalist" else 1.0
        found[one.title] = gpu_hours(one, share * rate["images_per_second"])
    return found


def measure(given, save):
    """Fill a record part by part."""
    started = time.perf_counter()
    device = torch.device(given.device)
    on_gpu = device.type == "cuda"
    setting = Setting(
        device, batch=given.batch, size=given.size, steps=given.steps, rounds=given.rounds
    )
    name = torch.cuda.get_device_name(device) if on_gpu else processor_name()
    record = {
        "device": name,
        "processor": f"{processor_name()}, {os.cpu_count()} cores",
        "versions": {"longtail": longtail.__version__, "torch": torch.__version__},
        "setting": {"batch": given.batch, "pixels": given.size, "precision": "bfloat16"},
        "triton": available(device),
        "rates": {},
        "against the bare loop": {},
    }

    def done(part):
        record["seconds"] = time.perf_counter() - started
        print(f"{record['seconds']:6.0f} s  {part}", flush=True)
        conclude(record)
        save(record)

    record["loader"] = loader_rate(files=given.files, seconds=given.seconds, size=given.size)
    done("loader")
    reading = {"files": given.files, "seconds": given.seconds}
    record["from files"] = from_files(setting, "resnet50", **reading)
    free(setting)
    done("from files")
    imagenet, large = CLASSES["imagenet-lt"], CLASSES["inaturalist"]
    for compiled in (False, True) if given.compile else (False,):
        mode = "compiled" if compiled else "eager"
        found = against_bare(setting, "resnet50", compiled=compiled)
        record["against the bare loop"][mode] = found
        record["rates"][f"resnet50, {mode}"] = found["trainer"]
        free(setting)
        done(f"against the bare loop, {mode}: {found['ratio']:.3f}")
        if not compiled:
            wide = trainer_rate(setting, "resnet50", num_classes=large, compiled=False)
            narrow = found["trainer"]["images_per_second"]
            record["head of inaturalist"] = wide["images_per_second"] / narrow
            free(setting)
        left = given.minutes * 60 - (time.perf_counter() - started)
        if not compiled or left > SLOW:
            rate = trainer_rate(setting, "resnet152", num_classes=imagenet, compiled=compiled)
            record["rates"][f"resnet152, {mode}"] = rate
            free(setting)
            done(f"resnet152, {mode}")
    return record


def conclude(record):
    """Summary of the parts that are there, written after each of them."""
    known = {key.split(",")[0] for key in record["rates"]}
    if known >= set(DEPTHS):
        record["hours"] = hours(record)
    if "resnet50" in known:
        fastest = max(r["images_per_second"] for k, r in record["rates"].items() if "50," in k)
        loader = record["loader"]
        loader["of what the GPU takes"] = loader["images_per_second"] / fastest


def free(setting):
    """Forget what was compiled and give memory back, before another network comes."""
    gc.collect()
    torch.compiler.reset()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()


def show(record):
    setting = record["setting"]
    print(
        f"{record['device']}, torch {record['versions']['torch']}: {setting['pixels']} px, batches "
        f"of {setting['batch']}, {setting['precision']}"
    )
    print(f"{'images a second':32}{'median':>9}{'range':>16}")
    for name, rate in record["rates"].items():
        span = f"{rate['least']:.0f} – {rate['most']:.0f}"
        print(f"{name:32}{rate['images_per_second']:9.0f}{span:>16}")
    for mode, found in record["against the bare loop"].items():
        rate = found["bare loop"]["images_per_second"]
        print(f"{'bare loop, resnet50, ' + mode:32}{rate:9.0f}   trainer/bare {found['ratio']:.3f}")
    loader = record["loader"]
    print(
        f"loader: {loader['images_per_second']:.0f} images a second with {loader['workers']} "
        f"workers, {loader.get('of what the GPU takes', float('nan')):.2f} of what the GPU takes"
    )
    rate = record["from files"]["images_per_second"]
    print(f"from JPEG files to gradients, resnet50, eager: {rate:.0f} images a second")
    for title, kinds in record.get("hours", {}).items():
        cells = ", ".join(f"{name} {value:.1f}" for name, value in kinds.items())
        print(f"GPU hours, {title}: {cells}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, help="measure, and write the record here")
    parser.add_argument("--show", type=Path, help="print the tables of a record")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=20, help="of each round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--files", type=int, default=400, help="JPEGs to write and read")
    parser.add_argument("--seconds", type=float, default=15.0, help="to read them for")
    parser.add_argument("--minutes", type=float, default=8.0, help="that all may take")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    given = parser.parse_args(arguments)
    if given.record:

        def save(record):
            whole = given.record.with_suffix(".tmp")
            whole.write_text(json.dumps(record, indent=1) + "\n")
            whole.rename(given.record)  # a kill leaves the parts before

        show(measure(given, save))
    elif given.show:
        show(json.loads(given.show.read_text()))
    else:
        parser.error("give --record or --show")


if __name__ == "__main__":
    main()
