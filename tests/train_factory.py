"""Small trainings: their images, plans and steppers, and how a test interrupts one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from data_factory import pixels
from longtail.data.digits import load_digits_lt
from longtail.data.images import ImageSet
from longtail.train.augment import normalize
from longtail.train.cuda_graphs import place
from longtail.train.distributed import ALONE
from longtail.train.engine import train
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.streamed import StreamedTraining, Streaming

CPU = torch.device("cpu")
DIGITS = load_digits_lt()
COUNTS = (30, 12, 5)
HERE = Streaming(workers=0)
SMALL = {"model": "small-conv", "epochs": 3, "batch_size": 16, "image_size": 16, "lr": 0.05}
SMALL |= {"warmup_epochs": 1}


def digits_spec(method="softmax", seed=0, *, held_out=0.0, **overrides):
    """The spec of a run on DIGITS."""
    dataset = replace(DIGITS.spec, held_out=held_out)
    return make_spec(dataset, method=method, recipe="digits", seed=seed, overrides=overrides)


def uncropped(images, recipe):
    """Images in memory as the network takes them."""
    options = {"mean": recipe.mean, "std": recipe.std, "pixel_range": images.pixel_range}
    return normalize(torch.from_numpy(images.images), **options)


def make_images(counts=COUNTS, side=8):
    """A set of three classes in memory."""
    images, labels = pixels(sum(counts), shape=(3, side, side)), np.repeat(np.arange(3), counts)
    return ImageSet(images, labels, ("a", "b", "c"))


def make_planner(recipe, data, method="softmax", seed=0):
    """The plan of a run that trains on all examples."""
    kept = np.arange(len(data.labels))
    return Planner(recipe, Method.of(method), data.labels, kept, data.prior, seed=seed)


def make_stepper(planners, images, *, device=CPU, graphs=True, **options):
    """Runs on images in memory that step as one."""
    data = Resident(images, device)
    make = partial(Training, planners, data, device=device, **options)
    return place(make, device=device, graphs=graphs) if device.type == "cuda" else make()


def make_streamed(data, method="softmax", *, world=ALONE, how=HERE, device=CPU, **overrides):
    """A run on images from disk; `precision` and overrides of the recipe by name."""
    options = {"world": world, "how": how, "device": device}
    options["precision"] = overrides.pop("precision", "float32")
    planner = make_planner(get_recipe("imagenet-lt", **SMALL | overrides), data, method)
    make = partial(StreamedTraining, planner, data, **options)
    return place(make, device=device, graphs=False) if device.type == "cuda" else make()


def listed_spec(data, method="softmax", *, held_out=0.0, **overrides):
    """The spec of a run on images from disk."""
    of_data, overrides = replace(data.spec, held_out=held_out), SMALL | overrides
    return make_spec(of_data, method=method, recipe="imagenet-lt", seed=0, overrides=overrides)


class Stop(Exception):
    """Exception that interrupts a training."""


def interrupt(spec, images, *, epoch, **options):
    """Train until the end of an epoch, before that epoch is saved."""

    def stop(end):
        if end.epoch == epoch:
            raise Stop

    with pytest.raises(Stop):
        train(spec, images, checkpoint_seconds=0.0, after_epoch=stop, **options)


def resumed(spec, images, folder, *, epoch, **options):
    """A run that goes on after an interruption, to the bits of one that nothing disturbed."""
    whole = train(spec, images, root=folder / "whole", **options)
    interrupt(spec, images, epoch=epoch, root=folder / "parts", **options)
    run = train(spec, images, root=folder / "parts", **options)
    assert len(run.record["resumed"]) == 1
    assert not list(run.folder.glob("checkpoint-*"))
    assert same_files(run, whole)
    return run


def same_files(run, other):
    """Return whether two runs have the same bits, however often they were interrupted."""
    names = {"model.safetensors", "log.jsonl", "logits-held-out.safetensors"}
    names &= {path.name for path in (*run.folder.iterdir(), *other.folder.iterdir())}
    return all((run.folder / n).read_bytes() == (other.folder / n).read_bytes() for n in names)


def step_together(together, alone, *, rtol):
    """Step two epochs; the losses of the runs that step as one are those that each has alone."""
    for epoch in range(2):
        losses = run_epoch([together], [epoch])[0]
        expected = [run_epoch([one], [epoch])[0][0] for one in alone]
        np.testing.assert_allclose(losses, expected, rtol=rtol)


def assert_uniform(drawn, count):
    """Numbers below `count`, each as often as the others: chi-square, five standard deviations."""
    counts = torch.bincount(drawn, minlength=count).double()
    assert len(counts) == count
    expected = len(drawn) / count
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < count - 1 + 5 * (2 * (count - 1)) ** 0.5
