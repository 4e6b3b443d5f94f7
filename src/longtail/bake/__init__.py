"""A trained model and an adjustment in, a model of the same kind out: nothing new to deploy.

Post-hoc logit adjustment and weight normalization are affine in the logits, so they fit into the
last layer's own bias and weight. The baked model needs no code and no time of its own.

    model                                what changes
    torch.nn.Module                      bias (and weight) of the last linear layer, in a copy
    .safetensors file                    the same, in a new file
    onnx.ModelProto or .onnx file        the final bias; else a node behind the logits
    linear model of scikit-learn         intercepts (and coefficients), in a copy

Every result is checked by running it (of a torch module and a state dict the last layer) before
it is kept, carries a record of what was done (`bake_record`), is refused if it comes again, and can
be undone to the original bytes (`unbake`). Choosing tau is in `tuning`. A torch module or state
dict that holds a loss which leaves less than half of tau to correct, or a classifier that weighs
classes itself, is baked with an AdjustedTwiceWarning if tau is 0.5 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longtail import _checks
from longtail._checks import InputError
from longtail.bake._change import Change, LogitAdjustment, WeightNormalization
from longtail.bake._record import BakeRecord
from longtail.posthoc import BiasMode
from longtail.priors import ClassPrior

__all__ = [
    "BakeRecord",
    "bake_logit_adjustment",
    "bake_record",
    "bake_weight_normalization",
    "unbake",
]

# What a file is by its ending; any other ending, or none, says nothing.
_PICKLE = "a pickle"
_KINDS = {".onnx": "an ONNX file", ".safetensors": "a safetensors file"}
_KINDS |= dict.fromkeys((".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"), _PICKLE)


def bake_logit_adjustment(
    model: Any,
    prior: ClassPrior,
    *,
    tau: float = 1.0,
    target_prior: ClassPrior | None = None,
    costs: Any = None,
    layer: str | None = None,
    output: str | None = None,
    inputs: Any = None,
    out: Path | str | None = None,
    force: bool = False,
) -> Any:
    """Fold post-hoc logit adjustment into a model: b_y − τ (log π_y − log q_y − log c_y).

    Args:
        model: a torch module, an ONNX model, a fitted linear classifier of scikit-learn (or a
            pipeline that ends in one), or the path of an .onnx or .safetensors file.
        prior: π, of the data that the model was trained on, in the order of its outputs.
        tau: τ; `tune_tau` chooses it on held-out data.
        target_prior: q, of the data that the model will meet; None means all classes alike.
        costs: c, shape (num_classes,), positive: what an error on each class costs.
        layer: name of the last linear layer in a torch module or state dict; needed only where
            more than one can be meant by its number of outputs.
        output: name of the output of an ONNX model, where more than one can be meant.
        inputs: what to check the result on. For an ONNX model, arrays by name, where made-up ones
            won't do. For a torch module, what it is called with (a tensor, a tuple, or a
            dictionary of keywords): without it only the last layer is run, and what the module
            does behind that layer, such as a temperature, goes unnoticed.
        out: the file to write, if `model` is a path; of the same kind, so an ending that means
            another is refused.
        force: replace `out` if it exists.

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
    change = LogitAdjustment.make(
        prior, tau=tau, target_prior=target_prior, costs=costs, caller="bake_logit_adjustment"
    )
    return _bake(model, change, layer=layer, output=output, inputs=inputs, out=out, force=force)


def bake_weight_normalization(
    model: Any,
    *,
    tau: float = 1.0,
    norms: Any = None,
    bias_mode: BiasMode = "scale",
    layer: str | None = None,
    output: str | None = None,
    inputs: Any = None,
    out: Path | str | None = None,
    force: bool = False,
) -> Any:
    """Fold weight normalization into a model: f_y / ν_y^τ.

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
    change = WeightNormalization.make(
        norms=norms, tau=tau, bias_mode=bias_mode, caller="bake_weight_normalization"
    )
    return _bake(model, change, layer=layer, output=output, inputs=inputs, out=out, force=force)


def unbake(model: Any, *, out: Path | str | None = None, force: bool = False) -> Any:
    """Undo what was baked into a model, to the original bytes of its weights.

    Args:
        model: a baked model of any kind that `bake_logit_adjustment` takes.
        out: the file to write, if `model` is a path.
        force: replace `out` if it exists.

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
    caller = "unbake"
    if isinstance(model, str | Path):
        source, target = _paths(model, out, force, caller)
        state = _is_state_file(source, caller)
        _refuse_another_kind(source, target, state, caller)
        if state:
            from longtail.bake import _safetensors

            _safetensors.unbake(source, target, caller=caller)
        else:
            _onnx_module(caller).unbake_file(source, target, caller=caller)
        return target
    _refuse_out(out, caller)
    kind = _kind(model, caller)
    if kind == "onnx":
        return _onnx_module(caller).unbake(model, name="the model", caller=caller)
    if kind == "torch":
        from longtail.bake import _module

        return _module.unbake(model, caller=caller)
    from longtail.bake import _estimator

    return _estimator.unbake(model, caller=caller)


