"""A run on images from disk: its step by hand, its parts, and what can go wrong on the way."""

import logging

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_factory import write_large
from longtail._checks import InputError
from longtail.data.digits import load_digits_lt
from longtail.data.large import load_listed
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.train.engine import evaluate, train
from longtail.train.loop import new_network, run_epoch
from longtail.train.plan import stream_seed
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.streamed import Streaming, check_recipe, stream_logits
from train_factory import COUNTS, HERE, SMALL, interrupt, same_files
from train_factory import listed_spec as spec
from train_factory import make_streamed as stepper

SMALL |= {"warmup_epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_large(tmp_path_factory.mktemp("large") / "set", counts=COUNTS, held=4)


@pytest.fixture(scope="module")
def data(folder):
    return load_listed(folder)


def normalized(pixels, recipe):
    scaled = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).double() / 255
    mean, std = (
        torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (recipe.mean, recipe.std)
    )
    return ((scaled - mean) / std).float()


def test_the_first_step_by_hand(data):
    """Class-weighted, on the crops of the epoch's first draws, through torch's own SGD."""
    one = stepper(data.train, "softmax+drw:start=0", batch_size=47)
    recipe, training = one.training.recipe, one.training
    plan = training.planner.plan(0)
    view, seed = RandomCrop(16), stream_seed(0, "crop")
    crops = [
        view(data.train.file(row), np.random.default_rng([seed, 0, draw]))
        for draw, row in enumerate(plan.images.rows.tolist())
    ]
    network = new_network(recipe, data.train, seed=0)
    target = torch.from_numpy(data.train.labels)[plan.images.rows]
    loss = F.cross_entropy(network(normalized(crops, recipe)), target, weight=plan.weights)
    loss.backward()
    expected = {
        name: value.detach() - recipe.lr * (value.grad + recipe.weight_decay * value.detach())
        for name, value in network.named_parameters()
    }
    assert len(set(plan.weights.tolist())) == 3
    assert run_epoch([one], [0])[0][0] == pytest.approx(loss.item(), rel=1e-5)
    for name, value in training.model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-4, atol=1e-6)


def trained(one, epochs=2):
    losses = [run_epoch([one], [epoch])[0][0] for epoch in range(epochs)]
    return losses, torch.cat([p.detach().flatten() for p in one.training.model.parameters()])


def test_parts_of_a_batch_add_up_to_it(data):
    method = "logit-adjusted+drw:start=1"
    losses, weights = trained(stepper(data.train, method))
    parts = stepper(data.train, method, how=Streaming(workers=0, micro_batch=5))
    found, theirs = trained(parts)
    np.testing.assert_allclose(found, losses, atol=1e-6)
    torch.testing.assert_close(theirs, weights, rtol=0, atol=1e-6)
    assert parts.training._layout == [[1] * 4, [1] * 4, [1] * 3]  # 16, 16 and 15 in even parts


def test_pieces_and_workers_change_nothing(data, monkeypatch):
    losses, weights = trained(stepper(data.train))
    monkeypatch.setattr("longtail.train.streamed._PIECE", 3)
    found, theirs = trained(stepper(data.train, how=Streaming(workers=2)))
    assert found == losses
    assert torch.equal(theirs, weights)


def test_logits_are_those_of_the_centres(data):
    recipe = get_recipe("imagenet-lt", **SMALL)
    network = new_network(recipe, data.test, seed=3)
    crops = [CenterCrop(16, 18)(data.test.file(i)) for i in range(len(data.test))]
    found = stream_logits(network, data.test, recipe, how=HERE)
    expected = network.eval()(normalized(crops, recipe)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_interrupted_run_goes_on_to_the_same_bits(data, tmp_path):
    made = spec(data, held_out=0.2)
    whole = train(made, data.train, root=tmp_path / "a", streaming=HERE)
    interrupt(made, data.train, epoch=2, root=tmp_path / "b", streaming=HERE)
    again = train(made, data.train, root=tmp_path / "b", streaming=HERE)
    assert same_files(whole, again)
    assert again.record["facts"]["processes"] == 1


# Bad input.


@pytest.fixture
def damaged(tmp_path):
    """A data set with a training image cut short."""
    root = write_large(tmp_path / "bad", counts=COUNTS, held=2)
    file = sorted((root / "train").rglob("*.JPEG"))[3]
    file.write_bytes(file.read_bytes()[:400])
    return load_listed(root), file


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_stops_training_with_its_name(damaged, tmp_path, workers):
    data, file = damaged
    with pytest.raises(InputError, match=rf"{file} can't be decoded.*longtail data check"):
        train(spec(data), data.train, root=tmp_path, streaming=Streaming(workers=workers))


def test_or_is_skipped_and_counted_if_asked(damaged, tmp_path, caplog):
    """In training; evaluation never skips."""
    data, file = damaged
    how = Streaming(workers=0, on_error="skip")
    with caplog.at_level(logging.WARNING, logger="longtail"):
        run = train(spec(data), data.train, root=tmp_path, streaming=how)
    assert [line["skipped"] for line in run.log()] == [1, 1, 1]
    assert caplog.text.count(f"{file} can't be decoded") == 1
    with pytest.raises(InputError, match=str(file)):
        evaluate(run, data.train, streaming=how)


def test_recipes_that_do_not_fit_the_images(tmp_path):
    with pytest.raises(InputError, match=r"'tuned' is for images of one size.*imagenet-lt or inat"):
        check_recipe(get_recipe("tuned"))
    digits = load_digits_lt()
    made = make_spec(digits.spec, method="softmax", recipe="imagenet-lt", seed=0)
    with pytest.raises(InputError, match="crops photographs from disk to 224 pixels, but digits"):
        train(made, digits.train, root=tmp_path)
