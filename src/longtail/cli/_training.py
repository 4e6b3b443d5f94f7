"""Parts that `train` and `evaluate` share: options, the device, a run's data, and its errors."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longtail.cli import _data
from longtail.cli._console import option

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData
    from longtail.data.large import ListedData
    from longtail.metrics import PerClassError
    from longtail.runs import DataSpec, Run

    AnyData = LongTailedData | ListedData

DeviceOption = Annotated[str, option("NAME", "cpu, cuda or cuda:N; auto is a GPU if there is one.")]
RootOption = Annotated[
    Path | None,
    option(
        "FOLDER",
        "Images on disk: what their lists' paths start from; the lists' folder if absent.",
    ),
]
WorkersOption = Annotated[
    int | None,
    option(
        "N",
        "Images on disk: processes that decode, for each training process; all cores if absent.",
        min=0,
    ),
]


def refuse_unknown(name: str, caller: str) -> None:
    """Refuse a name that is neither a data set nor a path, where all kinds are taken."""
    from longtail._checks import InputError
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.train.methods import unknown

    known = [*DATASETS, *LARGE]
    if name not in known and not Path(name).exists():
        # Many of these names are half alike by their "-lt".
        error = unknown("data set, file or folder", name, known, alike=0.7)
        raise InputError(
            f"{caller}: {error} A path may name a frozen file, a folder of images or one of their "
            f"lists."
        )


def is_on_disk(name: str) -> bool:
    """Return whether a data set is streamed from disk: by its name, or a folder of lists."""
    from longtail._checks import InputError
    from longtail.data.large import LARGE, find_sources

    if name in LARGE:
        return True
    try:
        files = find_sources(name).files.values() if Path(name).is_dir() else ()
    except InputError:
        return False  # what is wrong with it, its reader will say
    return bool(files) and all(path.is_file() for path in files)


def find_device(name: str) -> torch.device:
    """Return the device that a name means, if it is there."""
    import torch

    from longtail._checks import InputError

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name not in ("cpu", *["cuda"][:count], *(f"cuda:{n}" for n in range(count))):
        gpus = f"{count} GPU(s)" if count else "no GPU"
        raise InputError(
            f"--device {name}: torch {torch.__version__} can use {gpus} here; take auto, cpu, cuda "
            f"or cuda:N, counted from 0."
        )
    return torch.device(name)


@dataclass
class RunData:
    """Finds the data of runs again, from what their specs say; each data set is read once.

    Args:
        dataset: its name, frozen file or folder, where a spec alone does not tell.
        data_dir: where the original files are.
        root: where the images of lists are.
    """

    dataset: str | None
    data_dir: Path | None
    root: Path | None = None
    _read: dict[DataSpec, AnyData] = field(init=False, default_factory=dict)

    @property
    def where(self) -> list[str]:
        """The options for commands about runs, without a name that these tell by themselves."""
        from longtail.data import DATASETS
        from longtail.data.large import LARGE

        dataset = None if self.dataset in (*DATASETS, *LARGE) else self.dataset
        given = {"--dataset": dataset, "--data-dir": self.data_dir, "--root": self.root}
        pairs = ((name, str(value)) for name, value in given.items() if value is not None)
        return [word for pair in pairs for word in pair]

    def of(self, run: Run) -> AnyData:
        """Return the data that a run was trained on, and their test set."""
        from longtail.runs import RunError

        wanted = replace(run.spec.dataset, held_out=0.0)
        if wanted not in self._read:
            self._read[wanted] = self._load(wanted, run)
        data = self._read[wanted]
        if data.train.fingerprint != run.data:
            raise RunError(
                f"{run.folder} was trained on other data than {self.dataset or wanted.name} is "
                f"now (fingerprint {run.data[:16]} against {data.train.fingerprint[:16]}); say "
                f"where its own are: --dataset PATH or --data-dir FOLDER."
            )
        return data

    def _load(self, spec: DataSpec, run: Run) -> AnyData:
        from longtail._checks import InputError
        from longtail.data import DATASETS
        from longtail.data.embeddings import is_embeddings
        from longtail.data.large import LARGE, load_listed

        listed = "list" in spec.settings
        if self.dataset is None and spec.name not in (*DATASETS, *LARGE):
            what, how = "a folder of images, a frozen file or embeddings; say where", ""
            if listed:
                what = "lists or class folders of images on disk; say where they are"
                how = ", and with --root FOLDER what the lists' paths start from, if elsewhere"
            raise InputError(
                f"{run.folder} was trained on {spec.name!r}, {what}: --dataset PATH{how}."
            )
        name = self.dataset or spec.name
        if listed:
            return load_listed(name, data_dir=self.data_dir, root=self.root)
        if self.root is not None:
            raise InputError(f"--root is for images on disk, but {spec.name} is read into memory.")
        subset: dict[str, Any] = {}
        if not Path(name).is_file() or is_embeddings(name):  # a frozen file is one subset already
            counts = spec.settings.get("counts")
            subset = {"profile": spec.profile, "counts": counts, "subset_seed": spec.seed}
            subset["ratio"] = None if counts else spec.imbalance_ratio
        return _data.load(name, data_dir=self.data_dir, **subset)


def errors_on(run: Run, split: str) -> PerClassError:
    """Return a run's errors by its logits on a split, on the classes that it has examples of."""
    from longtail.metrics import per_class_error

    logits, target, _ = run.logits(split)
    return per_class_error(target, logits, num_classes=run.prior.num_classes, missing="skip")


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over seeds, or None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None
