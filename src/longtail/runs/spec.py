"""RunSpec: everything that decides a run's result, as data; to JSON and back, and its hash.

The names and settings that exist are the business of `data`, `models` and `train`; here they are
only kept, exactly.
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

POOL = "pool"
"""Setting of data read from a folder of one's own: a fingerprint of what it held."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class Settings(dict[str, Any]):
    """A mapping of names to JSON values that can't be changed once made.

    Lists become tuples and nested mappings Settings, so that a spec reads the same before and
    after a trip through a file, and can be hashed.

    Examples:
        >>> Settings({"milestones": [160, 180]})["milestones"]
        (160, 180)
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, where: str = "settings"):
        values = values or {}
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise InputError(f"RunSpec: `{where}` must map names to values; got {values!r}.")
        super().__init__({key: _frozen(item, f"{where}.{key}") for key, item in values.items()})

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the settings of a RunSpec can't be changed; make a new spec")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _refuse
    __ior__ = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Settings], tuple[dict[str, Any]]]:
        return Settings, (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def _frozen(value: Any, where: str) -> Any:
    """Return an unchangeable copy of a JSON value; NumPy scalars become Python's."""
    if isinstance(value, Mapping):
        return Settings(value, where=where)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, f"{where}[{i}]") for i, item in enumerate(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InputError(
        f"RunSpec: `{where}` must be a finite number, text, boolean, None, list or mapping; "
        f"got {value!r}."
    )


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value


def _check_name(value: Any, where: str) -> None:
    if not isinstance(value, str) or not _SAFE_NAME.fullmatch(value):
        raise InputError(
            f"RunSpec: `{where}` must be a name of letters, digits, dots, dashes and underscores, "
            f"since folders are named after it; got {value!r}."
        )


def _number(value: Any, where: str, *, low: float, high: float, whole: bool = False) -> Any:
    value = _frozen(value, where)
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value < high:
        what = "a whole number" if whole else "a number"
        rule = f"{what}, at least {low:g}" + ("" if high == math.inf else f" and below {high:g}")
        raise InputError(f"RunSpec: `{where}` must be {rule}; got {value!r}.")
    return value


class _Document:
    """A dataclass that is a JSON object with its fields for keys."""

    @classmethod
    def _from_json(cls, document: Any, where: str) -> Any:
        """Make the object; without an unknown field two different runs might look alike."""
        if not isinstance(document, Mapping):
            raise InputError(f"RunSpec: `{where}` must be a JSON object; got {document!r}.")
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(set(document) - known):
            raise InputError(
                f"RunSpec: `{where}` has unknown field(s) {', '.join(unknown)}; known are "
                f"{', '.join(sorted(known))}. A newer longtail may know them."
            )
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(f"RunSpec: `{where}` lacks a field: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with every field."""
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
        _check_name(self.name, "dataset.name")
        known = {
            "seed": _number(self.seed, "dataset.seed", low=0, high=math.inf, whole=True),
            "held_out": _number(self.held_out, "dataset.held_out", low=0, high=1),
            "settings": Settings(self.settings, where="dataset.settings"),
        }
        if self.imbalance_ratio is not None:
            known["imbalance_ratio"] = _number(
                self.imbalance_ratio, "dataset.imbalance_ratio", low=1, high=math.inf
            )
        self.__dict__.update(known)


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
        _check_name(self.name, "name")
        self.__dict__.update(settings=Settings(self.settings))


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
        _check_name(self.name, "recipe.name")
        values = Settings(self.values, where="recipe.values")
        overrides = Settings(self.overrides, where="recipe.overrides")
        if not overrides.items() <= values.items():
            raise InputError(
                "RunSpec: `recipe.overrides` must be among `recipe.values`, the values in force."
            )
        self.__dict__.update(values=values, overrides=overrides)


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
        known: dict[str, Any] = {}
        for key, kind in _PARTS.items():
            value = getattr(self, key)
            if not isinstance(value, kind):
                document = {"name": value} if isinstance(value, str) else value
                value = kind._from_json(document, key)
            known[key] = value
        known["seed"] = _number(self.seed, "seed", low=0, high=math.inf, whole=True)
        self.__dict__.update(known, settings=Settings(self.settings))

    @classmethod
    def from_json(cls, document: Any) -> RunSpec:
        """Return the spec that `to_json` wrote; a field that is not known is refused."""
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
            and key != "recipe.name"
            and not key.startswith("recipe.overrides.")
        ]


_PARTS: dict[str, type[_Document]] = {
    "dataset": DataSpec,
    "model": Part,
    "method": Part,
    "recipe": RecipeSpec,
}


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
