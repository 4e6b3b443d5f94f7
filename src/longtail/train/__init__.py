"""Training: recipes are data, training is one loop, and a single run is a cohort of one.

In the order in which a run goes through them:

recipe        epochs, optimiser, schedule, normalisation; the named recipes
own_data      what follows from one's own images: network, image size, normalisation, epochs
pretrained    weights to start from
methods       losses, DRW, label smoothing and sampling by name
validate      checks of runs, images and processes before any training
engine        runs into their folders: log, checkpoint, finish
plan          the order of an epoch's examples and everything random about their images
prefetch      batches of many steps, made at once; with augment, trivial, mixing
loop          forward, loss, backward, step; with optimizers, sam, averaging, distillation
cuda_graphs   the same step captured and replayed on a GPU
checkpoint    what a killed run goes on from
evaluation    a finished run's logits on a split
teachers      finished runs that others learn from
streamed      the loop for photographs on disk, in any number of processes (distributed)
sharded       the same with a classifier that is cut over the processes; sharded_head, for one's
              own training loop too
tensorboard   an epoch's numbers for TensorBoard
"""

from __future__ import annotations

import importlib
from typing import Any

from longtail import _checks

_HOMES = {
    "EpochEnd": "engine",
    "Method": "methods",
    "RECIPES": "recipe",
    "Recipe": "recipe",
    "StoppedError": "engine",
    "Streaming": "streamed",
    "evaluate": "evaluation",
    "get_recipe": "recipe",
    "make_spec": "recipe",
    "predict": "evaluation",
    "read_weights": "pretrained",
    "train": "engine",
    "train_cohort": "engine",
    "with_teachers": "teachers",
    "with_weights": "pretrained",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] not in ("methods", "recipe"):
        _checks.require("torch", extra="train")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
