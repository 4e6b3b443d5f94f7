"""The documentation's page on `strong`, "How far can it go", made from records alone.

    python -m longtail.report.how_far [ROOT]

reads ``ROOT/results/strong`` and writes ``ROOT/docs/how-far.md``, its figure beside it, and the
part of ``ROOT/README.md`` between two marks. The same records give the same bytes; what has no
record yet is said to be not trained.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail._checks import FloatArray
from longtail.data.subsets import DEVELOPMENT_IMAGES
from longtail.experiments import records, selection
from longtail.experiments.exp_runs import CIFARS
from longtail.experiments.selection import Selection
from longtail.experiments.strong import DISTILLED, Part, Study
from longtail.experiments.strong_kinds import TEACHERS
from longtail.experiments.strong_runs import RATIOS, Setting
from longtail.report import figures, strong, strong_ablation, strong_selection
from longtail.report.reproduction import with_block
from longtail.report.strong_cells import spread
from longtail.report.tables import percent, signed, title_of
from longtail.runs import files
from longtail.train.recipe import recipe_values

RECORDS = Path("results/strong")
PAGE = Path("docs/how-far.md")
FIGURE = Path("docs/how-far/cost")
README = Path("README.md")
BEGIN, END = "<!-- how-far: begin -->", "<!-- how-far: end -->"

_REMOVAL = "What is lost when `strong` in its own epochs goes without one of its parts"

logger = logging.getLogger("longtail")


def study_at(folder: Path | str) -> Study:
    """The study of a folder's records, perhaps of none."""
    return Study.of(records.read_all(folder), selections=selection.read_all(folder))


