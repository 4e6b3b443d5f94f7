"""`longtail bake`: an adjustment folded into a model file, and taken out again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console, _inputs, _runs
from longtail.cli._console import Failure, option
from longtail.cli._inputs import Method

if TYPE_CHECKING:
    from longtail.runs import Run

# Of each of these at most one is given.
_COUNTS = ("--counts", "--train-labels", "--prior")
_ONE_OF = (_COUNTS, ("--prior", "--smoothing"), ("--tau", "--tau-from"))
# What says by how much to adjust each class, for which weight normalization has no use.
_ADJUSTING = {*_COUNTS, "--smoothing", "--classes", "--target", "--costs"}
# What else may be given with --undo.
_UNDOING = {"model", "--out", "--undo", "--force", "--json"}

BiasMode = StrEnum("BiasMode", ["scale", "keep", "drop"])


def bake(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An .onnx or .safetensors file, a Hugging Face or run folder."
        ),
    ],
    out: Annotated[
        Path,
        option("FILE", "Write the baked model here, as MODEL is: file or folder.", "--out", "-o"),
    ],
    counts: _inputs.Counts = None,
    train_labels: _inputs.TrainLabels = None,
    prior: Annotated[
        str | None, option("P,P,...|FILE", "Or the classes' probabilities themselves.")
    ] = None,
    tau: Annotated[float | None, option("T", "How strongly to adjust (default: 1).")] = None,
    tau_from: Annotated[
        Path | None, option("FILE", "Take tau from what `tune --json` printed.")
    ] = None,
    target: _inputs.Target = "balanced",
    costs: Annotated[
        str | None, option("C,C,...|FILE", "What an error on each class costs.")
    ] = None,
    method: Annotated[Method, option(None, "What to bake in.")] = Method.logit_adjustment,
    bias_mode: Annotated[
        BiasMode | None,
        option(None, "What weight normalization does with the bias (default: scale)."),
    ] = None,
    layer: Annotated[
        list[str] | None, option("NAME", "Last layer of a state dict; again for another head.")
    ] = None,
    output: Annotated[
        list[str] | None, option("NAME", "Logits of an ONNX model; again for another head.")
    ] = None,
    inputs: Annotated[
        Path | None, option("FILE.npz", "Check an ONNX model on these, by input name.")
    ] = None,
    classes: _inputs.Classes = None,
    smoothing: _inputs.Smoothing = 0.0,
    undo: Annotated[
        bool, option(None, "Take out what was baked in, to the last byte.", "--undo")
    ] = False,
    force: _console.Force = False,
    json: _console.Json = False,
) -> None:
    """Fold an adjustment into a model file, to deploy as it is.

    The last layer's bias takes it up: the file has the same inputs, outputs and speed, and
    predicts what the adjusted model would. It is checked before it is written, says in its
    metadata what was done, is not baked twice, and --undo gives the original weights back.

    For models trained with plain cross-entropy: after a logit-adjusted loss or class-balanced
    training there is nothing to bake, and baking would favour the rare classes twice.

    \b
    Examples:
      longtail bake model.onnx --counts 900,90,10 --out baked.onnx
      longtail bake model.safetensors --counts counts.txt --out baked.safetensors
      longtail bake model.onnx --counts counts.txt --tau-from tau.json -o b.onnx
      longtail bake bert-folder --counts counts.txt --out baked-folder
      longtail bake runs/digits-lt/softmax-s0-10db5896 -o baked.safetensors
      longtail bake baked.onnx --undo --out model.onnx
    """
    import numpy as np

    from longtail import bake as library
    from longtail.posthoc import LEAST_AGAIN
    from longtail.predictions.labels import read_class_names, read_numbers, readable
    from longtail.priors import ClassPrior

    named = _console.typed(context)
    normalizing = method is Method.weight_normalization
    what, useless = f"--method {method.value}", _ADJUSTING if normalizing else {"--bias-mode"}
    if undo:
        what, useless = "--undo", set(named) - _UNDOING
    for name in named:
        if name in useless:
            raise typer.BadParameter(f"{what} has no use for {name}; leave it out")
    for group in _ONE_OF:
        if len(given := [name for name in group if name in named]) > 1:
            raise typer.BadParameter(f"give either {given[0]} or {given[1]}, not both")
    run = _opened(model, out) if (model / "run.json").is_file() else None
    if run is not None:
        model = run.folder / "model.safetensors"
        layer = layer or (["fc"] if "fc.weight" in run.model() else None)
    strength = 1.0 if tau is None else tau
    if tau_from is not None:
        strength = _tau_of(tau_from, method)
    common: dict[str, Any] = {"tau": strength, "out": out, "force": force}
    common |= {"layer": layer or None, "output": output or None}
    if inputs is not None:
        with readable(inputs), np.load(inputs, allow_pickle=False) as archive:
            common["inputs"] = dict(archive)
    doubtful = False
    with _console.working("baking"):
        if undo:
            record = library.bake_record(model)
            library.unbake(model, out=out, force=force)
        elif normalizing:
            common["bias_mode"] = "scale" if bias_mode is None else bias_mode.value
            library.bake_weight_normalization(model, **common)
        else:
            names = None if classes is None else read_class_names(classes)
            width = None if names is None else len(names)
            if prior is not None:
                probs = read_numbers(prior, option="--prior", num_classes=width, class_names=names)
                if abs(probs.sum() - 1) > 1e-6:
                    raise Failure(
                        f"--prior must be probabilities, which sum to 1, but these sum to "
                        f"{probs.sum():g}; give numbers of training examples with --counts."
                    )
                found = ClassPrior.from_probs(probs)
            else:
                known = None if run is None else run.prior
                found = _inputs.read_prior(context.params, known, width, names)
            width = len(found.probs)
            if strength >= LEAST_AGAIN:
                doubtful = tau_from is None  # held-out data are right for whatever training
                if run is not None:
                    elsewhere = " and ".join(n for n in ("--target", "--costs") if n in named)
                    asked = strength if tau_from is None else None
                    said = _runs.warn_if_adjusted(run, found, tau=asked, elsewhere=elsewhere)
                    doubtful = doubtful and not said
            if target != "balanced":
                common["target_prior"] = _inputs.read_target(target, width, names)
            if costs is not None:
                common["costs"] = read_numbers(
                    costs, option="--costs", num_classes=width, class_names=names
                )
            library.bake_logit_adjustment(model, found, **common)
    if not undo:
        record = library.bake_record(out)
    assert record is not None
    if json:
        document = {"model": model, "out": out, "undone": undo, "method": record.method}
        document |= {"tau": record.tau, "where": record.where, "how": record.how}
        _console.print_json(document | dict(record.settings))
        return
    checked = f"Checked on {inputs or 'random inputs'}: its outputs are the adjusted ones."
    if "layers" in record.undo:  # what stands around a state dict's layer is not known
        checked = "The layer gives the adjusted logits."
    back = f"`longtail bake {out} --undo --out {'FOLDER' if out.is_dir() else 'FILE'}` gives"
    texts = [f"Baked {record} into {out}, {record.how}.", f"{checked} {back} the original back."]
    if undo:
        texts = [f"Undone: {record}. The weights in {out} are the original ones, to the byte."]
    if doubtful:
        texts.append("Right only if trained without logit adjustment or class balancing.")
    for text in texts:
        _console.line(text, wrap=True)


def _opened(model: Path, out: Path) -> Run:
    """Return a run whose last layer can be baked."""
    from longtail.runs import Run

    run = Run.open(model)
    tensors = run.model()  # says what to do if the weights are not there
    if out.resolve().parent == run.folder.resolve():
        raise Failure(f"{run.folder} is a run's record and stays as it is; write elsewhere.")
    if "fc.weight" in tensors and "fc.bias" not in tensors:
        raise Failure(
            f"the last layer of {run.folder} takes no bias, as of a cosine head; export the model "
            f"to ONNX and bake that."
        )
    return run


def _tau_of(path: Path, method: Method) -> float:
    """Return tau in what `longtail tune --json` or `longtail adjust --json` printed."""
    from longtail.runs.files import read_json

    document = read_json(path)
    tau = document.get("tau") if isinstance(document, dict) else None
    if not isinstance(tau, float | int):
        raise Failure(
            f"--tau-from: {path} has no number `tau`; it must hold what `longtail tune --json` "
            f"or `longtail adjust --json` printed."
        )
    chosen_for = str(document.get("method", method.name)).replace("_", "-")
    if chosen_for != method.value:
        raise Failure(
            f"--tau-from: the tau in {path} was chosen for {chosen_for}, but --method is "
            f"{method.value}."
        )
    return float(tau)
