"""Fold an adjustment into a trained model, so that there is nothing new to deploy.

Post-hoc logit adjustment and weight normalization are affine in the logits, so the last layer's
own bias and weight take them up.

    model                                what changes
    torch.nn.Module, state dict          bias (and weight) of the last linear layer, in a copy
    .safetensors file                    the same, in a new file
    Hugging Face folder                  the same, in a new folder
    onnx.ModelProto or .onnx file        the final bias; else nodes behind the scores
    linear model of scikit-learn         intercepts (and coefficients), in a copy

A result is checked before it is kept, carries a record of what was done (`bake_record`), is not
baked again, and can be undone to the original bytes (`unbake`). Choosing tau is in `tuning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._change import BakeRecord, Change
from longtail.posthoc import BiasMode
from longtail.priors import ClassPrior

__all__ = [
    "BakeRecord",
    "bake_logit_adjustment",
    "bake_record",
    "bake_weight_normalization",
    "unbake",
]

_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"}
_KINDS = {".onnx": "onnx", ".safetensors": "safetensors"}
# The module of each kind of model, what that imports, and the extra that installs it.
_BACKENDS = {
    "onnx": ("_onnx", ("onnx", "onnxruntime"), "onnx"),
    "module": ("_torch", ("torch",), "torch"),
    "state": ("_state", ("torch",), "torch"),
    "safetensors": ("_state", ("safetensors",), "torch"),
    "folder": ("_state", ("safetensors",), "torch"),
    "sklearn": ("_sklearn", ("sklearn",), "sklearn"),
}
# The kinds that each option is for.
_OPTIONS = {
    "layer": (
        ("module", "state", "safetensors", "folder"),
        "torch models; name the logits of an ONNX model with output=...",
    ),
    "output": (("onnx",), "ONNX models"),
    "inputs": (("onnx", "module"), "ONNX models and torch modules"),
}
_NAMES = {"onnx": "an ONNX file", "safetensors": "a safetensors file", "folder": "a folder"}


def bake_logit_adjustment(
    model: Any,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: ClassPrior | None = None,
    costs: Any = None,
    layer: str | list[str] | None = None,
    output: str | list[str] | None = None,
    inputs: Any = None,
    out: Path | str | None = None,
    force: bool = False,
) -> Any:
    """Fold post-hoc logit adjustment into a model: b_y − τ (log π_y − log q_y − log c_y).

    Args:
        model: a torch module or state dict, an ONNX model, a fitted linear classifier of
            scikit-learn (or a pipeline that ends in one), or the path of an .onnx file, a
            .safetensors file or a Hugging Face folder.
        prior: π, of the data that the model was trained on, in the order of its outputs.
        tau: τ; `tune_tau` chooses it on held-out data.
        target_prior: q, of the data that the model will meet; None means all classes alike.
        costs: c, shape (num_classes,), positive: what an error on each class costs.
        layer: name of the last linear layer of a torch module, state dict or safetensors file,
            where more than one fits; a list for several heads of the same classes.
        output: name of the output, or of a tensor inside, that holds the logits or probabilities
            of an ONNX model, where the graph does not tell; a list for several heads.
        inputs: what to check the result on. For an ONNX model, arrays by name in place of random
            ones. For a torch module, what it is called with (a tensor, a tuple, or a dictionary
            of keywords); without it only the last layer is run, so a module that may change the
            logits behind that layer is refused or warned of.
        out: the file or folder to write, if `model` is a path.
        force: replace `out` if it is a file that exists.

    Returns:
        A baked copy of the model; for a path, the path `out`.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> model = LogisticRegression().fit([[0.0], [1.0], [2.0], [9.0]], [0, 0, 0, 1])
        >>> baked = bake_logit_adjustment(model, ClassPrior.from_counts([3, 1]))
        >>> (baked.intercept_ - model.intercept_).round(4)
        array([1.0986])
        >>> print(bake_record(baked))
        logit adjustment with tau = 1
    """
    change = Change.adjusting(prior, tau, target_prior, costs)
    return _bake(model, change, layer, output, inputs, out, force)


def bake_weight_normalization(
    model: Any,
    *,
    tau: float = 1.0,
    norms: Any = None,
    bias_mode: BiasMode = "scale",
    layer: str | list[str] | None = None,
    output: str | list[str] | None = None,
    inputs: Any = None,
    out: Path | str | None = None,
    force: bool = False,
) -> Any:
    """Fold weight normalization into a model: f_y / ν_y^τ (equation 3).

    Args:
        model: as in `bake_logit_adjustment`.
        tau: τ.
        norms: ν, shape (num_classes,), or a ClassPrior for ν = π; None takes the norms of the
            last layer's own weights.
        bias_mode: what happens to the bias, as in `normalize_weights`.
        layer: as in `bake_logit_adjustment`; needed where there is more than one linear layer
            and no `norms` that tell the number of classes.
        output: as in `bake_logit_adjustment`.
        inputs: as in `bake_logit_adjustment`.
        out: as in `bake_logit_adjustment`.
        force: as in `bake_logit_adjustment`.

    Returns:
        A baked copy of the model; for a path, the path `out`.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> model = LogisticRegression().fit([[0.0], [1.0], [5.0], [9.0]], [0, 0, 1, 2])
        >>> bake_weight_normalization(model).coef_.round(4).ravel()
        array([-1.,  1.,  1.])
    """
    change = Change.normalizing(norms, tau, bias_mode)
    return _bake(model, change, layer, output, inputs, out, force)


def unbake(model: Any, *, out: Path | str | None = None, force: bool = False) -> Any:
    """Undo what was baked into a model, to the original bytes of its weights.

    Args:
        model: a baked model of any kind that `bake_logit_adjustment` takes.
        out: the file or folder to write, if `model` is a path.
        force: replace `out` if it is a file that exists.

    Returns:
        A copy of the model as it was; for a path, the path `out`.

    Raises:
        InputError: the model is not baked, or its weights were changed since.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> model = LogisticRegression().fit([[0.0], [1.0], [2.0], [9.0]], [0, 0, 0, 1])
        >>> baked = bake_logit_adjustment(model, ClassPrior.from_counts([3, 1]))
        >>> bool(unbake(baked).intercept_ == model.intercept_)
        True
    """
    kind = _kind(model)
    if isinstance(model, str | Path):
        source, target = _paths(Path(model), kind, out, force)
        _backend(kind).unbake_file(source, target)
        return target
    if out is not None:
        raise InputError("`out` is for paths; a model in memory is given back as a copy.")
    return _backend(kind).unbake(model)


def bake_record(model: Any) -> BakeRecord | None:
    """Return the record of what was baked into a model.

    Args:
        model: a model of any kind that `bake_logit_adjustment` takes.

    Returns:
        The record, or None if nothing was baked.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> model = LogisticRegression().fit([[0.0], [1.0], [2.0], [9.0]], [0, 0, 0, 1])
        >>> bake_record(model) is None
        True
        >>> bake_record(bake_logit_adjustment(model, ClassPrior.from_counts([3, 1]), tau=0.5))
        BakeRecord(method='logit_adjustment', tau=0.5, where='LogisticRegression', how='added ...)
    """
    kind = _kind(model)
    found = _backend(kind).record_of(Path(model) if isinstance(model, str) else model)
    return found  # type: ignore[no-any-return]


def _bake(
    model: Any, change: Change, layer: Any, output: Any, inputs: Any, out: Any, force: bool
) -> Any:
    kind = _kind(model)
    given = {"layer": layer, "output": output, "inputs": inputs}
    for name, (kinds, purpose) in _OPTIONS.items():
        if given[name] is not None and kind not in kinds:
            raise InputError(f"`{name}` is for {purpose}; leave it out.")
    named = output if kind == "onnx" else layer
    names = [named] if isinstance(named, str) else list(named or ())
    if isinstance(model, str | Path):
        source, target = _paths(Path(model), kind, out, force)
        _backend(kind).bake_file(source, target, change, names, inputs)
        return target
    if out is not None:
        raise InputError("`out` is for paths; a model in memory is given back as a copy.")
    return _backend(kind).bake(model, change, names, inputs)


def _kind(model: Any) -> str:
    """Return the key in _BACKENDS of a model or path, importing none of them."""
    homes = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    if isinstance(model, Mapping):
        return "state"
    if ("torch", "Module") in homes:
        return "module"
    if type(model).__name__ == "ModelProto":
        return "onnx"
    if ("sklearn", "BaseEstimator") in homes:
        return "sklearn"
    if not isinstance(model, str | Path):
        raise InputError(
            f"`model` must be a torch module or state dict, an ONNX model, a classifier of "
            f"scikit-learn, or the path of a model; got {type(model).__name__}."
        )
    path = Path(model)
    if path.is_dir():
        if any(path.glob("model.safetensors*")) and (path / "config.json").is_file():
            return "folder"
        raise InputError(
            f"{path} is a folder without config.json and model.safetensors; name the model's file."
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    ending = path.suffix.lower()
    if ending in _PICKLES:
        raise InputError(
            f"{path} is a pickle by its name, and pickles are never loaded; save the state dict "
            f"with safetensors.torch.save_file, export to ONNX, or load the model yourself and "
            f"bake it in Python."
        )
    if ending in _KINDS:
        return _KINDS[ending]
    with open(path, "rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return "safetensors"
    if start[:1] == b"\x08":  # an ONNX file starts with its version
        return "onnx"
    raise InputError(f"{path} is neither an ONNX nor a safetensors file.")


def _paths(source: Path, kind: str, out: Path | str | None, force: bool) -> tuple[Path, Path]:
    """Return what to read and what to write."""
    if out is None:
        raise InputError("`model` is a path, so pass out=..., the file to write.")
    target = Path(out)
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent} to write to.")
    if kind == "folder":
        if target.exists():
            raise InputError(f"{target} exists; name a new folder.")
        return source, target
    if target.is_dir():
        raise InputError(f"{target} is a folder; name the file to write.")
    if target.exists() and not force:
        raise InputError(f"{target} exists; pass force=True (--force) to replace it.")
    ending = target.suffix.lower()
    if ending in _PICKLES or _KINDS.get(ending, kind) != kind:
        raise InputError(
            f"{source} is {_NAMES[kind]}, and so is what is made of it, but {target} is something "
            f"else by its name; write {target.with_suffix('.' + kind)}."
        )
    return source, target


def _backend(kind: str) -> Any:
    """Return the module that knows a kind of model, importing what it needs."""
    name, needs, extra = _BACKENDS[kind]
    for module in needs:
        _checks.require(module, extra=extra)
    return import_module(f"longtail.bake.{name}")
