"""Ensembles: the mean logits of several runs, as a run folder that everything else reads.

It has no weights: its spec names the members, and its splits are those that were averaged. Where
the logits of several runs meet, here or in distillation, each run counts as the classifier that
its loss trained: `logit_scale` says what its logits are multiplied by first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longtail._checks import InputError
from longtail.margins import MARGINS
from longtail.runs.folder import MEMBERS, Run, RunError, RunWriter, SplitLogits, same_data
from longtail.runs.spec import DataSpec, Part, RecipeSpec, RunSpec, Settings

NAME = "ensemble"
_SEED = re.compile(rf"(?!{NAME}-s)[^/]+-s(\d+)-[0-9a-f]{{8}}")  # of the last part of a run's name


def ensemble_spec(dataset: DataSpec, members: Sequence[str]) -> RunSpec:
    """Return the spec of an ensemble: its data set and its members, in one order."""
    names = sorted(members)
    if len(set(names)) < max(2, len(names)):
        raise InputError(
            f"two or more different runs are needed; got {', '.join(names) or 'none'}."
        )
    settings = Settings({MEMBERS: names})
    return RunSpec(dataset, Part(NAME), Part(NAME), RecipeSpec(NAME), settings=settings)


def trained_seeds(spec: RunSpec) -> set[int | None]:
    """Return the seeds of the trainings behind a run: its own, or those of an ensemble's members.

    None stands for a member whose name does not tell, such as another ensemble.

    Examples:
        >>> members = ["digits-lt/softmax-s1-10db5896", "digits-lt/balanced-s2-0a1b2c3d"]
        >>> trained_seeds(ensemble_spec(DataSpec("digits-lt"), members)) == {1, 2}
        True
    """
    members = spec.settings.get(MEMBERS)
    if not members:
        return {spec.seed}
    found = [_SEED.fullmatch(str(name).rpartition("/")[2]) for name in members]
    return {None if match is None else int(match[1]) for match in found}


def logit_scale(method: Part) -> float:
    """Return s, by which a method's loss multiplies logits: it trains the classifier softmax(s·f).

    It is 1 except for LDAM, whose logits are cosines. The scale of a cosine head (`head_scale`)
    is part of the network, and so in f already.

    Examples:
        >>> logit_scale(Part("softmax+drw")), logit_scale(Part("ldam", {"scale": 20.0}))
        (1.0, 20.0)
    """
    loss = MARGINS.get(method.name.partition("+")[0])
    own = inspect.signature(loss).parameters.get("scale") if loss else None
    return 1.0 if own is None else float(method.settings.get("scale", own.default))


def scaled_logits(run: Run, *, split: str) -> SplitLogits:
    """Return a run's logits of a split, multiplied by the scale of its loss."""
    part, scale = run.logits(split), logit_scale(run.spec.method)
    return part if scale == 1 else part._replace(logits=scale * part.logits)


def mean_logits(runs: Sequence[Run], *, split: str) -> SplitLogits:
    """Return the mean of several runs' logits on a split, example by example.

        f(x) = (1 / R) Σ_r s_r f_r(x),   s_r the scale of the run's loss, see `logit_scale`

    Args:
        runs: of one data set and one part of it, with the split's logits of the same examples
            in the same order.
        split: its name.

    Returns:
        ``logits, target, indices``; the mean is taken in float64 and kept in float32.
    """
    runs = sorted(runs, key=lambda run: run.name)
    same_data(runs, split=split)
    first, mean = runs[0], scaled_logits(runs[0], split=split)
    total = np.zeros(mean.logits.shape)
    for run in runs:
        part, how = scaled_logits(run, split=split), None
        if run.class_names != first.class_names:
            how = "have other classes"
        elif run.spec.dataset != first.spec.dataset:
            how = "were trained on different parts of their data"
        elif not np.array_equal(part.indices, mean.indices):  # type: ignore[arg-type]
            how = f"have the examples of the split {split!r} in another order"
        if how is not None:
            raise RunError(f"{first.folder} and {run.folder} {how}; they can't be averaged.")
        total += part.logits
    return mean._replace(logits=(total / len(runs)).astype(np.float32))


def ensemble(
    runs: Sequence[Run], *, root: Path | str, split: str = "test", replace: bool = False
) -> Run:
    """Average runs on a split into a folder of their own; one that is there gains the split.

    Args:
        runs: see `mean_logits`.
        root: the folder of runs.
        split: of the logits.
        replace: write again what is there already.

    Returns:
        The ensemble, a finished run without weights; its time is that of all members.
    """
    first = runs[0]
    spec = ensemble_spec(first.spec.dataset, [run.name for run in runs])
    folder = Path(root) / spec.folder
    mean = mean_logits(runs, split=split)
    there = None
    if (folder / "run.json").exists():
        there = Run.open(folder, verify=False, unfinished=True)
    if there is not None and there.finished:
        if split in there.splits and not replace:
            if np.array_equal(there.logits(split).logits, mean.logits):
                return there
            raise RunError(
                f"{folder} holds other mean logits of the split {split!r}: a member was trained "
                f"or evaluated again since; pass `replace=True` to write them again."
            )
        writer = RunWriter.reopen(folder)
    else:
        writer = RunWriter.create(
            root,
            spec,
            prior=first.prior,
            data=first.data,
            device=str(first.record["device"]),
            class_names=first.class_names,
            force=True,
        )
    data = first.record["splits"][split]["data"]
    writer.write_logits(
        split, mean.logits, mean.target, indices=mean.indices, data=data, replace=replace
    )
    if there is not None and there.finished:
        return Run.open(folder, verify=False)
    return writer.finish(seconds=sum(float(run.record["seconds"]) for run in runs))
