"""Runs that step as one are what each would be alone; and what a step computes."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch.nn import functional as F

from longtail.train.distillation import distillation_loss
from longtail.train.loop import new_network, run_epoch, take_step
from longtail.train.recipe import get_recipe
from longtail.train.sam import SAM
from train_factory import make_images, make_planner, make_stepper, step_together

IMAGES = make_images()
METHODS = ("softmax", "logit-adjusted", "softmax+drw:start=1")  # margins: losses in one
DRAWING = (*METHODS, "equalized-threshold:threshold=0.2")  # with one that draws: each by itself


def recipe(**overrides):
    short = {"model": "resnet20", "epochs": 3, "batch_size": 16, "warmup_epochs": 1}
    return get_recipe("tuned", **{**short, "milestones": ((2, 0.1),), **overrides})


def planner(method="softmax", seed=0, **overrides):
    return make_planner(recipe(**overrides), IMAGES, method, seed)


def stepper(*planners, teachers=None):
    return make_stepper(planners, IMAGES, teachers=teachers)


def gaps(together, member, one):
    """How far two networks are apart, compared to how far each tensor moved.

    Rounding grows over the steps and shows most where a gradient is small; a lost or a
    neighbour's gradient would be all of it.
    """
    own = together.network(member).state_dict()
    start = new_network(one.recipe, IMAGES, seed=member).state_dict()
    return [
        float((own[name] - value).double().norm() / (value - start[name]).double().norm())
        for name, value in one.network(0).state_dict().items()
    ]


@pytest.mark.parametrize(
    ("optimizer", "methods"),
    [("sgd", METHODS), ("nesterov", DRAWING), ("adam", METHODS)],
)
def test_runs_that_step_as_one_train_as_each_would_alone(optimizer, methods):
    settings = {"optimizer": optimizer, "lr": 0.001}
    planners = [planner(method, seed, **settings) for seed, method in enumerate(methods)]
    together, alone = stepper(*planners), [stepper(one) for one in planners]
    step_together(together, alone, rtol=2e-4)
    for member, one in enumerate(alone):
        assert together.state(member).keys() == one.state(0).keys()
        shares = gaps(together, member, one)
        assert max(shares) < 0.3, (member, shares)
        assert np.median(shares) < 0.01, (member, shares)


def test_a_runs_state_goes_from_stacked_to_alone_and_back():
    planners = [planner("softmax", 0), planner("logit-adjusted", 1)]
    together, alone, back = stepper(*planners), stepper(planners[1]), stepper(*planners)
    run_epoch([together], [0])
    for member in (0, 1):
        state = {k: v.clone() for k, v in together.state(member).items()}
        back.load_state(member, state)
    alone.load_state(0, state)
    losses = run_epoch([together], [1])[0]
    assert run_epoch([back], [1])[0] == pytest.approx(losses, rel=1e-4)
    assert run_epoch([alone], [1])[0][0] == pytest.approx(losses[1], rel=1e-4)


STEPS = {
    "sgd": {"optimizer": "sgd"},
    "nesterov": {"optimizer": "nesterov"},
    "decay": {"decay": "not-norm"},
    "sam": {"sam_rho": 0.5},
    "head": {"head_lr": 10.0},
    "frozen": {"head_lr": 10.0, "freeze_backbone": True},
}


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_steps_are_those_of_torchs_optimizer(settings):
    """In float64, on the images of an epoch, which `test_ingredients` has by hand."""
    others = {"batch_size": 24, "lr": 0.01, "weight_decay": 0.1, "crop_padding": 2}
    one = stepper(planner("logit-adjusted", **others, **settings))
    recipe, plan, frozen = one.recipe, one.planners[0].plan(0), "freeze_backbone" in settings
    network = new_network(recipe, IMAGES, seed=0).double().train(not frozen)
    groups = [
        {
            "params": [value],
            "factor": settings.get("head_lr", 1.0) if name.startswith("fc.") else 1.0,
            "weight_decay": 0.0 if "decay" in settings and "bn" in name else 0.1,
        }
        for name, value in network.named_parameters()
        if name.startswith("fc.") or not frozen
    ]
    nesterov = settings.get("optimizer") == "nesterov"
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=nesterov)
    sam = SAM(sgd, rho=settings["sam_rho"], model=network) if "sam_rho" in settings else None

    def closure():
        sgd.zero_grad()
        logits = network(images) + torch.tensor(IMAGES.prior.log_probs)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        return loss

    one.load(0)
    mean = 0.0
    places = torch.arange(len(plan.images.rows)).split(24)
    for number, (place, rate) in enumerate(zip(places, plan.rates.tolist(), strict=True)):
        take_step(one, number)
        images = one.now["inputs"][place, :, :, 0].permute(0, 3, 1, 2).double()
        labels = torch.from_numpy(IMAGES.labels)[plan.images.rows[place]]
        for group in sgd.param_groups:
            group["lr"] = rate * group["factor"]
        mean += float((sam or sgd).step(closure).detach()) * len(place) / len(IMAGES.labels)
    assert one.mean_losses()[0] == pytest.approx(mean, rel=1e-4)
    found = one.model.state_dict()
    first = new_network(recipe, IMAGES, seed=0).double().state_dict()
    for name, value in network.state_dict().items():
        if torch.equal(value, first[name]):
            assert torch.equal(found[name].double(), value), name
        else:
            gap = (found[name] - value).double().norm()
            assert gap < 2e-3 * (value - first[name]).double().norm(), name


def test_what_a_loss_draws_depends_on_the_run_and_the_epoch():
    """Others in every epoch and for every seed, and the same again where a run goes on."""
    method = "equalized-threshold:threshold=0.9,gamma=0.5"
    training = stepper(*(planner(method, seed) for seed in (0, 1)))

    def drawn(epoch):
        training.load(epoch)
        like = torch.empty(64, 3)
        return torch.stack([criterion.draw(like) for criterion in training.drawing.values()])

    first, second, again = drawn(0), drawn(1), drawn(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    for one in (first, second):
        assert not torch.equal(one[0], one[1])


def linear_teachers(seed=0):
    """Teachers that notice every pixel, and how often they were asked about how many images."""
    weights = torch.randn(3 * 8 * 8, 3, generator=torch.Generator().manual_seed(seed)) / 8
    asked = []

    def teachers(images):
        asked.append(len(images))
        return images.flatten(1) @ weights

    return teachers, asked


def outputs(one, teachers):
    """Logits of the first network and of the teachers on the first run's images, in float64."""
    images = one.now["inputs"][:, :, :, 0].permute(0, 3, 1, 2)
    student = new_network(one.recipe, IMAGES, seed=0)(images).detach()
    return student.double().numpy(), teachers(images).double().numpy()


