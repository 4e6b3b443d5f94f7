"""On a GPU: captured steps against eager ones, runs together, teachers, and resuming."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from longtail.runs import DataSpec
from longtail.train.engine import evaluate, train_cohort
from longtail.train.loop import run_epoch
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.teachers import Teachers, with_teachers
from train_factory import CPU, Stop, make_images, make_planner, make_stepper, step_together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
IMAGES = make_images((300, 80, 20), side=32)
CUDA = torch.device("cuda")
METHODS = ("softmax", "logit-adjusted", "balanced+drw:start=1")  # margins: losses in one
DRAWING = (*METHODS, "equalized-threshold:threshold=0.1")  # with one that draws: each by itself
SHORT = {"model": "resnet20", "epochs": 4, "warmup_epochs": 1, "milestones": ((3, 0.1),)}


def plans(methods=METHODS, **overrides):
    recipe = get_recipe("tuned", **SHORT | overrides)
    return [make_planner(recipe, IMAGES, method, seed) for seed, method in enumerate(methods)]


def stepper(planners=None, *, graphs=True, precision="float32", teachers=None, **overrides):
    options = {"precision": precision, "teachers": teachers, "graphs": graphs}
    return make_stepper(planners or plans(**overrides), IMAGES, device=CUDA, **options)


def gap(one, other, member, alone=0):
    """How far a run's network is from another's: the median over its tensors."""
    mine = one.network(member).state_dict()
    its = other.network(alone).state_dict()
    gaps = [float((mine[k] - v).float().norm() / (v.float().norm() + 1)) for k, v in its.items()]
    return np.median(gaps)


@pytest.mark.parametrize("methods", [METHODS, DRAWING], ids=["margins", "drawing"])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_captured_steps_are_the_eager_ones(optimizer, methods):
    # Adam moves by the sign of a gradient where it is small, so rounding shows sooner.
    settings = {"optimizer": optimizer, "lr": 3e-5 if optimizer == "adam" else 0.003}
    one = stepper(plans(methods, **settings))
    other = stepper(plans(methods, **settings), graphs=False)
    assert set(one.graphs) == {128, 16}
    for epoch in range(2):
        graph, eager = run_epoch([one], [epoch])[0], run_epoch([other], [epoch])[0]
        # The loss that draws is left out: captured and eager draws count on differently.
        np.testing.assert_allclose(graph[:3], eager[:3], rtol=1e-3)
    assert np.isfinite(graph).all()


def test_bfloat16_is_close_to_float32():
    exact, rough = stepper(), stepper(precision="bfloat16")
    np.testing.assert_allclose(run_epoch([rough], [0])[0], run_epoch([exact], [0])[0], rtol=0.05)


EVERYTHING = {
    "trivial_augment": True,
    "cutout": 16,
    "cutmix": 0.4,
    "mixup": 0.3,
    "mix_partner": "minority",
    "sam_rho": 0.1,
    "ema_decay": 0.9,
    "lr": 0.003,
}


def test_every_ingredient_in_captured_steps():
    one, other = stepper(**EVERYTHING), stepper(graphs=False, **EVERYTHING)
    for epoch in range(2):
        graph, eager = run_epoch([one], [epoch])[0], run_epoch([other], [epoch])[0]
        np.testing.assert_allclose(graph[:3], eager[:3], rtol=2e-3)
    for member in range(3):
        assert gap(one, other, member, member) < 1e-3


def test_captured_runs_train_as_each_would_alone():
    planners = plans(["logit-adjusted"] * 3, sam_rho=0.1, cutmix=0.5, lr=0.003)
    together, alone = stepper(planners), [stepper([one], graphs=False) for one in planners]
    step_together(together, alone, rtol=2e-3)
    for member, one in enumerate(alone):
        assert gap(together, one, member) < 1e-3, member


def test_images_are_the_same_on_every_device():
    on_gpu, count = stepper(**EVERYTHING, graphs=False), len(IMAGES)
    on_cpu = make_stepper(on_gpu.planners, IMAGES)
    for one in (on_gpu, on_cpu):
        with one.active():
            one.load(1)
            one.prepare(0)
    for name in ("targets", "seconds", "shares"):
        mine, its = (one.now[name][:, :count].cpu() for one in (on_gpu, on_cpu))
        assert torch.equal(mine, its), name
    mine, its = on_gpu.now["inputs"][:count].cpu(), on_cpu.now["inputs"][:count]
    torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)


def test_students_learn_from_teachers_in_captured_steps():
    settings = {"image_seed": 7, "distill_weight": 0.8, "distill_temperature": 2.0, "lr": 0.003}
    settings["distill_adjusted"] = True
    weights = torch.randn(3 * 32 * 32, 3, device=CUDA) / 30
    made = {}
    for graphs in (True, False):
        planners = plans(METHODS[:2], **settings)
        one = stepper(planners, graphs=graphs, teachers=lambda x: x.flatten(1) @ weights)
        assert one.now["teacher_logits"].shape == (1, len(IMAGES), 3)
        made[graphs] = [run_epoch([one], [epoch])[0] for epoch in range(4)]
    np.testing.assert_allclose(made[True][:2], made[False][:2], rtol=2e-3)
    np.testing.assert_allclose(made[True], made[False], rtol=0.05)


def spec(method="logit-adjusted", seed=0, *, held_out=0.0, **overrides):
    options = {"recipe": "tuned", "seed": seed, "overrides": SHORT | overrides}
    return make_spec(DataSpec("toy", held_out=held_out), method=method, **options)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    specs = [spec(seed=0), spec(seed=1), spec(seed=2, head="cosine", head_scale=16.0)]
    return train_cohort(specs, IMAGES, root=tmp_path_factory.mktemp("gpu"), device="cuda")


def test_stacked_teachers_answer_as_each_by_itself(teachers):
    recipe, shown = get_recipe("tuned"), torch.randn(300, 3, 32, 32, device="cuda")
    together = Teachers(teachers, recipe, Resident(IMAGES, CUDA), device=CUDA)
    assert [size for _, size, *_ in together.groups] == [2, 1]
    alone = Teachers(teachers, recipe, Resident(IMAGES, CPU), device=CPU)
    found, expected = together(shown).cpu(), alone(shown.cpu())
    spread = expected.std()
    assert (found - expected).abs().mean() < 0.05 * spread  # bfloat16 against float32


def test_students_learn_what_they_learn_on_a_cpu(teachers, tmp_path):
    # Steps so small that rounding has no time to grow: the losses are those of the same images,
    # labels and teachers, which leave them only by the teachers' bfloat16.
    listening = {"distill_weight": 0.8, "distill_temperature": 2.0, "image_seed": 0, "lr": 1e-4}
    listening |= {"epochs": 3, "milestones": ((2, 0.1),)}
    specs = [with_teachers(spec(seed=seed, **listening), teachers) for seed in (5, 6)]
    specs = [replace(each, settings={**each.settings, "precision": "float32"}) for each in specs]
    losses = {}
    for device in ("cuda", "cpu"):
        options = {"root": tmp_path / device, "teachers": teachers, "device": device}
        runs = train_cohort(specs, IMAGES, **options)
        losses[device] = [[line["loss"] for line in run.log()] for run in runs]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0.02)
    assert not np.allclose(losses["cpu"][0], losses["cpu"][1], rtol=0.02)  # or they'd be one run


def test_a_cohort_into_folders_resumed_and_judged(tmp_path):
    methods = ("softmax", "logit-adjusted", "ldam+drw")
    specs = [spec(method, seed, held_out=0.2) for method in methods for seed in (0, 1)]

    def stop(end):
        if end.epoch == 3:
            raise Stop

    options = {"root": tmp_path, "device": "cuda", "checkpoint_seconds": 0.0}
    with pytest.raises(Stop):
        train_cohort(specs, IMAGES, after_epoch=stop, **options)
    for run in train_cohort(specs, IMAGES, **options):
        assert run.finished
        assert len(run.log()) == 4
        assert run.record["resumed"]
        # Plain and cosine heads can't step as one.
        assert run.record["facts"]["together"] == (2 if "ldam" in run.name else 4)
        on_gpu = evaluate(run, IMAGES, split="a", device="cuda").logits("a").logits
        on_cpu = evaluate(run, IMAGES, split="b").logits("b").logits
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)
