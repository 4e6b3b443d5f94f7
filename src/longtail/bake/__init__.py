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

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._layers import BakeRecord, Change
from longtail.posthoc import BiasMode, adjustment, normalize_weights
from longtail.priors import ClassPrior

__all__ = [
    "BakeRecord",
    "bake_logit_adjustment",
    "bake_record",
    "bake_weight_normalization",
    "unbake",
]

# The module that bakes a kind of model, and the extra that brings what it imports.
_BACKENDS = {
    "onnx": ("_onnx", "onnx"),
    "module": ("_torch", "torch"),
    "state": ("_state", "torch"),
    "files": ("_files", "train"),
    "sklearn": ("_sklearn", "sklearn"),
}


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
            of keywords); without it the last layer is run with what follows it in a Sequential,
            and a warning says so if the module is anything else.
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
    shift = adjustment(prior, tau=tau, target_prior=target_prior, costs=costs)
    settings: dict[str, Any] = {"prior": prior.probs.tolist()}
    if target_prior is not None:
        settings["target_prior"] = target_prior.probs.tolist()
    if costs is not None:
        settings["costs"] = _checks.per_class(costs, name="costs").tolist()
    change = Change(float(tau), settings, len(shift), prior=prior, shift=shift)
    options = {"layer": layer, "output": output, "inputs": inputs}
    return _bake(model, change, options, out, force)


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
    settings: dict[str, Any] = {"bias_mode": bias_mode, "norms": "weights"}
    width = known = None
    if norms is not None:
        width = norms.num_classes if isinstance(norms, ClassPrior) else len(norms)
        known = 1.0 / normalize_weights(np.ones(width), norms=norms)
        settings["norms"] = known.tolist()
    # Checks tau and bias_mode before the model is opened.
    normalize_weights(np.ones(1), norms=[1.0], tau=tau, bias=[0.0], bias_mode=bias_mode)
    change = Change(float(tau), settings, width, norms=known, bias_mode=bias_mode)
    options = {"layer": layer, "output": output, "inputs": inputs}
    return _bake(model, change, options, out, force)


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
    backend, opened = _open(model)
    target = _target(model, out, force)
    if backend.record_of(opened) is None:
        raise InputError(f"{_name(model)} is not baked: it has no record of an adjustment.")
    try:
        changed = backend.unbake(opened)
    except (InputError, OSError):
        raise
    except Exception as error:
        raise InputError(
            f"the record of baking in {_name(model)} was changed ({error}), so the original can't "
            f"be given back."
        ) from error
    return backend.save(changed, target) if hasattr(backend, "save") else changed


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
    backend, opened = _open(model)
    found: BakeRecord | None = backend.record_of(opened)
    return found


def _bake(
    model: Any, change: Change, options: dict[str, Any], out: Path | str | None, force: bool
) -> Any:
    backend, opened = _open(model)
    given = {
        name: [value] if isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }
    for name in given.keys() - inspect.signature(backend.bake).parameters.keys():
        raise InputError(f"`{name}=` is not for this kind of model; leave it out.")
    target = _target(model, out, force)
    record = backend.record_of(opened)
    if record is not None:
        raise InputError(
            f"{_name(model)} is baked already: {record}, {record.how}; a second adjustment would "
            f"favour the rare classes twice. Undo the first with unbake, or --undo."
        )
    changed = backend.bake(opened, change, **given)
    return backend.save(changed, target) if hasattr(backend, "save") else changed


def _name(model: Any) -> str:
    return str(model) if isinstance(model, str | Path) else f"the {type(model).__name__}"


def _open(model: Any) -> tuple[Any, Any]:
    """Return the module that bakes this kind of model, and the model as it takes it."""
    homes = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    path = Path(model) if isinstance(model, str | Path) else None
    if path is not None:
        kind = "onnx" if path.suffix == ".onnx" and path.is_file() else "files"
        if not path.is_file() and not path.is_dir():
            raise InputError(f"there is no file {path}.")
        if path.is_file() and path.suffix not in (".onnx", ".safetensors"):
            raise InputError(
                f"{path} is neither an .onnx nor a .safetensors file, and pickles are never "
                f"loaded; save the state dict with safetensors.torch.save_file, export to ONNX, or "
                f"load the model yourself and bake it in Python."
            )
    elif isinstance(model, Mapping):
        kind = "state"
    elif ("torch", "Module") in homes:
        kind = "module"
    elif type(model).__name__ == "ModelProto":
        kind = "onnx"
    elif ("sklearn", "BaseEstimator") in homes:
        kind = "sklearn"
    else:
        raise InputError(
            f"`model` must be a torch module or state dict, an ONNX model, a classifier of "
            f"scikit-learn, or the path of a model; got {type(model).__name__}."
        )
    name, extra = _BACKENDS[kind]
    try:
        backend = import_module(f"longtail.bake.{name}")
    except ModuleNotFoundError as error:
        backend = _checks.require(str(error.name), extra=extra)  # says how to install it
    return backend, backend.load(path or model) if hasattr(backend, "load") else model


def _target(model: Any, out: Path | str | None, force: bool) -> Path | None:
    """Return what to write, of the same kind as what is read; None for a model in memory."""
    if not isinstance(model, str | Path):
        if out is not None:
            raise InputError("`out` is for paths; a model in memory is given back as a copy.")
        return None
    if out is None:
        raise InputError("`model` is a path, so pass `out=`, the file to write.")
    source, target = Path(model), Path(out)
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent} to write to.")
    if target.is_dir() or (target.exists() and source.is_dir()):
        raise InputError(f"{target} exists; name a new file or folder.")
    if target.exists() and not force:
        raise InputError(f"{target} exists; pass `force=True` to replace it.")
    if target.suffix != source.suffix and source.is_file():
        raise InputError(f"what is made of {source} must end in {source.suffix}; got {target}.")
    return target
