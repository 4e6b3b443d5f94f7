"""The training loop, once for every method, data set and number of runs.

`train_cohort` trains several runs of one data set; a single run is a cohort of one. On a CPU
the runs follow one another. Training never sees a test set: `evaluate` opens it later, from the
finished run's folder.

A run's randomness comes from its seed, a purpose and the epoch, through `stream_seed`, never
from a global generator: what its neighbours do can't change it, and two methods with one seed
start from the same weights and see the same batches, so that their difference is paired.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from longtail import margins, models
from longtail.data.images import ImageSet
from longtail.data.subsets import held_out_split
from longtail.losses import PairwiseMarginLoss
from longtail.runs import Run, RunSpec, RunWriter
from longtail.train.recipe import Recipe, learning_rate

Progress = Callable[[int, int, str], None]


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed for one purpose of one run, unrelated to those of other purposes and indices.

    Examples:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


def normalized(images: ImageSet, recipe: Recipe) -> Tensor:
    """Pixels as float32, scaled to [0, 1], less the recipe's mean, over its deviation."""
    pixels = torch.from_numpy(images.images).float() / images.pixel_range
    mean = torch.tensor(recipe.mean).view(1, -1, 1, 1)
    std = torch.tensor(recipe.std).view(1, -1, 1, 1)
    return (pixels - mean) / std


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters."""
    if recipe.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.optimizer == "nesterov",
    )


class Trainee:
    """One run of a cohort: its network, its loss, its optimiser and its batches.

    Args:
        recipe: how to train.
        criterion: the loss, a module of (logits, target).
        images: what to train on.
        seed: of this run.
    """

    def __init__(
        self, recipe: Recipe, criterion: nn.Module, images: ImageSet, *, seed: int
    ) -> None:
        self.recipe, self.criterion, self.seed = recipe, criterion, seed
        self.pixels = normalized(images, recipe)
        self.labels = torch.from_numpy(images.labels)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "weights"))
            self.model = models.build(
                recipe.model, num_classes=images.num_classes, image_shape=images.image_shape
            )
        self.optimizer = make_optimizer(self.model, recipe)
        self.steps_per_epoch = -(-len(images) // recipe.batch_size)

    def train_epoch(self, epoch: int) -> float:
        """One pass over the data in this epoch's order; the mean loss of its examples."""
        order = torch.Generator().manual_seed(stream_seed(self.seed, "order", epoch))
        batches = torch.split(
            torch.randperm(len(self.labels), generator=order), self.recipe.batch_size
        )
        total = torch.zeros((), dtype=torch.float64)
        self.model.train()
        for number, batch in enumerate(batches):
            step = epoch * self.steps_per_epoch + number
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.recipe, step, self.steps_per_epoch)
            loss = self.criterion(self.model(self.pixels[batch]), self.labels[batch])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.detach().double() * len(batch)
        return float(total) / len(self.labels)


def train_cohort(
    specs: Sequence[RunSpec],
    images: ImageSet,
    *,
    root: Path | str,
    command: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Run]:
    """Train several runs of one data set, each into its folder below `root`.

    A run that is finished already is opened and not trained again.

    Args:
        specs: what to train; all name the data set that `images` is.
        images: the training set, before anything is held out of it. No test set comes here.
        root: the folder of runs.
        command: what to type to do this again, for the record.
        force: train finished runs again.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The finished runs, in the order of `specs`.
    """
    total = sum(Recipe.of(spec).epochs for spec in specs)
    done, runs = 0, []
    for spec in specs:
        report = None
        if progress is not None:
            what = f"{spec.method.name}, seed {spec.seed}"
            report = partial(_report, progress, before=done, total=total, what=what)
        runs.append(
            train(spec, images, root=root, command=command, force=force, after_epoch=report)
        )
        done += Recipe.of(spec).epochs
    return runs


def _report(progress: Progress, epoch: int, *, before: int, total: int, what: str) -> None:
    progress(before + epoch, total, what)


def train(
    spec: RunSpec,
    images: ImageSet,
    *,
    root: Path | str,
    command: str | None = None,
    force: bool = False,
    after_epoch: Callable[[int], None] | None = None,
) -> Run:
    """Train one run; see `train_cohort`.

    What the spec holds out of training gets its logits written as the split ``held-out``.
    """
    folder = Path(root) / spec.folder
    if (folder / "run.json").exists() and not force:
        run = Run.open(folder, verify=False, unfinished=True)
        if run.finished:
            return run
    recipe = Recipe.of(spec)
    kept, held = np.arange(len(images)), None
    if spec.dataset.held_out:
        kept, held = held_out_split(
            images.labels, fraction=spec.dataset.held_out, seed=stream_seed(spec.seed, "held-out")
        )
    part = images.take(kept)
    writer = RunWriter.create(
        root,
        spec,
        prior=part.prior,
        data=images.fingerprint,
        command=command,
        class_names=images.class_names,
        force=True,
    )
    margin = margins.by_name(spec.method.name, part.prior, **spec.method.settings)
    trainee = Trainee(recipe, PairwiseMarginLoss(margin), part, seed=spec.seed)
    started = time.monotonic()
    for epoch in range(recipe.epochs):
        writer.log(epoch=epoch + 1, loss=trainee.train_epoch(epoch))
        if after_epoch is not None:
            after_epoch(epoch + 1)
    seconds = time.monotonic() - started
    writer.write_model(trainee.model.state_dict())
    if held is not None:
        write_split(writer, trainee.model, images.take(held), recipe, split="held-out")
    return writer.finish(
        seconds=seconds, parameters=sum(p.numel() for p in trainee.model.parameters())
    )


def write_split(
    writer: RunWriter, model: nn.Module, images: ImageSet, recipe: Recipe, *, split: str
) -> None:
    """Write the network's logits on a split, with the head's norms and bias beside them."""
    model.eval()
    with torch.inference_mode():
        batches = torch.split(normalized(images, recipe), 1024)
        logits = torch.cat([model(batch).float() for batch in batches])
    norms, bias = models.head_norms_and_bias(model)
    writer.write_logits(
        split, logits, images.labels, norms=norms, bias=bias, data=images.fingerprint
    )


def evaluate(run: Run, images: ImageSet, *, split: str = "test") -> Run:
    """Write a finished run's logits on a split it has not seen, once.

    Tuning, post-hoc methods, metrics and reports read these logits; none of them needs the
    network again, and nothing flows back into training.

    Args:
        run: a finished run, with its weights.
        images: the split.
        split: its name.

    Returns:
        The run, reopened.
    """
    if split in run.splits:
        return run
    recipe = Recipe.of(run.spec)
    model = models.build(
        recipe.model, num_classes=run.prior.num_classes, image_shape=images.image_shape
    )
    # A copy: the file's arrays are read-only maps, which torch can't take.
    model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in run.model().items()})
    write_split(RunWriter.reopen(run.folder), model, images, recipe, split=split)
    return Run.open(run.folder, verify=False)
