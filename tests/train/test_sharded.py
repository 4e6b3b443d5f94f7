"""A classifier in slices on two processes trains, saves and judges as a whole one in one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_distributed import compare, free_port, losses_of, one_of_two, run_both, step_losses, whole

from data_factory import write_large
from longtail._checks import InputError
from longtail.data.large import load_listed
from longtail.runs import Run
from longtail.train import sharded, streamed
from longtail.train.distributed import ALONE
from longtail.train.engine import validate
from longtail.train.recipe import get_recipe
from longtail.train.streamed import Streaming, stream_logits
from train_factory import HERE, SMALL, interrupt, listed_spec, make_streamed

COUNTS = (20, 12, 6, 4, 3)  # an odd number of classes, and of examples
EPOCHS = 4

# Batches that two processes share evenly, unevenly, in parts of which some are empty, and of
# which one gets nothing (45 = 2·22 + 1); class weights, label smoothing, another optimiser.
STEPS = {
    "parts": ("logit-adjusted", {"optimizer": "nesterov"}, Streaming(workers=0, micro_batch=3)),
    "odd": ("softmax+drw:start=1", {"batch_size": 22}, HERE),
    "empty": ("adaptive", {"batch_size": 5}, Streaming(workers=0, micro_batch=1)),
    "smoothed": ("balanced+label-smoothing", {"optimizer": "adam", "lr": 0.001}, HERE),
    "compiled": ("logit-adjusted", {}, Streaming(workers=0, micro_batch=5, compile=True)),
}
# Sampled softmax, which draws for the global batch: the classes of one process, alone.
PARTS = {"sampled": HERE, "sampled in parts": Streaming(workers=0, micro_batch=4, compile=True)}
SAMPLED = ("logit-adjusted+drw:start=1", {"batch_size": 22, "sampled_classes": 4})


def stepper(data, world=ALONE, *, classifier="sharded", method="logit-adjusted", **options):
    return make_streamed(data, method, world=world, classifier=classifier, **options)


def steps(data, world, method, overrides, how, classifier="sharded"):
    """The mean loss of every step, and the whole weights after them, on the first process."""
    one = stepper(data, world, classifier=classifier, method=method, how=how, **overrides)
    found = losses_of(one)
    weights = one.saved_weights(one.model)
    return found, torch.cat([value.flatten() for value in weights.values()]).tolist()


def saved(one):
    return {name: value.clone() for name, value in one.saved_state().items()}


def spec(data, classifier="sharded"):
    made = {"epochs": EPOCHS, "classifier": classifier}
    return listed_spec(data, "logit-adjusted", held_out=0.25, **made)


def _work(rank, port, folder):
    """What each of the two processes does; the first leaves its findings in files."""
    data = load_listed(folder / "set")
    with one_of_two(rank, port) as world:
        found = {name: steps(data.train, world, *case) for name, case in STEPS.items()}
        for name, how in PARTS.items():
            found[name] = steps(data.train, world, *SAMPLED, how, "whole")
        one = stepper(data.train, world)
        losses_of(one, [0])
        torch.save(saved(one), folder / f"sharded-{rank}.pt")
        one.load_state(0, torch.load(folder / "whole.pt") if world.rank == 0 else {})
        found["from whole"] = losses_of(one, [1])
        found["judged"] = judged(one.model, data.test, world)
        options = {"root": folder / "2-1-2", "streaming": HERE}
        interrupt(spec(data), data.train, world=world, epoch=2, **options)
        if world.rank == 0:  # alone, while the other waits for what comes next
            interrupt(spec(data), data.train, epoch=3, **options)
        whole(spec(data), data, folder / "2-1-2", world)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def judged(model, data, world=ALONE):
    """Logits and predictions of a sharded network, in batches of two images."""
    sharded.EVALUATED = streamed.EVALUATED = 2
    recipe = get_recipe("imagenet-lt", **SMALL)
    calls = (sharded.sharded_logits, sharded.sharded_predictions)
    found = [call(model, data, recipe, world=world, how=HERE) for call in calls]
    return [None if one is None else one.tolist() for one in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes did, from the checkpoint of a whole network that one left for them."""
    folder = tmp_path_factory.mktemp("sharded")
    data = load_listed(write_large(folder / "set", counts=COUNTS, held=3))
    one = stepper(data.train, classifier="whole")
    losses_of(one, [0])
    torch.save(saved(one), folder / "whole.pt")
    run_both(_work, free_port(), folder)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return load_listed(folder / "set")


