"""Trainings on a GPU: on a stream of their own, their steps captured as CUDA graphs.

A small network's step is hundreds of short kernels, and starting them one by one takes far longer
than running them. So a training's whole step is captured once as a CUDA graph; where there are
several trainings, replaying their graphs in turn keeps the GPU full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_WARM_UP = 3  # steps before capture, in which libraries choose algorithms and make workspaces


def place(make: Callable[[], Any], *, device: torch.device, graphs: bool = True) -> Any:
    """Return a training on a GPU, ready to step.

    Everything that concerns it has to happen in the context ``training.active()``.

    Args:
        make: makes the training, a `loop.Training` or `streamed.StreamedTraining`; called on the
            stream on which all its tensors must live.
        device: the GPU.
        graphs: capture the steps; without, they run eagerly. Streamed trainings need False.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # for the resident data
    with _on(stream):
        training = make()
        training.active = partial(_on, stream)
        if graphs:
            training.graphs = _capture(training, stream)
    return training


def _capture(training: Any, stream: torch.cuda.Stream) -> dict[int, torch.cuda.CUDAGraph]:
    """Record one step of each batch size; the training is left as it was."""
    before = [
        {name: value.clone() for name, value in training.state(member).items()}
        for member in range(training.runs)
    ]
    sizes = sorted(set(training.batch_sizes), reverse=True)
    training.load(0)
    training.prepare(0)
    for size in sizes:
        for _ in range(_WARM_UP):
            training.cursor.zero_()
            training.number.zero_()
            training.step(size)
    graphs: dict[int, torch.cuda.CUDAGraph] = {}
    pool = torch.cuda.graph_pool_handle()
    for size in sizes:
        graphs[size] = torch.cuda.CUDAGraph()
        for loss in training.drawing.values():
            graphs[size].register_generator_state(loss.generator)
        with torch.cuda.graph(graphs[size], pool=pool, stream=stream):
            training.step(size)
    for member, tensors in enumerate(before):
        training.load_state(member, tensors)
    return graphs


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Send work to a stream."""
    # float32 means float32; and the fastest of cuDNN's algorithms, found once.
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    with torch.cuda.stream(stream), exact:
        yield
