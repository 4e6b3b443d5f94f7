"""Which runs the EXP table is made of; training them in pieces, none of them twice."""

import re
import time
from collections import Counter
from dataclasses import replace

import pytest

from exp_factory import OVERRIDES, made_up, made_up_records, small_plan, trained_root, trainer
from longtail import InputError
from longtail.experiments import records
from longtail.experiments.demo import one_thread
from longtail.experiments.exp_runs import (
    ADAM_RATES,
    EXTRA,
    PARTNER,
    PLAIN,
    TABLE,
    Plan,
    Shelf,
    adam_trial,
    is_judged,
    is_whole,
)
from longtail.runs import RunError, find_runs
from longtail.train import engine
from longtail.train.recipe import Recipe

PLAN = small_plan(overrides=OVERRIDES)


@pytest.mark.parametrize("dataset", ["cifar10-lt", "cifar100-lt"])
@pytest.mark.parametrize(("recipe", "decay"), [("tuned", 5e-4), ("paper", 1e-4)])
def test_a_recipe_has_twenty_runs_and_five_with_held_out_data(dataset, recipe, decay):
    specs = Plan(dataset, recipe).specs(TABLE)
    assert len({spec.folder for spec in specs}) == 25
    whole = Counter(spec.method.name for spec in specs if not spec.dataset.held_out)
    assert whole == dict.fromkeys(
        ("softmax", "adaptive", "equalized-threshold", "logit-adjusted"), 5
    )
    held = [spec for spec in specs if spec.dataset.held_out]
    assert [(s.method.name, s.dataset.held_out) for s in held] == [("softmax", 0.2)] * 5
    assert {spec.seed for spec in held} == set(range(5))
    for spec in specs:
        made = Recipe.of(spec)
        assert (made.model, made.epochs, made.weight_decay) == ("resnet32", 200, decay)
        assert (spec.dataset.profile, spec.dataset.imbalance_ratio) == ("exp", 100.0)


def test_the_optional_rows_come_in_the_order_that_was_set():
    assert [kind.method for kind in EXTRA] == [
        "balanced",
        "class-balanced",
        "softmax+drw",
        "logit-adjusted+drw",
        "logit-adjusted-adaptive",
        "softmax+label-smoothing",
        "softmax",
    ]
    assert Recipe.of(Plan("cifar10-lt", "tuned").spec(EXTRA[-1], 0)).head == "unit-norm"


def test_what_is_trained_has_whole_records():
    shelf = Shelf(records.read_all(trained_root() / "kept"))
    assert len(shelf.records) == 10
    for spec in PLAN.specs(TABLE):
        assert is_whole(shelf.get(spec))
        assert shelf.get(spec).spec.seed == spec.seed


def test_nothing_is_trained_twice(monkeypatch):
    root = trained_root()
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained again"))
    fresh = trainer(root, load=lambda name: pytest.fail("read data"))
    assert fresh.run([PLAN], rows="table")


def test_records_are_enough_without_run_folders(tmp_path, monkeypatch):
    kept = trained_root() / "kept"
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained again"))
    fresh = trainer(tmp_path, folder=kept)
    assert fresh.run([PLAN], rows="table")


def test_it_stops_at_an_epochs_end_and_goes_on(tmp_path, monkeypatch):
    plan = small_plan(seeds=1, overrides={**OVERRIDES, "epochs": 4, "milestones": [[3, 0.1]]})
    clock, seen = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + clock[0])

    def watch(done, total, words):
        if not words:  # before the first epoch
            return
        epoch, method = re.search(r"(epoch \S+) \(([\w-]+)", words).groups()
        seen.append((method, epoch))
        if seen[-1] == ("adaptive", "epoch 3/4"):
            clock[0] += 601  # time is up in the middle of the second run

    first = trainer(tmp_path, deadline=time.monotonic() + 600, progress=watch)
    with one_thread():
        assert first.run([plan], rows="table") is False
        assert seen[-1] == ("adaptive", "epoch 3/4")
        begun = {run.spec.method.name: run for run in find_runs(tmp_path / "runs", unfinished=True)}
        assert begun["softmax"].finished
        assert not begun["adaptive"].finished
        seen.clear()
        second = trainer(tmp_path, progress=watch)
        assert second.run([plan], rows="table") is True
    assert seen[0] == ("adaptive", "epoch 4/4")  # nothing is trained twice
    assert seen.count(("softmax", "epoch 1/4")) == 1  # the held-out one; the plain one is finished
    assert all(is_whole(second.shelf.get(spec)) for spec in plan.specs(TABLE))


def test_a_run_that_diverges_does_not_cost_the_others(tmp_path, monkeypatch):
    plan = small_plan(seeds=1, overrides={**OVERRIDES, "epochs": 2, "milestones": [[1, 0.1]]})
    whole = engine.train_cohort

    def one_diverges(specs, *arguments, **options):
        kept = [spec for spec in specs if spec.method.name != "adaptive"]
        whole(kept, *arguments, **options)
        raise RunError("the loss of 1 run(s) became infinite")

    monkeypatch.setattr(engine, "train_cohort", one_diverges)
    fresh = trainer(tmp_path)
    with one_thread(), pytest.raises(RunError, match="became infinite"):
        fresh.run([plan], rows="table")
    there = [one.spec.method.name for one in records.read_all(tmp_path / "kept")]
    assert there == ["equalized-threshold", "logit-adjusted", "softmax", "softmax"]


def test_a_deadline_in_the_past_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "train_cohort", lambda *_, **__: pytest.fail("trained"))
    assert trainer(tmp_path, deadline=time.monotonic() - 1).run([PLAN]) is False


