"""The Triton kernels of `grouped_conv`; importing needs Triton.

Several networks side by side: pixels of G·C channels, the C of each network together. A convolution
is a matrix product of gathered pixels, (pixels, taps · C), and of the weights, (taps · C, C'); a
program has some pixels of one network. With few channels the taps of a row of the window, or all
nine, make one product: TAPS of them, filled up to PAD, a power of two.
"""

# mypy: ignore-errors
# (written in Triton's language: Python only to look at)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gather(
    x, pixel, end, dh, dw, real, channel, group, n_groups, height, width, x_height, x_width,
    BACK: tl.constexpr, STRIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Values in each pixel's window of 3 × 3, shape (pixels, taps · C), zero outside.

    Pixel (h, w) sees (s·h + dh − 1, s·w + dw − 1); BACK, it sees the pixels that see it.
    """
    h, w = (pixel // width % height)[:, None], (pixel % width)[:, None]
    if BACK:
        up, left = h + 1 - dh[None, :], w + 1 - dw[None, :]
        ok = (up >= 0) & (left >= 0) & (up % STRIDE == 0) & (left % STRIDE == 0)
        up, left = up // STRIDE, left // STRIDE
    else:
        up, left = h * STRIDE + dh[None, :] - 1, w * STRIDE + dw[None, :] - 1
        ok = (up >= 0) & (left >= 0)
    ok = ok & (up < x_height) & (left < x_width) & (pixel < end)[:, None] & real[None, :]
    image = (pixel // (width * height))[:, None]
    place = ((image * x_height + up) * x_width + left) * (n_groups * C) + group * C
    return tl.load(x + place + channel[None, :], mask=ok, other=0.0)


@triton.jit
def _product(a, b, total, WIDE: tl.constexpr):
    """total + a·b; WIDE for the interpreter, which takes bfloat16 for whole numbers."""
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def _write(
    total, y, partials, pixel, n_pixels, group, n_groups,
    N: tl.constexpr, M: tl.constexpr, MOMENTS: tl.constexpr,
):  # fmt: skip
    """M pixels of y; with MOMENTS, their mean and Σ(y − mean)² by channels too."""
    col = group * N + tl.arange(0, N)
    inside = (pixel < n_pixels)[:, None]
    value = total.to(y.dtype.element_ty)
    tl.store(y + pixel[:, None] * (n_groups * N) + col[None, :], value, mask=inside)
    if MOMENTS:
        part = tl.program_id(0) // n_groups
        value = tl.where(inside, value.to(tl.float32), 0.0)  # the moments of what is handed on
        mean = tl.sum(value, 0) / tl.minimum(n_pixels - part * M, M)
        off = tl.where(inside, value - mean[None, :], 0.0)
        at = partials + part * (2 * n_groups * N) + col
        tl.store(at, mean)
        tl.store(at + n_groups * N, tl.sum(off * off, 0))


@triton.jit
def conv_kernel(
    x, weight, y, partials, n_pixels, n_groups, height, width, x_height, x_width,
    BACK: tl.constexpr, C: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr,
    TAPS: tl.constexpr, PAD: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
    MOMENTS: tl.constexpr,
):  # fmt: skip
    """M pixels of y from x; BACK, of the gradient of x from that of y.

    C channels per network are read, N written; the weights lie as (G·out, 3, 3, in).
    """
    group = tl.program_id(0) % n_groups
    pixel = tl.program_id(0) // n_groups * M + tl.arange(0, M)
    k = tl.arange(0, PAD * C)
    real = k // C < TAPS
    channel = k % C
    col = tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for step in range(0, 9 // TAPS):
        tap = step * TAPS + k // C
        a = _gather(
            x, pixel, n_pixels, tap // 3, tap % 3, real, channel, group, n_groups, height, width,
            x_height, x_width, BACK, STRIDE, C,
        )  # fmt: skip
        if BACK:
            at = ((group * C + channel) * 9 + tap)[:, None] * N + col[None, :]
        else:
            at = ((group * N + col) * (9 * C))[None, :] + (step * TAPS * C + k)[:, None]
        b = tl.load(weight + at, mask=real[:, None], other=0.0)
        total = _product(a, b, total, WIDE)
    _write(total, y, partials, pixel, n_pixels, group, n_groups, N, M, MOMENTS)


@triton.jit
def weight_kernel(
    x, grad, partials, n_pixels, per_program, n_groups, height, width, x_height, x_width,
    C: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr,
    TAPS: tl.constexpr, PAD: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The weights' gradient from per_program pixels of grad, TAPS taps of it."""
    group = tl.program_id(0) % n_groups
    part = tl.program_id(0) // n_groups
    first = part * per_program
    end = tl.minimum(first + per_program, n_pixels)
    k = tl.arange(0, PAD * C)
    real = k // C < TAPS
    tap = tl.program_id(1) * TAPS + k // C
    col = tl.arange(0, N)
    total = tl.zeros([PAD * C, N], tl.float32)
    for offset in range(0, end - first, M):
        pixel = first + offset + tl.arange(0, M)
        a = _gather(
            x, pixel, end, tap // 3, tap % 3, real, k % C, group, n_groups, height, width,
            x_height, x_width, False, STRIDE, C,
        )  # fmt: skip
        at = pixel[:, None] * (n_groups * N) + group * N + col[None, :]
        g = tl.load(grad + at, mask=(pixel < end)[:, None], other=0.0)
        total = _product(tl.trans(a), g, total, WIDE)
    row = (part * n_groups + group) * N + col
    at = row[None, :] * (9 * C) + (tl.program_id(1) * TAPS * C + k)[:, None]
    tl.store(partials + at, total, mask=real[:, None])


@triton.jit
def shortcut_kernel(
    x, y, n_numbers, n_groups, height, width,
    BACK: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every second pixel, with C/2 channels of zeros on both sides; BACK, its gradient.

    C channels per network, height and width where pixels are many: of x, or BACK, of y.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_numbers
    half_height, half_width = (height + 1) // 2, (width + 1) // 2
    if BACK:
        channel, group, pixel = at % C, at // C % n_groups, at // (C * n_groups)
        w, h, image = pixel % width, pixel // width % height, pixel // (width * height)
        ok = (w % 2 == 0) & (h % 2 == 0)
        source = (image * half_height + h // 2) * half_width + w // 2
        place = (source * n_groups + group) * (2 * C) + channel + C // 2
    else:
        channel, rest = at % (2 * C) - C // 2, at // (2 * C)
        group, pixel = rest % n_groups, rest // n_groups
        w, h = pixel % half_width, pixel // half_width % half_height
        image = pixel // (half_width * half_height)
        ok = (channel >= 0) & (channel < C)
        source = (image * height + 2 * h) * width + 2 * w
        place = (source * n_groups + group) * C + channel
    tl.store(y + at, tl.load(x + place, mask=ok & inside, other=0.0), mask=inside)
