"""The head in slices: one process, two real ones (gloo), bad input."""

import os

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from longtail import ClassPrior, InputError, Margin, losses, margins
from longtail.train.sharded_head import ShardedHead, full_state_dict, gather_slices

CLASSES, WIDTH, ROWS = 11, 6, 8
PRIOR = ClassPrior.from_counts([500, 300, 150, 80, 40, 20, 10, 8, 5, 3, 1])
SETTINGS = {"consistent": {"delta": np.linspace(0.5, 2.0, CLASSES)}, "ldam": {"scale": 4.0}}
SPLIT = 5  # rows of the first process
WEIGHT = torch.linspace(0.5, 2.0, CLASSES)

# What the criterion is told besides its margin.
OPTIONS = {
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weight": {"weight": WEIGHT},
    "ignored": {"ignore_index": 7},
    "smoothed": {"label_smoothing": 0.1},
    "all": {"weight": WEIGHT, "ignore_index": 7, "label_smoothing": 0.1},
}


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def criterion_of(name):
    """Of a margin's name, or of one of OPTIONS with the logit-adjusted margin."""
    options = OPTIONS.get(name, {})
    margin = "logit-adjusted" if name in OPTIONS else name
    made = margins.by_name(margin, PRIOR, **SETTINGS.get(margin, {}))
    return losses.PairwiseMarginLoss(made, **options)


CASES = [*margins.MARGINS, *OPTIONS]
FEATURES = 2 * randn(ROWS, WIDTH, seed=0)
TARGET = torch.tensor([0, 10, 5, 6, 7, 3, 10, 0])
UPSTREAM = randn(ROWS, seed=1)


def linear():
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict({"weight": randn(CLASSES, WIDTH, seed=2), "bias": randn(CLASSES, seed=3)})
    return layer


def backward(loss, upstream):
    loss.backward(upstream if loss.ndim else None)


def gradients(head, name, device="cpu"):
    """Loss and gradients (features, weight, bias) of a head."""
    features = FEATURES.clone().to(device).requires_grad_()
    loss = head.loss(features, TARGET.to(device), criterion_of(name).to(device))
    backward(loss, UPSTREAM.to(device))
    return [loss.detach(), features.grad, head.weight.grad, head.bias.grad]


def unsharded(name):
    """Loss and gradients (features, weight, bias) of the whole layer with the same criterion."""
    layer, features = linear().double(), FEATURES.double().requires_grad_()
    loss = criterion_of(name)(layer(features), TARGET)
    backward(loss, UPSTREAM.double())
    return [loss.detach(), features.grad, layer.weight.grad, layer.bias.grad]


def close(got, wanted):
    """Equal up to float32's rounding, of numbers of the size of the largest."""
    got, wanted = torch.as_tensor(got).double(), wanted.double()
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_one_process_needs_no_group(name):
    assert not distributed.is_initialized()
    got = gradients(ShardedHead.from_linear(linear()), name)
    for one, other in zip(got, unsharded(name), strict=True):
        close(one, other)


@pytest.mark.parametrize("rows", [ROWS, 0], ids=["all ignored", "empty"])
@pytest.mark.parametrize("options", [{}, OPTIONS["all"]])
def test_everything_ignored_is_the_mean_over_nothing(options, rows):
    """As in torch the loss is NaN and the gradient 0: one such batch must not spoil the weights."""
    head = ShardedHead.from_linear(linear(), batch="split")
    criterion = losses.LogitAdjustedLoss(PRIOR, **options)
    features = FEATURES[:rows].clone().requires_grad_()
    loss = head.loss(features, torch.full((rows,), criterion.ignore_index), criterion)
    loss.backward()
    assert loss.isnan()
    for tensor in (features, head.weight, head.bias):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_predictions_are_those_of_the_logits():
    head, logits = ShardedHead.from_linear(linear()), linear()(FEATURES)
    assert torch.equal(head(FEATURES), logits)
    assert torch.equal(head.predict(FEATURES), logits.argmax(1))
    adjusted = logits.double() - 1.5 * torch.tensor(PRIOR.log_probs)
    assert torch.equal(head.predict(FEATURES, prior=PRIOR, tau=1.5), adjusted.argmax(1))
    assert not torch.equal(adjusted.argmax(1), logits.argmax(1))
    values, classes = head.topk(FEATURES, 4)
    assert torch.equal(values, logits.topk(4).values)
    assert torch.equal(classes, logits.topk(4).indices)


