"""Batch norm, residual and ReLU of the networks: what a layer's settings mean, and counting."""

import numpy as np
import pytest
import torch
from torch import nn

from longtail._checks import InputError
from longtail.models.norm import count_batches, norm_act, norm_act_fork


def layer_and_input(momentum=0.3, eps=0.01):
    torch.manual_seed(0)
    bn = nn.BatchNorm2d(3, momentum=momentum, eps=eps).double()
    for tensor in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var):
        tensor.uniform_(0.5, 1.5)
    return bn, torch.randn(4, 3, 2, 5, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_it_is_the_equation(training, with_residual, relu):
    bn, x = layer_and_input()
    bn.train(training)
    residual = torch.randn_like(x) if with_residual else None
    mean, var = bn.running_mean.numpy().copy(), bn.running_var.numpy().copy()
    y = norm_act(bn, x, residual=residual, relu=relu)
    weight, bias = bn.weight.tolist(), bn.bias.tolist()

    for c in range(3):
        values = x[:, c].numpy()
        n = values.size
        mu = values.sum() / n
        sigma2 = ((values - mu) ** 2).sum() / n
        if training:
            moved = (0.7 * mean[c] + 0.3 * mu, 0.7 * var[c] + 0.3 * sigma2 * n / (n - 1))
        else:
            mu, sigma2 = moved = mean[c], var[c]
        expected = weight[c] * (values - mu) / np.sqrt(sigma2 + 0.01) + bias[c]
        if with_residual:
            expected = expected + residual[:, c].numpy()
        if relu:
            expected = np.maximum(expected, 0.0)
        assert np.abs(y[:, c].detach().numpy() - expected).max() < 1e-12
        assert np.allclose([bn.running_mean[c], bn.running_var[c]], moved, rtol=1e-12)


def test_the_fork_is_the_same_twice_and_adds_up_the_gradients():
    bn, x = layer_and_input()
    other = nn.BatchNorm2d(3, momentum=0.3, eps=0.01).double()
    other.load_state_dict(bn.state_dict())
    residual, one, two = (torch.randn_like(x) for _ in range(3))
    y = norm_act(bn, x.requires_grad_(), residual=residual)
    (expected,) = torch.autograd.grad((y * (one + two)).sum(), x)
    left, right = norm_act_fork(other, x, residual=residual)
    (found,) = torch.autograd.grad((left * one).sum() + (right * two).sum(), x)
    assert torch.equal(left, y)
    assert torch.equal(right, y)
    assert torch.allclose(found, expected)
    assert torch.equal(other.running_mean, bn.running_mean)  # moved once, not twice


def test_counting_follows_each_layers_mode():
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm2d(2)), nn.Conv2d(1, 1, 1))
    untracked = nn.BatchNorm2d(2, track_running_stats=False)
    model.append(untracked)
    model[1][0].eval()
    for _ in range(3):
        count_batches(model)
    assert [int(model[0].num_batches_tracked), int(model[1][0].num_batches_tracked)] == [3, 0]
    assert untracked.num_batches_tracked is None
    count_batches(nn.Identity())


def test_a_cumulative_average_is_refused():
    bn, x = layer_and_input(momentum=None)
    with pytest.raises(InputError, match="`bn` must have a momentum"):
        norm_act(bn, x)
