"""`longtail bake`: an adjustment folded into a model file, and taken out again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import ForceOption, JsonOption
from longtail.cli._inputs import (
    ClassesOption,
    CountsOption,
    Method,
    SmoothingOption,
    TrainLabelsOption,
    above_zero,
    label_of,
    prior_of_counts,
    read_target,
    trained_plainly,
    warn_if_adjusted,
)

if TYPE_CHECKING:
    from longtail.priors import ClassPrior
    from longtail.runs import Run

app = typer.Typer(rich_markup_mode=None, add_completion=False)

# Of each of these at most one is given.
_EITHER = [
    ("--counts", "--train-labels"),
    ("--counts", "--prior"),
    ("--train-labels", "--prior"),
    ("--prior", "--smoothing"),
    ("--tau", "--tau-from"),
]
# What says by how much to adjust each class, for which weight normalization has no use.
_ADJUSTING = {"--counts", "--train-labels", "--prior", "--smoothing", "--classes", "--target"}
_ADJUSTING |= {"--costs"}
# What else may be given with --undo.
_UNDOING = {"--model", "--out", "--undo", "--force", "--json"}


class BiasMode(StrEnum):
    """What weight normalization does with the bias."""

    scale = "scale"
    keep = "keep"
    drop = "drop"


@app.command()
def bake(
    ctx: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An .onnx or .safetensors file, a Hugging Face or run folder."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the baked model here, as MODEL is: file or folder.",
        ),
    ],
    counts: CountsOption = None,
    train_labels: TrainLabelsOption = None,
    prior: Annotated[
        str | None,
        typer.Option(metavar="P,P,...|FILE", help="Or the classes' probabilities themselves."),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(metavar="T", help="How strongly to adjust (default: 1)."),
    ] = None,
    tau_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take tau from what `tune --json` printed."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="balanced|FILE", help="Class frequencies to aim at: all alike, or a file's."
        ),
    ] = "balanced",
    costs: Annotated[
        str | None,
        typer.Option(metavar="C,C,...|FILE", help="What an error on each class costs."),
    ] = None,
    method: Annotated[Method, typer.Option(help="What to bake in.")] = Method.logit_adjustment,
    bias_mode: Annotated[
        BiasMode | None,
        typer.Option(help="What weight normalization does with the bias (default: scale)."),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Last layer of a state dict; again for another head."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Logits of an ONNX model; again for another head."),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Check an ONNX model on these, by input name."),
    ] = None,
    classes: ClassesOption = None,
    smoothing: SmoothingOption = 0.0,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take out what was baked in, to the last byte.")
    ] = False,
    force: ForceOption = False,
    json: JsonOption = False,
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

    from longtail.bake import bake_logit_adjustment, bake_record, bake_weight_normalization, unbake
    from longtail.posthoc import LEAST_AGAIN

    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    named = [f"--{name.replace('_', '-')}" for name in typed]
    normalizing = method is Method.weight_normalization
    idle = [name for name in named if name in (_ADJUSTING if normalizing else {"--bias-mode"})]
    if undo:
        idle = [name for name in named if name not in _UNDOING]
    if idle:
        what = "--undo" if undo else f"--method {method.value}"
        raise typer.BadParameter(f"{what} has no use for {idle[0]}; leave it out")
    for one, other in _EITHER:
        if {one, other} <= set(named):
            raise typer.BadParameter(f"give either {one} or {other}, not both")
    doubtful = False
    run = _opened(model, out) if (model / "run.json").is_file() else None
    if run is not None:
        model = run.folder / "model.safetensors"
        layer = layer or (["fc"] if "fc.weight" in run.model() else None)
    if undo:
        record = bake_record(model)
        unbake(model, out=out, force=force)
    else:
        strength = 1.0 if tau is None else tau
        if tau_from is not None:
            strength = _tau_of(tau_from, method)
        common: dict[str, Any] = {"tau": strength, "out": out, "force": force}
        common |= {"layer": layer or None, "output": output or None}
        common |= {"inputs": None if inputs is None else _arrays(inputs)}
        with _console.working("baking"):
            if normalizing:
                common["bias_mode"] = (bias_mode or BiasMode.scale).value
                bake_weight_normalization(model, **common)
            else:
                found, names = _prior(run, counts, train_labels, prior, classes, smoothing)
                width = len(found.probs)
                much = strength >= LEAST_AGAIN and bool(np.ptp(found.probs) > 0)
                plain = tau_from is not None  # held-out data are right for whatever training
                if much and run is not None:
                    asked = None if tau_from else strength
                    elsewhere = " and ".join(n for n in ("--target", "--costs") if n in named)
                    plain |= trained_plainly(run)
                    plain |= warn_if_adjusted(run, found, tau=asked, elsewhere=elsewhere or None)
                doubtful = much and not plain
                aim = None if target == "balanced" else read_target(target, width, names)
                weights = None if costs is None else _positive("--costs", costs, width, names)
                bake_logit_adjustment(model, found, target_prior=aim, costs=weights, **common)
        record = bake_record(out)
    assert record is not None
    if json:
        shown = {"method": record.method, "tau": record.tau, "where": record.where}
        shown |= {"how": record.how, **record.settings}
        _console.print_json({"model": model, "out": out, "undone": undo, **shown})
        return
    if undo:
        done = f"Undone: {record}. The weights in {out} are the original ones, to the byte."
        _console.line(_console.wrapped(done))
        return
    layers = record.undo.get("layers")
    checked = f"Checked on {inputs or 'random inputs'}: its outputs are the adjusted ones."
    if layers is not None:  # what stands around a state dict's layer is not known
        checked = "The layer gives the adjusted logits."
    if not any(made.get("bias", "") is None for made in (layers or {}).values()):
        checked += " It needs no new code;"  # else a warning has said what it needs
    back = f"`longtail bake {out} --undo --out {'FOLDER' if out.is_dir() else 'FILE'}` gives"
    _console.line(_console.wrapped(f"Baked {record} into {out}, {record.how}."))
    _console.line(_console.wrapped(f"{checked} {back} the original back."))
    if doubtful:
        _console.line("Right only if trained without logit adjustment or class balancing.")


def _opened(model: Path, out: Path) -> Run:
    """Return a run whose last layer can be baked."""
    from longtail._checks import InputError
    from longtail.runs import Run

    run = Run.open(model)
    run.model()  # says what to do if the weights are not there
    if out.resolve().parent == run.folder.resolve():
        raise InputError(f"{run.folder} is a run's record and stays as it is; write elsewhere.")
    head = "cosine" if run.spec.method.name.startswith("ldam") else "linear"
    head = run.spec.model.settings.get("head", head)
    if head != "linear":
        raise InputError(
            f"{run.folder} has a {head} head, which takes no bias; export the model to ONNX and "
            f"bake that."
        )
    return run


def _prior(
    run: Run | None,
    counts: str | None,
    train_labels: Path | None,
    prior: str | None,
    classes: str | None,
    smoothing: float,
) -> tuple[ClassPrior, list[str] | None]:
    """Return the prior that the options name, or the run's own; and the names of the classes."""
    import numpy as np

    from longtail._checks import InputError
    from longtail.predictions import labels
    from longtail.priors import ClassPrior

    names = None if classes is None else labels.read_class_names(classes)
    width = None if names is None else len(names)
    numbers: Any = None
    option = "--counts"
    if prior is not None:
        probs = _positive("--prior", prior, width, names)
        if abs(probs.sum() - 1) > 1e-6:
            raise InputError(
                f"--prior must be probabilities, which sum to 1, but these sum to "
                f"{probs.sum():g}; give numbers of training examples with --counts."
            )
        return ClassPrior.from_probs(probs), names
    if counts is not None:
        numbers = labels.read_numbers(counts, option=option, num_classes=width, class_names=names)
    elif train_labels is not None:
        option, found = "--train-labels", labels.read_labels(train_labels, names)
        if names is None:
            try:
                numbers = np.bincount(np.asarray(found, np.int64))
            except ValueError as error:
                raise InputError(
                    f"--train-labels {train_labels}: labels that are names need the classes in "
                    f"the order of the model's outputs, with --classes."
                ) from error
        else:
            encode = labels.LabelEncoder(len(names), names, name=f"{option} {train_labels}")
            numbers = np.bincount(encode(found), minlength=len(names))
    elif run is not None:
        if width not in (None, run.prior.num_classes):
            raise InputError(
                f"--classes has {width} names, but there are {run.prior.num_classes} classes."
            )
        if not smoothing or run.prior.counts is None:
            return run.prior, names
        numbers = run.prior.counts
    else:
        raise InputError(
            "the numbers of training examples per class are needed: pass --counts 900,90,10, "
            "--counts FILE, --train-labels FILE or --prior FILE."
        )
    label = str if names is None else label_of(names)
    return prior_of_counts(numbers, source=option, smoothing=smoothing, label=label), names


def _positive(option: str, text: str, width: int | None, names: list[str] | None) -> Any:
    """Return one number above zero per class."""
    from longtail.predictions.labels import read_numbers

    numbers = read_numbers(text, option=option, num_classes=width, class_names=names)
    return above_zero(numbers, option, names)


def _tau_of(path: Path, method: Method) -> float:
    """Return tau in what `longtail tune --json` or `longtail adjust --json` printed."""
    from longtail._checks import InputError
    from longtail.runs.files import read_json

    document = read_json(path)
    tau = document.get("tau") if isinstance(document, dict) else None
    if not isinstance(tau, float | int):
        raise InputError(
            f"--tau-from: {path} has no number `tau`; it must hold what `longtail tune --json` "
            f"or `longtail adjust --json` printed."
        )
    chosen_for = str(document.get("method", method.name)).replace("-", "_")
    if chosen_for != method.name:
        raise InputError(
            f"--tau-from: the tau in {path} was chosen for {chosen_for.replace('_', ' ')}, but "
            f"--method is {method.value}."
        )
    return float(tau)


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    from longtail._checks import InputError

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, TypeError) as error:  # TypeError: it is an .npy file
        raise InputError(f"--inputs: {path} can't be read as an .npz file: {error}.") from error
