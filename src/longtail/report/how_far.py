"""The documentation's page on `strong`, "How far can it go", made from records alone.

    python -m longtail.report.how_far [ROOT]

reads ``ROOT/results/strong`` and writes ``ROOT/docs/how-far.md``, its figure beside it, and the
part of ``ROOT/README.md`` between two marks. The same records give the same bytes; what has no
record yet is said to be not trained.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.experiments import records, selection
from longtail.experiments.exp_runs import CIFARS
from longtail.experiments.strong import Study
from longtail.experiments.strong_kinds import LONGER_EPOCHS, TEACHERS
from longtail.experiments.strong_part import DISTILLED, Part
from longtail.experiments.strong_runs import RATIOS, Setting
from longtail.report import (
    figures,
    how_far_selection,
    strong,
    strong_ablation,
    strong_gains,
    strong_selection,
)
from longtail.report.reproduction import with_block
from longtail.report.strong_cells import further_name
from longtail.report.strong_gains import gain
from longtail.report.tables import title_of
from longtail.runs import files
from longtail.train.recipe import recipe_values

RECORDS = Path("results/strong")
PAGE = Path("docs/how-far.md")
FIGURE = Path("docs/how-far/cost")
README = Path("README.md")
BEGIN, END = "<!-- how-far: begin -->", "<!-- how-far: end -->"

# Nothing of that trial is kept but what it led to, hence no numbers.
_TRIAL = (
    "The first trial, of one seed each and judged on the test set, found no gain in these: CutMix "
    "with a uniform partner instead of a minority one, SAM and CutMix together instead of SAM "
    "alone, a cosine head (each trains a teacher all the same, for being different), teachers that "
    "are all trained alike, students with SAM, and students that learn from teachers alone, "
    "without labels."
)
_REMOVAL = "What is lost when `strong` in the first trial's epochs goes without one of its parts"

# Stages of students beyond the recipe's: what tables call them, and what they are.
_FURTHER = {
    "more-teachers": (
        "more teachers",
        "students of more teachers, among them networks four times as wide",
    ),
    "longer-teachers": ("longer teachers", "students of teachers that train longer"),
    "longer-students": (
        "longer teachers and students",
        "students of such longer teachers that train for twice the epochs themselves",
    ),
    "second-generation": (
        "second generation",
        "students of teachers some of which are students",
    ),
}

logger = logging.getLogger("longtail")


def study_at(folder: Path | str) -> Study:
    """The study of a folder's records, perhaps of none."""
    return Study.of(records.read_all(folder), selections=selection.read_all(folder))


