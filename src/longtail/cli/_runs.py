"""Run folders that a command names, their data, their errors, and what their training left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _data
from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    import torch

    from longtail.metrics import PerClassError
    from longtail.priors import ClassPrior
    from longtail.runs import DataSpec, Run

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Run folders, or folders of runs to take all from."),
]
Device = Annotated[str, option("NAME", "cpu, cuda or cuda:N; auto is a GPU if there is one.")]
Root = Annotated[
    Path | None,
    option(
        "FOLDER", "Images on disk: what their lists' paths start from; the lists' folder if absent."
    ),
]
Workers = Annotated[
    int | None,
    option(
        "N",
        "Images on disk: processes that decode, for each training process; all cores if absent.",
        min=0,
    ),
]


def open_runs(
    given: list[Path], *, split: str | None = None, anew: bool = False, together: bool = False
) -> list[Run]:
    """Return the finished runs that are named, directly or by a folder above them, each once.

    Of a folder, runs are left out that can't have a `split`'s logits (computed `anew`), and where
    runs teach or are averaged `together`, those that learnt from others in it: students may go
    into the folder of their teachers.
    """
    from longtail.runs import Run, run_folders

    found: dict[Path, Run] = {}
    left_out: dict[str, list[Run]] = {}  # by the reason
    for path in given:
        inside = [] if (path / "run.json").exists() or not path.is_dir() else run_folders(path)
        # Named itself, a half-written run is an error; in a folder it is left out.
        opened = [Run.open(folder, unfinished=bool(inside)) for folder in inside or [path]]
        there = {run.name for run in opened if run.finished}
        for run in opened:
            lacking, why = split is not None and split not in run.splits, ""
            if not run.finished:
                why = "half written"
            elif inside and together and run.teachers and set(run.teachers) <= there:
                why = f"learnt from others in {path}; name runs one by one to take any"
            elif inside and not together and run.members and (anew or lacking):
                why = "no network" if anew else f"no logits of the split {split!r}"
            elif inside and split == "held-out" and lacking:  # written when training ended
                why = "no held-out part"
            if why:
                left_out.setdefault(why, []).append(run)
            else:
                found.setdefault(run.folder.resolve(), run)
    for why, runs in left_out.items():
        without(runs, runs, why)
    if not found:
        what = "can be used here" if set(left_out) - {"half written"} else "is finished"
        if "no held-out part" in left_out:
            what = "has a held-out part; train with --held-out 0.2"
        raise Failure(f"none of the runs there {what}.")
    alone = [run for run in found.values() if not run.members]
    kept = {"softmax", "label-smoothing"}  # these leave the classes' frequencies as they are
    plain = [run for run in alone if set(run.spec.method.name.split("+")) <= kept]
    other = [run for run in alone if run not in plain]
    if together and plain and other:
        _console.line(
            f"{plain[0].name} and {other[0].name} answer for different class frequencies, plain "
            f"softmax for those of training and {other[0].spec.method.name} for corrected ones; "
            f"the mean of {len(plain)} and {len(other)} such runs is in between",
            kind="warning",
        )
    return list(found.values())


def without(runs: list[Run], left_out: list[Run], why: str) -> list[Run]:
    """Return the runs that are not left out, and print the names of the others."""
    from longtail._checks import listing

    if left_out:
        text = f"left out {listing(run.folder for run in left_out)} ({why})"
        _console.line(text, kind="warning")
    return [run for run in runs if run not in left_out]


def find_device(name: str) -> torch.device:
    """Return the device that a name means, if it is there."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name not in ("cpu", *["cuda"][:count], *(f"cuda:{n}" for n in range(count))):
        gpus = f"{count} GPU(s)" if count else "no GPU"
        raise Failure(
            f"--device {name}: torch {torch.__version__} can use {gpus} here; take auto, cpu, cuda "
            f"or cuda:N, counted from 0."
        )
    return torch.device(name)


