"""Names of methods in tables, on pages and in JSON, with what tells runs of one method apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longtail.runs.folder import MEMBERS, TEACHERS, Run
from longtail.runs.spec import Part, RunSpec


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in the seed, in its order, under the name of their method.

    Where a method was trained in several ways, what tells them apart is in the name, such as
    ``logit-adjusted (tau=2) (20% held out)``.
    """
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(method_words(run.spec), []).append(run)
    return {
        f"{name} ({words})" if words else name: group
        for name, alike in methods.items()
        for words, group in told_apart(alike).items()
    }


def told_apart(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs of one method by what tells them apart besides the seed.

    Returns:
        Runs in order of seed, by words such as ``epochs=50, bfloat16`` or ``3 runs`` of an
        ensemble; by none where all are alike. Where words say too little, a hash says the rest.
    """
    groups: dict[RunSpec, list[Run]] = {}
    one_a_seed = len({run.spec.seed for run in runs}) == len(runs)
    for run in runs:
        settings = dict(run.spec.settings)
        if one_a_seed:  # each may have a teacher or first weights of its own seed
            settings |= {key: "" for key in (TEACHERS, "weights") if key in settings}
        groups.setdefault(replace(run.spec, seed=0, settings=settings), []).append(run)
    details = {spec: _details(group[0].spec) for spec, group in groups.items()}
    several = [len(set(words)) > 1 for words in zip(*details.values(), strict=True)]
    words_of = {
        spec: [word for word, differs in zip(words, several, strict=True) if differs]
        for spec, words in details.items()
    }
    found: dict[str, list[Run]] = {}
    for spec, group in groups.items():
        words = list(filter(None, words_of[spec]))
        if list(words_of.values()).count(words_of[spec]) > 1:
            words.append(group[0].spec.hash8)
        found[", ".join(words)] = sorted(group, key=lambda run: run.spec.seed)
    return found


def _details(spec: RunSpec) -> list[str]:
    """Return what a method's name does not say; empty where there is nothing special."""
    members, teachers = (len(spec.settings.get(key, ())) for key in (MEMBERS, TEACHERS))
    return [
        spec.model.name,
        spec.recipe.name,
        ", ".join(f"{key}={value}" for key, value in spec.recipe.overrides.items()),
        f"{spec.dataset.held_out:.0%} held out" if spec.dataset.held_out else "",
        str(spec.settings.get("precision", "float32")),
        f"{members} runs" if members else "",
        f"{teachers} teacher{'s' if teachers > 1 else ''}" if teachers else "",
        f"weights {spec.settings['weights']}" if "weights" in spec.settings else "",
    ]


def trained_unlike(runs: Sequence[Run]) -> list[str]:
    """Return what differs in how methods were trained, so that errors compare more than methods.

    Returns:
        Words such as ``epochs 2 and 6``, for everything of which the methods share no value.
        Ensembles, which are not trained, don't count.
    """
    facts = [(run.spec.method, _training(run.spec)) for run in runs if not run.members]
    found = []
    for key in dict.fromkeys(key for _, values in facts for key in values):
        of_method: dict[Part, dict[str, None]] = {}
        for method, values in facts:
            # LDAM's loss needs its own head.
            if key != "head" or method.name.partition("+")[0] != "ldam":
                of_method.setdefault(method, {})[values.get(key, "unset")] = None
        if of_method and not set.intersection(*map(set, of_method.values())):
            *others, last = dict.fromkeys(value for some in of_method.values() for value in some)
            words = f"{', '.join(others)} and {last}"
            found.append(f"{words} held out" if key == "held out" else f"{key} {words}")
    return found


def _training(spec: RunSpec) -> dict[str, str]:
    """Return how a run was trained, by the names that ``--set`` has; without its method."""
    return {
        "model": spec.model.name,
        "held out": f"{100 * spec.dataset.held_out:.3g}%" if spec.dataset.held_out else "nothing",
        "precision": str(spec.settings.get("precision", "float32")),
        "teachers": str(len(spec.settings.get(TEACHERS, ()))),
        "weights": str(spec.settings.get("weights", "none")),
        **{key: _typed(value) for key, value in spec.model.settings.items()},
        **{key: _typed(value) for key, value in spec.recipe.values.items()},
    }


def _typed(value: Any) -> str:
    """Return a recipe's value as it is typed; 1 and 1.0 train alike."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_typed, value))}]"
    return str(value).lower() if isinstance(value, bool) else _number(value)


def method_words(spec: RunSpec) -> str:
    """Return a method with its settings: ``logit-adjusted+drw (tau=2)``."""
    pairs = [f"{key}={_number(value)}" for key, value in spec.method.settings.items()]
    return f"{spec.method.name} ({', '.join(pairs)})" if pairs else spec.method.name


def _number(value: Any) -> str:
    if isinstance(value, tuple):  # as it is typed; one per class may be many
        return "/".join([*map(_number, value[:3]), *(["…"] if len(value) > 3 else [])])
    return f"{value:g}" if isinstance(value, float) else str(value)
