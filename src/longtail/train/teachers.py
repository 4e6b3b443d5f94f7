"""Teachers: finished runs whose mean logits other runs learn from.

A student's spec names its teachers, so its hash depends on them; their folders are looked for
below the same folder of runs, or given. They are opened and checked here before anything is
trained (`Staff`), and then answer together, many images at a time (`Teachers`). Where images come
unaugmented, their logits on the training images may be saved ones, which need no networks. What a
student makes of the answers is in `team`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor, nn

from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.models.stacked import can_stack, stack
from longtail.runs import Run, RunError, RunSpec, Settings, files, mean_logits
from longtail.runs.ensemble import logit_scale, scaled_logits, trained_seeds
from longtail.runs.folder import MODEL, TEACHERS, logits_file
from longtail.train.recipe import Recipe
from longtail.train.team import Resident, new_network

SAVED = "teacher_logits"  # the setting of a student that learns from saved logits
SPLIT = "train"  # the split of a run that holds its logits on the training images
PINNED = "teachers.json"


def with_teachers(spec: RunSpec, teachers: Iterable[Run | str], *, saved: bool = False) -> RunSpec:
    """A student's spec: with the names of its teachers, in one order however they were given.

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
    """The names of a student's teachers, ``<dataset>/<method>-s<seed>-<hash8>``; often none."""
    return tuple(spec.settings.get(TEACHERS, ()))


def by_saved_logits(spec: RunSpec) -> bool:
    """Whether a student learns from saved logits."""
    return bool(spec.settings.get(SAVED, False))


def refuse_half(spec: RunSpec, recipe: Recipe) -> None:
    """Refuse a run that has teachers it would not listen to, or should listen to none."""
    if by_saved_logits(spec) and recipe.changes_images:
        raise InputError(
            f"train: recipe {recipe.name!r} crops, flips, augments or mixes images, but saved "
            f"logits are of images as they are; let the teachers' networks answer (without "
            f"--teacher-logits), or set crop_padding=0, flip=false and the like."
        )
    if names_of(spec) and recipe.distill_weight == 0:
        raise InputError(
            f"train: teachers are named, but recipe {recipe.name!r} has distill_weight 0, so they "
            f"would do nothing; take the recipe strong-student, whose method is "
            f"softmax+over-sampling, or set distill_weight (--set)."
        )
    if recipe.distill_weight and not names_of(spec):
        without = "distill_weight=0"  # with the values that then would do nothing
        without += " and distill_temperature=1" if recipe.distill_temperature != 1 else ""
        without += " and distill_adjusted=false" if recipe.distill_adjusted else ""
        raise InputError(
            f"train: recipe {recipe.name!r} has distill_weight {recipe.distill_weight:g} and needs "
            f"teachers; name their run folders (--teachers RUN), or set {without} (--set)."
        )


class Staff:
    """The teachers of some runs, opened and checked.

    Args:
        specs: of the runs, students or not.
        images: the training set that all of them share.
        root: the folder of runs, where teachers are looked for by their names.
        given: teachers that lie elsewhere.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        images: ImageSet | ListedImages,
        *,
        root: Path | str,
        given: Sequence[Run] = (),
    ) -> None:
        elsewhere = {run.name: run for run in given}
        wanted = {name for spec in specs for name in names_of(spec)}
        idle = sorted(set(elsewhere) - wanted)
        if specs and idle:
            raise InputError(
                f"train: {elsewhere[idle[0]].folder} is given as a teacher, but no run names it."
            )
        self._runs: dict[str, Run] = {}
        for spec in specs:
            for name in names_of(spec):
                if name not in self._runs:
                    self._runs[name] = elsewhere.get(name) or _teacher_of(spec, name, Path(root))
                check_teacher(self._runs[name], spec, images)
        self._answering: dict[tuple[object, ...], Teachers | Tensor] = {}

    def of(self, spec: RunSpec) -> list[Run]:
        """A student's teachers, in the order of their names; none for any other run."""
        return [self._runs[name] for name in names_of(spec)]

    def pin(self, folder: Path, spec: RunSpec) -> None:
        """Write down in a student's folder which weights teach it, or hold it to those there.

        A teacher that was trained again has the same name; a student that goes on must not mix
        the two.
        """
        if not names_of(spec):
            return
        what = logits_file(SPLIT) if by_saved_logits(spec) else MODEL
        weights = {run.name: str(run.record["files"][what]) for run in self.of(spec)}
        path = folder / PINNED
        if not path.exists():
            files.write_json(path, weights)
        elif files.read_json(path, caller="train") != weights:
            raise RunError(
                f"{folder} was begun with other weights of its teachers, which were trained again "
                f"since; pass --force (force=True) to begin again."
            )

    def answering(
        self, spec: RunSpec, recipe: Recipe, data: Resident, device: torch.device
    ) -> Teachers | Tensor | None:
        """A student's teachers ready to be asked; students with the same ones share them.

        Returns:
            The teachers, their saved logits of shape (examples, num_classes), or None.
        """
        if not names_of(spec):
            return None
        key = (names_of(spec), by_saved_logits(spec), recipe.mean, recipe.std)
        if key not in self._answering:
            runs = self.of(spec)
            self._answering[key] = (
                torch.from_numpy(_saved_logits(runs)).to(device)
                if by_saved_logits(spec)
                else Teachers(runs, recipe, data, device=device)
            )
        return self._answering[key]


def _teacher_of(student: RunSpec, name: str, root: Path) -> Run:
    """A teacher that was not given, from below the folder of runs."""
    if not (root / name).exists():
        raise RunError(
            f"train: {student.folder.as_posix()} learns from {name}, which is not in {root}; say "
            f"where all its teachers are: --teachers RUN..."
        )
    return Run.open(root / name)


