"""Where a trainee runs: in line on a CPU, on a stream of its own with captured steps on a GPU.

On a GPU a small network's step is hundreds of short kernels, and starting them one by one takes
far longer than running them. So each run's whole step is captured once as a CUDA graph;
replaying the graphs of all runs in turn, each on its own stream, keeps the GPU full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from longtail.train.trainee import Trainee

_WARM_UP = 3  # steps before capture, in which libraries choose algorithms and make workspaces


class Lane:
    """One trainee and the means to step it.

    Args:
        make: makes the trainee; called on the lane's stream, where all its tensors must live.
        device: where.
        graphs: capture the steps; without, a GPU runs them eagerly (for comparison).

    Attributes:
        trainee: the run.
    """

    def __init__(
        self, make: Callable[[], Trainee], *, device: torch.device, graphs: bool = True
    ) -> None:
        on_gpu = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))  # for the resident data
        with self.active():
            self.trainee = make()
            if on_gpu and graphs:
                self._capture()

    def active(self) -> AbstractContextManager[object]:
        """Where everything that concerns the trainee has to happen."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _capture(self) -> None:
        """Record one step of each batch size; the trainee is left as it was."""
        trainee = self.trainee
        before = {name: value.clone() for name, value in trainee.state().items()}
        sizes = sorted(set(trainee.batch_sizes), reverse=True)
        trainee.load(0)
        trainee.prepare(0)
        for size in sizes:
            for _ in range(_WARM_UP):
                trainee.cursor.zero_()
                trainee.number.zero_()
                trainee.step(size)
        pool = torch.cuda.graph_pool_handle()
        for size in sizes:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(trainee.generator)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                trainee.step(size)
            self.graphs[size] = graph
        trainee.load_state(before)

    def load(self, epoch: int) -> None:
        """Get the trainee ready for an epoch, counted from 0."""
        with self.active():
            self.trainee.load(epoch)

    def step(self, number: int) -> None:
        """Step `number` of the epoch; on a GPU it is only queued."""
        size = self.trainee.batch_sizes[number]
        with self.active():
            if number % self.trainee.block == 0:
                self.trainee.prepare(number)
            if self.graphs:
                self.graphs[size].replay()
            else:
                self.trainee.step(size)


def run_epoch(lanes: Sequence[Lane], epochs: Sequence[int]) -> list[float]:
    """Take every trainee through an epoch of its own.

    Args:
        lanes: the trainees.
        epochs: which epoch each is at, counted from 0.

    Returns:
        The mean loss of each.
    """
    for lane, epoch in zip(lanes, epochs, strict=True):
        lane.load(epoch)
    for number in range(max(len(lane.trainee.batch_sizes) for lane in lanes)):
        for lane in lanes:
            if number < len(lane.trainee.batch_sizes):
                lane.step(number)
    losses = []
    for lane in lanes:
        with lane.active():
            losses.append(lane.trainee.mean_loss())
    return losses
