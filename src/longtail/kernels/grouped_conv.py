"""The 3 × 3 convolutions of several networks side by side, forward and backward.

G networks of one architecture train as one: their activations are stacked along the channels,
their weights along the first axis, and a layer of all of them is one grouped convolution. Small
networks leave most of a GPU idle; stacked ones do not. The kernels are in `_triton_conv`; here are
the choice between them and torch's own operations, the launches, and what autograd needs to know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from longtail._checks import InputError
from longtail.kernels import available, interpreted
from longtail.kernels._launch import given, launch
from longtail.kernels.norm_act import Moments

CHANNELS = (16, 32, 64)  # per network, which the kernels support
FEWEST = CHANNELS[0]  # fewer input channels are padded with zeros


class How(NamedTuple):
    """Tile of a product: taps at a time, these padded, pixels, warps, stages of loading."""

    taps: int
    pad: int
    pixels: int
    warps: int
    stages: int


# By the channels that are read; measured on an H200 with eight networks.
CONV = {16: How(3, 4, 128, 4, 3), 32: How(1, 1, 128, 4, 4), 64: How(1, 1, 128, 4, 4)}
WEIGHT = {16: How(9, 16, 64, 4, 3), 32: How(3, 4, 64, 4, 3), 64: How(1, 1, 64, 4, 3)}
PARTS = {16: 32, 32: 16, 64: 8}  # programs that share the pixels of a weight's gradient
MOST_PARTS = 2048  # moments of more tiles would take longer to combine than to make anew


def grouped_conv(
    x: Tensor, weight: Tensor, *, stride: int = 1, groups: int = 1
) -> tuple[Tensor, Moments | None]:
    """Return the 3 × 3 convolutions, with padding 1, of `groups` networks side by side.

    y[n, g, o, h, w] = Σ_{i, a, b} W[g, o, i, a, b]·x[n, g, i, s·h + a − 1, s·w + b − 1]

    The Triton kernels support bfloat16 on CUDA, channels last, with 16, 32 or 64 channels per
    network, and fewer than 16 input channels; torch's own convolution does the rest.

    Args:
        x: shape (N, G·I, H, W).
        weight: W, shape (G·O, I, 3, 3), float32; its gradient is float32.
        stride: s, 1 or 2.
        groups: G.

    Returns:
        y, shape (N, G·O, ⌈H/s⌉, ⌈W/s⌉), in the type of x; and the moments of its channels where
        a kernel made y, for `norm_act`, which would otherwise read y once more.

    Examples:
        >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3)
        >>> y, _ = grouped_conv(x, weight, groups=2)
        >>> y[0, 1]
        tensor([[4., 6., 4.],
                [6., 9., 6.],
                [4., 6., 4.]])
    """
    _check(x, weight, stride=stride, groups=groups)
    if not supports(x, weight, groups=groups):
        return grouped_conv_torch(x, weight, stride=stride, groups=groups), None
    low = weight.detach().to(x.dtype)
    missing = max(FEWEST - weight.shape[1], 0)
    if missing:
        x, low = _filled_up(x, groups, missing), _filled_up(low, 1, missing)
    low = low.contiguous(memory_format=torch.channels_last)
    y, partials = _GroupedConv.apply(x, weight, low, stride, groups)  # type: ignore[no-untyped-call]
    return y, None if partials is None else Moments(partials, CONV[low.shape[1]].pixels)


def _filled_up(x: Tensor, groups: int, missing: int) -> Tensor:
    """Return x with `missing` channels of zeros after each network's own, channels last."""
    pixels = x.permute(0, 2, 3, 1)
    apart = pixels.reshape(*pixels.shape[:3], groups, -1)
    return F.pad(apart, (0, missing)).flatten(3).permute(0, 3, 1, 2)


def grouped_conv_torch(x: Tensor, weight: Tensor, *, stride: int, groups: int) -> Tensor:
    """Return the same by torch's own operations: the reference and the fallback."""
    return F.conv2d(x, weight.to(x.dtype), None, stride, 1, 1, groups)