def page(study: Study) -> str:
    """The page as Markdown."""
    blocks = [
        "# How far can it go",
        "The tables of this field are led by contrastive and multi-expert methods, and the "
        "logit-adjusted loss stands there with the error it had in 2021. This page trains that "
        "loss well, with nothing added to it, on the same small network (a ResNet-32 of 0.46 "
        "million parameters), and says what that took. It is made from the records in "
        "`results/strong` by `python -m longtail.report.how_far`: every number of ours on it is "
        "one of theirs, and only the rows marked *published* are others'.",
        strong.summary_table(study).markdown(),
        *_needed(),
        *how_far_selection.blocks(study),
        *_results(study),
        *_ratios(study),
        *_ablation(study),
        *_cost(study),
        *_use(study),
        "## The published rows",
        strong.published_table().markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def _needed() -> list[str]:
    values, student = recipe_values("strong"), recipe_values("strong-student")
    counts = " and ".join(f"{len(TEACHERS[dataset])} on {title_of(dataset)}" for dataset in CIFARS)
    share = student["distill_weight"]
    return [
        "## What was needed",
        "**`strong`**, a single network without a teacher: the logit-adjusted loss with τ = 1 "
        f"for {_epochs('strong')}, batches of {values['batch_size']}, "
        f"{_words(values['optimizer'])} with a cosine schedule from {values['lr']:g} after "
        f"{values['warmup_epochs']:g} epochs of warm-up, weight decay {values['weight_decay']:g}; "
        + _ingredients(values)
        + f".{_differences('strong')}",
        f"**`{DISTILLED}`**, a single network that learns from others: teachers trained in "
        f"different ways, {counts}, whose logits are averaged on the very images the student "
        f"sees; the student (recipe `strong-student`: {_ingredients(student)}; classes drawn "
        "equally often, by the method `softmax+over-sampling`: the prior of what is drawn is "
        "uniform, and the logit-adjusted loss of that is the softmax's; what CutMix adds comes "
        "from all training images alike, and leans towards frequent classes) minimises for "
        f"{_epochs('strong-student')} "
        f"{1 - share:.1f} of the loss and {share:.1f} of the divergence from the teachers at "
        f"temperature {student['distill_temperature']:g}.{_differences('strong-student')} What is "
        "deployed is one ResNet-32; the teachers are needed in training only.",
    ]


def _epochs(recipe: str) -> str:
    ten, hundred = (recipe_values(recipe, dataset=dataset)["epochs"] for dataset in CIFARS)
    return f"{hundred} epochs ({ten} on CIFAR-10-LT)"


def _differences(recipe: str) -> str:
    """A sentence on the values that a recipe has on one data set only, beside its epochs."""
    base, words = recipe_values(recipe), []
    for dataset in CIFARS:
        own = recipe_values(recipe, dataset=dataset).items()
        changed = [f"`{k}={v}`" for k, v in own if v != base.get(k) and k != "epochs"]
        words += [f"{', '.join(changed)} on {title_of(dataset)}"] if changed else []
    return f" By data set: {'; '.join(words)}." if words else ""


def _words(optimizer: str) -> str:
    return {"nesterov": "Nesterov momentum", "sgd": "SGD", "adam": "Adam"}[optimizer]


def _ingredients(values: dict[str, Any]) -> str:
    """What a recipe has of the ingredients, in words."""
    words = ["crops and flips"]
    if values.get("trivial_augment"):
        words.append("TrivialAugment")
    if values.get("cutout"):
        words.append(f"Cutout of {values['cutout']} pixels")
    if values.get("cutmix"):
        words.append(
            f"CutMix on {values['cutmix']:.0%} of the examples with a "
            f"{values.get('mix_partner', 'uniform')} partner"
        )
    if values.get("sam_rho"):
        words.append(f"SAM with ρ = {values['sam_rho']:g}")
    if values.get("ema_decay"):
        words.append(f"an average of the weights with decay {values['ema_decay']:g}")
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]


def _results(study: Study) -> list[str]:
    blocks = ["## Results at imbalance ratio 100"]
    for dataset in CIFARS:
        blocks.append(f"### {title_of(dataset)}")
        part = study.part(dataset)
        if part is None or not part.lines:
            blocks.append(_not_trained(Setting(dataset)))
            continue
        found = [strong.results_table(part), strong.goals_table(part)]
        found.append(strong.teachers_table(part))
        blocks += [table.markdown() for table in found if table is not None]
    return blocks


def _not_trained(setting: Setting, stage: str | None = None, *, what: str = "") -> str:
    said = f"{what} is not trained yet." if what else "Not trained yet."
    return f"{said} To train it:\n\n```sh\n{setting.command(stage)}\n```"


def _ratios(study: Study) -> list[str]:
    blocks = ["## Other imbalance ratios"]
    table = strong.ratios_table(study)
    if table is not None:
        blocks += [table.markdown(), *_by_ratio(study)]
    begun = [part.setting for part in study.parts if part.missing()]
    lacking = [one for one in (*begun, *study.absent) if one.ratio != RATIOS[0]]
    if lacking:
        commands = "\n".join(setting.command() for setting in lacking)
        blocks.append(f"Not trained yet:\n\n```sh\n{commands}\n```")
    return blocks


