"""On a GPU: nothing is read before those who write it have ended, though launches start early."""

from importlib.util import find_spec

import pytest
import torch
from exact_losses import exact_loss
from graphs import captured

from longtail.kernels.cross_entropy import margin_cross_entropy

HERE = find_spec("triton") is not None and torch.cuda.is_available()
if HERE:
    from late_writer import write_late

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not HERE or torch.cuda.get_device_capability()[0] < 9,
        reason="needs a CUDA device of compute capability 9 and Triton",
    ),
]
BF16 = torch.bfloat16
# Rows and classes: several rows to a tile, a row in words, wide rows, wide rows in tiles.
SHAPES = [(300, 1000), (300, 8142), (200, 100_000), (9, 100_001)]


def draw(n, classes):
    rng = torch.Generator("cuda").manual_seed(n + classes)
    logits = (3 * torch.randn(n, classes, device="cuda", generator=rng)).to(BF16)
    target = torch.randint(classes, (n,), device="cuda", generator=rng)
    return logits, target, torch.randn(classes, device="cuda", generator=rng)


def agree(loss, grad, exact):
    assert (loss.double() - exact[0]).abs() <= 2**-8 * exact[0].abs()  # it is a bfloat16
    assert (grad.double() - exact[1]).norm() <= 3e-3 * exact[1].norm()


def loss_and_gradient(f, target, b, **options):
    loss = margin_cross_entropy(f, target, offset=b, **options)
    return loss.detach(), torch.autograd.grad(loss, f)[0]


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}])
@pytest.mark.parametrize(("n", "classes"), SHAPES)
def test_logits_labels_and_offset_that_come_late(n, classes, options):
    given = draw(n, classes)
    expected = loss_and_gradient(given[0].requires_grad_(), *given[1:], **options)
    late = [torch.zeros_like(tensor) for tensor in given]  # right for nobody
    for _ in range(3):
        for to in late:
            to.zero_()
        torch.cuda.synchronize()
        for to, source in zip(late, given, strict=True):
            write_late(to, source.detach())
        found = loss_and_gradient(late[0].detach().requires_grad_(), *late[1:], **options)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize(("n", "classes"), SHAPES)
def test_a_factor_that_comes_late(n, classes):
    logits, target, b = draw(n, classes)
    f, two = logits.requires_grad_(), torch.full((), 2.0, device="cuda", dtype=BF16)
    _, expected = loss_and_gradient(f, target, b)
    loss = margin_cross_entropy(f, target, offset=b)
    factor = torch.ones_like(two)
    torch.cuda.synchronize()
    write_late(factor, two)
    (grad,) = torch.autograd.grad(loss, f, grad_outputs=factor)
    assert torch.equal(grad, 2 * expected)


@pytest.mark.parametrize(("n", "classes"), SHAPES)
def test_a_graph_with_copies_and_another_stream_before(n, classes):
    given = draw(n, classes)
    logits, target, b = (tensor.clone() for tensor in given)
    rooms = [torch.zeros_like(tensor) for tensor in given]
    f = rooms[0].requires_grad_()
    side = torch.cuda.Stream()

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            rooms[0].copy_(logits)
            rooms[2].copy_(b)
        rooms[1].copy_(target)
        torch.cuda.current_stream().wait_stream(side)
        return loss_and_gradient(f, rooms[1], rooms[2])

    graph, (loss, grad) = captured(step)
    for seed in (1, 2):
        logits.copy_(given[0].roll(seed, 0))
        target.copy_(given[1].flip(0))
        graph.replay()
        torch.cuda.synchronize()
        agree(loss, grad, exact_loss(logits, target, offset=b))
