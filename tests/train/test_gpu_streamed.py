"""On a GPU: images from disk, copied while it works; compiled, in bfloat16, and their logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data_factory import write_large
from longtail.data.large import load_listed
from longtail.train.engine import evaluate, train
from longtail.train.streamed import Streaming
from plain_failures import plainly
from single_steps import EXACT, ROUGH, compare
from train_factory import listed_spec, make_streamed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"model": "resnet18", "batch_size": 24, "image_size": 64, "lr": 0.01}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_listed(write_large(tmp_path_factory.mktemp("large"), counts=(40, 20, 8), held=4))


def stepper(data, device, *, precision="float32", **how):
    options = {"device": torch.device(device), "how": Streaming(workers=2, **how)}
    method = "logit-adjusted+drw:start=1"
    return make_streamed(data.train, method, precision=precision, **options, **SMALL)


@plainly
def test_steps_are_those_of_a_cpu(data):
    on_gpu = stepper(data, "cuda", micro_batch=10, compile=False)
    compare(stepper(data, "cpu", micro_batch=10), on_gpu, **EXACT)


@plainly
@pytest.mark.parametrize(("precision", "allowed"), [("float32", EXACT), ("bfloat16", ROUGH)])
def test_compiled_steps_are_the_eager_ones(data, precision, allowed):
    eager, compiled = (stepper(data, "cuda", precision=precision, compile=c) for c in (False, True))
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
