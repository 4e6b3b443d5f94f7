"""Teachers: finished runs whose mean logits other runs learn from.

A student's spec names its teachers, so its hash depends on them; their folders are looked for
below the same folder of runs, or given. A `TeacherPool` opens and checks them before anything is
trained; then they answer together, many images at a time (`Teachers`). Where images come
unaugmented, saved logits on the training images may stand for the networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.models.stacked import can_stack, stack
from longtail.runs import Run, RunError, RunSpec, Settings, files, mean_logits
from longtail.runs.ensemble import logit_scale, trained_seeds
from longtail.runs.folder import MODEL, TEACHERS, logits_file
from longtail.train.checkpoint import as_tensors
from longtail.train.loop import new_network
from longtail.train.prefetch import Resident
from longtail.train.recipe import Recipe

SAVED = "teacher_logits"  # the setting of a student that learns from saved logits
SPLIT = "train"  # the split of a run that holds its logits on the training images


def with_teachers(spec: RunSpec, teachers: Iterable[Run | str], *, saved: bool = False) -> RunSpec:
    """Return a student's spec: with the names of its teachers, in one order however given.

    Args:
        spec: of a run whose recipe has a `distill_weight`.
        teachers: runs, or their names.
        saved: learn from their saved logits on the training images instead of their networks.

    Examples:
        >>> spec = RunSpec("digits-lt", "small-conv", "softmax", "digits")
        >>> names_of(with_teachers(spec, ["digits-lt/b-s0-0", "digits-lt/a-s0-1"]))
        ('digits-lt/a-s0-1', 'digits-lt/b-s0-0')
    """
    names = sorted(one if isinstance(one, str) else one.name for one in teachers)
    for name in {name for name in names if names.count(name) > 1}:
        raise InputError(f"train: the teacher {name} is named twice; each counts once.")
    found = {TEACHERS: names, **({SAVED: True} if saved else {})}
    return replace(spec, settings=Settings({**spec.settings, **found}))


def names_of(spec: RunSpec) -> tuple[str, ...]:
    """Return the names of a student's teachers, ``<dataset>/<method>-s<seed>-<hash8>``."""
    return tuple(spec.settings.get(TEACHERS, ()))


class TeacherPool:
    """Teachers of some runs of one training set, opened and checked.

    They are looked for by their names below `root`, and among those `given`.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        images: ImageSet | ListedImages,
        *,
        root: Path | str,
        given: Sequence[Run] = (),
    ) -> None:
        self._runs = {run.name: run for run in given}
        self._ready: dict[tuple[object, ...], Teachers | Tensor] = {}
        for spec in specs:
            for name in names_of(spec):
                if name not in self._runs:
                    if not (Path(root) / name).exists():
                        raise RunError(
                            f"train: {spec.folder.as_posix()} learns from {name}, which is not in "
                            f"{root}; say where all its teachers are: --teachers RUN..."
                        )
                    self._runs[name] = Run.open(Path(root) / name)
                check_teacher(self._runs[name], spec, images)

    def pin(self, folder: Path, spec: RunSpec) -> None:
        """Record in a student's folder which weights teach it, or hold it to those there.

        A teacher that was trained again has the same name; a student that goes on must not mix
        the two.
        """
        what = logits_file(SPLIT) if SAVED in spec.settings else MODEL
        weights = {name: str(self._runs[name].record["files"][what]) for name in names_of(spec)}
        path = folder / "teachers.json"
        if weights and not path.exists():
            files.write_json(path, weights)
        elif weights and files.read_json(path) != weights:
            raise RunError(
                f"{folder} was begun with other weights of its teachers, which were trained again "
                f"since; pass `force=True` to begin again."
            )

    def ready(
        self, spec: RunSpec, recipe: Recipe, data: Resident, device: torch.device
    ) -> Teachers | Tensor | None:
        """Return a student's teachers on the device, or their saved logits; None without any."""
        runs, saved = [self._runs[name] for name in names_of(spec)], SAVED in spec.settings
        key = (names_of(spec), saved, recipe.mean, recipe.std)
        if runs and key not in self._ready:
            if saved:
                logits = np.array(mean_logits(runs, split=SPLIT).logits, np.float32)
                self._ready[key] = torch.from_numpy(logits).to(device)
            else:
                self._ready[key] = Teachers(runs, recipe, data, device=device)
        return self._ready.get(key)


