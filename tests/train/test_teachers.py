"""Students and their teachers: who may teach, what is asked of them, and that it can be resumed."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_factory import pixels
from longtail.data import load
from longtail.data.digits import load_digits_lt
from longtail.data.images import ImageSet
from longtail.runs import DataSpec, Run, RunError, RunWriter, ensemble
from longtail.train.engine import evaluate, train, train_cohort
from longtail.train.prefetch import Resident
from longtail.train.recipe import Recipe, get_recipe, make_spec
from longtail.train.teachers import TeacherPool, Teachers, with_teachers

DATA = load_digits_lt()
CPU = torch.device("cpu")
DISTILL = {"distill_weight": 0.8, "distill_temperature": 2.0}


def spec(method="softmax", seed=0, *, held_out=0.0, **overrides):
    return make_spec(
        replace(DATA.spec, held_out=held_out),
        method=method,
        recipe="digits",
        seed=seed,
        overrides={"epochs": 2, **overrides},
    )


def student(teachers, seed=5, **overrides):
    return with_teachers(spec("logit-adjusted", seed, **{**DISTILL, **overrides}), teachers)


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
    from longtail.train.engine import network_logits
    from longtail.train.loop import new_network

    found = []
    for run in runs:
        model = new_network(Recipe.of(run.spec), images, seed=0)
        model.load_state_dict({k: torch.tensor(np.array(v)) for k, v in run.model().items()})
        found.append(network_logits(model, images, Recipe.of(run.spec)).astype(np.float64))
    return np.mean(found, axis=0)


def normalized(images, recipe):
    values = torch.from_numpy(images.images).float() / images.pixel_range
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (recipe.mean, recipe.std))
    return (values - mean) / std


@pytest.mark.parametrize("other", [{}, {"mean": [0.1], "std": [0.5]}])
def test_they_answer_with_their_mean_logits(teachers, other):
    """Also where the student's images are normalised otherwise than theirs were."""
    recipe = get_recipe("digits", **other)
    found = Teachers(teachers, recipe, Resident(DATA.train, CPU), device=CPU)
    answers = found(normalized(DATA.test, recipe))
    assert answers.dtype == torch.float32
    expected = by_hand(teachers, DATA.test, recipe)
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)


