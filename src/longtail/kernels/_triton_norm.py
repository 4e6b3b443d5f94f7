"""The Triton kernels of `norm_act`; importing needs Triton.

A tensor is n rows of C channels. Forward: each program of `moments_kernel` leaves the mean and the
sum of squared deviations of its rows, `statistics_kernel` combines them (Chan's rule) into μ and
1/√(σ² + ε), `forward_kernel` applies them. Backward likewise: with g the gradient behind the ReLU
and x̂ = (x − μ)/√(σ² + ε),

    db = Σ g,   dw = Σ g·x̂,   dx = w/√(σ² + ε)·(g − db/n − x̂·dw/n),   dr = g

Each pass is at the memory's limit. A combining kernel of its own needs no counter that would have
to be cleared, and the order of all sums is fixed: the same bits every time.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(start, end, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Start of a tile, its positions from there, and the mask of those that exist."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    inside = (start + row < end)[:, None] & (col < C)[None, :]
    return start.to(tl.int64) * C, row[:, None] * C + col[None, :], inside


@triton.jit
def _per_channel(vector, col, C: tl.constexpr):
    """One float32 number per channel, as a row."""
    return tl.load(vector + col, mask=col < C, other=0.0)[None, :]


@triton.jit
def moments_kernel(
    x, partials, n_rows, per_program, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Mean and Σ(x − mean)² of per_program rows.

    Numbers are counted from the mean of the first tile, so that no mean is too large; they are
    added up place by place, and over the places at the end.
    """
    part = tl.program_id(0)
    first = part * per_program
    end = tl.minimum(first + per_program, n_rows)
    count = (end - first).to(tl.float32)
    base, places, inside = _tile(first, end, C, ROWS, BLOCK)
    values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
    origin = tl.sum(values, 0) / tl.minimum(count, ROWS)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for offset in range(0, end - first, ROWS):
        base, places, inside = _tile(first + offset, end, C, ROWS, BLOCK)
        values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
        off = tl.where(inside, values - origin[None, :], 0.0)
        sums += off
        squares += off * off
    shift = tl.sum(sums, 0) / count
    square = tl.sum(squares, 0) - count * shift * shift
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partials + part * (2 * C) + col, origin + shift, mask=col < C)
    tl.store(partials + part * (2 * C) + C + col, tl.maximum(square, 0.0), mask=col < C)


