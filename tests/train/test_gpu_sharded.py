"""On a GPU: a classifier in slices, under NCCL, and sampled softmax; both against a CPU's steps."""

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from data_factory import write_large
from longtail.data.large import load_listed
from longtail.train import sharded
from longtail.train.sharded import sharded_logits, sharded_predictions
from longtail.train.streamed import Streaming, stream_logits
from single_steps import EXACT, compare, state
from train_factory import make_streamed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"model": "resnet18", "batch_size": 24, "image_size": 64, "lr": 0.01}
COUNTS = (40, 20, 8, 5, 3)
METHOD = "logit-adjusted+drw:start=1"
# Adam moves every weight by about its rate, also where the gradient is mostly rounding (0.06).
OPTIMIZERS = {"nesterov": (0.01, EXACT), "adam": (1e-4, EXACT | {"moved": 0.25})}
HOW = Streaming(workers=2, micro_batch=10, compile=False)


def stepper(data, classifier, device, *, how=HOW, **overrides):
    options = {"device": torch.device(device), "how": how, "classifier": classifier}
    return make_streamed(data.train, METHOD, **options, **SMALL | overrides)


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
        one = stepper(data, "sharded", "cuda:0", **given)
        assert isinstance(one.training.model.fc.weight, DTensor)
        compare(stepper(data, "whole", "cpu", **given), one, **allowed)
    with one.active():
        kept = state(one)
        one.training.load_state(0, kept)
        again = state(one)
        assert all(torch.equal(kept[name], again[name]) for name in kept)
        model, recipe = one.training.model, one.training.recipe
        logits = sharded_logits(model, data.test, recipe, how=HOW)
        predicted = sharded_predictions(model, data.test, recipe, how=HOW)
    assert np.array_equal(predicted, logits.argmax(1))
    alone = stepper(data, "whole", "cuda:0", **given)
    with alone.active():
        alone.training.load_state(0, kept)
        wanted = stream_logits(alone.training.model, data.test, recipe, how=HOW)
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    distributed.destroy_process_group()


def test_slices_train_save_and_judge_as_the_whole(tmp_path):
    write_large(tmp_path / "set", counts=COUNTS, held=4)
    multiprocessing.spawn(_under_nccl, (str(tmp_path),), nprocs=1)


def test_sampled_softmax_compiled(tmp_path):
    """The device draws its own numbers, so the compiled steps are held against eager ones."""
    data = load_listed(write_large(tmp_path / "set", counts=COUNTS, held=4))
    eager, compiled = (
        stepper(data, "whole", "cuda", how=Streaming(workers=2, compile=choice), sampled_classes=4)
        for choice in (False, True)
    )
    compare(eager, compiled, **EXACT)