def page(study: Study) -> str:
    """The page as Markdown."""
    blocks = [
        "# How far can it go",
        "The tables of this field are led by contrastive and multi-expert methods, and the "
        "logit-adjusted loss stands there with the error it had in 2021. This page trains the "
        "plain loss well, on the same small network (a ResNet-32 of 0.46 million parameters), and "
        "says what that took. It is made from the records in `results/strong` by `python -m "
        "longtail.report.how_far`: every number of ours on it is one of theirs, and only the rows "
        "marked *published* are others'.",
        *_answer(study),
        *_needed(),
        *_selection(study),
        *_results(study),
        *_ratios(study),
        *_ablation(study),
        *_cost(study),
        *_use(),
        "## The published rows",
        strong.published_table().markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def _answer(study: Study) -> list[str]:
    """What came out, in a sentence for each data set; or that nothing is trained yet."""
    sentences = []
    for dataset in CIFARS:
        part = study.part(dataset)
        lines = [line for line in (part.strong, part.distilled) if line] if part else []
        if lines:
            words = " and ".join(
                f"{percent(float(line.errors.mean()), digits=2)}% for `{line.name}` "
                f"({_count(len(line.records))})"
                for line in lines
            )
            means = [percent(float(line.again.mean()), digits=2) for line in lines]
            sentences.append(
                f"On {title_of(dataset)} the balanced test error is {words}; with τ chosen "
                f"again on the development set, {'% and '.join(means)}%."
            )
        else:
            sentences.append(f"On {title_of(dataset)} nothing is trained yet.")
    return [" ".join(sentences)]


def _count(runs: int) -> str:
    return "one run" if runs == 1 else f"mean of {runs} runs"


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


def _chosen(selections: Sequence[Selection]) -> str:
    """What was chosen on the development set beside the tau."""
    if not selections:
        return "and nothing else so far"
    words = []
    for found in selections:
        name = title_of(found.dataset)
        if selection.recipe_candidate(found.dataset) == found.best:
            words.append(f"on {name} the recipe has the values of the least error")
        else:
            words.append(f"on {name} the recipe still has other values than the least error's")
    return (
        "and how students are trained was compared on it, by short runs that the tables below "
        f"list: {'; '.join(words)}"
    )


def _not_chosen(selections: Sequence[Selection]) -> str:
    """Whose values were chosen on the test set."""
    best = {one.dataset: one.best for one in selections}
    others = [
        title_of(dataset)
        for dataset in CIFARS
        if dataset not in best or selection.recipe_candidate(dataset) != best[dataset]
    ]
    students = f", and of the students on {' and '.join(others)}" if others else ""
    return f"the values of `strong`{students}"


def _preferred(study: Study) -> str:
    """Which of the teachers, each a way to train a single network, the development set prefers."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is None or part.strong is None or not part.teachers:
            continue
        best = min(part.teachers, key=lambda line: float(line.dev_errors.mean()))
        own = {one.name for one in part.strong.records}
        named = f"{best.name} on {title_of(dataset)}"
        if best.records[0].name in own:
            words.append(f"{named}, which is `strong` itself")
        else:
            errors = [
                percent(float(line.dev_errors.mean()), digits=2) for line in (best, part.strong)
            ]
            of = _count(len(part.strong.records))
            words.append(
                f"{named} with {errors[0]}% (one run), where `strong` has {errors[1]}% ({of})"
            )
    if not words:
        return ""
    return f" Of the teachers it prefers: {'; '.join(words)}."


def _not_tried(study: Study) -> str:
    """Which teachers were no part of the first trial."""
    if not any(part.further_teachers for part in study.parts):
        return ""
    return (
        " The wide teachers were not in the trial: they have the narrow ones' values, and their "
        "epochs were set before any of them was trained."
    )


def _strict(study: Study) -> str:
    """Which students owe nothing to the development set, and what they reach."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.first_students is not None:
            error = percent(float(part.first_students.errors.mean()), digits=2)
            words.append(f"{error}% on {title_of(dataset)}")
    only = "only students with the first trial's settings owe it nothing"
    return f"{only} ({', '.join(words)})." if words else f"{only}, and there are none yet."


def _epochs_compared(study: Study) -> str:
    """What the development set says of the students' epochs, where both numbers were trained."""
    words = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is not None and part.shorter is not None and part.distilled is not None:
            errors = [
                f"{spread(line.dev_errors_again)} after {line.epochs}"
                for line in (part.shorter, part.distilled)
            ]
            words.append(f"{' and '.join(errors)} epochs on {title_of(dataset)}")
    if not words:
        return ""
    return (
        " After that students were trained for twice the epochs, too, and the recipe has those; "
        "both numbers of epochs had been judged on the test set by then. With that τ the error on "
        "the development set, in percent and with the deviation over the runs, is "
        f"{'; '.join(words)}."
    )


def _selection(study: Study) -> list[str]:
    selections = study.selections
    blocks = [
        "## What was chosen on what",
        "- **The test set** is opened once for each run, after its last epoch. There is no early "
        "stopping and no best epoch.\n"
        "- **The development set** is made of training images that the long-tailed subset leaves "
        f"out: {DEVELOPMENT_IMAGES:,} shared out among the classes, the same ones for every "
        "imbalance ratio as far as it leaves them out. None of its images is one of the training "
        "or the test set; `longtail` refuses to train on it, and refuses teachers that saw any "
        "other data. The τ of the column *τ again* is chosen on it, "
        f"{_chosen(selections)}.{_epochs_compared(study)}\n"
        "- **Its largest class is missing**: the exponential profile keeps that class whole, so "
        "the subset leaves none of its images out, and of others nearly as large it may leave "
        "fewer than asked. In the development error the nearest class in size stands in for it and "
        "counts twice. "
        "Holding out head images instead would have meant training on another subset than "
        "everybody else.\n"
        "- **The stricter line** is the column *error*: last epoch, and no τ from the development "
        "set; that of the loss is fixed in advance, 1 for `strong` and none for students. How "
        "these are trained was compared on the development set all the same, as above; "
        f"{_strict(study)}\n"
        f"- **What this does not undo**: {_not_chosen(selections)}, also where they differ between "
        "the data sets, are those that did best in a first trial of one seed each, which was "
        "judged on the test set, as is usual here; so were the papers from which the ingredients "
        "are. The teachers are the different ways of that trial, good and less good, for the sake "
        "of their difference. Whatever all candidates for the students share (such as their "
        "augmentation and their teachers) is from there, too, and the tables of results show every "
        "way in which students were trained in full, with its error on the test set. The "
        "development set need not have chosen the same as the trial; the tables of the teachers "
        f"show its error beside that on the test set.{_preferred(study)}{_not_tried(study)}",
    ]
    return blocks + [strong_selection.selection_table(found).markdown() for found in selections]


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
        blocks.append(table.markdown())
    begun = [part.setting for part in study.parts if part.missing()]
    lacking = [one for one in (*begun, *study.absent) if one.ratio != RATIOS[0]]
    if lacking:
        commands = "\n".join(setting.command() for setting in lacking)
        blocks.append(f"Not trained yet:\n\n```sh\n{commands}\n```")
    return blocks


def _ablation(study: Study) -> list[str]:
    blocks = ["## What helps, and what does not", *_helped(study)]
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
    if part is None or part.strong is None or full is None:
        blocks.append(_not_trained(setting, "removal", what=_REMOVAL))
    else:
        lines = [part.strong, *part.removal]
        blocks += [full.markdown(), strong_ablation.verdicts(lines)]
    return [block for block in blocks if block is not None]


def _helped(study: Study) -> list[str]:
    """What the tables of results say of teachers, epochs and τ: a point for each data set."""
    points = []
    for dataset in CIFARS:
        part = study.part(dataset)
        if part is None or part.strong is None:
            continue
        words = [f"τ again: {_gain(part.strong.again, part.strong.errors)} for `strong`"]
        if part.distilled is not None:
            students = part.distilled
            words[0] += f", {_gain(students.again, students.errors)} for students"
            words.append(f"teachers: {_gain(students.errors, part.strong.errors)}")
            if part.shorter is not None:
                words.append(f"twice the epochs: {_gain(students.errors, part.shorter.errors)}")
            if part.first_students is not None and part.shorter is not None:
                chosen = _gain(part.shorter.errors, part.first_students.errors)
                words.append(f"what the development set chose for them: {chosen}")
            if part.ensemble is not None:
                left = _gain(part.ensemble.errors, students.errors)
                words.append(f"the teachers' own mean instead of a student: {left}")
        points.append(f"- {title_of(dataset)}: {'; '.join(words)}.")
    if not points:
        return []
    head = "Changes of the mean test error in points, from the tables of results at ratio 100:"
    return [f"{head}\n\n" + "\n".join(points)]


def _gain(after: FloatArray, before: FloatArray) -> str:
    return signed(float(after.mean() - before.mean()), digits=2)


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


def _use() -> list[str]:
    return [
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
        "trained anew by one command, the second with its teachers; it can be stopped and goes "
        "on:",
        f"```sh\nlongtail reproduce strong --stage strong\nlongtail reproduce {DISTILLED}\n```",
        "And so is everything else on this page (candidates for the students with another seed "
        "than those in the tables):",
        "```sh\n"
        "longtail reproduce strong --minutes 30\n"
        "longtail reproduce strong --stage selection\n"
        "longtail reproduce strong --stage earlier\n"
        "longtail reproduce strong --stage more-teachers --stage second-generation\n"
        "longtail reproduce strong --stage ablation --stage removal\n"
        "longtail reproduce strong --rho 50 --rho 10\n"
        "```",
    ]


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
