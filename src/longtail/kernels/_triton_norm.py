"""The Triton kernels of `norm_act`; importing needs Triton.

A tensor is n rows of C channels. Forward: `moments_kernel` leaves, for each of its programs, the
mean and the sum of squared deviations of its rows; every program of `forward_kernel` combines them
(Chan's rule) and goes on with μ and 1/√(σ² + ε). Backward likewise: with g the gradient behind
the ReLU and x̂ = (x − μ)/√(σ² + ε),

    db = Σ g,   dw = Σ g·x̂,   dx = w/√(σ² + ε)·(g − db/n − x̂·dw/n),   dr = g

Combining in every program costs a few reads from the cache, and saves what a last-arriving program
would need: a counter, cleared before every call. The order of all sums is fixed.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(start, end, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Where a tile begins, its places from there, and which of them exist."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    inside = (start + row < end)[:, None] & (col < C)[None, :]
    return start.to(tl.int64) * C, row[:, None] * C + col[None, :], inside


@triton.jit
def _parts(
    partials, n_parts, C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Both halves of the partial sums, shape (PARTS, BLOCK), zero where there are none."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    inside = (part < n_parts)[:, None] & (col < C)[None, :]
    at = partials + part[:, None] * (2 * C) + col[None, :]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + C, mask=inside, other=0.0)


@triton.jit
def moments_kernel(
    x, partials, n_rows, per_program, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Mean and Σ(x − mean)² of per_program rows."""
    part = tl.program_id(0)
    first = part * per_program
    end = tl.minimum(first + per_program, n_rows)
    mean = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for offset in range(0, end - first, ROWS):
        start = first + offset
        base, places, inside = _tile(start, end, C, ROWS, BLOCK)
        values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
        before = (start - first).to(tl.float32)
        count = tl.minimum(end - start, ROWS).to(tl.float32)
        own = tl.sum(values, 0) / count
        off = tl.where(inside, values - own[None, :], 0.0)
        step = own - mean
        share = count / (before + count)
        mean += step * share
        squares += tl.sum(off * off, 0) + step * step * (before * share)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partials + part * (2 * C) + col, mean, mask=col < C)
    tl.store(partials + part * (2 * C) + C + col, squares, mask=col < C)


@triton.jit
def forward_kernel(
    x, residual, weight, bias, partials, running_mean, running_var, stats, y,
    n_rows, per_program, n_parts, momentum, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_RUNNING: tl.constexpr, RELU: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """y of one tile; the first program writes μ, 1/√(σ² + ε) and the running statistics."""
    means, squares = _parts(partials, n_parts, C, PARTS, BLOCK)
    counts = tl.minimum(n_rows - tl.arange(0, PARTS) * per_program, per_program)
    counts = tl.maximum(counts, 0).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / n_rows
    off = means - mean[None, :]
    square = tl.sum(squares + off * off * counts, 0)
    rstd = 1.0 / tl.sqrt_rn(square / n_rows + eps)

    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = col < C
    if tl.program_id(0) == 0:
        tl.store(stats + col, mean, mask=real)
        tl.store(stats + C + col, rstd, mask=real)
        if HAS_RUNNING:
            old = tl.load(running_mean + col, mask=real, other=0.0)
            tl.store(running_mean + col, old + momentum * (mean - old), mask=real)
            old = tl.load(running_var + col, mask=real, other=0.0)
            new = square / (n_rows - 1)
            tl.store(running_var + col, old + momentum * (new - old), mask=real)

    scale = rstd * tl.load(weight + col, mask=real, other=0.0)
    shift = tl.load(bias + col, mask=real, other=0.0)
    base, places, inside = _tile(tl.program_id(0) * ROWS, n_rows, C, ROWS, BLOCK)
    values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
    out = (values - mean[None, :]) * scale[None, :] + shift[None, :]
    if HAS_RESIDUAL:
        out += tl.load(residual + base + places, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        out = tl.where(out < 0, 0.0, out)  # and NaN stays NaN
    tl.store(y + base + places, out, mask=inside)


@triton.jit
def _behind_relu(
    values, y, grad, other, weight, bias, mean, rstd, base, places, inside, col, real,
    HAS_OTHER: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """x̂ and g of a tile: MASK 0 without ReLU, 1 where y says what it cut, 2 where x̂ does."""
    hat = (values - mean[None, :]) * rstd[None, :]
    g = tl.load(grad + base + places, mask=inside, other=0.0).to(tl.float32)
    if HAS_OTHER:
        g += tl.load(other + base + places, mask=inside, other=0.0).to(tl.float32)
    if MASK == 1:
        out = tl.load(y + base + places, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(out <= 0, 0.0, g)
    if MASK == 2:
        scale = rstd * tl.load(weight + col, mask=real, other=0.0)
        shift = tl.load(bias + col, mask=real, other=0.0)
        out = (values - mean[None, :]) * scale[None, :] + shift[None, :]
        g = tl.where(out <= 0, 0.0, g)
    return hat, g


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
    real = col < C
    mean = tl.load(stats + col, mask=real, other=0.0)
    rstd = tl.load(stats + C + col, mask=real, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    product = tl.zeros([BLOCK], tl.float32)
    for offset in range(0, end - first, ROWS):
        start = first + offset
        base, places, inside = _tile(start, end, C, ROWS, BLOCK)
        values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
        hat, g = _behind_relu(
            values, y, grad, other, weight, bias, mean, rstd, base, places, inside, col, real,
            HAS_OTHER, MASK,
        )  # fmt: skip
        if KEEP:
            kept = g.to(cut.dtype.element_ty)
            tl.store(cut + base + places, kept, mask=inside)
            g = kept.to(tl.float32)  # the sums are those of what is handed on
        total += tl.sum(g, 0)
        product += tl.sum(tl.where(inside, g * hat, 0.0), 0)
    tl.store(partials + part * (2 * C) + col, total, mask=real)
    tl.store(partials + part * (2 * C) + C + col, product, mask=real)


@triton.jit
def backward_kernel(
    x, grad, weight, bias, stats, partials, dx, dweight, dbias, n_rows, n_parts,
    MASK: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """dx of one tile; the first program writes dw and db. Its gradient is g where MASK is 0."""
    totals, products = _parts(partials, n_parts, C, PARTS, BLOCK)
    total, product = tl.sum(totals, 0), tl.sum(products, 0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = col < C
    if tl.program_id(0) == 0:
        tl.store(dbias + col, total, mask=real)
        tl.store(dweight + col, product, mask=real)
    mean = tl.load(stats + col, mask=real, other=0.0)
    rstd = tl.load(stats + C + col, mask=real, other=0.0)
    base, places, inside = _tile(tl.program_id(0) * ROWS, n_rows, C, ROWS, BLOCK)
    values = tl.load(x + base + places, mask=inside, other=0.0).to(tl.float32)
    hat, g = _behind_relu(
        values, x, grad, grad, weight, bias, mean, rstd, base, places, inside, col, real,
        False, MASK,
    )  # fmt: skip
    scale = rstd * tl.load(weight + col, mask=real, other=0.0)
    out = g - (total / n_rows)[None, :] - hat * (product / n_rows)[None, :]
    tl.store(dx + base + places, scale[None, :] * out, mask=inside)
