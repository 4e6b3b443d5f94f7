"""Names of methods in tables, on pages and in JSON, with what tells runs of one method apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from longtail.runs.folder import MEMBERS, TEACHERS, Run
from longtail.runs.spec import Part, RunSpec


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in the seed, in its order, under the name of their method.

    Where a method was trained in several ways, what tells them apart is in the name, such as
    ``logit-adjusted (tau=2) (20% held out)``; a hash where words say too little.
    """
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(method_words(run.spec), []).append(run)
    found: dict[str, list[Run]] = {}
    for name, alike in methods.items():
        ways: dict[RunSpec, list[Run]] = {}
        one_a_seed = len({run.spec.seed for run in alike}) == len(alike)
        for run in alike:
            settings = dict(run.spec.settings)
            if one_a_seed:  # each may have a teacher or first weights of its own seed
                settings |= {key: "" for key in (TEACHERS, "weights") if key in settings}
            ways.setdefault(replace(run.spec, seed=0, settings=settings), []).append(run)
        if len(ways) == 1:
            found[name] = sorted(alike, key=attrgetter("spec.seed"))
            continue
        details = [_details(group[0].spec) for group in ways.values()]
        several = [len(set(words)) > 1 for words in zip(*details, strict=True)]
        told = [
            [word for word, differs in zip(words, several, strict=True) if differs]
            for words in details
        ]
        for words, group in zip(told, ways.values(), strict=True):
            said = list(filter(None, words))
            if told.count(words) > 1:
                said.append(group[0].spec.hash8)
            title = f"{name} ({', '.join(said)})" if said else name
            found[title] = sorted(group, key=attrgetter("spec.seed"))
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
    values: dict[str, dict[Part, dict[str, None]]] = {}  # by name of the value and method
    facts = [(run.spec.method, _training(run.spec)) for run in runs if not run.members]
    for key in dict.fromkeys(key for _, training in facts for key in training):
        for method, training in facts:
            # LDAM's loss needs its own head.
            if key != "head" or method.name.partition("+")[0] != "ldam":
                of_method = values.setdefault(key, {}).setdefault(method, {})
                of_method[training.get(key, "unset")] = None
    found = []
    for key, by_part in values.items():
        if not set.intersection(*map(set, by_part.values())):
            *others, last = dict.fromkeys(value for some in by_part.values() for value in some)
            words = f"{', '.join(others)} and {last}"
            found.append(f"{words} held out" if key == "held out" else f"{key} {words}")
    return found


def _training(spec: RunSpec) -> dict[str, str]:
    """Return how a run was trained, by the names that ``--set`` has; without its method."""
    values = {**spec.model.settings, **spec.recipe.values}
    return {
        "model": spec.model.name,
        "held out": f"{100 * spec.dataset.held_out:.3g}%" if spec.dataset.held_out else "nothing",
        "precision": str(spec.settings.get("precision", "float32")),
        "teachers": str(len(spec.settings.get(TEACHERS, ()))),
        "weights": str(spec.settings.get("weights", "none")),
        **{key: _typed(value) for key, value in values.items()},
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
