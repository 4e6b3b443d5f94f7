"""Sampled softmax in the trainer: a step by the equation, a run to its logits, and refusals."""

import numpy as np
import pytest
import torch
from test_streamed import normalized

from data_factory import write_large
from longtail import metrics
from longtail._checks import InputError
from longtail.data.large import load_listed
from longtail.data.photos import RandomCrop
from longtail.train.engine import train
from longtail.train.loop import new_network, run_epoch
from longtail.train.plan import stream_seed
from longtail.train.streamed import Streaming
from train_factory import COUNTS, HERE, listed_spec, make_streamed


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_listed(write_large(tmp_path_factory.mktemp("sampled"), counts=COUNTS, held=4))


def expected_loss(features, fc, target, prior, drawn):
    """Mean of log[1 + Σ_{j drawn, j≠y} (π_j/π_y)·exp(f_j − f_y) / (m·q_j)], with q = π."""
    logits = features @ fc.weight.detach().double().numpy().T + fc.bias.detach().double().numpy()
    found = []
    for f, y in zip(logits, target, strict=True):
        total = sum(
            prior[j] / prior[y] * np.exp(f[j] - f[y]) / (len(drawn) * prior[j])
            for j in drawn
            if j != y
        )
        found.append(np.log1p(total))
    return np.mean(found)


@pytest.mark.parametrize("micro_batch", [256, 10])
def test_the_first_step_by_the_equation(data, micro_batch):
    how = Streaming(workers=0, micro_batch=micro_batch)
    overrides = {"batch_size": 47, "sampled_classes": 5}
    one = make_streamed(data.train, "logit-adjusted", how=how, **overrides)
    recipe, plan = one.training.recipe, one.training.planner.plan(0)
    crops = [
        RandomCrop(16)(data.train.file(row), np.random.default_rng([stream_seed(0, "crop"), 0, n]))
        for n, row in enumerate(plan.images.rows.tolist())
    ]
    network, prior = new_network(recipe, data.train, seed=0), data.train.prior.probs
    features = network.features(normalized(crops, recipe)).detach().double().numpy()
    draws = torch.Generator().manual_seed(stream_seed(0, "loss", 0))
    chances = torch.rand(5, generator=draws, dtype=torch.float64).numpy()
    drawn = [int((np.cumsum(prior) <= chance).sum()) for chance in chances]
    assert len(set(drawn)) > 1
    target = data.train.labels[plan.images.rows.numpy()]
    wanted = expected_loss(features, network.fc, target, prior, drawn)
    assert run_epoch([one], [0])[0][0] == pytest.approx(wanted, rel=1e-5)


def spec(data, method="logit-adjusted", **overrides):
    return listed_spec(data, method, held_out=0.2, **{"sampled_classes": 2} | overrides)


def test_a_run_is_judged_by_all_classes(data, tmp_path):
    run = train(spec(data), data.train, root=tmp_path, streaming=HERE)
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
def test_what_it_can_not_do(data, tmp_path, method, overrides, message):
    with pytest.raises(InputError, match=message):
        train(spec(data, method, **overrides), data.train, root=tmp_path)
