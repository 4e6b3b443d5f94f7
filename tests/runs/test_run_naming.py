"""What methods are called where runs of one of them differ in more than their seeds."""

from dataclasses import replace

from longtail.runs import DataSpec, RecipeSpec, ensemble
from longtail.runs.naming import by_method, trained_unlike
from longtail.train.recipe import make_spec as spec_of_method
from run_factory import make_run, make_spec

DIGITS = DataSpec("digits-lt", profile="exp", imbalance_ratio=50.0)


def named(runs):
    return {name: [run.spec.seed for run in group] for name, group in by_method(runs).items()}


def members(root, seeds):
    return [make_run(root, make_spec(dataset=DIGITS, seed=seed)) for seed in seeds]


def test_seeds_of_one_way_have_one_name_and_other_ways_say_what_is_other(root):
    same = members(root, (1, 0))
    assert named(same) == {"logit-adjusted (tau=1)": [0, 1]}
    other = make_run(root, make_spec(dataset=DIGITS, recipe=RecipeSpec("mine"), seed=0))
    assert named([*same, other]) == {
        "logit-adjusted (tau=1) (digits, epochs=3)": [0, 1],
        "logit-adjusted (tau=1) (mine)": [0],
    }


def test_ensembles_are_told_apart_by_how_many_they_are(root):
    runs = members(root, range(3))
    two, three = ensemble(runs[:2], root=root), ensemble(runs, root=root)
    assert named([two]) == {"ensemble": [0]}
    assert named([two, three]) == {"ensemble (2 runs)": [0], "ensemble (3 runs)": [0]}


def trained(root, method, *, seed=0, held_out=0.0, settings=None, **overrides):
    data = replace(DIGITS, held_out=held_out)
    spec = spec_of_method(data, method=method, recipe="digits", seed=seed, overrides=overrides)
    return make_run(root, replace(spec, settings=settings or {}))


def test_seeds_with_a_teacher_or_first_weights_of_their_own_are_one_method(root):
    own = {"teachers": lambda seed: (f"run-{seed}",), "weights": lambda seed: f"{seed}" * 8}
    for key, value in own.items():
        runs = [trained(root, "softmax", seed=s, settings={key: value(s)}) for s in range(3)]
        assert named(runs) == {"softmax": [0, 1, 2]}
        assert len(named([*runs, trained(root, "softmax", settings={key: value(9)})])) == 4


def test_methods_that_were_trained_in_other_ways_each_are_told(root):
    plain = trained(root, "softmax", epochs=2)
    other = trained(root, "logit-adjusted", epochs=6, lr=0.01, held_out=0.3, flip=True,
                    settings={"precision": "bfloat16"})  # fmt: skip
    said = ["nothing and 30% held out", "precision float32 and bfloat16"]
    said += ["epochs 2 and 6", "lr 0.05 and 0.01", "flip unset and true"]
    assert trained_unlike([plain, other]) == said
    assert trained_unlike([plain, trained(root, "balanced", epochs=2, head="cosine")]) == [
        "head unset and cosine"
    ]
