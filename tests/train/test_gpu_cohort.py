"""On a GPU: captured steps against eager ones, runs together against runs alone, and resuming."""

import numpy as np
import pytest
import torch

from data_factory import pixels
from longtail.data.images import ImageSet
from longtail.runs import DataSpec
from longtail.train.cuda_graphs import Stepper
from longtail.train.engine import evaluate, train_cohort
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe, make_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
COUNTS = (300, 80, 20)
IMAGES = ImageSet(pixels(sum(COUNTS)), np.repeat(np.arange(3), COUNTS), ("a", "b", "c"))
METHODS = ("softmax", "logit-adjusted", "balanced+drw:start=1", "equalized-threshold:threshold=0.1")
SHORT = {"model": "resnet20", "epochs": 4, "warmup_epochs": 1, "milestones": ((3, 0.1),)}


def stepper(methods=METHODS, *, graphs=True, precision="float32", **overrides):
    device, labels = torch.device("cuda"), IMAGES.labels
    recipe = get_recipe("tuned", **{**SHORT, **overrides})
    planners = [
        Planner(recipe, Method.of(m), labels, np.arange(len(labels)), IMAGES.prior, seed=seed)
        for seed, m in enumerate(methods)
    ]
    data = Resident(IMAGES, device)
    return Stepper(
        lambda: Training(planners, data, precision=precision, device=device),
        device=device,
        graphs=graphs,
    )


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_captured_steps_are_the_eager_ones(optimizer):
    # Adam moves by the sign of a gradient where it is small, so rounding shows sooner.
    settings = {"optimizer": optimizer, "lr": 3e-5 if optimizer == "adam" else 0.003}
    one, other = stepper(**settings), stepper(graphs=False, **settings)
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
        mine, its = (
            training.network(member).state_dict() for training in (one.training, other.training)
        )
        gaps = [
            float((mine[k] - v).float().norm() / (v.float().norm() + 1)) for k, v in its.items()
        ]
        assert np.median(gaps) < 1e-3


def test_runs_whose_images_are_made_differently_step_as_one():
    """Other images, other weight decay, SAM that looks less far: captured, and alone."""
    device, labels, kept = torch.device("cuda"), IMAGES.labels, np.arange(len(IMAGES))
    ways = [{}, {"cutmix": 0.5, "mix_partner": "minority"}, {"trivial_augment": True}]
    planners = [
        Planner(
            get_recipe(
                "tuned",
                **{**SHORT, "lr": 0.003, "sam_rho": 0.1 / (seed + 1), **way},
                weight_decay=0.5 * 10**seed,  # most of a step, so that a neighbour's would show
            ),
            Method.of("logit-adjusted"),
            labels,
            kept,
            IMAGES.prior,
            seed=seed,
        )
        for seed, way in enumerate(ways)
    ]
    data = Resident(IMAGES, device)

    def of(members, graphs=True):
        return Stepper(lambda: Training(members, data, device=device), device=device, graphs=graphs)

    together, alone = of(planners), [of([one], graphs=False) for one in planners]
    for epoch in range(2):
        losses = run_epoch([together], [epoch])[0]
        expected = [run_epoch([one], [epoch])[0][0] for one in alone]
        np.testing.assert_allclose(losses, expected, rtol=2e-3)
    for member, one in enumerate(alone):
        mine = together.training.network(member).state_dict()
        its = one.training.network(0).state_dict()
        gaps = [
            float((mine[k] - v).float().norm() / (v.float().norm() + 1)) for k, v in its.items()
        ]
        assert np.median(gaps) < 1e-3, member


def test_images_are_the_same_on_every_device():
    on_gpu, labels = stepper(**EVERYTHING, graphs=False), IMAGES.labels
    planners = on_gpu.training.planners
    cpu = torch.device("cpu")
    on_cpu = Stepper(lambda: Training(planners, Resident(IMAGES, cpu)), device=cpu)
    for one in (on_gpu, on_cpu):
        one.load(1)
        with one.active():
            one.training.prepare(0)
    count = len(labels)
    for name in ("targets", "seconds", "shares"):
        mine, its = (getattr(one.training.now, name)[:, :count].cpu() for one in (on_gpu, on_cpu))
        assert torch.equal(mine, its), name
    mine, its = on_gpu.training.now.inputs[:count].cpu(), on_cpu.training.now.inputs[:count]
    torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)


