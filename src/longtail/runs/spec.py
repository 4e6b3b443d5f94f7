"""RunSpec: everything that decides a run's result, as data; to JSON and back, and its hash.

Which names and settings exist is for `data`, `models` and `train` to say: this file only
keeps them, exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from longtail._checks import InputError
from longtail.runs.files import canonical_json, sha256

# The setting of data read from a folder of one's own: what it held. Its name leads to no files.
POOL = "pool"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class Settings(dict[str, Any]):
    """A mapping of names to JSON values that can't be changed once made.

    Lists become tuples and nested mappings Settings, so that a spec reads the same before and
    after a trip through a file.

    Examples:
        >>> Settings({"milestones": [160, 180]})["milestones"]
        (160, 180)
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, where: str = "settings"):
        super().__init__()
        if not isinstance(values or {}, Mapping):
            raise InputError(
                f"RunSpec: `{where}` must map names to values; got {type(values).__name__}."
            )
        for key, value in (values or {}).items():
            if not isinstance(key, str):
                raise InputError(f"RunSpec: names in `{where}` must be text; got {key!r}.")
            super().__setitem__(key, _frozen(value, f"{where}.{key}"))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the settings of a RunSpec can't be changed; make a new spec")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _refuse
    __ior__ = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Settings], tuple[dict[str, Any]]]:
        return Settings, (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def _frozen(value: Any, where: str) -> Any:
    """An unchangeable copy of a JSON value; NumPy scalars become Python's."""
    if isinstance(value, Mapping):
        return Settings(value, where=where)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, f"{where}[{i}]") for i, item in enumerate(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"RunSpec: `{where}` must be finite; got {value}.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"RunSpec: `{where}` must be a number, text, boolean, None, list or mapping; "
        f"got {type(value).__name__}."
    )


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _SAFE_NAME.fullmatch(value):
        raise InputError(
            f"RunSpec: `{where}` must be a name of letters, digits, dots, dashes and underscores, "
            f"since folders are named after it; got {value!r}."
        )
    return value


def _whole(value: Any, where: str) -> int:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"RunSpec: `{where}` must be a whole number, zero or more; got {value!r}.")
    return value


class _Document:
    """A dataclass that is a JSON object with its fields for keys."""

    @classmethod
    def _from_json(cls, document: Any, where: str) -> Any:
        if not isinstance(document, Mapping):
            raise InputError(f"RunSpec: `{where}` must be a JSON object; got {document!r}.")
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(document) - known)
        if unknown:
            # Dropping a field could make two different runs look alike.
            raise InputError(
                f"RunSpec: `{where}` has unknown field(s) {', '.join(unknown)}; "
                f"known are {', '.join(sorted(known))}. A newer longtail may know them."
            )
        missing = sorted(
            f.name
            for f in fields(cls)  # type: ignore[arg-type]
            if f.default is MISSING and f.default_factory is MISSING and f.name not in document
        )
        if missing:
            raise InputError(f"RunSpec: `{where}` lacks field(s) {', '.join(missing)}.")
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, with every field."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {
            key: value.to_json() if isinstance(value, _Document) else _thawed(value)
            for key, value in values.items()
        }


@dataclass(frozen=True)
class DataSpec(_Document):
    """Which examples a run trains on.

    Attributes:
        name: the data set, such as ``cifar100-lt``.
        profile: how class sizes fall off (``exp``, ``step``), or None for its own sizes.
        imbalance_ratio: largest over smallest class size, where the profile has one.
        seed: which subset; 0 is the literature's.
        held_out: fraction of each class kept out of training.
        settings: anything else that decides which examples these are.
    """

    name: str
    profile: str | None = None
    imbalance_ratio: float | None = None
    seed: int = 0
    held_out: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        _name(self.name, "dataset.name")
        object.__setattr__(self, "seed", _whole(self.seed, "dataset.seed"))
        for key, low, high in (("imbalance_ratio", 1, math.inf), ("held_out", 0, 1)):
            value = _frozen(getattr(self, key), f"dataset.{key}")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and low <= value < high):
                rule = f"at least {low}" + ("" if high == math.inf else f" and below {high}")
                raise InputError(f"RunSpec: `dataset.{key}` must be {rule}; got {value!r}.")
            object.__setattr__(self, key, value)
        object.__setattr__(self, "settings", Settings(self.settings, where="dataset.settings"))