def _saved_logits(runs: Sequence[Run]) -> NDArray[np.float32]:
    """The mean of the teachers' saved logits, shape (examples, num_classes)."""
    if len(runs) == 1:
        return np.array(scaled_logits(runs[0], split=SPLIT).logits, dtype=np.float32)
    return np.asarray(mean_logits(runs, split=SPLIT).logits, dtype=np.float32)


def check_teacher(run: Run, student: RunSpec, images: ImageSet | ListedImages) -> None:
    """Refuse a teacher that can't teach, or that has seen what it must not have.

    Args:
        run: the teacher; opening it has refused an unfinished one.
        student: whose teacher it is to be.
        images: the student's training set, before anything is held out of it.
    """
    if run.prior.num_classes != images.num_classes:
        raise RunError(
            f"train: the teacher {run.folder} has {run.prior.num_classes} classes but "
            f"{student.dataset.name} has {images.num_classes}."
        )
    if run.class_names is not None and run.class_names != images.class_names:
        raise RunError(
            f"train: the teacher {run.folder} has other classes, or the same in another order, "
            f"than {student.dataset.name}."
        )
    if run.data != images.fingerprint:
        raise RunError(
            f"train: the teacher {run.folder} was trained on other data than its student would be "
            f"(fingerprint {run.data[:16]} against {images.fingerprint[:16]}), which may hold "
            f"images of the development or the test set; teachers and students need one training "
            f"set."
        )
    _refuse_other_held_out(run, student)
    if by_saved_logits(student):
        run.logits(SPLIT)  # says how to make them
        if run.record["splits"][SPLIT]["data"] != images.fingerprint:
            raise RunError(
                f"train: the saved logits of {run.folder} are of other images than the training "
                f"set, or in another order; write them with: {run.evaluation(SPLIT)} --force"
            )
        return
    if not run.has_model and run.members:
        raise RunError(
            f"train: {run.folder} is an ensemble and has no weights of its own; name its members "
            f"as teachers instead: {', '.join(run.members)}."
        )
    run.model()  # says why there are no weights


def _refuse_other_held_out(run: Run, student: RunSpec) -> None:
    """Refuse a teacher that may have seen what its student holds out: the seed says which."""
    held_out, seeds = student.dataset.held_out, trained_seeds(run.spec)
    if not held_out or (run.spec.dataset.held_out == held_out and seeds == {student.seed}):
        return
    same = f"by --held-out {held_out:g} and seed {student.seed}"
    if run.members:
        known = ", ".join(map(str, sorted(seed for seed in seeds if seed is not None)))
        inner = "ensembles, whose seeds are not known" if None in seeds else ""
        members = " and ".join(filter(None, (known and f"runs of seed {known}", inner)))
        raise RunError(
            f"train: the teacher {run.folder} is an ensemble of {members}, trained with --held-out "
            f"{run.spec.dataset.held_out:g}, and its members may have seen images that its student "
            f"holds out; each of them must hold out the same, {same}."
        )
    raise RunError(
        f"train: the teacher {run.folder} was trained on images that its student holds out; "
        f"it must hold out the same, {same}."
    )


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
        stacked = device.type == "cuda" if stacked is None else stacked
        self.device, self.count, self.num_classes = device, len(runs), data.num_classes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        groups: dict[tuple[Any, ...], list[nn.Module]] = {}
        for number, run in enumerate(runs):
            own = Recipe.of(run.spec)
            network = new_network(own, data, seed=run.spec.seed)
            # A copy: the file's arrays are read-only maps, which torch can't take.
            tensors = {k: torch.from_numpy(np.array(v)) for k, v in run.model().items()}
            network.load_state_dict(tensors)
            alone = not (stacked and can_stack(own.model))
            place = number if alone else -1
            scale = logit_scale(run.spec.method)
            key = (own.mean, own.std, scale, own.model, own.head, own.head_scale, place)
            groups.setdefault(key, []).append(network)
        self.networks = [self._placed(stack(group)) for group in groups.values()]
        self.sizes = [len(group) for group in groups.values()]
        self.changes = [_renormalize(recipe, mean, std, device) for mean, std, *_ in groups]
        self.scales = [scale for _, _, scale, *_ in groups]

    def _placed(self, network: nn.Module) -> nn.Module:
        network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.eval().requires_grad_(False)

    def __call__(self, images: Tensor) -> Tensor:
        """The mean logits of all networks.

        Args:
            images: normalised as the students' are, float32, shape (examples, channels, height,
                width).

        Returns:
            float32, shape (examples, num_classes).
        """
        total = torch.zeros(len(images), self.num_classes, device=self.device)
        groups = zip(self.networks, self.sizes, self.changes, self.scales, strict=True)
        for network, size, change, scale in groups:
            pixels = images if change is None else images * change[0] + change[1]
            each = pixels.to(self.dtype).repeat(1, size, 1, 1)
            each = each.contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                with self._autocast():
                    features = network.features(each)  # type: ignore[operator]
                logits = network.fc(features.float())  # type: ignore[operator]
            total.add_(logits.view(size, len(images), -1).sum(dim=0), alpha=scale)
        return total / self.count

    def _autocast(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def _renormalize(
    student: Recipe, mean: Any, std: Any, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """What turns a student's pixels into a teacher's, x · scale + shift; None for nothing."""
    if (student.mean, student.std) == (mean, std):
        return None
    mine, my_std, theirs, their_std = (
        torch.tensor(values, device=device).view(1, -1, 1, 1)
        for values in (student.mean, student.std, mean, std)
    )
    return my_std / their_std, (mine - theirs) / their_std