def _by_ratio(study: Study) -> list[str]:
    """What teachers gain at each ratio, in one sentence."""
    words = []
    for dataset in CIFARS:
        both = [
            (ratio, part.distilled, part.strong)
            for ratio in RATIOS
            if (part := study.part(dataset, ratio)) and part.distilled and part.strong
        ]
        gains = [
            f"{gain(student.errors, alone.errors)} at ratio {ratio:g}"
            for ratio, student, alone in both
        ]
        words += [f"{', '.join(gains)} on {title_of(dataset)}"] if gains else []
    if not words:
        return []
    return [f"From `strong` to `{DISTILLED}`, in points of that error: {'; '.join(words)}."]


def _ablation(study: Study) -> list[str]:
    blocks = ["## What helps, and what does not"]
    gains = strong_gains.gains_table(study)
    blocks += [gains.markdown(), _TRIAL] if gains is not None else []
    changes = strong_selection.changes_table(study.selections)
    blocks += [changes.markdown()] if changes is not None else []
    for dataset in CIFARS:
        blocks += [f"### {title_of(dataset)}, ablation"]
        blocks += _ablated(study.part(dataset), Setting(dataset))
    return blocks


def _ablated(part: Part | None, setting: Setting) -> list[str]:
    """Both tables of a data set with what they say, or what to type for one that is missing."""
    short = None if part is None else strong_ablation.ablation_table(part)
    full = None if part is None else strong_ablation.removal_table(part)
    blocks: list[str | None] = [_not_trained(setting, "ablation")] if short is None else []
    if part is not None and short is not None:
        blocks += [short.markdown(), strong_ablation.verdicts(part.ablation)]
        blocks.append(strong_ablation.short_strong(part))
    if part is None or part.trial_strong is None or full is None:
        blocks.append(_not_trained(setting, "removal", what=_REMOVAL))
    else:
        lines = [part.trial_strong, *part.removal]
        blocks += [full.markdown(), strong_ablation.verdicts(lines)]
    return [block for block in blocks if block is not None]


def _cost(study: Study) -> list[str]:
    blocks = ["## What it costs"]
    if not study.parts:
        return [*blocks, "Not trained yet."]
    minutes = sum(part.minutes for part in study.parts)
    runs = sum(len(part.records) for part in study.parts)
    blocks.append(
        f"{runs} records, {minutes:.0f} minutes of training in all. A network's minutes are its "
        "share of a GPU that trains many side by side; one that trains alone does not fill the "
        "GPU, and takes longer ([benchmarks](benchmarks.md)). A student's include its teachers', "
        "which any number of students share."
    )
    if any(part.setting.ratio == RATIOS[0] for part in study.parts):
        blocks.append(f"![{strong.FIGURE_TITLE}]({FIGURE.parent.name}/{FIGURE.name}.svg)")
    return blocks


