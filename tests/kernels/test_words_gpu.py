"""The kernel for rows of a few thousand logits on a GPU: its battery, and what only a GPU shows."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from exact_losses import exact_loss
from graphs import captured

from longtail.kernels import _words
from longtail.kernels.cross_entropy import margin_cross_entropy

HERE = find_spec("triton") is not None and torch.cuda.is_available()
if HERE:
    import words_battery
    from words_battery import *  # noqa: F403
    from words_battery import counted, fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not HERE or torch.cuda.get_device_capability()[0] < 9,
        reason="needs a CUDA device of compute capability 9 and Triton",
    ),
]
BF16 = torch.bfloat16


def draw(n, classes, names="", *, seed=0, spread=3.0):
    """Logits, labels of which some do not count, and the tables that `names` calls for."""
    logits, target, tables = words_battery.make(
        n, classes, BF16, names=names, spread=spread, seed=seed, ignored=False
    )
    target[3::17] = -100
    return logits, target, tables


def agree(found, exact):
    assert (found[0].double() - exact[0]).abs() <= 4e-6 * exact[0].abs()
    assert (found[1].double() - exact[1]).norm() <= 3e-3 * exact[1].norm()
    torch.testing.assert_close(found[1].double(), exact[1], rtol=2**-7, atol=1e-30)


def test_many_random_shapes_of_words():
    rng = torch.Generator().manual_seed(5)
    for seed in range(60):
        n = int(torch.randint(1, 700, (), generator=rng))
        classes = 2 * int(torch.randint(2049, 4090, (), generator=rng))
        names = "".join(letter for letter in "baAw" if torch.rand((), generator=rng) < 0.5)
        options = {"reduction": ("mean", "sum")[seed % 2], "scale": (1.0, 1.0, 2.5)[seed % 3]}
        logits, target, tables = draw(n, classes, names, seed=seed)
        logits[::7] += 200  # other levels: the second way
        logits[5::11] -= 300
        target[0], target[-1] = 0, classes - 1
        exact = exact_loss(logits, target, **tables._asdict(), **options)
        agree(fused(logits, target, tables, **options), exact)


@pytest.mark.parametrize("n", [1, 527, 528, 529, 1057, 3000])
def test_any_number_of_rows_in_words(n):
    logits, target, tables = draw(n, 8142, "ba")
    agree(fused(logits, target, tables), exact_loss(logits, target, **tables._asdict()))


def test_many_rows_in_words():
    # More than 2³¹ logits, and many turns.
    n, classes = 270_000, 8142
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB")
    x = torch.empty(n, classes, device="cuda", dtype=BF16)
    torch.nn.init.normal_(x, std=2.0, generator=torch.Generator("cuda").manual_seed(0))
    target = torch.arange(n, device="cuda") % classes
    loss, grad = fused(x, target)
    some = slice(n - 2000, n)
    _, expected = exact_loss(x[some], target[some])
    torch.testing.assert_close(grad[some].double() * (n / 2000), expected, rtol=2**-7, atol=1e-30)
    other, _ = fused(x, target, served=False)
    assert (loss - other).abs() < 4e-6 * other


def test_where_the_losses_are_added_makes_no_difference(monkeypatch):
    data = draw(3000, 8142, "baAw")
    found = fused(*data)
    for waves in (0, 1, 4):
        monkeypatch.setattr(_words, "WAVES_AHEAD", waves)
        again = fused(*data)
        assert torch.equal(found[0], again[0])
        assert torch.equal(found[1], again[1])


@pytest.mark.parametrize("n", [500, 4096])
def test_words_have_the_same_bits_over_and_over(n):
    data = draw(n, 8142, "ba")
    found = fused(*data)
    for _ in range(20):
        again = fused(*data)
        assert torch.equal(found[0], again[0])
        assert torch.equal(found[1], again[1])


@pytest.mark.parametrize("at", [0, 1, 4000, 8141])
def test_words_of_a_row_with_nan_stay_in_it(at):
    logits, target, tables = draw(700, 8142, "b")
    _, before = fused(logits, target, tables)
    logits[[50, 699], at] = torch.nan
    target[[50, 699]] = 7
    logits[3] = torch.nan  # does not count
    loss, grad = fused(logits, target, tables)
    assert loss.isnan()
    assert grad.isnan().any(1).nonzero().flatten().tolist() == [50, 699]
    assert grad[[50, 699]].isnan().all()
    others = torch.ones(700, dtype=torch.bool)
    others[[50, 699]] = False
    # (Row 51 may take the second way, which may round differently.)
    torch.testing.assert_close(grad[others].float(), before[others].float(), rtol=2**-6, atol=1e-30)


def test_a_graph_of_words_replays_with_new_data():
    logits, target, tables = draw(1200, 8142, "b")
    f, y, offset = logits.clone().requires_grad_(), target.clone(), tables.offset.clone()

    def step():
        loss = margin_cross_entropy(f, y, offset=offset)
        return loss, torch.autograd.grad(loss, f)[0]

    with counted() as launch:
        graph, (loss, grad) = captured(step)
    assert launch.call_count == 2
    for seed in (9, 10, 11):
        other, labels, others = draw(1200, 8142, "b", seed=seed)
        with torch.no_grad():
            f.copy_(other)
            y.copy_(labels)
            offset.copy_(others.offset)
        graph.replay()
        expected_loss, expected = step()
        assert torch.equal(loss, expected_loss)
        assert torch.equal(grad, expected)


def test_words_on_several_streams_at_once():
    calls = [draw(1200 + seed, 8142 - 2 * seed, "ba", seed=seed) for seed in range(4)]
    expected = [fused(*call) for call in calls]
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(8)], []
    for _ in range(10):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((k % 4, fused(*calls[k % 4])))
    torch.cuda.synchronize()
    for k, (loss, grad) in results:
        assert torch.equal(loss, expected[k][0])
        assert torch.equal(grad, expected[k][1])


def test_words_never_wait_for_the_device():
    logits, target, tables = draw(300, 8142, "baAw")
    f = logits.requires_grad_()

    def step():
        with counted() as launch:
            margin_cross_entropy(f, target, **tables._asdict()).backward()
        assert launch.called

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_code_gives_what_words_give():
    logits, target, tables = draw(64, 8142, "ba")
    f = logits.requires_grad_()

    @torch.compile(fullgraph=True)
    def compiled(f, y, b, a):
        return margin_cross_entropy(f, y, offset=b, positive=a)

    loss = compiled(f, target, tables.offset, tables.positive)
    (grad,) = torch.autograd.grad(loss, f)
    _, expected = fused(f, target, tables)
    torch.testing.assert_close(grad.float(), expected.float(), rtol=2**-6, atol=1e-30)


@pytest.mark.parametrize("label", [8142, -1])
def test_a_bad_label_of_words_is_an_error(label):
    code = f"""
import torch
from longtail.kernels import _words, cross_entropy
logits = torch.randn(2000, 8142, device="cuda", dtype=torch.bfloat16, requires_grad=True)
target = torch.zeros(2000, dtype=torch.long, device="cuda")
target[5] = {label}
assert _words.words_for(logits[None], logits[None] + 0, cross_entropy.Options())
loss = cross_entropy.margin_cross_entropy(logits, target)
loss.item()
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert "device-side assert" in done.stderr
    assert "a label is no class" in done.stderr + done.stdout
