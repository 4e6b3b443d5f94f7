"""Students and their teachers: who may teach, what is asked of them, and that it can be resumed."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from longtail.data import load
from longtail.runs import DataSpec, Run, RunError, RunWriter, ensemble
from longtail.train.engine import evaluate, network_logits, train, train_cohort
from longtail.train.loop import new_network
from longtail.train.prefetch import Resident
from longtail.train.recipe import Recipe, get_recipe, make_spec
from longtail.train.teachers import TeacherPool, Teachers, with_teachers
from train_factory import CPU, digits_spec, interrupt, make_images, same_files, uncropped
from train_factory import DIGITS as DATA

DISTILL = {"distill_weight": 0.8, "distill_temperature": 2.0}


spec = partial(digits_spec, epochs=2)


def student(teachers, seed=5, *, saved=False, **overrides):
    made = spec("logit-adjusted", seed, **DISTILL | overrides)
    return with_teachers(made, teachers, saved=saved)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of runs with two finished teachers."""
    root = tmp_path_factory.mktemp("taught")
    train_cohort([spec("logit-adjusted", 0), spec("softmax", 1)], DATA.train, root=root)
    return root


@pytest.fixture(scope="module")
def teachers(root):
    return [Run.open(folder.parent) for folder in sorted(root.glob("*/*/run.json"))]


def by_hand(runs, images, recipe):
    """Mean logits, each network by itself on pixels normalised as its own recipe says."""
    found = []
    for run in runs:
        model = new_network(Recipe.of(run.spec), images, seed=0)
        model.load_state_dict({k: torch.tensor(np.array(v)) for k, v in run.model().items()})
        found.append(network_logits(model, images, Recipe.of(run.spec)).astype(np.float64))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("other", [{}, {"mean": [0.1], "std": [0.5]}])
def test_they_answer_with_their_mean_logits(teachers, other):
    """Also where the student's images are normalised otherwise than theirs were."""
    recipe = get_recipe("digits", **other)
    found = Teachers(teachers, recipe, Resident(DATA.train, CPU), device=CPU)
    answers = found(uncropped(DATA.test, recipe))
    assert answers.dtype == torch.float32
    expected = by_hand(teachers, DATA.test, recipe)
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)


def test_stacked_they_answer_the_same(tmp_path):
    images = make_images((10, 10, 10))
    overrides = {"model": "resnet20", "epochs": 1, "crop_padding": 0, "milestones": [[1, 0.1]]}
    ways = [{}, {}, {"head": "cosine", "head_scale": 16}]
    specs = [
        make_spec(DataSpec("toy"), method="softmax", recipe="paper", seed=n, overrides=values)
        for n, values in enumerate(overrides | way for way in ways)
    ]
    runs = train_cohort(specs, images, root=tmp_path)
    recipe, data = get_recipe("paper"), Resident(images, CPU)
    alone, together = (
        Teachers(runs, recipe, data, device=CPU, stacked=stacked) for stacked in (False, True)
    )
    assert [[size for _, size, *_ in one.groups] for one in (alone, together)] == [[1] * 3, [2, 1]]
    shown = uncropped(images, recipe)
    np.testing.assert_allclose(together(shown), alone(shown), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(alone(shown), by_hand(runs, images, recipe), rtol=1e-4, atol=1e-4)


def test_a_killed_student_goes_on_to_the_same_bits(root, teachers, tmp_path):
    one = student(teachers, seed=7, epochs=4)
    whole = train(one, DATA.train, root=root)
    shutil.copytree(root / DATA.spec.name, tmp_path / DATA.spec.name)
    shutil.rmtree(tmp_path / one.folder)
    interrupt(one, DATA.train, root=tmp_path, epoch=3)
    run = train(one, DATA.train, root=tmp_path)
    assert len(run.record["resumed"]) == 1
    assert same_files(run, whole)


def rewritten(run, root, **options):
    """A writer of a run with the same spec and data, without weights and logits."""
    options |= {"prior": run.prior, "data": run.data, "class_names": run.class_names}
    return RunWriter.create(root, run.spec, **options)


def test_a_student_does_not_mix_teachers_that_were_trained_again(root, teachers, tmp_path):
    shutil.copytree(root / DATA.spec.name, tmp_path / DATA.spec.name)
    one, first = student(teachers, seed=8), teachers[0]
    interrupt(one, DATA.train, root=tmp_path, epoch=1)
    again = rewritten(first, tmp_path, force=True)
    again.write_model({name: np.array(value) * 1.5 for name, value in first.model().items()})
    again.finish()
    with pytest.raises(RunError, match="begun with other weights of its teachers"):
        train(one, DATA.train, root=tmp_path)
    assert train(one, DATA.train, root=tmp_path, force=True).finished


def pool(run, images=DATA.train, **changes):
    one = replace(student([run.name]), **changes)
    return TeacherPool([one], images, root="nowhere", given=[run])


@pytest.mark.parametrize("what", ["a lower ratio", "test"])
def test_teachers_that_saw_other_images_are_refused(what, tmp_path):
    """A subset of a lower ratio holds images that this one's development set is made of."""
    images = DATA.test if what == "test" else load("digits-lt", imbalance_ratio=10).train
    run = train(spec(), replace(images, role=""), root=tmp_path)
    with pytest.raises(RunError, match="may hold images of the development or the test set"):
        pool(run)


def test_teachers_that_saw_what_the_student_holds_out_are_refused(teachers, tmp_path):
    held = replace(DATA.spec, held_out=0.2)
    with pytest.raises(RunError, match="may have seen images that its student holds out"):
        pool(teachers[0], dataset=held)
    same = train(spec(seed=5, held_out=0.2), DATA.train, root=tmp_path)
    assert pool(same, dataset=held)  # the same seed holds out the same images
    assert pool(same)  # it saw fewer than its student, which is no harm


def test_saved_logits_teach_as_networks_do(root, teachers, tmp_path):
    """On images as they are the two are the same, up to rounding; so is their mean, as one."""
    saved = [evaluate(run, DATA.train, split="train") for run in teachers]
    together = ensemble(saved, root=tmp_path, split="train")
    one, other = student(teachers), student(saved, saved=True)
    mean = student([together], saved=True)
    assert one.hash8 != other.hash8
    by_networks = train(one, DATA.train, root=root).model()
    by_logits = train(other, DATA.train, root=tmp_path, teachers=saved).model()
    by_mean = train(mean, DATA.train, root=tmp_path).model()
    for name, weight in by_logits.items():
        np.testing.assert_allclose(weight, by_networks[name], rtol=1e-2, atol=1e-4)
        np.testing.assert_allclose(weight, by_mean[name], rtol=1e-3, atol=1e-5)


def test_saved_logits_of_other_images_are_refused(teachers, tmp_path):
    first = teachers[0]
    bare = rewritten(first, tmp_path).finish()
    one = student([bare], saved=True)
    with pytest.raises(RunError, match="--split train"):
        TeacherPool([one], DATA.train, root=tmp_path)
    turned = DATA.train.take(np.arange(len(DATA.train))[::-1])
    RunWriter.reopen(bare.folder).write_logits(
        "train", np.zeros((len(turned), 10)), turned.labels, data=turned.fingerprint
    )
    with pytest.raises(RunError, match="or in another order"):
        TeacherPool([one], DATA.train, root=tmp_path)
