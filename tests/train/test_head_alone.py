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
from longtail.train.cuda_graphs import place
from longtail.train.loop import Training, new_network, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident, as_tensor
from longtail.train.recipe import get_recipe, learning_rate

COUNTS, WIDTH = (50, 20, 6), 8
CPU = torch.device("cpu")


def embeddings(seed=0):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), COUNTS)
    features = random.normal(size=(3, WIDTH))[labels] + random.normal(size=(len(labels), WIDTH))
    features = features.astype(np.float32)[:, :, None, None]
    return ImageSet(features, labels, ("a", "b", "c"), pixel_range=1)


DATA = embeddings()


def planner(method="softmax", seed=0, **overrides):
    recipe = get_recipe("embeddings", **{"epochs": 3, "batch_size": 16, **overrides})
    kept = np.arange(len(DATA))
    return Planner(recipe, Method.of(method), DATA.labels, kept, DATA.prior, seed=seed)


def stepper(*planners):
    return place(lambda: Training(planners, Resident(DATA, CPU)), device=CPU)


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
    for epoch in range(2):
        losses = run_epoch([together], [epoch])[0]
        expected = [run_epoch([one], [epoch])[0][0] for one in alone]
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
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
    ("key", "value"),
    [("mean", 0.5), ("std", 2.0), ("crop_padding", 1), ("flip", True), ("cutmix", 0.5)],
)
def test_recipes_that_change_images_are_refused(key, value, tmp_path):
    spec = make_spec(
        DataSpec("e"), method="softmax", recipe="embeddings", seed=0, overrides={key: value}
    )
    with pytest.raises(InputError, match=rf"`{key}`.*--recipe embeddings"):
        train(spec, DATA, root=tmp_path)


def test_networks_for_images_are_refused(tmp_path):
    spec = make_spec(
        DataSpec("e"), method="softmax", recipe="embeddings", seed=0,
        overrides={"model": "small-conv"},
    )  # fmt: skip
    with pytest.raises(InputError, match="choose another network"):
        train(spec, DATA, root=tmp_path)


def test_mixup_blends_embeddings(tmp_path):
    spec = make_spec(
        DataSpec("e"), method="softmax", recipe="embeddings", seed=0,
        overrides={"mixup": 0.5, "epochs": 2},
    )  # fmt: skip
    run = evaluate(train(spec, DATA, root=tmp_path), embeddings(1))
    logits, *_ = run.logits("test")
    model = run.model()
    expected = embeddings(1).images[:, :, 0, 0] @ model["fc.weight"].T + model["fc.bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_run_is_exported_as_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    spec = make_spec(
        DataSpec("e"), method="softmax", recipe="embeddings", seed=0, overrides={"epochs": 1}
    )
    weights = train(spec, DATA, root=tmp_path).model()
    layer = torch.nn.Linear(WIDTH, 3)
    layer.load_state_dict({k[3:]: torch.tensor(np.array(v)) for k, v in weights.items()})
    file = str(tmp_path / "head.onnx")
    torch.onnx.export(
        layer.eval(), (torch.zeros(2, WIDTH),), file, input_names=["features"],
        dynamo=True, dynamic_shapes=({0: "rows"},), verbose=False,
    )  # fmt: skip
    features = DATA.images[:, :, 0, 0]
    (logits,) = runtime.InferenceSession(file).run(None, {"features": features})
    np.testing.assert_allclose(logits, layer(torch.tensor(features)).detach(), rtol=1e-5, atol=1e-5)
