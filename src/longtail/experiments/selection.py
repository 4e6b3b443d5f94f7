"""How students are trained, chosen on the development set: what was tried, and what came out.

Every candidate is trained once, for fewer epochs than a recipe has, by the same teachers and with
a seed of its own (`SEED`), and judged on the development set alone: its logits on the test set are
never made. What is kept is a small file for each data set. `strong_runs` trains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from longtail._checks import InputError
from longtail.experiments.exp_runs import Kind
from longtail.experiments.strong_kinds import METHOD, STUDENT
from longtail.runs import files
from longtail.train.recipe import recipe_values

# What the first trial had, which was judged on the test set; the candidates change it.
FIRST: dict[str, Any] = {
    "weight_decay": 5e-4,
    "cutout": 16,
    "cutmix": 0.5,
    "mix_partner": "minority",
    "distill_weight": 0.8,
    "distill_temperature": 2.0,
    "distill_adjusted": False,
}
FIRST_NAME = "first trial"
BALANCED = "softmax+over-sampling"
_EQUAL, _SHIFTED = "classes drawn equally", "KL of prior-shifted logits"
_BARE, _WARM = "no Cutout", "temperature 4"
CHANGES: dict[str, dict[str, Any]] = {
    # The prior of what is drawn is uniform, so the logit-adjusted loss of it is the softmax's.
    # (What is mixed in is not: a uniform partner is one of all images.)
    _EQUAL: {"mix_partner": "uniform"},
    _SHIFTED: {"distill_adjusted": True},
    _BARE: {"cutout": 0},
    _WARM: {"distill_temperature": 4.0},
    "CutMix on all": {"cutmix": 1.0},
    "teachers' share 0.6": {"distill_weight": 0.6},
    "teachers' share 0.95": {"distill_weight": 0.95},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    "weight decay 2e-4": {"weight_decay": 2e-4},
    "weight decay 1e-3": {"weight_decay": 1e-3},
}
# In the order in which they were tried: later ones join what had helped.
TRIED: dict[str, tuple[tuple[str, ...], ...]] = {
    "cifar10-lt": (
        (_SHIFTED,),
        (_SHIFTED, _WARM),
        (_EQUAL,),
        (_EQUAL, _WARM),
        (_EQUAL, _BARE),
        (_EQUAL, _BARE, _WARM),
        (_EQUAL, _BARE, _WARM, "teachers' share 0.95"),
        (_EQUAL, _BARE, _WARM, "weight decay 2e-4"),
    ),
    "cifar100-lt": (
        (),
        ("weight decay 2e-4",),
        ("weight decay 1e-4",),
        (_WARM,),
        ("teachers' share 0.95",),
        ("teachers' share 0.95", "weight decay 2e-4"),
        (_SHIFTED,),
        (_BARE,),
        (_BARE, "weight decay 2e-4"),
        ("CutMix on all",),
        ("CutMix on all", "weight decay 2e-4"),
        (_EQUAL,),
        (_EQUAL, "weight decay 2e-4"),
        (_EQUAL, _WARM),
        (_EQUAL, _WARM, "teachers' share 0.6"),
        (_EQUAL, "teachers' share 0.6"),
        (_EQUAL, "weight decay 1e-3"),
        (_EQUAL, _BARE),
        (_EQUAL, _BARE, _WARM),
        (_EQUAL, _BARE, _WARM, "weight decay 1e-3"),
    ),
}
EPOCHS = {"cifar10-lt": 75, "cifar100-lt": 200}
SEED = 1000  # far from those of the tables: none of their runs is a candidate too


@cache
def candidates(dataset: str) -> tuple[Kind, ...]:
    """The ways to train a student that are compared, but for their epochs.

    Args:
        dataset: one of `TRIED`.

    Examples:
        >>> [kind.name for kind in candidates("cifar100-lt")][:2]
        ['first trial', 'weight decay 2e-4']
    """
    kinds = []
    for changes in TRIED[dataset]:
        values = {"image_seed": 0, **FIRST}
        for change in changes:
            values |= CHANGES[change]
        method = BALANCED if _EQUAL in changes else METHOD
        kinds.append(Kind(", ".join(changes) or FIRST_NAME, method, values))
    return tuple(kinds)


@dataclass(frozen=True)
class Outcome:
    """What a candidate reached on the development set.

    Attributes:
        error: balanced, of its last epoch.
        tau: chosen again there.
        error_again: with that tau.
    """

    error: float
    tau: float
    error_again: float


@dataclass(frozen=True)
class Selection:
    """The outcomes of a data set's candidates.

    Attributes:
        dataset: its name.
        epochs: of each candidate.
        device: on which they trained.
        outcomes: by the candidate's name, in the order of trying.
        overrides: recipe values changed for all of them, for a trial in small.
        source: a sentence on where they are from, if not from this program's own hand.
    """

    dataset: str
    epochs: int
    device: str
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def best(self) -> str:
        """The candidate with the least error once its tau is chosen."""
        return min(self.outcomes, key=lambda name: self.outcomes[name].error_again)

    def refuse_other(
        self, folder: Path | str, epochs: int, overrides: Mapping[str, Any], *, adds: bool
    ) -> None:
        """Refuse to go on with another selection than this, which was kept in a folder.

        Args:
            folder: of records.
            epochs: of the other.
            overrides: of the other.
            adds: whether it would add outcomes.
        """
        if (self.epochs, dict(self.overrides)) != (epochs, dict(overrides)):
            why = "was made with other epochs or other recipe values (--set)"
        elif adds and self.source:
            why = f"can't be gone on with ({self.source.rstrip('.')})"
        else:
            return
        raise InputError(
            f"strong: the selection in {path_of(folder, self.dataset)} {why}; move it away, or "
            f"keep this one in another folder of records (--records)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors are fractions."""
        kinds = {kind.name: kind for kind in candidates(self.dataset)}
        return {
            "format": 1,
            "dataset": self.dataset,
            "epochs": self.epochs,
            "device": self.device,
            **({"overrides": dict(self.overrides)} if self.overrides else {}),
            **({"source": self.source} if self.source else {}),
            "trials": [
                {
                    "name": name,
                    "method": kinds[name].method,
                    "overrides": dict(kinds[name].overrides),
                    "dev_error": round(one.error, 6),
                    "tau": round(one.tau, 4),
                    "dev_error_again": round(one.error_again, 6),
                }
                for name in kinds
                if (one := self.outcomes.get(name)) is not None
            ],
        }


