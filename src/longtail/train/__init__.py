"""Training: recipes are data, training is one loop, and a single run is a cohort of one.

In the order in which a run goes through them:

recipe, methods       how to train, and with which loss, weights and sampling, by name
own_data, pretrained  what follows from one's own images; weights to start from
validate              checks of runs, images and processes before any training
engine                runs into their folders: log, checkpoint, finish
plan, prefetch        an epoch's order and randomness; its batches (augment, trivial, mixing)
loop                  batches, forward, loss, backward, step (optimizers, sam, averaging,
                      distillation)
cuda_graphs           the same step captured and replayed on a GPU
checkpoint            what a killed run goes on from
evaluation            a finished run's logits on a split
teachers              finished runs that others learn from
streamed              the loop for photographs on disk, in any number of processes (distributed)
sharded, sharded_head a classifier cut over the processes; also for one's own training loop
tensorboard           an epoch's numbers for TensorBoard
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