@pytest.mark.parametrize("adjusted", [False, True])
def test_distillation_by_hand(adjusted):
    """(1 - w) loss + w T² KL on the run's own images, from the equation."""
    settings = {"batch_size": 47, "distill_weight": 0.75, "distill_temperature": 2.0}
    one_planner = planner("logit-adjusted", **settings, distill_adjusted=adjusted)
    teachers, asked = linear_teachers()
    one = stepper(one_planner, teachers=teachers)
    found = run_epoch([one], [0])[0][0]
    assert asked == [47]
    student, taught = outputs(one, teachers)
    log_prior = IMAGES.prior.log_probs
    labels = IMAGES.labels[one.plans[0].images.rows]
    loss = -log_softmax(student + log_prior, 1)[np.arange(47), labels].mean()
    shift = log_prior if adjusted else 0.0
    p, q = (log_softmax((z + shift) / 2.0, 1) for z in (taught, student))
    divergence = 4.0 * (np.exp(p) * (p - q)).sum(1).mean()
    assert found == pytest.approx(0.25 * loss + 0.75 * divergence, rel=1e-4)


def test_a_student_with_cosines_is_compared_as_its_loss_scales_them():
    """Beside one without a scale: each is compared as the classifier that its own loss trains."""
    settings = {"batch_size": 47, "distill_weight": 1.0, "distill_temperature": 2.0}
    settings |= {"head": "cosine", "image_seed": 0}
    teachers, _ = linear_teachers()
    planners = [planner(method, **settings) for method in ("ldam:scale=20", "softmax")]
    together = stepper(*planners, teachers=teachers)
    found = run_epoch([together], [0])[0]
    cosines, taught = map(torch.from_numpy, outputs(together, teachers))
    for loss, scale in zip(found, (20.0, 1.0), strict=True):
        divergence = distillation_loss(scale * cosines, taught, temperature=2.0)
        assert loss == pytest.approx(float(divergence), rel=1e-4)


def test_students_of_the_same_images_ask_their_teachers_once():
    settings = {"distill_weight": 0.8, "distill_temperature": 2.0, "distill_adjusted": True}
    planners = [
        planner(method, seed, image_seed=images, **settings)
        for seed, (method, images) in enumerate((("softmax", 5), ("adaptive", 5), ("softmax", 6)))
    ]
    teachers, asked = linear_teachers()
    together = stepper(*planners, teachers=teachers)
    losses = run_epoch([together], [0])[0]
    assert asked == [47, 47]
    alone = [run_epoch([stepper(one, teachers=teachers)], [0])[0][0] for one in planners]
    np.testing.assert_allclose(losses, alone, rtol=2e-4)