def test_runs_and_partners_share_a_part(tmp_path, monkeypatch):
    """A record needs its partner's taus, so parts are cut between seeds only."""
    parts = []
    whole = trainer(tmp_path, together=16)
    monkeypatch.setattr(whole, "_part", lambda plan, specs: parts.append(specs))
    whole._train(plan := Plan("cifar10-lt", "tuned"), plan.specs(TABLE))
    assert [len(part) for part in parts] == [15, 10]
    for part in parts:
        seeds = {spec.seed for spec in part}
        assert Counter(spec.seed for spec in part) == dict.fromkeys(seeds, 5)


def test_precision_is_in_the_spec_but_does_not_hide_a_record(tmp_path):
    precise = trainer(tmp_path, precision="bfloat16")._precise(PLAN.spec(PLAIN, 0))
    assert precise.settings["precision"] == "bfloat16"
    shelf = Shelf([made_up(precise, partner=True)])
    assert shelf.get(PLAN.spec(PLAIN, 0)).precision == "bfloat16"
    with pytest.raises(InputError, match="the same run in bfloat16 and float32"):
        Shelf([made_up(precise), made_up(PLAN.spec(PLAIN, 0))])


def test_a_record_without_its_held_out_tau_is_not_whole():
    spec = PLAN.spec(PLAIN, 0)
    assert not is_whole(made_up(spec))
    assert is_whole(made_up(spec, partner=True))
    assert not is_whole(None)
    assert is_whole(made_up(PLAN.spec(PARTNER, 0)))


def test_adams_rate_is_the_best_on_held_out_data():
    plan = Plan("cifar10-lt", "tuned", seeds=1)
    for best in ADAM_RATES:
        found = [
            made_up(plan.spec(adam_trial(rate), 0), level=0.3 if rate == best else 0.4)
            for rate in ADAM_RATES
        ]
        assert Shelf(found).adam_rate(plan) == best
    assert Shelf(found[:-1]).adam_rate(plan) is None
    for spec in plan.trials():
        assert (spec.dataset.held_out, spec.recipe.values["optimizer"]) == (0.2, "adam")


def test_adam_runs_follow_their_trials(tmp_path, monkeypatch):
    """First the trials, then five runs at the chosen rate, then the optional rows."""
    plan, parts = Plan("cifar10-lt", "tuned"), []
    fresh = trainer(tmp_path)

    def pretend(plan, specs):
        parts.append(specs)
        for spec in specs:
            rate = spec.recipe.values["lr"]
            best = 3e-3 if spec.recipe.values["weight_decay"] else 1e-3
            fresh.shelf.put(made_up(spec, partner=True, level=0.2 if rate == best else 0.3))

    monkeypatch.setattr(fresh, "_part", pretend)
    assert fresh.run([plan], rows="extra")
    assert [len(part) for part in parts] == [31, 10] + [5] * len(EXTRA)
    table = [spec for spec in parts[0] if spec.recipe.values["optimizer"] == "sgd"]
    trials = [spec for spec in parts[0] if spec.recipe.values["optimizer"] == "adam"]
    assert len(table) == 25
    assert [spec.recipe.values["lr"] for spec in trials] == list(ADAM_RATES) * 2
    assert {spec.dataset.held_out for spec in trials} == {0.2}
    assert {
        (s.recipe.values["lr"], s.recipe.values["weight_decay"], s.dataset.held_out)
        for s in parts[1]
    } == {(3e-3, 5e-4, 0.0), (1e-3, 0.0, 0.0)}
    parts.clear()
    again = trainer(tmp_path)
    again.shelf = fresh.shelf
    monkeypatch.setattr(again, "_part", pretend)
    assert again.run([plan], rows="extra")
    assert parts == []


def test_only_some_kinds_are_trained_and_need_no_partner(tmp_path):
    plan = small_plan(seeds=1, overrides={**OVERRIDES, "epochs": 1, "milestones": []})
    plan = replace(plan, overrides={**plan.overrides, "schedule": "cosine"})
    fresh = trainer(tmp_path, only=["softmax"])
    with one_thread():
        assert fresh.run([plan], rows="table")
    (found,) = records.read_all(tmp_path / "kept")
    assert (found.spec.method.name, found.spec.dataset.held_out) == ("softmax", 0.0)
    assert is_judged(found)
    assert not is_whole(found)
    again = trainer(tmp_path, only=["softmax"], load=lambda name: pytest.fail("trained again"))
    assert again.run([plan], rows="table")
    with pytest.raises(InputError, match="`only` picks among the table's runs"):
        again.run([plan], rows="figures")
    with pytest.raises(InputError, match="`only` must be one of"):
        trainer(tmp_path, only=["sofmax"])


def test_the_command_names_what_makes_a_run():
    plan = Plan("cifar100-lt", "paper", seeds=3)
    wanted = "longtail reproduce table-exp --recipe paper --dataset cifar100-lt --seeds 3"
    assert plan.command("figures") == wanted
    assert plan.command("table") == f"{wanted} --rows table"


def test_bad_plans_are_refused():
    with pytest.raises(InputError, match="dataset"):
        Plan("digits-lt", "tuned")
    with pytest.raises(InputError, match="seeds"):
        Plan("cifar10-lt", "tuned", seeds=0)
    with pytest.raises(InputError, match="rows"):
        trainer(trained_root()).run([PLAN], rows="all")


def test_made_up_records_are_those_of_the_plan():
    plan = small_plan(seeds=3)
    shelf = Shelf(made_up_records(plan))
    assert all(is_whole(shelf.get(spec)) for spec in plan.specs(TABLE))
    assert shelf.adam_rate(plan) == 1e-3
    assert shelf.get(replace(plan.spec(PLAIN, 0), seed=7)) is None