def _use(study: Study) -> list[str]:
    trained = _with_further(study)
    lacking = {stage: [d for d in CIFARS if d not in there] for stage, there in trained.items()}
    blocks = [
        "## Use it",
        "Every ingredient is a value of a recipe and works alone (`--set sam_rho=0.1`, `--set "
        "cutmix=0.5 --set mix_partner=minority`, `--set trivial_augment=true`, `--set cutout=16`, "
        "`--set mixup=0.5`, `--set ema_decay=0.999`). Ensembles and teachers are any finished "
        "runs of the same training set:",
        "```sh\n"
        "longtail train --dataset cifar100-lt --method logit-adjusted --recipe strong \\\n"
        "    --seeds 5 --out teachers\n"
        "longtail evaluate teachers/cifar100-lt --split dev --ensemble\n"
        "longtail train --dataset cifar100-lt --method softmax+over-sampling \\\n"
        "    --recipe strong-student --teachers teachers/cifar100-lt --set image_seed=0 --seeds 3\n"
        "```",
        "Students that share an `image_seed` see the same images, so on a GPU the teachers are "
        "asked once for all of them. The τ of the column *τ again*, and adjusting by it (RUN is a "
        "student's folder):",
        "```sh\n"
        "longtail evaluate RUN --split dev\n"
        "longtail tune RUN --split dev --missing nearest\n"
        "longtail evaluate RUN --split test\n"
        "longtail adjust RUN --split test --tau TAU\n"
        "```",
        "`evaluate --split dev` leaves the class that the development set lacks out of its mean, "
        "where the *dev* columns of this page let the nearest class count twice. Either recipe is "
        "trained anew by one command, the second with its teachers, where `results/strong` does "
        "not have its records or `--records NEW` names another folder; CIFAR's own files are in "
        "`--data-dir`. It can be stopped and goes on:",
        f"```sh\nlongtail reproduce strong --stage strong\nlongtail reproduce {DISTILLED}\n```",
        "And so is everything else on this page (candidates for the students with another seed "
        "than those in the tables):",
        "```sh\n"
        "longtail reproduce strong --minutes 30\n"
        "longtail reproduce strong --stage selection\n"
        "longtail reproduce strong --stage earlier --rho 100 --rho 50 --rho 10\n"
        "longtail reproduce strong --stage ablation --stage removal\n"
        "longtail reproduce strong --rho 50 --rho 10\n" + _commands(trained) + "```",
    ]
    if any(lacking.values()):
        words = "; ".join(_further_words(stage, on) for stage, on in lacking.items() if on)
        blocks += [f"Not trained yet: {words}:", f"```sh\n{_commands(lacking)}```"]
    return blocks


def _with_further(study: Study) -> dict[str, list[str]]:
    """On which data sets there are students of each stage beyond the recipe's."""
    found = {dataset: study.part(dataset) for dataset in CIFARS}
    there = {d: {further_name(line) for line in part.further} for d, part in found.items() if part}
    return {
        stage: [dataset for dataset in there if name in there[dataset]]
        for stage, (name, _) in _FURTHER.items()
    }


def _further_words(stage: str, datasets: Sequence[str]) -> str:
    """What such students are, and where that is not on all data sets alike, on which."""
    _, words = _FURTHER[stage]
    if stage == "longer-teachers":
        epochs = (f"{LONGER_EPOCHS[one]} epochs on {title_of(one)}" for one in datasets)
        return f"{words}, for {' and '.join(epochs)}"
    on = f" on {title_of(datasets[0])}" if len(datasets) < len(CIFARS) else ""
    return f"{words}{on}"


def _commands(stages: Mapping[str, Sequence[str]]) -> str:
    """What to type for stages on some data sets, which are named unless they are all."""
    return "".join(
        f"longtail reproduce strong --stage {stage}"
        + ("" if len(on) == len(CIFARS) else "".join(f" --dataset {one}" for one in on))
        + "\n"
        for stage, on in stages.items()
        if on
    )


def readme_block(study: Study) -> str:
    """What stands between the two marks in the README."""
    return f"{BEGIN}\n{strong.summary_table(study).markdown()}\n{END}"


def write(root: Path | str, *, study: Study | None = None) -> list[Path]:
    """Write the page, its figure and the README's table below a root.

    Args:
        root: the repository.
        study: from the records below `root` if absent.

    Returns:
        The paths written.
    """
    root = Path(root)
    study = study_at(root / RECORDS) if study is None else study
    text, block = (root / README).read_text(encoding="utf-8"), readme_block(study)
    readme = with_block(text, block, begin=BEGIN, end=END)
    files.write_bytes(root / PAGE, page(study).encode())
    files.write_bytes(root / README, readme.encode())
    written, figure = [root / PAGE, root / README], strong.draw(study)
    if figure is None:
        return written
    drawn, picture = figures.save(figure, root / FIGURE, title=strong.FIGURE_TITLE)
    picture.unlink()  # the page shows the SVG
    return [*written, drawn]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for written in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")):
        logger.info("wrote %s", written)
