"""Pretrained weights as a start: read from a file and matched to a network by names and shapes.

A run's spec names the fingerprint of its weights, so other weights are another run. Only the start
needs the file: a run that goes on has its checkpoint.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail import runs
from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.models.heads import head_factory
from longtail.models.resnet import DESIGNS, ResNet
from longtail.runs import RunError, RunSpec, Settings
from longtail.train.loop import new_network
from longtail.train.recipe import Recipe

SETTING = "weights"  # of a run's spec: the fingerprint of what it started from


@dataclass(frozen=True, eq=False)
class Weights:
    """A network's tensors by torchvision's names, and what messages call their file."""

    source: str
    tensors: Mapping[str, Tensor]

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits: equal exactly if names and values are."""
        names = sorted(self.tensors)
        text = np.frombuffer("\n".join(names).encode(), np.uint8)
        values = (self.tensors[name].to(torch.float32).numpy() for name in names)
        return runs.fingerprint(text, *values)[:16]

    def fitting(self, own: Mapping[str, Tensor], *, model: str) -> dict[str, Tensor]:
        """Return the tensors for a network's state: all, or all but a last layer of another shape.

        `model` is the network's name, for the message.
        """
        wanted, given = _shapes(own), _shapes(self.tensors)
        odd = [n for n in dict.fromkeys([*own, *self.tensors]) if wanted.get(n) != given.get(n)]
        for name in odd:
            # Old files lack batch norm's counters.
            uncounted = name.endswith("num_batches_tracked") and name not in given
            if not name.startswith("fc.") and not uncounted:
                file, network = (some.get(name, "absent") for some in (given, wanted))
                raise InputError(
                    f"{self.source} does not fit {model}; the first tensor that differs is {name}: "
                    f"{file} in the file, {network} in the network."
                )
        headless = any(name.startswith("fc.") for name in odd)
        return {
            name: self.tensors[name]
            for name in own
            if name not in odd and not (headless and name.startswith("fc."))
        }

    def fitting_run(self, spec: RunSpec, images: ImageSet | ListedImages) -> dict[str, Tensor]:
        """Return the tensors that a run's network takes, see `fitting`."""
        with torch.device("meta"):  # shapes without memory
            own = new_network(Recipe.of(spec), images, seed=0).state_dict()
        return self.fitting(own, model=spec.model.name)

    def left_out(self, spec: RunSpec, images: ImageSet | ListedImages) -> list[str]:
        """Return a line on the last layer, if a run does not take it."""
        layer = self.tensors.get("fc.weight")
        if layer is None or "fc.weight" in self.fitting_run(spec, images):
            return []
        return [
            f"The last layer of {self.source}, for {len(layer):,} classes, is left out: "
            f"{spec.dataset.name} has {images.num_classes:,}."
        ]

    def find_model(self) -> str:
        """Return the name of the network that these tensors are of, whatever its last layer."""
        first, given = self.tensors.get("conv1.weight"), _shapes(self.tensors).items()
        channels = 3 if first is None or first.ndim != 4 else first.shape[1]
        states = {}
        for name, design in DESIGNS.items():
            with torch.device("meta"):
                head = head_factory("linear", num_classes=2)
                states[name] = ResNet(design, channels=channels, head=head).state_dict()
        nearest = min(states, key=lambda name: len(given ^ _shapes(states[name]).items()))
        if not given & _shapes(states[nearest]).items():
            raise InputError(
                f"{self.source} has none of the tensors of {', '.join(DESIGNS)}; their names are "
                f"torchvision's, such as conv1.weight and layer1.0.conv1.weight; it has "
                f"{', '.join(list(self.tensors)[:3])}."
            )
        self.fitting(states[nearest], model=nearest)
        return nearest


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def read_weights(path: Path | str) -> Weights:
    """Return the weights of a safetensors file, or of a torch file with a state dict.

    A torch file is read with ``weights_only=True``: nothing in it is run. Of a training checkpoint
    the entry ``state_dict`` is taken, and the prefix ``module.`` of DataParallel is dropped.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    with open(path, "rb") as file:
        head = file.read(9)
    try:
        if head[8:] == b"{":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(
            f"{path} is neither a safetensors file nor a torch file of tensors alone; save the "
            f"network's state dict: safetensors.torch.save_file(model.state_dict(), FILE)."
        ) from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path} must hold a state dict, names and tensors.")
    tensors = {name.removeprefix("module."): value.detach() for name, value in found.items()}
    return Weights(path.name, tensors)


def with_weights(spec: RunSpec, weights: Weights) -> RunSpec:
    """Return the spec of a run that starts from these weights."""
    return replace(spec, settings=Settings({**spec.settings, SETTING: weights.fingerprint}))


def check_start(spec: RunSpec, weights: Weights | None) -> None:
    """Refuse a spec that names other weights than the ones given, or weights where it has none."""
    named, given = spec.settings.get(SETTING), None if weights is None else weights.fingerprint
    if named == given:
        return
    if named is None:
        raise InputError(
            "train: weights are given, but a spec names none; make it with with_weights(spec, "
            "weights)."
        )
    came = "none are given" if weights is None else f"{weights.source} has {given}"
    raise RunError(
        f"train: {spec.folder.as_posix()} starts from weights with the fingerprint {named}, but "
        f"{came}; say where they are: --weights FILE (weights=)."
    )


def started(state: Mapping[str, Tensor], spec: RunSpec, weights: Weights) -> dict[str, Tensor]:
    """Return a run's state as training begins, with the weights in their places.

    In it the network's tensors are called ``model/<name>``, as in a checkpoint.
    """
    own = {k.removeprefix("model/"): v for k, v in state.items() if k.startswith("model/")}
    taken: dict[str, Any] = weights.fitting(own, model=spec.model.name)
    return {**state, **{f"model/{name}": value for name, value in taken.items()}}
