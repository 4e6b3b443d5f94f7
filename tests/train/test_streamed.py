"""A run on images from disk: its step by hand, its parts, sampled softmax, and bad input."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_factory import write_large
from longtail import metrics
from longtail._checks import InputError
from longtail.data.digits import load_digits_lt
from longtail.data.large import load_listed
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.train.distributed import ALONE
from longtail.train.engine import train
from longtail.train.loop import new_network, run_epoch
from longtail.train.plan import stream_seed
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.streamed import Streaming, check_recipe, micro_batches, stream_logits
from train_factory import COUNTS, HERE, SMALL, resumed
from train_factory import listed_spec as spec
from train_factory import make_streamed as stepper


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_listed(write_large(tmp_path_factory.mktemp("large") / "set", counts=COUNTS, held=4))


def normalized(pixels, recipe):
    scaled = (np.stack(pixels) / 255 - recipe.mean) / recipe.std
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).float()


def first_batch(one, images):
    """The crops, labels and class weights of an epoch that is one batch."""
    plan, seed = one.planner.plan(0), stream_seed(0, "crop")
    crops = [
        RandomCrop(16)(images.file(row), np.random.default_rng([seed, 0, draw]))
        for draw, row in enumerate(plan.images.rows.tolist())
    ]
    target = torch.from_numpy(images.labels)[plan.images.rows]
    return normalized(crops, one.recipe), target, plan.weights


def test_the_first_step_by_hand(data):
    """Class-weighted, on the crops of the epoch's first draws, through torch's own SGD."""
    one = stepper(data.train, "softmax+drw:start=0", batch_size=47)
    recipe = one.recipe
    images, target, weights = first_batch(one, data.train)
    network = new_network(recipe, data.train, seed=0)
    loss = F.cross_entropy(network(images), target, weight=weights)
    loss.backward()
    expected = {
        name: value.detach() - recipe.lr * (value.grad + recipe.weight_decay * value.detach())
        for name, value in network.named_parameters()
    }
    assert len(set(weights.tolist())) == 3
    assert run_epoch([one], [0])[0][0] == pytest.approx(loss.item(), rel=1e-5)
    for name, value in one.model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-4, atol=1e-6)


def trained(one, epochs=2):
    losses = [run_epoch([one], [epoch])[0][0] for epoch in range(epochs)]
    return losses, torch.cat([p.detach().flatten() for p in one.model.parameters()])


def test_parts_of_a_batch_add_up_to_it(data):
    method = "logit-adjusted+drw:start=1"
    losses, weights = trained(stepper(data.train, method))
    parts = stepper(data.train, method, how=Streaming(workers=0, micro_batch=5))
    found, theirs = trained(parts)
    np.testing.assert_allclose(found, losses, atol=1e-6)
    torch.testing.assert_close(theirs, weights, rtol=0, atol=1e-6)
    sizes = [[len(part) for part in micro_batches(0, size, ALONE, 5)] for size in parts.batch_sizes]
    assert sizes == [[4] * 4, [4] * 4, [5] * 3]


def test_pieces_and_workers_change_nothing(data, monkeypatch):
    losses, weights = trained(stepper(data.train))
    monkeypatch.setattr("longtail.train.streamed._PIECE", 3)
    found, theirs = trained(stepper(data.train, how=Streaming(workers=2)))
    assert found == losses
    assert torch.equal(theirs, weights)


def test_a_training_that_is_done_frees_its_memory_and_workers(data):
    stepper(data.train)  # torch keeps the first optimizer's frames until they are collected
    gc.collect()
    gc.disable()
    try:
        one = stepper(data.train, how=Streaming(workers=1))
        run_epoch([one], [0])
        model = weakref.ref(one.model)
        del one
        assert model() is None
    finally:
        gc.enable()


def test_logits_are_those_of_the_centres(data):
    recipe = get_recipe("imagenet-lt", **SMALL)
    network = new_network(recipe, data.test, seed=3)
    crops = [CenterCrop(16, 18)(data.test.file(i)) for i in range(len(data.test))]
    found = stream_logits(network, data.test, recipe, how=HERE)
    expected = network.eval()(normalized(crops, recipe)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_interrupted_run_goes_on_to_the_same_bits(data, tmp_path):
    run = resumed(spec(data, held_out=0.2), data.train, tmp_path, epoch=2, streaming=HERE)
    assert run.record["facts"]["processes"] == 1


def expected_loss(features, fc, target, prior, drawn):
    """Mean of log[1 + Σ_{j drawn, j≠y} (π_j/π_y)·exp(f_j − f_y) / (m·q_j)], with q = π."""
    logits = features @ fc.weight.detach().double().numpy().T + fc.bias.detach().double().numpy()
    found = []
    for f, y in zip(logits, target, strict=True):
        ratios = [np.exp(f[j] - f[y]) * prior[j] / prior[y] / prior[j] for j in drawn if j != y]
        found.append(np.log1p(sum(ratios) / len(drawn)))
    return np.mean(found)


@pytest.mark.parametrize("micro_batch", [256, 10])
def test_the_first_step_of_sampled_softmax_by_the_equation(data, micro_batch):
    how = Streaming(workers=0, micro_batch=micro_batch)
    overrides = {"batch_size": 47, "sampled_classes": 5}
    one = stepper(data.train, "logit-adjusted", how=how, **overrides)
    images, target, _ = first_batch(one, data.train)
    network, prior = new_network(one.recipe, data.train, seed=0), data.train.prior.probs
    features = network.features(images).detach().double().numpy()
    draws = torch.Generator().manual_seed(stream_seed(0, "loss", 0))
    chances = torch.rand(5, generator=draws, dtype=torch.float64).numpy()
    drawn = [int((np.cumsum(prior) <= chance).sum()) for chance in chances]
    assert len(set(drawn)) > 1
    wanted = expected_loss(features, network.fc, target.numpy(), prior, drawn)
    assert run_epoch([one], [0])[0][0] == pytest.approx(wanted, rel=1e-5)


def test_a_run_with_sampled_softmax_is_judged_by_all_classes(data, tmp_path):
    made = spec(data, "logit-adjusted", held_out=0.2, sampled_classes=2)
    run = train(made, data.train, root=tmp_path, streaming=HERE)
    logits, target, _ = run.logits("held-out")
    assert logits.shape[1] == 3
    assert run.log()[-1]["held_out_error"] == metrics.balanced_error(target, logits)


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("softmax+label-smoothing", {}, "but label smoothing needs all classes"),
        ("softmax", {"head": "unit-norm"}, "the head is 'unit-norm', and it takes a linear one"),
    ],
)
def test_what_sampled_softmax_can_not_do(data, tmp_path, method, overrides, message):
    with pytest.raises(InputError, match=message):
        train(spec(data, method, sampled_classes=2, **overrides), data.train, root=tmp_path)


def test_recipes_that_do_not_fit_the_images(tmp_path):
    with pytest.raises(InputError, match=r"'tuned' is for images of one size.*imagenet-lt or inat"):
        check_recipe(get_recipe("tuned"))
    digits = load_digits_lt()
    made = make_spec(digits.spec, method="softmax", recipe="imagenet-lt", seed=0)
    with pytest.raises(InputError, match="crops photographs from disk to 224 pixels, but digits"):
        train(made, digits.train, root=tmp_path)