@triton.jit
def _partials(partials, n_parts, C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Both halves of the partial sums, shape (PARTS, BLOCK), zero where there are none."""
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    inside = (part < n_parts)[:, None] & (col < C)[None, :]
    at = partials + part[:, None] * (2 * C) + col[None, :]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + C, mask=inside, other=0.0)


@triton.jit
def statistics_kernel(
    partials, running_mean, running_var, stats, n_rows, per_program, n_parts, momentum, eps,
    HAS_RUNNING: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """μ and 1/√(σ² + ε) of some channels, and their running statistics."""
    means, squares = _partials(partials, n_parts, C, PARTS, BLOCK)
    counts = tl.minimum(n_rows - tl.arange(0, PARTS) * per_program, per_program)
    counts = tl.maximum(counts, 0).to(tl.float32)[:, None]
    # (From the first part's mean on: a large mean would cost the sum its last digits.)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = col < C
    origin = tl.load(partials + col, mask=real, other=0.0)
    mean = origin + tl.sum((means - origin[None, :]) * counts, 0) / n_rows
    off = means - mean[None, :]
    square = tl.sum(squares + off * off * counts, 0)
    tl.store(stats + col, mean, mask=real)
    tl.store(stats + C + col, 1.0 / tl.sqrt_rn(square / n_rows + eps), mask=real)
    if HAS_RUNNING:
        old = tl.load(running_mean + col, mask=real, other=0.0)
        tl.store(running_mean + col, old + momentum * (mean - old), mask=real)
        old = tl.load(running_var + col, mask=real, other=0.0)
        new = square / (n_rows - 1)
        tl.store(running_var + col, old + momentum * (new - old), mask=real)


@triton.jit
def forward_kernel(
    x, residual, weight, bias, stats, y, n_rows,
    HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y of one tile."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base, places, inside = _tile(tl.program_id(0) * ROWS, n_rows, C, ROWS, BLOCK)
    values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
    out = _before_relu(values, weight, bias, stats, col, C)
    if HAS_RESIDUAL:
        out += tl.load(residual + base + places, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        out = tl.where(out < 0, 0.0, out)  # and NaN stays NaN
    tl.store(y + base + places, out, mask=inside)


@triton.jit
def _before_relu(values, weight, bias, stats, col, C: tl.constexpr):
    """w·(x − μ)/√(σ² + ε) + b, the same bits forward and backward."""
    scale = _per_channel(stats + C, col, C) * _per_channel(weight, col, C)
    return (values - _per_channel(stats, col, C)) * scale + _per_channel(bias, col, C)


@triton.jit
def _behind_relu(
    values, y, grad, other, weight, bias, stats, base, places, inside, col,
    HAS_OTHER: tl.constexpr, MASK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """g of a tile: MASK 0 without ReLU, 1 where y says what it cut, 2 where x does."""
    g = tl.load(grad + base + places, mask=inside, other=0.0).to(tl.float32)
    if HAS_OTHER:
        g += tl.load(other + base + places, mask=inside, other=0.0).to(tl.float32)
    if MASK == 1:
        out = tl.load(y + base + places, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(out <= 0, 0.0, g)
    if MASK == 2:
        g = tl.where(_before_relu(values, weight, bias, stats, col, C) <= 0, 0.0, g)
    return g


@triton.jit
def sums_kernel(
    x, y, grad, other, weight, bias, stats, partials, cut, n_rows, per_program,
    HAS_OTHER: tl.constexpr, MASK: tl.constexpr, KEEP: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g·x̂ of per_program rows; with KEEP, g itself too."""
    part = tl.program_id(0)
    first = part * per_program
    end = tl.minimum(first + per_program, n_rows)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mean = _per_channel(stats, col, C)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    products = tl.zeros([ROWS, BLOCK], tl.float32)
    for offset in range(0, end - first, ROWS):
        base, places, inside = _tile(first + offset, end, C, ROWS, BLOCK)
        values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
        g = _behind_relu(
            values, y, grad, other, weight, bias, stats, base, places, inside, col,
            HAS_OTHER, MASK, C,
        )  # fmt: skip
        if KEEP:
            kept = g.to(cut.dtype.element_ty)
            tl.store(cut + base + places, kept, mask=inside)
            g = kept.to(tl.float32)  # the sums are those of what is handed on
        g = tl.where(inside, g, 0.0)
        sums += g
        products += g * (values - mean)
    rstd = tl.load(stats + C + col, mask=col < C, other=0.0)
    tl.store(partials + part * (2 * C) + col, tl.sum(sums, 0), mask=col < C)
    tl.store(partials + part * (2 * C) + C + col, tl.sum(products, 0) * rstd, mask=col < C)


@triton.jit
def gradients_kernel(
    partials, dweight, dbias, n_parts,
    C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dw and db of some channels."""
    sums, products = _partials(partials, n_parts, C, PARTS, BLOCK)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dbias + col, tl.sum(sums, 0), mask=col < C)
    tl.store(dweight + col, tl.sum(products, 0), mask=col < C)


@triton.jit
def backward_kernel(
    x, grad, weight, bias, stats, dx, dweight, dbias, n_rows,
    MASK: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of one tile. Its gradient is g already where MASK is 0."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base, places, inside = _tile(tl.program_id(0) * ROWS, n_rows, C, ROWS, BLOCK)
    values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
    g = _behind_relu(
        values, x, grad, grad, weight, bias, stats, base, places, inside, col, False, MASK, C
    )
    rstd = _per_channel(stats + C, col, C)
    slope = rstd * (_per_channel(dweight, col, C) / n_rows)
    out = g - _per_channel(dbias, col, C) / n_rows - (values - _per_channel(stats, col, C)) * slope
    tl.store(dx + base + places, rstd * _per_channel(weight, col, C) * out, mask=inside)