def pad_shortcut(x: Tensor, *, groups: int = 1) -> Tensor:
    """Halve the pixels each way and double the channels with zeros: option A of ResNets.

    Args:
        x: shape (N, G·C, H, W), C even.
        groups: G networks; half of each one's new channels are before its own, half after.

    Returns:
        Shape (N, G·2C, ⌈H/2⌉, ⌈W/2⌉), channels last where x is.

    Examples:
        >>> pad_shortcut(torch.ones(1, 2, 3, 3))[0, :, 0, 0]
        tensor([0., 1., 1., 0.])
    """
    channels = x.shape[1] // groups
    last = x.is_contiguous(memory_format=torch.channels_last)
    if last and channels % 2 == 0 and available(x.device) and not torch.compiler.is_compiling():
        return _PadShortcut.apply(x, groups)  # type: ignore[no-any-return, no-untyped-call]
    # A pooling over single pixels subsamples as x[:, :, ::2, ::2] does, but keeps channels-last
    # memory on the way back too, and in fewer kernels.
    pixels = F.avg_pool2d(x, 1, stride=2).permute(0, 2, 3, 1)
    apart = pixels.reshape(*pixels.shape[:3], groups, channels)
    before = channels // 2
    full = F.pad(apart, (before, channels - before)).flatten(3).permute(0, 3, 1, 2)
    return full if last else full.contiguous()


def supports(x: Tensor, weight: Tensor, *, groups: int) -> bool:
    """Return whether the kernels support these tensors."""
    inner, outer = weight.shape[1], weight.shape[0] // groups
    return (
        not torch.compiler.is_compiling()
        and available(x.device)
        and x.dtype == torch.bfloat16
        and x.numel() > 0
        and (inner in CHANNELS or inner < FEWEST)
        and outer in CHANNELS
        and x.numel() // x.shape[1] * groups * max(inner, outer, FEWEST) < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _check(x: Tensor, weight: Tensor, *, stride: int, groups: int) -> None:
    if stride not in (1, 2):
        raise InputError(f"grouped_conv: `stride` must be 1 or 2; got {stride}.")
    fits = weight.ndim == 4 and weight.shape[2:] == (3, 3) and weight.shape[0] % groups == 0
    if x.ndim != 4 or not fits or x.shape[1] != groups * weight.shape[1]:
        raise InputError(
            f"grouped_conv: for {groups} networks x must have shape (N, {groups}·I, H, W) and the "
            f"weight ({groups}·O, I, 3, 3); got {tuple(x.shape)} and {tuple(weight.shape)}."
        )


def _left_to_torch(inner: int, outer: int, stride: int) -> bool:
    """Return whether cuDNN's own convolution is faster, as it is with the fewest channels."""
    return inner == outer == 16 and stride == 1


def _torch_gradient(
    x: Tensor, low: Tensor, grad: Tensor, stride: int, groups: int, which: int
) -> Tensor:
    """Return torch's own gradient of x (0) or of the weights (1)."""
    wanted = [which == 0, which == 1, False]
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        grad, x, low, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], groups, wanted
    )[which]