@dataclass(frozen=True)
class Part(_Document):
    """A model or a method: its name and its settings.

    Examples:
        >>> Part("logit-adjusted", {"tau": 1.0}).to_json()
        {'name': 'logit-adjusted', 'settings': {'tau': 1.0}}
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        _name(self.name, "name")
        object.__setattr__(self, "settings", Settings(self.settings))


@dataclass(frozen=True)
class RecipeSpec(_Document):
    """How a run trains: the values in force, and where they came from.

    Attributes:
        name: the named recipe that these values started from.
        values: all values in force: epochs, batch size, optimiser, learning rate and so on.
        overrides: those of `values` that differ from the named recipe.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=Settings)
    overrides: Mapping[str, Any] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        _name(self.name, "recipe.name")
        object.__setattr__(self, "values", Settings(self.values, where="recipe.values"))
        object.__setattr__(self, "overrides", Settings(self.overrides, where="recipe.overrides"))
        for key, value in self.overrides.items():
            if key not in self.values or self.values[key] != value:
                raise InputError(
                    f"RunSpec: `recipe.overrides` has {key}={value!r}, but `recipe.values` "
                    f"has {self.values.get(key, 'no such value')!r}; values are those in force, "
                    f"overrides included."
                )


@dataclass(frozen=True)
class RunSpec(_Document):
    """Everything that decides a run's result.

    Attributes:
        dataset: which examples (a DataSpec, or just the name).
        model: which network (a Part, or just the name).
        method: which loss, sampling and so on (a Part, or just the name).
        recipe: how it trains (a RecipeSpec, or just the name).
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

    def __post_init__(self) -> None:
        kinds: dict[str, type[_Document]] = {
            "dataset": DataSpec,
            "model": Part,
            "method": Part,
            "recipe": RecipeSpec,
        }
        for key, kind in kinds.items():
            value = getattr(self, key)
            if isinstance(value, str):
                value = kind._from_json({"name": value}, key)
            elif isinstance(value, Mapping):
                value = kind._from_json(value, key)
            if not isinstance(value, kind):
                raise InputError(
                    f"RunSpec: `{key}` must be a {kind.__name__} or a name; "
                    f"got {type(value).__name__}."
                )
            object.__setattr__(self, key, value)
        object.__setattr__(self, "seed", _whole(self.seed, "seed"))
        object.__setattr__(self, "settings", Settings(self.settings))

    @classmethod
    def from_json(cls, document: Any) -> RunSpec:
        """The spec that `to_json` wrote; a field that is not known is refused."""
        spec: RunSpec = cls._from_json(document, "spec")
        return spec

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the result, and nothing else: the hash's input.

        A recipe counts by its values, not by its name or by how they came about. A field at
        its default is left out, so that adding one later changes no existing hash; whole
        floats count as integers, since 1 and 1.0 train alike.
        """
        found: dict[str, Any] = _whole_floats(_without_defaults(self))
        recipe = found["recipe"]
        recipe.pop("name")
        recipe.pop("overrides", None)
        return found

    @property
    def hash8(self) -> str:
        """Eight hexadecimal digits that tell runs with different results apart."""
        return sha256(canonical_json(self.identity).encode())[:8]

    @property
    def folder(self) -> Path:
        """Where the run lives below a folder of runs: ``<dataset>/<method>-s<seed>-<hash8>``."""
        return Path(self.dataset.name) / f"{self.method.name}-s{self.seed}-{self.hash8}"

    def difference(self, other: RunSpec) -> list[str]:
        """One line for each value in which another spec's result-deciding part differs.

        Examples:
            >>> one = RunSpec("digits-lt", "mlp", "softmax", "digits")
            >>> one.difference(RunSpec("digits-lt", "mlp", "balanced", "digits", seed=1))
            ['method.name: softmax against balanced', 'seed: 0 against 1']
        """
        mine, theirs = dict(_leaves(self.to_json())), dict(_leaves(other.to_json()))
        lines = []
        for key in sorted(mine.keys() | theirs.keys()):
            here, there = mine.get(key, "nothing"), theirs.get(key, "nothing")
            if here != there and key != "recipe.name" and not key.startswith("recipe.overrides."):
                lines.append(f"{key}: {here} against {there}")
        return lines


def _without_defaults(document: Any) -> dict[str, Any]:
    found = {}
    for f in fields(document):
        value = getattr(document, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if value != default:
            found[f.name] = (
                _without_defaults(value) if isinstance(value, _Document) else _thawed(value)
            )
    return found


def _whole_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_floats(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    elif value != {}:
        yield prefix, value
