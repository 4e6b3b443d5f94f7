"""On a GPU: images from disk, copied while it works; compiled, in bfloat16, and their logits."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from data_factory import write_large
from longtail.data.large import load_listed
from longtail.train.engine import evaluate, train
from longtail.train.lane import Lane, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.streamed import StreamedTeam, Streaming

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"model": "resnet18", "epochs": 3, "batch_size": 24, "image_size": 64, "lr": 0.01}
SMALL |= {"warmup_epochs": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_listed(write_large(tmp_path_factory.mktemp("large"), counts=(40, 20, 8), held=4))


def losses(data, device, *, precision="float32", epochs=2, **how):
    """The loss of every step."""
    device, kept = torch.device(device), np.arange(len(data.train))
    recipe, method = get_recipe("imagenet-lt", **SMALL), Method.of("logit-adjusted+drw:start=1")
    planner = Planner(recipe, method, data.train.labels, kept, data.train.prior, seed=0)
    options = {"precision": precision, "device": device, "how": Streaming(workers=2, **how)}
    make = partial(StreamedTeam, planner, data.train, **options)
    lane, found = Lane(make, device=device, graphs=False), []
    for epoch in range(epochs):
        run_epoch([lane], [epoch])
        found += lane.team.losses.tolist()
    return found


def test_steps_are_those_of_a_cpu(data):
    expected = losses(data, "cpu", micro_batch=10)
    found = losses(data, "cuda", micro_batch=10, compile=False)
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_compiled_steps_are_the_eager_ones(data):
    np.testing.assert_allclose(
        losses(data, "cuda", compile=True)[:3], losses(data, "cuda", compile=False)[:3], rtol=1e-3
    )
    rough = [losses(data, "cuda", precision="bfloat16", compile=c) for c in (True, False)]
    np.testing.assert_allclose(*rough, rtol=0.1)


def test_from_a_run_to_its_logits(data, tmp_path):
    made = make_spec(
        replace(data.spec, held_out=0.2),
        method="softmax",
        recipe="imagenet-lt",
        seed=0,
        overrides=SMALL,
    )
    made = replace(made, settings={"precision": "bfloat16"})
    how = Streaming(workers=2, compile=False)
    run = train(made, data.train, root=tmp_path, device="cuda", streaming=how)
    run = evaluate(run, data.test, device="cuda", streaming=how)
    on_gpu = run.logits("test").logits.copy()
    run = evaluate(run, data.test, device="cpu", streaming=how, replace=True)
    np.testing.assert_allclose(run.logits("test").logits, on_gpu, rtol=0, atol=1e-2)
    assert run.splits == ("held-out", "test")