@dataclass
class RunData:
    """Finds the data of runs again, by their specs and three options; reads each set once."""

    dataset: str | None
    data_dir: Path | None
    root: Path | None
    _read: dict[DataSpec, Any] = field(init=False, default_factory=dict)

    def where(self) -> list[str]:
        """Return the options for commands about runs, without a name that these tell already."""
        from longtail.data import DATASETS
        from longtail.data.large import LARGE

        dataset = None if self.dataset in (*DATASETS, *LARGE) else self.dataset
        given = {"--dataset": dataset, "--data-dir": self.data_dir, "--root": self.root}
        return [word for k, v in given.items() if v is not None for word in (k, str(v))]

    def of(self, run: Run) -> Any:
        """Return the data that a run was trained on, and their test set."""
        from longtail.data import DATASETS, embeddings, large

        spec = replace(run.spec.dataset, held_out=0.0)
        name, listed = self.dataset or spec.name, "list" in spec.settings
        if self.dataset is None and name not in (*DATASETS, *large.LARGE):
            what, how = "a folder of images, a frozen file or embeddings; say where", ""
            if listed:
                what = "lists or class folders of images on disk; say where they are"
                how = ", and with --root FOLDER what the lists' paths start from, if elsewhere"
            raise Failure(f"{run.folder} was trained on {name!r}, {what}: --dataset PATH{how}.")
        if self.root is not None and not listed:
            raise Failure(f"--root is for images on disk, but {spec.name} is read into memory.")
        if spec not in self._read and listed:
            self._read[spec] = large.load_listed(name, data_dir=self.data_dir, root=self.root)
        elif spec not in self._read:
            given: dict[str, Any] = {"data_dir": self.data_dir, "fit": False, "subset_seed": 0}
            given |= dict.fromkeys(("profile", "ratio", "counts"))
            # A frozen file is one subset already.
            if not Path(name).is_file() or embeddings.is_embeddings(name):
                counts = spec.settings.get("counts")
                given |= {"profile": spec.profile, "counts": counts, "subset_seed": spec.seed}
                given["ratio"] = None if counts else spec.imbalance_ratio
            self._read[spec] = _data.load(name, given)
        data = self._read[spec]
        if data.train.fingerprint != run.data:
            raise Failure(
                f"{run.folder} was trained on other data than {name} is now (fingerprint "
                f"{run.data[:16]} against {data.train.fingerprint[:16]}); say where its own are: "
                f"--dataset PATH or --data-dir FOLDER."
            )
        return data


def errors_on(run: Run, split: str) -> PerClassError:
    """Return a run's errors by its logits on a split, on the classes that it has examples of."""
    from longtail.metrics import per_class_error

    logits, target, _ = run.logits(split)
    predicted, classes = logits.argmax(axis=1), run.prior.num_classes
    return per_class_error(target, predicted, num_classes=classes, missing="skip")


def warn_of_run(folder: Path, given: dict[str, Any], prior: ClassPrior | None) -> None:
    """Warn where a run's logits are no honest ground for a choice, or are adjusted already.

    `given` are the parameters of `adjust` or `tune`, and `prior` is to be adjusted by.
    """
    from longtail.runs import Run

    tau, split = given.get("tau"), given["split"]
    by_weights = given.get("method") == "weight-normalization" or given.get("effective_prior")
    if prior is not None and not by_weights:
        elsewhere = "" if given.get("target", "balanced") == "balanced" else "--target"
        warn_if_adjusted(Run.open(folder, verify=False), prior, tau=tau, elsewhere=elsewhere)
    if split == "train":
        _console.line(
            "these logits are of the images that the run was trained on: neither a tau that is "
            "chosen on them nor an error that is measured on them holds for others. Take the "
            "held-out part of a run that was trained with --held-out 0.2, or --split dev.",
            kind="warning",
        )
    if split == "test" and tau is None:
        _console.line(
            "tau was chosen on the test set: it is an oracle's, and its errors there are no "
            "estimate for new data; choose it on another split.",
            kind="warning",
        )


def warn_if_adjusted(run: Run, prior: ClassPrior, *, tau: float | None, elsewhere: str) -> bool:
    """Warn if a run's training leaves much less to correct by a prior than is asked for.

    No error: of a student of adjusted teachers, say, a small tau that held-out data choose (None)
    may still help. `elsewhere` are options that name another target than the balanced error.

    Returns:
        True if no doubt remains: it was said, or nothing in training favoured rare classes.
    """
    from longtail._checks import InputError
    from longtail.posthoc import LEAST_AGAIN, adjusted_twice
    from longtail.runs import Run
    from longtail.train.methods import Method

    methods: list[tuple[str, Method]] = []  # of the run, or of an ensemble's members
    for folder in [run.folder.parent.parent / name for name in run.members] or [run.folder]:
        with suppress(InputError):  # a member that is not there, or somebody else's method
            part = Run.open(folder, verify=False).spec.method
            methods.append((part.name, Method.of(part)))
    for name, method in methods if prior.imbalance_ratio > 1 else ():
        loss = SimpleNamespace(
            name=name,
            num_classes=run.prior.num_classes,
            is_antisymmetric=True,
            residual_adjustment=method.residual_adjustment,
        )
        said = adjusted_twice(loss, run.prior, tau=LEAST_AGAIN if tau is None else tau)
        if said is not None:
            if elsewhere:
                said = said.partition("; ")[0]
                said += f"; for another target pass --counts 1,1,... with the same {elsewhere}."
            _console.line(f"{run.folder}: {said}", kind="warning")
            return True
    # Teachers' answers may be balanced.
    return bool(methods) and not run.teachers and all(method.is_plain for _, method in methods)