def effects(found: Selection) -> dict[str, list[float]]:
    """What each of `CHANGES` did to the error with the tau chosen again.

    Args:
        found: the outcomes.

    Returns:
        By the change's name, the difference for every pair of candidates that differ in it alone.

    Examples:
        >>> outcomes = {"first trial": Outcome(0.5, 0.1, 0.4), "no Cutout": Outcome(0.5, 0.1, 0.3)}
        >>> found = effects(Selection("cifar100-lt", 200, "a GPU", outcomes))
        >>> {name: [round(change, 3) for change in changes] for name, changes in found.items()}
        {'no Cutout': [-0.1]}
    """
    kinds = zip(TRIED[found.dataset], candidates(found.dataset), strict=True)
    errors = {
        frozenset(changes): found.outcomes[kind.name].error_again
        for changes, kind in kinds
        if kind.name in found.outcomes
    }
    differences: dict[str, list[float]] = {}
    for changes, error in errors.items():
        for change in sorted(changes):
            without = errors.get(changes - {change})
            if without is not None:
                differences.setdefault(change, []).append(error - without)
    return differences


def recipe_candidate(dataset: str) -> str | None:
    """The candidate that the students' recipe is, or None if it is none of them.

    Args:
        dataset: one of `TRIED`.

    Examples:
        >>> recipe_candidate("cifar100-lt")
        'classes drawn equally, no Cutout, temperature 4'
    """
    values = recipe_values("strong-student", dataset=dataset)
    for kind in candidates(dataset):
        own = {key: value for key, value in kind.overrides.items() if key in FIRST}
        if kind.method == STUDENT.method and all(values.get(key) == own[key] for key in own):
            return kind.name
    return None


def path_of(folder: Path | str, dataset: str) -> Path:
    """Where a data set's selection is kept, beside its records."""
    return Path(folder) / f"selection-{dataset}.json"


def read(folder: Path | str, dataset: str) -> Selection | None:
    """What is kept of a data set's selection, of candidates that still are; None for nothing.

    Args:
        folder: of records.
        dataset: one of `TRIED`.
    """
    path = path_of(folder, dataset)
    if not path.exists():
        return None
    found = files.read_json(path, caller="strong")
    values = {kind.name: (kind.method, dict(kind.overrides)) for kind in candidates(dataset)}
    outcomes = {
        one["name"]: Outcome(one["dev_error"], one["tau"], one["dev_error_again"])
        for one in found["trials"]
        if values.get(one["name"]) == (one["method"], one["overrides"])
    }
    common = {key: found[key] for key in ("overrides", "source") if key in found}
    return Selection(dataset, found["epochs"], found["device"], outcomes, **common)


def read_all(folder: Path | str, datasets: Iterable[str] = tuple(TRIED)) -> list[Selection]:
    """What is kept of some data sets' selections, where there is any."""
    found = [read(folder, dataset) for dataset in datasets]
    return [one for one in found if one is not None and one.outcomes]


def write(found: Selection, folder: Path | str) -> Path:
    """Keep a selection; what was there is replaced."""
    path = path_of(folder, found.dataset)
    files.write_json(path, found.to_dict())
    return path