def check_teacher(run: Run, student: RunSpec, images: ImageSet | ListedImages) -> None:
    """Refuse a teacher that can't teach, or that has seen what it must not have."""
    held_out, problem = student.dataset.held_out, None
    # The seed says which examples are held out.
    same_part = run.spec.dataset.held_out == held_out and trained_seeds(run.spec) == {student.seed}
    if run.data != images.fingerprint:
        problem = (
            f"was trained on other data than its student would be (fingerprint {run.data[:16]} "
            f"against {images.fingerprint[:16]}), which may hold images of the development or the "
            f"test set."
        )
    elif held_out and not same_part:
        problem = (
            f"may have seen images that its student holds out; it, and every member of an "
            f"ensemble, must be trained with --held-out {held_out:g} and seed {student.seed}."
        )
    elif SAVED in student.settings:
        run.logits(SPLIT)  # says how to make them
        if run.record["splits"][SPLIT]["data"] != images.fingerprint:
            problem = (
                f"has saved logits of other images than the training set, or in another order; "
                f"write them with: {run.evaluation(SPLIT)} --force"
            )
    elif run.members and not run.has_model:
        problem = f"is an ensemble; name its members as teachers instead: {', '.join(run.members)}."
    else:
        run.model()  # says why there are no weights
    if problem is not None:
        raise RunError(f"train: the teacher {run.folder} {problem}")


class Teachers:
    """Several networks that answer as one: their mean logits, as `runs.mean_logits` takes it.

    On a GPU they compute in bfloat16, those of one architecture stacked if it is narrow (see
    `models.stacked.can_stack`); on a CPU they follow one another in float32.

    Args:
        runs: finished, with their weights.
        recipe: of the students, which says how their images are normalised.
        data: of the students, for its number of classes and image shape.
        device: where they answer.
        stacked: narrow networks of one architecture side by side; if None, on a GPU.

    Attributes:
        groups: networks side by side, how many, and the scale of their logits; and by what a
            student's images are multiplied, and what is added, to be normalised as theirs.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        recipe: Recipe,
        data: Resident,
        *,
        device: torch.device,
        stacked: bool | None = None,
    ) -> None:
        self.device, self.count, self.num_classes = device, len(runs), data.num_classes
        on_gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        groups: dict[tuple[Any, ...], list[nn.Module]] = {}
        for number, run in enumerate(runs):
            own, scale = Recipe.of(run.spec), logit_scale(run.spec.method)
            network = new_network(own, data, seed=run.spec.seed)
            network.load_state_dict(as_tensors(run.model()))
            together = (on_gpu if stacked is None else stacked) and can_stack(own.model)
            alone = None if together else number
            key = (scale, own.mean, own.std, own.model, own.head, own.head_scale, alone)
            groups.setdefault(key, []).append(network)
        self.groups: list[tuple[Any, int, float, Tensor, Tensor]] = []
        for (scale, *theirs, _, _, _, _), group in groups.items():
            network = stack(group).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            network.eval().requires_grad_(False)
            my_mean, my_std, mean, std = (
                torch.tensor(values, device=device).view(1, -1, 1, 1)
                for values in (recipe.mean, recipe.std, *theirs)
            )
            self.groups.append((network, len(group), scale, my_std / std, (my_mean - mean) / std))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the mean logits, float32, of images as the students see them."""
        total = torch.zeros(len(images), self.num_classes, device=self.device)
        for network, size, scale, factor, shift in self.groups:
            each = (images * factor + shift).to(self.dtype).repeat(1, size, 1, 1)
            low = self.dtype == torch.bfloat16
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
                features = network.features(each.contiguous(memory_format=torch.channels_last))
            logits = network.fc(features.float())
            total.add_(logits.view(size, len(images), -1).sum(dim=0), alpha=scale)
        return total / self.count