@pytest.fixture(scope="module")
def found(folder):
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(data, folder):
    """The run of one process with the whole classifier that nothing disturbed."""
    return whole(spec(data, "whole"), data, folder / "one")


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_a_whole_classifier_in_one_process(found, data, name):
    method, overrides, how = STEPS[name]
    plain = replace(how, compile=False, micro_batch=256)
    expected, weights = step_losses(data.train, ALONE, method, overrides, plain)
    for one in found:
        np.testing.assert_allclose(one[name][0], expected, atol=1e-5)
    np.testing.assert_allclose(found[0][name][1], weights, atol=1e-5)
    assert np.ptp(expected) > 1e-2  # they are no constant


@pytest.mark.parametrize("name", PARTS)
def test_sampled_softmax_draws_for_the_global_batch(found, data, name):
    expected, weights = steps(data.train, ALONE, *SAMPLED, HERE, "whole")
    for one in found:
        np.testing.assert_allclose(one[name][0], expected, atol=1e-5)
        np.testing.assert_allclose(one[name][1], weights, atol=1e-5)
    exact, _ = step_losses(data.train, ALONE, SAMPLED[0], {"batch_size": 22}, HERE)
    assert np.abs(np.subtract(expected, exact)).min() > 1e-3


def test_checkpoints_of_sharded_and_whole_classifiers_are_alike(folder, found, data):
    """Same names and shapes, and each goes on from the other's."""
    one = stepper(data.train, classifier="whole")
    expected = losses_of(one)[-3:]
    np.testing.assert_allclose(found[0]["from whole"], expected, atol=1e-5)
    theirs = torch.load(folder / "sharded-0.pt")
    other = stepper(data.train, classifier="whole")
    own = other.state(0)
    assert {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in own.items()}
    assert "model/fc.weight" in theirs
    assert "model/fc.weight" not in torch.load(folder / "sharded-1.pt")
    other.load_state(0, theirs)
    np.testing.assert_allclose(losses_of(other, [1]), expected, atol=1e-5)


def test_logits_and_predictions_are_those_of_the_whole_network(found, data):
    one = stepper(data.train, classifier="whole")
    losses_of(one)
    expected = stream_logits(one.model, data.test, get_recipe("imagenet-lt", **SMALL), how=HERE)
    logits, predictions = found[0]["judged"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(predictions, expected.argmax(1))
    assert found[1]["judged"] == [None, None]
    assert len(set(predictions)) > 1


def test_the_whole_run_is_that_of_a_whole_classifier(folder, data, alone):
    """Losses, held-out errors, weights, logits; resumed with one process, then with two."""
    run = Run.open(folder / "2-1-2" / spec(data).folder)
    assert len(run.record["resumed"]) == 2
    compare(run, alone)
    for mine, theirs in zip(run.head, alone.head, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert run.record["facts"] == alone.record["facts"] | {"processes": 2}


# What is refused before any work.


@pytest.mark.parametrize(
    ("method", "overrides", "processes", "message"),
    [
        ("equalized-threshold:threshold=0.3", {}, 2, r"drops competitors at random"),
        ("softmax", {"sampled_classes": 2}, 2, r"drawn from a whole classifier"),
        ("softmax", {}, 6, r"6 processes for 5 classes"),
    ],
)
def test_what_slices_can_not_do(data, method, overrides, processes, message):
    one = listed_spec(data, method, classifier="sharded", **overrides)
    with pytest.raises(InputError, match=message):
        validate([one], data.train, processes=processes)