def test_stacked_they_answer_the_same(tmp_path):
    images = ImageSet(pixels(30, shape=(3, 8, 8)), np.repeat([0, 1, 2], 10), ("a", "b", "c"))
    overrides = {"model": "resnet20", "epochs": 1, "crop_padding": 0, "milestones": [[1, 0.1]]}
    specs = [
        make_spec(
            DataSpec("toy"),
            method="softmax",
            recipe="paper",
            seed=seed,
            overrides=overrides | more,
        )
        for seed, more in enumerate([{}, {}, {"head": "cosine", "head_scale": 16}])
    ]
    runs = train_cohort(specs, images, root=tmp_path)
    recipe, data = get_recipe("paper"), Resident(images, CPU)
    alone, together = (
        Teachers(runs, recipe, data, device=CPU, stacked=stacked) for stacked in (False, True)
    )
    assert [[size for _, size, *_ in one.groups] for one in (alone, together)] == [[1] * 3, [2, 1]]
    shown = normalized(images, recipe)
    np.testing.assert_allclose(together(shown), alone(shown), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(alone(shown), by_hand(runs, images, recipe), rtol=1e-4, atol=1e-4)


def test_a_student_learns_from_them(root, teachers):
    """With the teachers' word alone and time enough it comes to agree with them."""
    one = student(teachers, distill_weight=1.0, distill_temperature=1.0, epochs=10)
    other = spec("logit-adjusted", 5, epochs=10)
    taught, plain = train_cohort([one, other], DATA.train, root=root)
    assert taught.spec.settings["teachers"] == tuple(sorted(run.name for run in teachers))
    assert taught.spec.hash8 != plain.spec.hash8
    answers = by_hand(teachers, DATA.train, None).argmax(axis=1)
    agree = []
    for run in (taught, plain):
        found = by_hand([run], DATA.train, None).argmax(axis=1)
        agree.append(np.mean(found == answers))
    assert agree[0] > agree[1] + 0.05
    assert agree[0] > 0.85


class Stop(Exception):
    pass


def test_a_killed_student_goes_on_to_the_same_bits(root, teachers, tmp_path):
    one = student(teachers, seed=7, epochs=4)
    whole = train(one, DATA.train, root=root)
    shutil.copytree(root / DATA.spec.name, tmp_path / DATA.spec.name)
    shutil.rmtree(tmp_path / one.folder)

    def stop(end):
        if end.epoch == 3:
            raise Stop

    with pytest.raises(Stop):
        train(one, DATA.train, root=tmp_path, checkpoint_seconds=0.0, after_epoch=stop)
    run = train(one, DATA.train, root=tmp_path)
    assert len(run.record["resumed"]) == 1
    for name in ("model.safetensors", "log.jsonl"):
        assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_student_does_not_mix_teachers_that_were_trained_again(root, teachers, tmp_path):
    shutil.copytree(root / DATA.spec.name, tmp_path / DATA.spec.name)
    one = student(teachers, seed=8)

    def stop(end):
        raise Stop

    with pytest.raises(Stop):
        train(one, DATA.train, root=tmp_path, checkpoint_seconds=0.0, after_epoch=stop)
    assert (tmp_path / one.folder / "teachers.json").exists()
    first = teachers[0]
    again = RunWriter.create(
        tmp_path,
        first.spec,
        prior=first.prior,
        data=first.data,
        class_names=first.class_names,
        force=True,
    )
    again.write_model({name: np.array(value) * 1.5 for name, value in first.model().items()})
    again.finish()
    with pytest.raises(RunError, match="begun with other weights of its teachers"):
        train(one, DATA.train, root=tmp_path)
    assert train(one, DATA.train, root=tmp_path, force=True).finished


def pool(run, images=DATA.train, **changes):
    one = replace(student([run.name]), **changes)
    return TeacherPool([one], images, root="nowhere", given=[run])


@pytest.mark.parametrize("what", ["a lower ratio", "dev", "test"])
def test_teachers_that_saw_other_images_are_refused(what, tmp_path):
    """A subset of a lower ratio holds images that this one's development set is made of."""
    data = load("digits-lt")
    parts = {"dev": data.dev, "test": data.test}
    images = parts.get(what) or load("digits-lt", imbalance_ratio=10).train
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
    """On images as they are the two are the same, up to rounding; and no weights are needed."""
    saved = [evaluate(run, DATA.train, split="train") for run in teachers]
    one = student(teachers)
    other = with_teachers(spec("logit-adjusted", 5, **DISTILL), saved, saved=True)
    assert one.hash8 != other.hash8
    by_networks = train(one, DATA.train, root=root)
    by_logits = train(other, DATA.train, root=tmp_path, teachers=saved)
    for name, weight in by_networks.model().items():
        np.testing.assert_allclose(weight, by_logits.model()[name], rtol=1e-2, atol=1e-4)
    together = ensemble(saved, root=tmp_path, split="train")
    mean = with_teachers(spec("logit-adjusted", 5, **DISTILL), [together], saved=True)
    by_mean = train(mean, DATA.train, root=tmp_path)
    for name, weight in by_logits.model().items():
        np.testing.assert_allclose(weight, by_mean.model()[name], rtol=1e-3, atol=1e-5)


def test_saved_logits_of_other_images_are_refused(teachers, tmp_path):
    first = teachers[0]
    options = {"prior": first.prior, "data": first.data, "class_names": first.class_names}
    writer = RunWriter.create(tmp_path, first.spec, **options)
    bare = writer.finish()
    one = with_teachers(spec(**DISTILL), [bare], saved=True)
    with pytest.raises(RunError, match="--split train"):
        TeacherPool([one], DATA.train, root=tmp_path)
    turned = DATA.train.take(np.arange(len(DATA.train))[::-1])
    RunWriter.reopen(bare.folder).write_logits(
        "train", np.zeros((len(turned), 10)), turned.labels, data=turned.fingerprint
    )
    with pytest.raises(RunError, match="or in another order") as refused:
        TeacherPool([one], DATA.train, root=tmp_path)
    assert str(refused.value).endswith(f"{bare.evaluation('train')} --force")
