"""Logits of a trained network on images it has not seen, written once into the run.

Tuning, post-hoc methods, metrics and reports read these logits; nothing flows back into training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from longtail import models
from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.runs import Run, RunError, RunWriter, files
from longtail.runs.folder import same_images
from longtail.train import checkpoint
from longtail.train.augment import normalize
from longtail.train.distributed import ALONE, World
from longtail.train.loop import new_network
from longtail.train.prefetch import as_tensor
from longtail.train.recipe import Recipe
from longtail.train.streamed import Streaming, judging, stream_logits

Images = ImageSet | ListedImages
LARGEST_LOGITS = 2**36  # bytes of a split's logits; they are one array in memory, and one file


def network_logits(
    model: nn.Module,
    images: Images,
    recipe: Recipe,
    *,
    world: World = ALONE,
    streaming: Streaming | None = None,
    gathered: bool = True,
) -> Any:
    """Return the logits on images as they are, on the first process; None on the others.

    float32, shape (examples, num_classes). Of images on disk each process computes a part. With
    `gathered=False` a sharded classifier gives its predictions instead, and its logits are never
    put together.
    """
    if isinstance(images, ListedImages):
        compute: Callable[..., Any] = stream_logits
        if recipe.classifier == "sharded":
            from longtail.train import sharded

            compute = sharded.sharded_logits if gathered else sharded.sharded_predictions
        return compute(model, images, recipe, world=world, how=streaming)
    if world.rank > 0:
        return None
    network: Any = model
    device = next(model.parameters()).device
    color: dict[str, Any] = {"mean": recipe.mean, "std": recipe.std}
    color["pixel_range"] = images.pixel_range
    with judging(model):
        found = [
            network.fc(network.features(normalize(batch.to(device), **color))).float().cpu()
            for batch in torch.split(as_tensor(images), 1024)
        ]
    return torch.cat(found).numpy()


def refuse_logits(examples: int, num_classes: int, *, what: str, instead: str) -> None:
    """Refuse logits that no run folder should hold, before they are computed."""
    size = 4 * examples * num_classes
    if size > LARGEST_LOGITS:
        raise InputError(
            f"the logits of {what}, {examples:,} examples by {num_classes:,} classes, take "
            f"{size / 1e9:,.0f} GB, more than the {LARGEST_LOGITS / 1e9:.0f} GB that a run folder "
            f"holds; {instead}."
        )


def evaluate(
    run: Run,
    images: Images,
    *,
    split: str = "test",
    device: torch.device | str = "cpu",
    replace: bool = False,
    world: World = ALONE,
    streaming: Streaming | None = None,
) -> Run:
    """Write a finished run's logits on a split it has not seen, once.

    Logits that are there are kept if they are of these images, and refused if not.

    Args:
        run: a finished run, with its weights.
        images: the split.
        split: its name.
        device: where to compute.
        replace: write again what is there already.
        world: the processes that share images on disk, each with the same arguments.
        streaming: how those are read; None for the defaults.

    Returns:
        The run, reopened.
    """
    if world.tell(split in run.splits) and not replace:
        if split in run.splits:  # another process may not see them yet
            same_images(run, images.fingerprint, split=split)
        return run
    instead = "count the errors without them (longtail evaluate --errors-only)"
    refuse_logits(len(images), run.prior.num_classes, what=f"the {split} set", instead=instead)
    with files.exclusive(run.folder) if world.rank == 0 else nullcontext():
        model, recipe = trained_network(run, images, device=device, world=world)
        logits = network_logits(model, images, recipe, world=world, streaming=streaming)
        norms, bias = models.head_norms_and_bias(model)
        if logits is not None:
            if not np.isfinite(logits).all():
                raise RunError(
                    f"{run.folder}: its logits on the {split} set are not all finite: its training "
                    f"has diverged. Train it again with a lower lr."
                )
            RunWriter.reopen(run.folder).write_logits(
                split,
                logits,
                images.labels,
                norms=norms,
                bias=bias,
                data=images.fingerprint,
                replace=True,
            )
    world.tell()  # the others go on when it is written
    return Run.open(run.folder, verify=False)


def predict(
    run: Run,
    images: Images,
    *,
    device: torch.device | str = "cpu",
    world: World = ALONE,
    streaming: Streaming | None = None,
) -> np.ndarray | None:
    """Return the classes that a finished run predicts; nothing is written.

    For label spaces whose logits no folder can hold: those of a sharded classifier are never
    gathered.

    The arguments are those of `evaluate`. Shape (examples,), on the first process; None on others.
    """
    model, recipe = trained_network(run, images, device=device, world=world)
    how: dict[str, Any] = {"world": world, "streaming": streaming}
    found: np.ndarray | None = network_logits(model, images, recipe, gathered=False, **how)
    return found if found is None or found.ndim == 1 else found.argmax(1)


def trained_network(
    run: Run, images: Images, *, device: torch.device | str, world: World = ALONE
) -> tuple[nn.Module, Recipe]:
    """Return a finished run's network on a device, and its recipe."""
    recipe = Recipe.of(run.spec)
    if images.num_classes != run.prior.num_classes:
        raise InputError(
            f"evaluate: the images have {images.num_classes} classes but {run.folder} was trained "
            f"with {run.prior.num_classes}."
        )
    model = new_network(recipe, images, seed=run.spec.seed)
    model.load_state_dict(checkpoint.as_tensors(run.model()))
    if recipe.classifier == "sharded":
        from longtail.train.sharded import shard

        return shard(model, world, torch.device(device)), recipe
    return model.to(device), recipe
