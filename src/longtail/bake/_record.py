"""BakeRecord: what was baked into a model, kept inside the model, and enough to undo it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longtail._checks import InputError
from longtail.bake._change import Change

FORMAT = 1
# Of the entry in a file's metadata, and (with an underscore) of the attribute of an object.
KEY = "longtail.baked"
ATTRIBUTE = "longtail_baked"


@dataclass(frozen=True)
class BakeRecord:
    """What was baked into a model. `bake_record` reads it from one.

    Attributes:
        method: ``logit_adjustment`` or ``weight_normalization``.
        tau: τ.
        where: the layer or tensor whose numbers are now the adjusted logits.
        how: what was changed, in words.
        settings: the rest of what decides the result: ``prior``, ``target_prior`` and ``costs``,
            or ``norms`` and ``bias_mode``.
        undo: what `unbake` needs.
        version: of longtail.
    """

    method: str
    tau: float
    where: str
    how: str
    settings: Mapping[str, Any] = field(repr=False)
    undo: Mapping[str, Any] = field(repr=False)
    version: str = ""

    @classmethod
    def of(cls, change: Change, *, where: str, how: str, undo: Mapping[str, Any]) -> BakeRecord:
        """The record of a change that was applied."""
        from longtail import __version__

        settings = dict(change.settings)
        return cls(change.method, change.tau, where, how, settings, dict(undo), __version__)

    def __str__(self) -> str:
        name = self.method.replace("_", " ")
        if "bias_mode" in self.settings:
            name += f" (bias: {self.settings['bias_mode']})"
        return f"{name} with tau = {self.tau:.4g}"

    def to_json(self) -> str:
        """The text that the model carries."""
        return json.dumps({"format": FORMAT, **vars(self)}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, caller: str) -> BakeRecord:
        """From the text that a model carries."""
        try:
            document = json.loads(text)
            if document.pop("format") > FORMAT:
                raise InputError(
                    f"{caller}: the model was baked by a newer longtail "
                    f"({document.get('version')}); run: pip install --upgrade longtail"
                )
            return cls(**document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{caller}: the model's record of what was baked into it is damaged: {error}."
            ) from error


def refuse_twice(record: BakeRecord | None, *, name: str, caller: str) -> None:
    """Refuse to bake what is baked already."""
    if record is not None:
        raise InputError(
            f"{caller}: {name} is baked already: {record}, {record.how}; a second adjustment "
            f"would favour the rare classes twice. Undo the first with unbake (on the command "
            f"line: --undo)."
        )


def require_record(record: BakeRecord | None, *, name: str, caller: str) -> BakeRecord:
    """Refuse to undo what was never baked."""
    if record is None:
        raise InputError(f"{caller}: {name} is not baked: it has no record of an adjustment.")
    return record
