"""Networks side by side compute what each computes alone, forward and backward."""

import pytest
import torch

from longtail import models
from longtail.models.stacked import part_of, stack

COUNT = 3


def networks(name, head):
    made = []
    for seed in range(COUNT):
        torch.manual_seed(seed)
        made.append(models.build(name, num_classes=7, image_shape=(3, 16, 16), head=head))
    return made


@pytest.mark.parametrize("head", models.HEADS)
@pytest.mark.parametrize("name", ["resnet20", "resnet32-released"])
def test_each_network_is_as_it_would_be_alone(name, head):
    alone = networks(name, head)
    together = stack(alone)
    images = torch.randn(4, 3 * COUNT, 16, 16).contiguous(memory_format=torch.channels_last)
    logits = together(images)
    expected = torch.stack([net(images[:, 3 * i : 3 * i + 3]) for i, net in enumerate(alone)])
    assert logits.shape == (COUNT, 4, 7)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    slope = torch.randn_like(logits)
    logits.backward(slope)
    expected.backward(slope)
    for key, value in together.named_parameters():
        for index, net in enumerate(alone):
            mine = part_of(value.grad, index=index, count=COUNT)
            theirs = net.get_parameter(key).grad
            assert (mine - theirs).norm() < 1e-3 * theirs.norm(), (key, index)
    assert list(together.state_dict()) == list(alone[0].state_dict())
    for key, value in together.state_dict().items():
        for index, net in enumerate(alone):
            mine = part_of(value, index=index, count=COUNT)
            torch.testing.assert_close(mine, net.state_dict()[key], rtol=1e-4, atol=1e-5)
