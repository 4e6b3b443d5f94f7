"""A small, complete run folder for the tests of everything that reads one."""

import numpy as np

from longtail import ClassPrior
from longtail.runs import DataSpec, Part, RecipeSpec, RunSpec, RunWriter


def make_spec(**changes):
    values = {
        "dataset": DataSpec("digits-lt", profile="exp", imbalance_ratio=50.0, held_out=0.2),
        "model": Part("mlp", {"hidden": [32, 16]}),
        "method": Part("logit-adjusted", {"tau": 1.0}),
        "recipe": RecipeSpec(
            "digits", {"epochs": 3, "lr": 0.1, "milestones": [1, 2]}, {"epochs": 3}
        ),
        "seed": 4,
    }
    return RunSpec(**{**values, **changes})


def make_writer(root, spec=None, **changes):
    arguments = {"prior": ClassPrior.from_counts([90, 9, 1]), "data": "f" * 64, **changes}
    return RunWriter.create(root, spec or make_spec(), **arguments)


def make_run(root, spec=None, *, logits=None, target=None, images=None, **changes):
    random = np.random.default_rng(0)
    target = np.array([0, 1, 2, 0, 1, 2], np.int64) if target is None else target
    logits = random.normal(size=(len(target), 3)).astype(np.float32) if logits is None else logits
    writer = make_writer(root, spec, **changes)
    writer.log(epoch=0, loss=1.5)
    writer.log(epoch=1, loss=float("nan"))
    writer.write_logits(
        "test",
        logits,
        target,
        indices=np.arange(len(target)),
        norms=[1.0, 2.0, 3.0],
        bias=np.array([0.5, 0.0, -0.5], np.float32),
        data=images,
    )
    writer.write_model({"weight": np.ones((3, 4), np.float32), "steps": np.array(7)})
    return writer.finish(seconds=2.5, parameters=12)


def class_errors(logits, target):
    """Error of each class that occurs, by a loop over classes; ties go to the lowest index."""
    predicted = np.argmax(logits, axis=1)
    return np.array([np.mean(predicted[target == k] != k) for k in np.unique(target)])