def _convolve(
    x: Tensor, low: Tensor, like: tuple[int, int], *, stride: int, groups: int, back: bool
) -> tuple[Tensor, Tensor | None]:
    """Return y of height and width `like` from x, or with `back` the gradient of x from y's."""
    from longtail.kernels import _triton_conv

    n, channels, x_height, x_width = x.shape
    height, width = like
    inner, outer = channels // groups, low.shape[1] if back else low.shape[0] // groups
    y = torch.empty(
        (n, groups * outer, height, width),
        dtype=x.dtype, device=x.device, memory_format=torch.channels_last,
    )  # fmt: skip
    how = CONV[inner]
    n_pixels = n * height * width
    tiles = -(-n_pixels // how.pixels)
    partials = None
    if not back and tiles <= MOST_PARTS:
        partials = torch.empty((tiles, 2, groups * outer), dtype=torch.float32, device=x.device)
    launch(
        _triton_conv.conv_kernel,
        (tiles * groups,),
        (x, low, y, given(partials, y), n_pixels, groups, height, width, x_height, x_width),
        {
            "BACK": back, "C": inner, "N": outer, "STRIDE": stride,
            "TAPS": how.taps, "PAD": how.pad, "M": how.pixels, "WIDE": interpreted(),
            "MOMENTS": partials is not None,
        },
        num_warps=how.warps,
        num_stages=how.stages,
    )  # fmt: skip
    return y, partials


def _weight_gradient(x: Tensor, grad: Tensor, *, stride: int, groups: int) -> Tensor:
    """Return the weights' gradient in float32, shape (G·O, I, 3, 3), channels last."""
    from longtail.kernels import _triton_conv

    n, channels, x_height, x_width = x.shape
    height, width = grad.shape[2:]
    inner, outer = channels // groups, grad.shape[1] // groups
    how = WEIGHT[inner]
    n_pixels = n * height * width
    per_program = how.pixels * -(-n_pixels // (how.pixels * PARTS[inner]))
    parts = -(-n_pixels // per_program)
    partials = torch.empty(
        (parts, groups * outer, 3, 3, inner), dtype=torch.float32, device=x.device
    )
    launch(
        _triton_conv.weight_kernel,
        (parts * groups, 9 // how.taps),
        (x, grad, partials, n_pixels, per_program, groups, height, width, x_height, x_width),
        {
            "C": inner, "N": outer, "STRIDE": stride,
            "TAPS": how.taps, "PAD": how.pad, "M": how.pixels, "WIDE": interpreted(),
        },
        num_warps=how.warps,
        num_stages=how.stages,
    )  # fmt: skip
    return partials.sum(0).permute(0, 3, 1, 2)


class _GroupedConv(torch.autograd.Function):
    """The kernels as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, low: Tensor, stride: int, groups: int
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(x, low)
        ctx.stride, ctx.groups, ctx.inner = stride, groups, weight.shape[1]
        ctx.set_materialize_grads(False)
        if _left_to_torch(low.shape[1], low.shape[0] // groups, stride):
            return F.conv2d(x, low, None, stride, 1, 1, groups), None
        like = (-(-x.shape[2] // stride), -(-x.shape[3] // stride))
        y, partials = _convolve(x, low, like, stride=stride, groups=groups, back=False)
        if partials is not None:
            ctx.mark_non_differentiable(partials)
        return y, partials

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        x, low = ctx.saved_tensors
        stride, groups, dx, dweight = ctx.stride, ctx.groups, None, None
        grad = grad.contiguous(memory_format=torch.channels_last)
        if ctx.needs_input_grad[0]:
            if _left_to_torch(low.shape[1], low.shape[0] // groups, stride):
                dx = _torch_gradient(x, low, grad, stride, groups, 0)
            else:
                like = (x.shape[2], x.shape[3])
                dx = _convolve(grad, low, like, stride=stride, groups=groups, back=True)[0]
        if ctx.needs_input_grad[1]:
            if stride == 1:  # cuDNN is at its best here, and at its worst with stride 2
                dweight = _torch_gradient(x, low, grad, stride, groups, 1).float()
            else:
                dweight = _weight_gradient(x, grad, stride=stride, groups=groups)
            dweight = dweight[:, : ctx.inner].contiguous(memory_format=torch.channels_last)
        return dx, dweight, None, None, None


class _PadShortcut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> Tensor:
        n, channels, height, width = x.shape
        ctx.groups, ctx.like = groups, x.shape
        shape = (n, 2 * channels, -(-height // 2), -(-width // 2))
        return _shortcut(x, shape, (height, width), channels=channels // groups, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        grad = grad.contiguous(memory_format=torch.channels_last)
        channels = ctx.like[1] // ctx.groups
        return _shortcut(grad, ctx.like, ctx.like[2:], channels=channels, back=True), None


def _shortcut(
    x: Tensor, shape: tuple[int, ...], sides: tuple[int, int], *, channels: int, back: bool
) -> Tensor:
    from longtail.kernels import _triton_conv

    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    groups = shape[1] // (channels if back else 2 * channels)
    launch(
        _triton_conv.shortcut_kernel,
        (-(-y.numel() // 2048),),
        (x, y, y.numel(), groups, *sides),
        {"BACK": back, "C": channels, "BLOCK": 2048},
        num_warps=4,
    )
    return y
