"""On a GPU: images from disk; compiled, in bfloat16, a classifier in slices, and logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from data_factory import write_large
from longtail.data.large import load_listed
from longtail.train import sharded
from longtail.train.engine import evaluate, train
from longtail.train.sharded import sharded_logits, sharded_predictions
from longtail.train.streamed import Streaming, stream_logits
from plain_failures import plainly
from single_steps import EXACT, ROUGH, compare, state
from train_factory import listed_spec, make_streamed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"model": "resnet18", "batch_size": 24, "image_size": 64, "lr": 0.01}
# Adam moves every weight by about its rate, also where the gradient is mostly rounding (0.06).
OPTIMIZERS = {"nesterov": (0.01, EXACT), "adam": (1e-4, EXACT | {"moved": 0.25})}
HOW = Streaming(workers=2, micro_batch=10, compile=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    write_large(folder / "set", counts=(36, 18, 8, 5, 3), held=4)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return load_listed(folder / "set")


def stepper(data, device, *, how, **options):
    method = "logit-adjusted+drw:start=1"
    return make_streamed(
        data.train, method, how=how, device=torch.device(device), **SMALL | options
    )


@plainly
def test_steps_are_those_of_a_cpu(data):
    compare(stepper(data, "cpu", how=HOW), stepper(data, "cuda", how=HOW), **EXACT)


@plainly
@pytest.mark.parametrize(
    ("options", "allowed"),
    [({}, EXACT), ({"precision": "bfloat16"}, ROUGH), ({"sampled_classes": 4}, EXACT)],
    ids=["float32", "bfloat16", "sampled"],
)
def test_compiled_steps_are_the_eager_ones(data, options, allowed):
    """The device draws its own numbers, so sampled softmax is held against eager steps too."""
    eager, compiled = (
        stepper(data, "cuda", how=Streaming(workers=2, compile=choice), **options)
        for choice in (False, True)
    )
    compare(eager, compiled, **allowed)


@plainly
def test_from_a_run_to_its_logits(data, tmp_path):
    made = listed_spec(data, held_out=0.2, **SMALL)
    made = replace(made, settings={"precision": "bfloat16"})
    how = Streaming(workers=2, compile=False)
    run = train(made, data.train, root=tmp_path, device="cuda", streaming=how)
    run = evaluate(run, data.test, device="cuda", streaming=how)
    on_gpu = run.logits("test").logits.copy()
    run = evaluate(run, data.test, device="cpu", streaming=how, replace=True)
    on_cpu = run.logits("test").logits
    gap = np.abs(on_cpu - on_gpu).max() / np.abs(on_cpu).max()
    assert gap < 1e-4, f"logits of CPU and GPU are {gap:.1e} of the largest apart"
    assert run.splits == ("held-out", "test")


def _under_nccl(_, folder):
    """A mesh of one GPU: the classifier is a DTensor, and everything that is sent goes by NCCL."""
    torch.cuda.set_device(0)
    distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    sharded._mesh = lambda world, device: init_device_mesh("cuda", (1,))
    data = load_listed(f"{folder}/set")
    for optimizer, (lr, allowed) in OPTIMIZERS.items():
        given = {"optimizer": optimizer, "lr": lr}
        one = stepper(data, "cuda:0", classifier="sharded", how=HOW, **given)
        assert isinstance(one.model.fc.weight, DTensor)
        compare(stepper(data, "cpu", how=HOW, **given), one, **allowed)
    with one.active():
        kept = state(one)
        one.load_state(0, kept)
        again = state(one)
        assert all(torch.equal(kept[name], again[name]) for name in kept)
        model, recipe = one.model, one.recipe
        logits = sharded_logits(model, data.test, recipe, how=HOW)
        predicted = sharded_predictions(model, data.test, recipe, how=HOW)
    assert np.array_equal(predicted, logits.argmax(1))
    alone = stepper(data, "cuda:0", how=HOW, **given)
    with alone.active():
        alone.load_state(0, kept)
        wanted = stream_logits(alone.model, data.test, recipe, how=HOW)
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    distributed.destroy_process_group()


def test_slices_train_save_and_judge_as_the_whole(folder):
    multiprocessing.spawn(_under_nccl, (str(folder),), nprocs=1)
