"""What `train` and `evaluate` share: device and processes, a run's data, and its errors."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData
    from longtail.data.large import ListedData
    from longtail.metrics import PerClassError
    from longtail.runs import DataSpec, Run
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming

    AnyData = LongTailedData | ListedData

DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", help="cpu, cuda or cuda:N; auto is a GPU if there is one."
    ),
]
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="Images on disk: what their lists' paths start from; the lists' folder if absent.",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        metavar="N",
        help="Images on disk: processes that decode, for each training process; all cores if "
        "absent.",
        show_default=False,
    ),
]
MicroBatchOption = Annotated[
    int | None,
    typer.Option(
        "--micro-batch",
        min=1,
        metavar="N",
        help="Images on disk: how many go through the network at once, 256 if absent; "
        "gradients of a larger batch add up.",
        show_default=False,
    ),
]
CompileOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Images on disk: torch.compile the network; if absent, on a GPU.",
        show_default=False,
    ),
]


def streaming(
    workers: int | None, micro_batch: int | None, compiled: bool | None, **more: Any
) -> Streaming:
    """How images on disk are read; what was not typed has its default."""
    from longtail.train.streamed import Streaming

    if micro_batch is not None:
        more["micro_batch"] = micro_batch
    return Streaming(workers=workers, compile=compiled, **more)


def as_launched(command: str, world: World) -> str:
    """A command as its processes were started with it."""
    if world.count == 1:
        return command
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    machines = "--standalone" if here == world.count else f"--nnodes={world.count // here}"
    return f"torchrun {machines} --nproc-per-node={here} -m {command}"


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The processes that torchrun started, or this one alone, on a device by name.

    What fails in all of them alike is said by the first; see `distributed.joined`.
    """
    from longtail.train import distributed

    with distributed.joined(find_device(device)) as world:
        yield world


def refuse_unknown(name: str, caller: str) -> None:
    """Refuse what is no data set, neither by name nor as a path, where all kinds are taken."""
    from longtail._checks import InputError
    from longtail.data import DATASETS
    from longtail.data.large import LARGE
    from longtail.train.methods import unknown

    known = [*DATASETS, *LARGE]
    if name in known or Path(name).exists():
        return
    # Many of these names are half alike by their "-lt".
    error = unknown("data set, file or folder", name, known, alike=0.7)
    raise InputError(
        f"{caller}: {error} A path may name a frozen file, a folder of images or one of their lists."
    )


def is_on_disk(name: str) -> bool:
    """Whether a data set is streamed from disk: by its name, or a folder that holds lists."""
    from longtail._checks import InputError
    from longtail.data.large import LARGE, find_sources

    if name in LARGE:
        return True
    if not Path(name).is_dir():
        return False
    try:
        return all(path.is_file() for path in find_sources(name).files.values())
    except InputError:
        return False  # what is wrong with it, its reader will say


def find_device(name: str) -> torch.device:
    """The device that a name means, if it is there."""
    import torch

    from longtail._checks import InputError

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (":" in name and not (kind == "cuda" and index.isdigit())):
        raise InputError(f"--device must be auto, cpu, cuda or cuda:N; got {name!r}.")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            built = torch.version.cuda
            why = "it sees none" if built else "it was built without CUDA"
            raise InputError(
                f"--device {name}: torch {torch.__version__} can use no GPU here ({why}); "
                f"--device cpu works everywhere."
            )
        if index and int(index) >= count:
            raise InputError(
                f"--device {name}: there are {count} GPU(s), cuda:0 to cuda:{count - 1}."
            )
    return torch.device(name)


class RunData:
    """Finds the data of runs again, from what their specs say; each data set is read once.

    Args:
        dataset: its name, frozen file or folder, where a spec alone does not tell.
        data_dir: where the original files are.
        root: where the images of lists are.
    """

    def __init__(
        self, dataset: str | None, data_dir: Path | None, root: Path | None = None
    ) -> None:
        self.dataset, self.data_dir, self.root = dataset, data_dir, root
        self._read: dict[DataSpec, AnyData] = {}

    @property
    def typed(self) -> list[str]:
        """The options that say where the data are, as they were typed."""
        given = {"--dataset": self.dataset, "--data-dir": self.data_dir, "--root": self.root}
        pairs = ((name, str(value)) for name, value in given.items() if value is not None)
        return [word for pair in pairs for word in pair]

    @property
    def where(self) -> list[str]:
        """`typed` without a name that runs tell by themselves: what commands about them need."""
        from longtail.data import DATASETS
        from longtail.data.large import LARGE

        named = self.dataset in (*DATASETS, *LARGE)
        return RunData(None, self.data_dir, self.root).typed if named else self.typed

    def of(self, run: Run) -> AnyData:
        """The data that a run was trained on, and their test set."""
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
        from longtail.data import DATASETS, load
        from longtail.data.large import LARGE, load_listed

        if self.dataset is None and spec.name not in (*DATASETS, *LARGE):
            what, how = "a folder of images or a frozen file; say where it is", ""
            if "list" in spec.settings:
                what = "lists or class folders of images on disk; say where they are"
                how = ", and with --root FOLDER what the lists' paths start from, if elsewhere"
            raise InputError(
                f"{run.folder} was trained on {spec.name!r}, {what}: --dataset PATH{how}."
            )
        name = self.dataset or spec.name
        if "list" in spec.settings:
            return load_listed(name, data_dir=self.data_dir, root=self.root)
        if self.root is not None:
            raise InputError(f"--root is for images on disk, but {spec.name} is read into memory.")
        subset: dict[str, Any] = {}
        if not Path(name).is_file():  # a frozen file is one subset already
            counts = spec.settings.get("counts")
            subset = {"profile": spec.profile, "counts": counts, "seed": spec.seed}
            subset["imbalance_ratio"] = None if counts else spec.imbalance_ratio
        with _console.progress(f"reading {Path(name).name}") as progress:
            return load(name, data_dir=self.data_dir, progress=progress, **subset)


@dataclass(frozen=True, eq=False)
class Judged:
    """A run and its errors on a split.

    Attributes:
        run: the run.
        error: of each class.
    """

    run: Run
    error: PerClassError

    @classmethod
    def on(cls, run: Run, split: str) -> Judged:
        """Judge a run by its logits on a split, and by the classes that it has examples of."""
        logits, target, _ = run.logits(split)
        return cls.by(run, target, logits)

    @classmethod
    def by(cls, run: Run, target: Any, answers: Any) -> Judged:
        """Judge a run by its predictions or logits."""
        from longtail.metrics import per_class_error

        classes = run.prior.num_classes
        return cls(run, per_class_error(target, answers, num_classes=classes, missing="skip"))

    @property
    def absent(self) -> str:
        """The classes without examples in words, or nothing: a dev set may lack the largest."""
        from longtail import _checks

        return _checks.class_words(self.error.missing_classes, self.run.class_names)

    def values(self) -> dict[str, float]:
        """Balanced error, and that of the classes with many, medium and few examples."""
        groups = self.error.by_group(self.run.prior).values
        return {"balanced_error": self.error.balanced_error, **groups}


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds, or None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None
