"""The ingredients in the engine: images by hand, steps by hand, trainings, resumed runs, bad input.

Each ingredient by itself has a file of its own: `test_trivial`, `test_mixing`, `test_sam`,
`test_averaging`, `test_distillation`, and `test_losses_mixed`.
"""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from test_loop import IMAGES, gaps
from test_mixing import by_loops
from test_trivial import as_image, pillow

from longtail import ClassPrior, InputError
from longtail.runs import DataSpec
from longtail.train.engine import evaluate, train
from longtail.train.loop import new_network, run_epoch, take_step
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.trivial import OPERATIONS
from train_factory import make_planner, make_stepper, resumed, step_together

EVERYTHING = {
    "trivial_augment": True,
    "cutout": 3,
    "cutmix": 0.4,
    "mixup": 0.3,
    "mixup_alpha": 0.5,
    "mix_partner": "minority",
    "sam_rho": 0.1,
    "ema_decay": 0.9,
}
SHORT = {"model": "resnet20", "epochs": 3, "batch_size": 16, "warmup_epochs": 1, "crop_padding": 2}
PLAIN = SHORT | {"trivial_augment": False, "cutout": 0, "sam_rho": 0.0}


def planner(method="logit-adjusted", seed=0, **overrides):
    return make_planner(get_recipe("strong", **PLAIN | overrides), IMAGES, method, seed)


def stepper(*planners):
    return make_stepper(planners, IMAGES)


def image_by_hand(plan, n, recipe):
    """Crop, flip, TrivialAugment by Pillow, normalise, Cutout: one image of a plan."""
    padded = np.pad(IMAGES.images[plan.rows[n]], ((0, 0), (2, 2), (2, 2)))
    image = padded[:, plan.dy[n] : plan.dy[n] + 8, plan.dx[n] : plan.dx[n] + 8]
    image = image[:, :, ::-1] if plan.flip[n] else image
    if plan.operation is not None:
        name = OPERATIONS[int(plan.operation[n])]
        changed = pillow(as_image(np.ascontiguousarray(image)), name, int(plan.strength[n]))
        image = np.moveaxis(np.asarray(changed), -1, 0)
    mean, std = (np.reshape(v, (3, 1, 1)) for v in (recipe.mean, recipe.std))
    image = (image / 255 - mean) / std
    if plan.hole is not None:
        row, column = (int(v) for v in torch.floor(plan.hole[n] * 8))
        first = max(row - 1, 0), max(column - 1, 0)
        image[:, first[0] : row + 2, first[1] : column + 2] = 0.0
    return image


@pytest.mark.parametrize(
    "ingredients",
    [
        {"trivial_augment": True},
        {"cutout": 3},
        {"cutmix": 0.5},
        {"mixup": 0.5, "mix_partner": "minority"},
        {**EVERYTHING, "crop_fill": "black"},
    ],
    ids=lambda given: "+".join(given),
)
def test_the_images_of_an_epoch_by_hand(ingredients):
    one = stepper(planner(seed=3, **ingredients))
    one.load(0)
    one.prepare(0)
    plan, recipe = one.plans[0], one.recipe
    mixed = 0
    for n in range(len(plan.images.rows)):
        image = image_by_hand(plan.images, n, recipe)
        label = second = int(IMAGES.labels[plan.images.rows[n]])
        share = 1.0
        if plan.mixing is not None and plan.mixing.share[n] < 1:
            partner = image_by_hand(plan.partners, n, recipe)
            how = (float(plan.mixing.share[n]), bool(plan.mixing.patch[n]))
            image, share = by_loops(image, partner, *how, plan.mixing.centre[n].tolist())
            second, mixed = int(IMAGES.labels[plan.partners.rows[n]]), mixed + 1
        found = one.now["inputs"][n, :, :, 0].permute(2, 0, 1)
        np.testing.assert_allclose(found, image, rtol=0, atol=2e-5, err_msg=str(n))
        assert int(one.now["targets"][0, n]) == label
        if plan.mixing is not None:
            assert int(one.now["seconds"][0, n]) == second
            assert float(one.now["shares"][0, n]) == pytest.approx(share, abs=1e-6)
    assert (mixed > 5) == (plan.mixing is not None)


def test_an_ingredient_changes_nothing_about_the_others():
    plain, full = planner().plan(1), planner(**EVERYTHING).plan(1)
    for name in ("rows", "dy", "dx", "flip"):
        assert torch.equal(getattr(plain.images, name), getattr(full.images, name)), name
    without = planner(**{**EVERYTHING, "cutout": 0, "mixup": 0.0, "mixup_alpha": 1.0}).plan(1)
    assert torch.equal(without.images.operation, full.images.operation)
    assert torch.equal(without.mixing.patch, full.mixing.patch)
    assert torch.equal(without.partners.rows, full.partners.rows)
    assert not torch.equal(planner(**EVERYTHING).plan(2).partners.strength, full.partners.strength)
    assert not torch.equal(full.images.operation, full.partners.operation)