def _train(head, rows, steps=3):
    """Losses of some steps, from features that are this process's own, or everyone's."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5, momentum=0.9)
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        features = (FEATURES + 0.1 * step)[rows]
        loss = head.loss(features, TARGET[rows], criterion_of("logit-adjusted"))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, optimizer


def _gradients_of_cases(mesh, rank, layouts, found):
    """Every case in both layouts, into `found` by name."""
    for name in CASES:
        for batch, rows in layouts.items():
            head = ShardedHead.from_linear(linear(), mesh=mesh, batch=batch, averaging=False)
            features = FEATURES[rows].clone().requires_grad_()
            loss = head.loss(features, TARGET[rows], criterion_of(name))
            backward(loss, UPSTREAM[rows])
            gradients = (features.grad, head.weight.grad.to_local(), head.bias.grad.to_local())
            for key, value in zip("lfwb", (loss.detach(), *gradients), strict=True):
                found[f"{batch} {name} {key}"] = value.numpy()
    head = ShardedHead.from_linear(linear(), mesh=mesh, batch="split")
    nothing = slice(0, 0) if rank == 0 else slice(None)  # as at the end of an epoch
    for key, rows in (("averaged", layouts["split"]), ("one has all", nothing)):
        features = FEATURES[rows].clone().requires_grad_()
        head.loss(features, TARGET[rows], criterion_of("all")).backward()
        found[key] = features.grad.numpy()


def _predictions(mesh, layouts, found):
    for batch, rows in layouts.items():
        head = ShardedHead.from_linear(linear(), mesh=mesh, batch=batch)
        found[f"{batch} predicted"] = head.predict(FEATURES[rows]).numpy()
        found[f"{batch} adjusted"] = head.predict(FEATURES[rows], prior=PRIOR, tau=1.5).numpy()
        found[f"{batch} top"] = np.stack([t.numpy() for t in head.topk(FEATURES[rows], 8)])
        logits = head(FEATURES[rows])
        assert logits.placements == (Shard(1),)
        found[f"{batch} logits"] = logits.full_tensor().detach().numpy()


def _in_a_process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    own = slice(0, SPLIT) if rank == 0 else slice(SPLIT, ROWS)
    layouts, found = {"replicated": slice(None), "split": own}, {}
    _gradients_of_cases(mesh, rank, layouts, found)
    _predictions(mesh, layouts, found)
    for batch, rows in layouts.items():
        torch.manual_seed(5)
        model = nn.Module()
        model.fc = ShardedHead(WIDTH, CLASSES, mesh=mesh, batch=batch)
        found[f"{batch} losses"], optimizer = _train(model.fc, rows)
    momentum = gather_slices(optimizer.state[model.fc.weight]["momentum_buffer"])
    state = full_state_dict(model)
    assert (momentum is None, state == {}) == ((False, False) if rank == 0 else (True, True))
    if rank == 0:
        found["momentum"] = momentum.numpy()
        found.update({name: value.numpy() for name, value in state.items()})
    np.savez(f"{folder}/{rank}.npz", **found)
    distributed.barrier()
    os._exit(0)  # gloo's threads may hang in an orderly end of the interpreter


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes found, by name: one launch for all tests."""
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(_in_a_process, (str(folder),), nprocs=2)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)]


@pytest.mark.parametrize("batch", ["replicated", "split"])
@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_loss_and_gradients_of_one(processes, name, batch):
    loss, features, weight, bias = unsharded(name)
    found = {key: [p[f"{batch} {name} {key}"] for p in processes] for key in "lfwb"}
    assert [len(part) for part in found["w"]] == [6, 5]  # an odd number of classes
    close(np.concatenate(found["w"]), weight)
    close(np.concatenate(found["b"]), bias)
    if batch == "split":
        close(np.concatenate(found["f"]), features)
    else:
        for part in found["f"]:
            close(part, features)
    if batch == "split" and name == "none":
        close(np.concatenate(found["l"]), loss)
    else:
        assert np.array_equal(*found["l"])
        close(found["l"][0], loss)


@pytest.mark.parametrize("key", ["averaged", "one has all"])
def test_gradients_that_the_network_averages_come_out_as_the_whole_batch_s(processes, key):
    """Also where a process has no examples."""
    close(np.concatenate([p[key] for p in processes]) / 2, unsharded("all")[1])


@pytest.mark.parametrize("batch", ["replicated", "split"])
def test_two_processes_predict_as_one(processes, batch):
    head = ShardedHead.from_linear(linear())

    def joined(name, dim=0):
        parts = [p[f"{batch} {name}"] for p in processes]
        if batch == "replicated":
            assert np.array_equal(*parts)
            return parts[0]
        return np.concatenate(parts, dim)

    logits = head(FEATURES).detach()
    assert np.array_equal(joined("predicted"), head.predict(FEATURES))
    assert np.array_equal(joined("adjusted"), head.predict(FEATURES, prior=PRIOR, tau=1.5))
    values, classes = joined("top", 1)
    np.testing.assert_allclose(values, logits.topk(8).values, rtol=1e-5, atol=1e-6)
    assert np.array_equal(classes, logits.topk(8).indices)
    for process in processes:  # all rows are in everyone's logits
        np.testing.assert_allclose(process[f"{batch} logits"], logits, rtol=1e-5, atol=1e-6)


def test_training_in_slices_is_training(processes):
    """The same start whatever the processes, the same losses step for step, the same state."""
    torch.manual_seed(5)
    model = nn.Module()
    model.fc = ShardedHead(WIDTH, CLASSES)
    found, optimizer = _train(model.fc, slice(None))
    for process in processes:
        for batch in ("replicated", "split"):
            np.testing.assert_allclose(process[f"{batch} losses"], found, rtol=1e-5)
    assert found[-1] < found[0]
    state = full_state_dict(model)
    state["momentum"] = optimizer.state[model.fc.weight]["momentum_buffer"]
    for name, value in state.items():
        np.testing.assert_allclose(processes[0][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (losses.SoftmaxLoss(ClassPrior.uniform(10)), "has 10 classes but the head has 11"),
        (losses.PairwiseMarginLoss(Margin.from_matrix(np.zeros((11, 11)))), "is additive"),
        (losses.EqualizedThresholdLoss(PRIOR, threshold=0.1), "drops no competitors at random"),
        (losses.LDAMLoss(PRIOR, label_smoothing=0.1), "label smoothing.*unlike 'ldam'"),
    ],
)
def test_losses_that_do_not_split_are_refused(criterion, message):
    with pytest.raises(InputError, match=message):
        ShardedHead(WIDTH, CLASSES).loss(FEATURES, TARGET, criterion)
