"""RunSpec: everything that decides a run's result, as data; to JSON and back, and its hash.

Which names and settings exist is decided by `data`, `models` and `train`; here they are only
kept, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from longtail._checks import InputError
from longtail.runs.files import canonical_json, sha256

POOL = "pool"
"""Setting of data read from a folder of one's own: a fingerprint of what it held."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # folders are named after it


class Settings(dict[str, Any]):
    """Mapping of names to JSON values.

    Lists become tuples and nested mappings Settings, so that a spec reads the same before and
    after a trip through a file, and can be hashed. To change one, make a new one.

    Examples:
        >>> Settings({"milestones": [160, 180]})["milestones"]
        (160, 180)
    """

    def __init__(self, values: Mapping[str, Any] | None = None):
        super().__init__({key: _frozen(item) for key, item in (values or {}).items()})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def _frozen(value: Any) -> Any:
    """Return an unchangeable copy of a JSON value; NumPy scalars become Python's."""
    if isinstance(value, Mapping):
        return Settings(value)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _plain(value: Any, *, identity: bool = False) -> Any:
    """Return a spec, a part of it or a setting as JSON.

    With `identity`, fields at their default are left out and whole floats become integers.
    """
    if isinstance(value, _Document):
        defaults = {f.name: {} if f.default is MISSING else f.default for f in fields(value)}
        value = {
            name: getattr(value, name)
            for name, default in defaults.items()
            if not identity or getattr(value, name) != default
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, identity=identity) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, identity=identity) for item in value]
    if identity and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


@dataclass(frozen=True)
class _Document:
    """JSON object with the fields for keys, checked and frozen when it is made."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, part = getattr(self, f.name), _PARTS.get(f.name)
            if part is not None and not isinstance(value, part):
                value = part.from_json({"name": value} if isinstance(value, str) else value)
            if f.name == "name" and not _SAFE_NAME.fullmatch(str(value)):
                raise InputError(
                    f"RunSpec: names must be of letters, digits, dots, dashes and underscores, "
                    f"since folders are named after them; got {value!r}."
                )
            self.__dict__[f.name] = _frozen(value)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return what `to_json` wrote; a field that is not known is refused."""
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(
                f"RunSpec: not a {cls.__name__} that this longtail knows: {error}."
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with every field."""
        return dict(_plain(self))


@dataclass(frozen=True)
class DataSpec(_Document):
    """Examples that a run trains on.

    Attributes:
        name: the data set, such as ``cifar100-lt``.
        profile: of the class sizes (``exp``, ``step``), or None for its own sizes.
        imbalance_ratio: largest over smallest class size, where the profile has one.
        seed: of the subset; 0 is the literature's.
        held_out: fraction of each class kept out of training.
        settings: anything else that decides which examples these are.
    """

    name: str
    profile: str | None = None
    imbalance_ratio: float | None = None
    seed: int = 0
    held_out: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=Settings)


@dataclass(frozen=True)
class Part(_Document):
    """Model or method: its name and its settings.

    Examples:
        >>> Part("logit-adjusted", {"tau": 1.0}).to_json()
        {'name': 'logit-adjusted', 'settings': {'tau': 1.0}}
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=Settings)


@dataclass(frozen=True)
class RecipeSpec(_Document):
    """Values that a run trains with, and where they came from.

    Attributes:
        name: the named recipe that these values started from.
        values: all values in force: epochs, batch size, optimiser, learning rate and so on.
        overrides: those of `values` that differ from the named recipe.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=Settings)
    overrides: Mapping[str, Any] = field(default_factory=Settings)


@dataclass(frozen=True)
class RunSpec(_Document):
    """Everything that decides a run's result.

    Attributes:
        dataset: its examples (a DataSpec, or just the name).
        model: its network (a Part, or just the name).
        method: its loss, sampling and so on (a Part, or just the name).
        recipe: its training (a RecipeSpec, or just the name).
        seed: of the run's own randomness.
        settings: anything else that changes the result, such as the precision.

    Examples:
        >>> spec = RunSpec(dataset="digits-lt", model="mlp", method="softmax", recipe="digits")
        >>> RunSpec.from_json(spec.to_json()) == spec
        True
        >>> spec.folder.as_posix()
        'digits-lt/softmax-s0-10db5896'
    """

    dataset: DataSpec
    model: Part
    method: Part
    recipe: RecipeSpec
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=Settings)

    @property
    def hash8(self) -> str:
        """Eight hexadecimal digits that tell runs with different results apart.

        A recipe counts by its values, not by its name or by how they came about. A field at
        its default is left out, so that adding one later changes no existing hash; whole
        floats count as integers, since 1 and 1.0 train alike.
        """
        decides = _plain(self, identity=True)
        decides["recipe"] = {k: v for k, v in decides["recipe"].items() if k == "values"}
        return sha256(canonical_json(decides).encode())[:8]

    @property
    def folder(self) -> Path:
        """Place of the run in a folder of runs: ``<dataset>/<method>-s<seed>-<hash8>``."""
        return Path(self.dataset.name) / f"{self.method.name}-s{self.seed}-{self.hash8}"

    def difference(self, other: RunSpec) -> list[str]:
        """Return a line for each value in which another spec's result-deciding part differs.

        Examples:
            >>> one = RunSpec("digits-lt", "mlp", "softmax", "digits")
            >>> one.difference(RunSpec("digits-lt", "mlp", "balanced", "digits", seed=1))
            ['method.name: softmax against balanced', 'seed: 0 against 1']
        """
        mine, theirs = dict(_leaves(self.to_json())), dict(_leaves(other.to_json()))
        return [
            f"{key}: {mine.get(key, 'nothing')} against {theirs.get(key, 'nothing')}"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
            and not key.startswith(("recipe.name", "recipe.overrides."))
        ]


_PARTS: dict[str, type[_Document]] = {
    "dataset": DataSpec,
    "model": Part,
    "method": Part,
    "recipe": RecipeSpec,
}


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    elif value != {}:
        yield prefix, value