def test_partners_come_from_what_the_run_trains_on():
    kept = np.array([0, 1, 2, 3, 4, 40, 41, 45, 46])
    prior = ClassPrior.from_labels(IMAGES.labels[kept], num_classes=3)
    recipe = get_recipe("strong", **PLAIN | {"cutmix": 1.0, "mix_partner": "minority"})
    made = Planner(recipe, Method("softmax"), IMAGES.labels, kept, prior, seed=0)
    rows = torch.cat([made.plan(epoch).partners.rows for epoch in range(50)]).numpy()
    assert set(rows) == set(kept)
    shares = np.bincount(IMAGES.labels[rows]) / len(rows)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.1)


def test_chunks_make_the_same_images(monkeypatch):
    planners = [planner(seed=seed, **EVERYTHING) for seed in (0, 1, 2)]
    whole = stepper(*planners)
    monkeypatch.setattr("longtail.train.loop._CHUNK_BYTES", 3 * 7 * 3 * 8 * 8)
    parts = stepper(*planners)
    for one in (whole, parts):
        one.load(1)
        one.prepare(0)
    for name in ("inputs", "targets", "seconds", "shares"):
        assert torch.equal(whole.now[name], parts.now[name])


def test_class_weights_of_mixed_examples_by_hand():
    """Σ λ w_y ℓ(y) + (1 − λ) w_y' ℓ(y') over Σ λ w_y + (1 − λ) w_y', where a neighbour has none."""
    settings = {"cutmix": 0.5, "mixup": 0.2, "batch_size": 47}
    planners = [planner("softmax+drw:start=0", 0, **settings), planner("softmax", 1, **settings)]
    together = stepper(*planners)
    found = run_epoch([together], [0])[0]
    now, class_weights = together.now, planners[0].plan(0).weights.numpy()
    assert class_weights.std() > 0
    for member, weights in enumerate((class_weights, np.ones(3))):
        network = new_network(together.recipe, IMAGES, seed=member)
        images = now["inputs"][:, :, :, member].permute(0, 3, 1, 2)
        log_p = log_softmax(network(images).detach().double().numpy(), 1)
        above, below = 0.0, 0.0
        for n in range(47):
            share = float(now["shares"][member, n])
            for labels, part in ((now["targets"], share), (now["seconds"], 1 - share)):
                label = int(labels[member, n])
                above -= part * weights[label] * log_p[n, label]
                below += part * weights[label]
        assert found[member] == pytest.approx(above / below, rel=1e-3)


METHODS = ("logit-adjusted", "softmax+drw:start=1", "equalized-threshold:threshold=0.2")


@pytest.mark.parametrize("methods", [METHODS[:2], METHODS], ids=["margins", "drawing"])
def test_runs_with_everything_train_as_each_would_alone(methods):
    settings = {**EVERYTHING, "lr": 0.001}
    planners = [planner(method, seed, **settings) for seed, method in enumerate(methods)]
    together, alone = stepper(*planners), [stepper(one) for one in planners]
    step_together(together, alone, rtol=1e-3)
    for member, one in enumerate(alone):
        assert np.median(gaps(together, member, one)) < 0.02, member


def test_the_average_is_what_is_judged():
    one = stepper(planner(ema_decay=0.5, epochs=1, warmup_epochs=0))
    one.load(0)
    average, weight = 0.0, 0.0
    for number in range(len(one.batch_sizes)):
        take_step(one, number)
        average = 0.5 * average + one.model.conv1.weight.detach().double()
        weight = 0.5 * weight + 1
    found = one.network(0).state_dict()["conv1.weight"].double()
    torch.testing.assert_close(found, average / weight, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found, one.model.conv1.weight.double())


def spec(method="logit-adjusted+drw:start=2", **overrides):
    return make_spec(
        DataSpec("tiny"), method=method, recipe="strong", seed=1, overrides={**SHORT, **overrides}
    )


def test_a_resumed_run_with_everything_ends_in_the_same_bits(tmp_path):
    run = resumed(spec(**EVERYTHING), IMAGES, tmp_path, epoch=2)
    # What was saved is the average, and evaluation reads it.
    assert "again" in evaluate(run, IMAGES, split="again").splits


def test_images_that_an_ingredient_cannot_take_are_refused_before_training(tmp_path):
    with pytest.raises(InputError, match=r"'strong': the square of cutout, 16 pixels, .* 8 x 8"):
        train(spec(cutout=16), IMAGES, root=tmp_path)
    assert not list(tmp_path.iterdir())
