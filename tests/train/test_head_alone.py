"""A head on embeddings: what a plain torch loop would give, from the file where it lies."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.data.embeddings import read_embeddings
from longtail.data.images import ImageSet
from longtail.models.stacked import part_of
from longtail.runs import DataSpec
from longtail.train import evaluate, make_spec, train
from longtail.train.loop import new_network, run_epoch
from longtail.train.prefetch import Resident, as_tensor
from longtail.train.recipe import get_recipe, learning_rate
from train_factory import CPU, make_planner, make_stepper, step_together

COUNTS, WIDTH = (50, 20, 6), 8


def embeddings(seed=0):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), COUNTS)
    features = random.normal(size=(3, WIDTH))[labels] + random.normal(size=(len(labels), WIDTH))
    features = features.astype(np.float32)[:, :, None, None]
    return ImageSet(features, labels, ("a", "b", "c"), pixel_range=1)


DATA = embeddings()


def planner(method="softmax", seed=0, **overrides):
    recipe = get_recipe("embeddings", **{"epochs": 3, "batch_size": 16, **overrides})
    return make_planner(recipe, DATA, method, seed)


def stepper(*planners):
    return make_stepper(planners, DATA)


def trained(root, **overrides):
    """A run on DATA."""
    options = {"method": "softmax", "recipe": "embeddings", "seed": 0, "overrides": overrides}
    return train(make_spec(DataSpec("e"), **options), DATA, root=root)


@pytest.mark.parametrize("method", ["softmax", "logit-adjusted"])
def test_a_head_is_trained_as_by_a_plain_loop(method):
    plan = planner(method)
    ours, recipe = stepper(plan), plan.recipe
    layer = new_network(recipe, DATA, seed=0).fc
    assert type(layer) is torch.nn.Linear
    adam = torch.optim.Adam(layer.parameters(), weight_decay=recipe.weight_decay)
    features, labels = torch.from_numpy(DATA.images).flatten(1), torch.from_numpy(DATA.labels)
    added = torch.from_numpy(np.log(np.array(COUNTS) / sum(COUNTS))).float()
    step = 0
    for epoch in range(recipe.epochs):
        run_epoch([ours], [epoch])
        for rows in plan.plan(epoch).images.rows.split(16):
            logits = layer(features[rows]) + (added if method == "logit-adjusted" else 0)
            adam.zero_grad()
            F.cross_entropy(logits, labels[rows]).backward()
            adam.param_groups[0]["lr"] = learning_rate(recipe, step, len(plan.batch_sizes))
            adam.step()
            step += 1
    trained = ours.model.fc
    torch.testing.assert_close(trained.weight, layer.weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained.bias, layer.bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", ["linear", "cosine", "unit-norm"])
def test_heads_side_by_side_are_what_each_is_alone(head):
    scale = {"head_scale": 10.0} if head == "cosine" else {}
    methods = ("softmax", "logit-adjusted", "balanced")
    planners = [planner(method, seed, head=head, **scale) for seed, method in enumerate(methods)]
    together, alone = stepper(*planners), [stepper(one) for one in planners]
    step_together(together, alone, rtol=1e-5)
    for name, value in together.model.state_dict().items():
        for member, one in enumerate(alone):
            own = part_of(value, index=member, count=3)
            torch.testing.assert_close(own, one.model.state_dict()[name])


@pytest.mark.filterwarnings("error")
def test_mapped_features_are_not_copied(tmp_path):
    np.savez(tmp_path / "a.npz", features=DATA.images[:, :, 0, 0], labels=DATA.labels,
             test_features=DATA.images[:4, :, 0, 0], test_labels=DATA.labels[:4])  # fmt: skip
    images, test = read_embeddings(tmp_path / "a.npz")
    resident = Resident(images, CPU)
    assert np.shares_memory(resident.pixels.numpy(), images.images)
    assert np.shares_memory(as_tensor(test).numpy(), test.images)
    assert resident.image_shape == (WIDTH, 1, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", 0.5), ("std", 2.0), ("crop_padding", 1), ("flip", True), ("cutmix", 0.5)],
)
def test_what_is_for_images_is_refused(name, value, tmp_path):
    with pytest.raises(InputError, match=f"`{name}`.*--recipe embeddings"):
        trained(tmp_path, **{name: value})


def test_mixup_blends_embeddings(tmp_path):
    run = evaluate(trained(tmp_path, mixup=0.5, epochs=2), embeddings(1))
    model = run.model()
    expected = embeddings(1).images[:, :, 0, 0] @ model["fc.weight"].T + model["fc.bias"]
    np.testing.assert_allclose(run.logits("test").logits, expected, rtol=1e-4, atol=1e-5)