def bake_record(model: Any) -> BakeRecord | None:
    """What was baked into a model.

    Args:
        model: a model of any kind that `bake_logit_adjustment` takes, or the state dict of a
            torch module (as `state_dict()` or `torch.load` gives it).

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
    caller = "bake_record"
    if isinstance(model, str | Path):
        path = _existing(model, caller)
        if _is_state_file(path, caller):
            from longtail.bake import _safetensors

            return _safetensors.record_of(path, caller=caller)
        module = _onnx_module(caller)
        found: BakeRecord | None = module.record_of(module.load(path, caller=caller), caller=caller)
        return found
    if isinstance(model, Mapping):
        from longtail.bake import _module

        return _module.record_of_state(model, caller=caller)
    kind = _kind(model, caller)
    if kind == "onnx":
        from longtail.bake import _onnx

        return _onnx.record_of(model, caller=caller)
    if kind == "torch":
        from longtail.bake import _module

        return _module.record_of(model, caller=caller)
    from longtail.bake import _estimator

    return _estimator.record_of(model, caller=caller)


def _bake(
    model: Any,
    change: Change,
    *,
    layer: str | None,
    output: str | None,
    inputs: Any,
    out: Path | str | None,
    force: bool,
) -> Any:
    caller = change.caller
    if isinstance(model, str | Path):
        source, target = _paths(model, out, force, caller)
        state = _is_state_file(source, caller)
        _refuse_another_kind(source, target, state, caller)
        if state:
            from longtail.bake import _safetensors

            _refuse_onnx_options(output, inputs, caller)
            _safetensors.bake(source, target, change, layer=layer)
        else:
            module = _onnx_module(caller, running=True)
            module.bake_file(source, target, change, layer=layer, output=output, inputs=inputs)
        return target
    _refuse_out(out, caller)
    kind = _kind(model, caller)
    if kind == "onnx":
        module = _onnx_module(caller, running=True)
        return module.bake(model, change, layer=layer, output=output, inputs=inputs)
    if kind == "torch":
        from longtail.bake import _module

        _refuse_onnx_options(output, None, caller)
        return _module.bake(model, change, layer=layer, inputs=inputs)
    _refuse_onnx_options(output, inputs, caller)
    from longtail.bake import _estimator

    return _estimator.bake(model, change, layer=layer)


def _kind(model: Any, caller: str) -> str:
    """torch, onnx or sklearn, told without importing any of them."""
    homes = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    if any(home == "torch" and name == "Module" for home, name in homes):
        return "torch"
    if type(model).__name__ == "ModelProto":
        return "onnx"
    if ("sklearn", "BaseEstimator") in homes:
        return "sklearn"
    raise InputError(
        f"{caller}: `model` must be a torch module, an ONNX model, a classifier of scikit-learn, "
        f"or the path of an .onnx or .safetensors file; got {type(model).__name__}."
    )


def _onnx_module(caller: str, *, running: bool = False) -> Any:
    """`_onnx`, or the command that installs what it needs."""
    for module in ("onnx", "onnxruntime") if running else ("onnx",):
        _checks.require(module, extra="onnx", caller=caller)
    from longtail.bake import _onnx

    return _onnx


def _existing(path: Path | str, caller: str) -> Path:
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{caller}: {path} is a folder; name the model's file in it.")
    if not path.is_file():
        raise InputError(f"{caller}: there is no file {path}.")
    return path


def _paths(
    model: Path | str, out: Path | str | None, force: bool, caller: str
) -> tuple[Path, Path]:
    source = _existing(model, caller)
    if out is None:
        raise InputError(f"{caller}: `model` is a file, so pass out=..., the file to write.")
    target = Path(out)
    if target.is_dir():
        raise InputError(f"{caller}: {target} is a folder; name the file to write.")
    if not target.parent.is_dir():
        raise InputError(f"{caller}: there is no folder {target.parent} to write to.")
    if target.exists() and not force:
        raise InputError(f"{caller}: {target} exists; pass force=True (--force) to replace it.")
    return source, target


def _refuse_out(out: Path | str | None, caller: str) -> None:
    if out is not None:
        raise InputError(
            f"{caller}: `out` is for files; a model in memory is given back as a copy, to be "
            f"saved as you save the original."
        )


def _refuse_onnx_options(output: str | None, inputs: Any, caller: str) -> None:
    if output is not None:
        raise InputError(f"{caller}: `output` is for ONNX models; leave it out.")
    if inputs is not None:
        raise InputError(f"{caller}: `inputs` is for ONNX models and torch modules; leave it out.")


def _refuse_another_kind(source: Path, target: Path, state: bool, caller: str) -> None:
    """Refuse an output that any reader would take for another kind of file than it will be."""
    named, ending = _KINDS.get(target.suffix.lower()), ".safetensors" if state else ".onnx"
    if named in (None, _KINDS[ending]):
        return
    export = ", or export the model to ONNX and bake that" if state and caller != "unbake" else ""
    raise InputError(
        f"{caller}: {source} is {_KINDS[ending]}, and so is what is made of it, but {target} is "
        f"{named} by its name; write {target.with_suffix(ending)}{export}."
    )


def _is_state_file(path: Path, caller: str) -> bool:
    """Whether a file is a safetensors file; else it should be an ONNX file."""
    kind = _KINDS.get(path.suffix.lower())
    if kind == _PICKLE:
        raise InputError(
            f"{caller}: {path} is a pickle by its name, and pickles are never loaded; save the "
            f"state dict with safetensors.torch.save_file, export to ONNX, or load the model "
            f"yourself and bake it in Python."
        )
    if kind is not None:
        return kind == _KINDS[".safetensors"]
    with open(path, "rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return True
    if start[:1] == b"\x08":  # an ONNX file starts with its version
        return False
    raise InputError(f"{caller}: {path} is neither an ONNX nor a safetensors file.")
