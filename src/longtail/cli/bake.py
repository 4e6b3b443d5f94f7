"""`longtail bake`: an adjustment folded into a model file, and taken out again."""

from __future__ import annotations

import warnings
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
    finite,
    label_of,
    prior_of_counts,
    read_target,
    trained_plainly,
    warn_if_adjusted,
)

if TYPE_CHECKING:
    from longtail.bake import BakeRecord
    from longtail.priors import ClassPrior
    from longtail.runs import Run

app = typer.Typer(rich_markup_mode=None, add_completion=False)


# What says by how much to adjust each class.
_ADJUSTING = {
    "--counts",
    "--train-labels",
    "--prior",
    "--smoothing",
    "--classes",
    "--target",
    "--costs",
}


class BiasMode(StrEnum):
    """What weight normalization does with the bias."""

    scale = "scale"
    keep = "keep"
    drop = "drop"


@app.command()
def bake(
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
        typer.Option(metavar="T", callback=finite, help="How strongly to adjust (default: 1)."),
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
    from longtail._checks import InputError
    from longtail.bake import bake_logit_adjustment, bake_record, bake_weight_normalization, unbake
    from longtail.posthoc import LEAST_AGAIN, AdjustedTwiceWarning

    _console.refuse_overwrite(out, force)
    given: dict[str, Any] = {"--counts": counts, "--train-labels": train_labels, "--prior": prior}
    given |= {"--costs": costs, "--target": None if target == "balanced" else target}
    given |= {"--smoothing": smoothing or None, "--classes": classes, "--bias-mode": bias_mode}
    given |= {"--tau": tau, "--tau-from": tau_from}
    given |= {"--layer": layer or None, "--output": output or None, "--inputs": inputs}
    named = [name for name, value in given.items() if value is not None]
    _refuse_contradictions(named, method, undo=undo)
    run, file = _source(model, out)
    if undo:
        record = bake_record(file)
        unbake(file, out=out, force=force)
        _finish(file, out, record, json=json, undone=True)
        return
    strength = _tau_of(tau_from, method) if tau_from is not None else tau
    if run is not None and not layer and "fc.weight" in run.model():
        layer = ["fc"]  # the last layer of the networks here
    common: dict[str, Any] = {"tau": 1.0 if strength is None else strength, "out": out}
    common |= {"layer": layer or None, "output": output or None, "force": force}
    common |= {"inputs": None if inputs is None else _arrays(inputs)}
    doubtful = False
    with _console.working("baking"):
        if method is Method.weight_normalization:
            bake_weight_normalization(file, bias_mode=(bias_mode or BiasMode.scale).value, **common)
        else:
            from longtail.predictions.labels import read_class_names

            names = None if classes is None else read_class_names(classes)
            found = _prior(run, counts, train_labels, prior, names, smoothing)
            width = found.num_classes
            if names is not None and len(names) != width:
                raise InputError(
                    f"--classes has {len(names)} names, but there are {width} classes."
                )
            elsewhere = " and ".join(name for name in ("--target", "--costs") if name in named)
            much = common["tau"] >= LEAST_AGAIN and found.imbalance_ratio > 1
            asked = common["tau"] if tau_from is None else None
            told = much and warn_if_adjusted(run, found, tau=asked, elsewhere=elsewhere or None)
            # What held-out data chose is right for whatever the model was trained with.
            plain = run is not None and trained_plainly(run)
            doubtful = much and tau_from is None and not (told or plain)
            with warnings.catch_warnings():
                if told:  # the run's weights may hold the loss, too
                    warnings.simplefilter("ignore", AdjustedTwiceWarning)
                bake_logit_adjustment(
                    file,
                    found,
                    target_prior=read_target(target, width, names),
                    costs=None if costs is None else _positive("--costs", costs, width, names),
                    **common,
                )
    _finish(file, out, bake_record(out), json=json, undone=False, inputs=inputs)
    if doubtful and not json:
        _console.line("Right only if trained without logit adjustment or class balancing.")


def _refuse_contradictions(given: list[str], method: Method, *, undo: bool) -> None:
    """Refuse options that contradict each other or would do nothing."""
    priors = [name for name in given if name in ("--counts", "--train-labels", "--prior")]
    unused = [name for name in given if name in _ADJUSTING]
    if undo and given:
        raise typer.BadParameter(f"--undo takes out what was baked in; leave out {given[0]}")
    if len(priors) > 1:
        raise typer.BadParameter(f"{' and '.join(priors)} say the same; give one")
    if {"--tau", "--tau-from"} <= set(given):
        raise typer.BadParameter("give either --tau or --tau-from, not both")
    if {"--prior", "--smoothing"} <= set(given):
        raise typer.BadParameter("--smoothing is added to counts, and --prior gives none")
    if method is Method.weight_normalization and unused:
        raise typer.BadParameter(
            f"weight normalization takes the norms from the layer itself; leave out {unused[0]}"
        )
    if method is Method.logit_adjustment and "--bias-mode" in given:
        raise typer.BadParameter("--bias-mode is for --method weight-normalization; leave it out")


def _source(model: Path, out: Path) -> tuple[Run | None, Path]:
    """Return the run, if the argument is a run folder, and what to bake."""
    from longtail._checks import InputError

    if not (model / "run.json").is_file():
        return None, model
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
    return run, run.folder / "model.safetensors"


def _prior(
    run: Run | None,
    counts: str | None,
    train_labels: Path | None,
    prior: str | None,
    names: list[str] | None,
    smoothing: float,
) -> ClassPrior:
    """Return the prior that the options name, or the run's own."""
    import numpy as np

    from longtail import _checks
    from longtail._checks import InputError
    from longtail.predictions.labels import LabelEncoder, read_labels, read_numbers, whole
    from longtail.priors import ClassPrior

    if prior is not None:
        probs = _positive("--prior", prior, None, names)
        if abs(probs.sum() - 1) > 1e-6:
            raise InputError(
                f"--prior must be probabilities, which sum to 1, but these sum to "
                f"{probs.sum():g}; give numbers of training examples with --counts."
            )
        return ClassPrior.from_probs(probs)
    if counts is None and train_labels is None:
        if run is None:
            raise InputError(
                "the numbers of training examples per class are needed: pass --counts 900,90,10, "
                "--counts FILE, --train-labels FILE or --prior FILE."
            )
        if not smoothing or run.prior.counts is None:
            return run.prior
        return ClassPrior.from_counts(run.prior.counts, smoothing=smoothing)
    if counts is not None:
        option = "--counts"
        numbers = read_numbers(counts, option=option, num_classes=None, class_names=names)
    else:
        assert train_labels is not None
        option = "--train-labels"
        if names is None:
            labels = read_labels(train_labels)
            if any(whole(str(label)) is None for label in set(labels.tolist())):
                raise InputError(
                    f"--train-labels {train_labels}: labels that are names need the classes in "
                    f"the order of the model's outputs, with --classes."
                )
            numbers = np.bincount(_checks.labels(np.asarray(labels, np.int64), name=option))
        else:
            encode = LabelEncoder(len(names), names, name=f"--train-labels {train_labels}")
            labels = read_labels(train_labels, names)
            numbers = np.bincount(encode(labels), minlength=len(names))
    return prior_of_counts(numbers, source=option, smoothing=smoothing, label=label_of(names))


def _positive(option: str, text: str, width: int | None, names: list[str] | None) -> Any:
    """Return one number above zero per class."""
    from longtail.predictions.labels import read_numbers

    numbers = read_numbers(text, option=option, num_classes=width, class_names=names)
    return above_zero(numbers, option, names)


def _tau_of(path: Path, method: Method) -> float:
    """Return tau in what `longtail tune --json` or `longtail adjust --json` printed."""
    from longtail._checks import InputError
    from longtail.runs.files import read_json

    if not path.is_file():
        raise InputError(f"--tau-from: there is no file {path}.")
    document = read_json(path)
    tau = document.get("tau") if isinstance(document, dict) else None
    if isinstance(tau, bool) or not isinstance(tau, int | float):
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


def _finish(
    file: Path,
    out: Path,
    record: BakeRecord | None,
    *,
    json: bool,
    undone: bool,
    inputs: Path | None = None,
) -> None:
    """Print what was done."""
    assert record is not None
    if json:
        shown = {"method": record.method, "tau": record.tau, "where": record.where}
        shown |= {"how": record.how, **record.settings}
        _console.print_json({"model": file, "out": out, "undone": undone, **shown})
        return
    if undone:
        text = f"Undone: {record}. The weights in {out} are the original ones, to the byte."
        _console.line(_console.wrapped(text))
        return
    _console.line(_console.wrapped(f"Baked {record} into {out}, {record.how}."))
    layers = record.undo.get("layers")
    on = "random inputs" if inputs is None else inputs
    checked = f"Checked on {on}: its outputs are the adjusted ones."
    if layers is not None:  # what stands around a state dict's layer is not known
        checked = "The layer gives the adjusted logits."
    new_bias = any(undo.get("bias", "") is None for undo in (layers or {}).values())
    code = "" if new_bias else "It needs no new code; "  # a warning has said what it needs
    undoing = f"`longtail bake {out} --undo --out {'FOLDER' if out.is_dir() else 'FILE'}` gives"
    _console.line(_console.wrapped(f"{checked} {code}{undoing} the original back."))