def test_students_learn_from_teachers_in_captured_steps():
    device, labels = torch.device("cuda"), IMAGES.labels
    settings = {"image_seed": 7, "distill_weight": 0.8, "distill_temperature": 2.0, "lr": 0.003}
    recipes = [
        get_recipe("tuned", **{**SHORT, **settings}),
        get_recipe("tuned", **{**SHORT, **settings, "distill_weight": 0.5}, distill_adjusted=True),
    ]
    weights = torch.randn(3 * 32 * 32, 3, device=device) / 30
    made = {}
    for graphs in (True, False):
        planners = [
            Planner(one, Method.of(m), labels, np.arange(len(labels)), IMAGES.prior, seed=seed)
            for seed, (one, m) in enumerate(zip(recipes, METHODS, strict=False))
        ]

        def make(planners=planners):
            return Training(
                planners,
                Resident(IMAGES, device),
                device=device,
                teachers=lambda x: x.flatten(1) @ weights,
            )

        one = Stepper(make, device=device, graphs=graphs)
        assert one.training.now.teacher_logits.shape == (1, len(labels), 3)
        assert (one.beside is not None) == graphs
        made[graphs] = [run_epoch([one], [epoch])[0] for epoch in range(4)]
    np.testing.assert_allclose(made[True][:2], made[False][:2], rtol=2e-3)
    np.testing.assert_allclose(made[True], made[False], rtol=0.05)


def test_what_is_made_aside_is_what_would_be_made_in_line():
    """Slow teachers: the steps would be done long before the answers, if they did not wait."""
    device, labels = torch.device("cuda"), IMAGES.labels
    recipe = get_recipe("tuned", **{**SHORT, "distill_weight": 0.8, "cutmix": 0.5, "epochs": 6})
    weights = torch.randn(3 * 32 * 32, 3, device=device) / 30
    answered = []

    def teachers(images):
        torch.cuda._sleep(20_000_000)  # some ten milliseconds
        answered.append(torch.cuda.current_stream())
        return images.flatten(1) @ weights

    found = []
    for aside in (True, False):
        planner = Planner(
            recipe, Method.of("softmax"), labels, np.arange(len(labels)), IMAGES.prior, seed=0
        )
        one = Stepper(
            lambda p=planner: Training(
                [p], Resident(IMAGES, device), device=device, teachers=teachers
            ),
            device=device,
        )
        if not aside:
            one.beside = None
        answered.clear()
        blocks = []
        for epoch in range(6):
            run_epoch([one], [epoch])
            with one.active():  # and no waiting for what is made aside
                blocks.append({k: v.clone() for k, v in one.training.now.tensors().items()})
        torch.cuda.synchronize()
        assert len(answered) == 6  # once an epoch, and nothing for a seventh
        assert sum(stream == one.beside for stream in answered) == (5 if aside else 0)
        found.append(blocks)
    for mine, its in zip(*found, strict=True):
        for name, value in mine.items():
            assert torch.equal(value, its[name]), name


def test_a_cohort_into_folders_resumed_and_judged(tmp_path):
    specs = [
        make_spec(
            DataSpec("pieces", held_out=0.2), method=m, recipe="tuned", seed=s, overrides=SHORT
        )
        for m in ("softmax", "logit-adjusted", "ldam+drw")
        for s in (0, 1)
    ]

    class Stop(Exception):
        pass

    def stop(end):
        if end.epoch == 3:
            raise Stop

    options = {"root": tmp_path, "device": "cuda", "checkpoint_seconds": 0.0}
    with pytest.raises(Stop):
        train_cohort(specs, IMAGES, after_epoch=stop, **options)
    runs = train_cohort(specs, IMAGES, **options)
    for run in runs:
        assert run.finished
        assert len(run.log()) == 4
        assert run.record["resumed"]
        assert "held-out" in run.splits
        # Plain and cosine heads can't step as one.
        assert run.record["facts"]["together"] == (2 if "ldam" in run.name else 4)
        on_gpu = evaluate(run, IMAGES, split="a", device="cuda").logits("a").logits
        on_cpu = evaluate(run, IMAGES, split="b").logits("b").logits
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)
