"""Where a team runs: in line on a CPU, as captured steps on a stream of its own on a GPU.

On a GPU a small network's step is hundreds of short kernels, and starting them one by one takes
far longer than running them. So a team's whole step is captured once as a CUDA graph; where
there are several teams, replaying their graphs in turn keeps the GPU full. Where teachers answer,
the first block of an epoch, often all of it, is made while the steps of the epoch before leave room
for it: images and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch

from longtail.train.team import Team

_WARM_UP = 3  # steps before capture, in which libraries choose algorithms and make workspaces


class Lane:
    """One team and the means to step it.

    Args:
        make: makes the team; called on the lane's stream, where all its tensors must live.
        device: where.
        graphs: capture the steps; without, a GPU runs them eagerly (for comparison).

    Attributes:
        team: the runs.
        stream: where its steps run; None on a CPU.
        aside: where the first block of the next epoch is made, if that takes long.
    """

    def __init__(
        self, make: Callable[[], Team], *, device: torch.device, graphs: bool = True
    ) -> None:
        on_gpu = device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        self.aside: torch.cuda.Stream | None = None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if on_gpu:
            # Kernels of captured steps are short; what is made aside is to fill their gaps. (Eager
            # steps of several processes would else get in the way of what these exchange.)
            priority = -1 if graphs else 0
            self.stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.current_stream(device))  # for the resident data
        with self.active():
            self.team = make()
            if on_gpu and graphs:
                self._capture()
                if self.team.blocks.asks_networks:
                    self._make_room_aside(device)

    def active(self) -> AbstractContextManager[object]:
        """Where everything that concerns the team has to happen."""
        return _on(self.stream)

    def _make_room_aside(self, device: torch.device) -> None:
        self.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # When what was made there has been taken over, and may be overwritten.
        self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]
        for value in self.team.make_room_ahead().tensors.values():
            value.record_stream(self.aside)  # not to be reused while it is written there
        self.aside.wait_stream(torch.cuda.current_stream(device))

    def look_ahead(self, epoch: int) -> None:
        """Get ready for an epoch to come, while the GPU works through what is queued."""
        self.team.look_ahead(epoch)
        if self.aside is not None and epoch < self.team.recipe.epochs:
            with _on(self.aside):
                self.aside.wait_event(self._taken)
                self.team.make_ahead(epoch)

    def _prepare(self, number: int) -> None:
        """Have a block of batches at hand, which may have been made aside."""
        if self.aside is None or number > 0:
            self.team.prepare(number)
            return
        here = torch.cuda.current_stream(self.aside.device)
        here.wait_stream(self.aside)
        self.team.prepare(number)
        self._taken.record(here)

    def _capture(self) -> None:
        """Record one step of each batch size; the team is left as it was."""
        team = self.team
        before = [
            {name: value.clone() for name, value in team.state(member).items()}
            for member in range(len(team))
        ]
        sizes = sorted(set(team.batch_sizes), reverse=True)
        team.load(0)
        team.prepare(0)
        for size in sizes:
            for _ in range(_WARM_UP):
                team.cursor.zero_()
                team.number.zero_()
                team.step(size)
        pool = torch.cuda.graph_pool_handle()
        for size in sizes:
            graph = torch.cuda.CUDAGraph()
            for generator in team.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                team.step(size)
            self.graphs[size] = graph
        for member, tensors in enumerate(before):
            team.load_state(member, tensors)

    def load(self, epoch: int) -> None:
        """Get the team ready for an epoch, counted from 0."""
        with self.active():
            self.team.load(epoch)

    def step(self, number: int) -> None:
        """Step `number` of the epoch; on a GPU it is only queued."""
        size = self.team.batch_sizes[number]
        with self.active():
            if number % self.team.block == 0:
                self._prepare(number)
            if self.graphs:
                self.graphs[size].replay()
            else:
                self.team.step(size)


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Where work goes to a stream, or none on a CPU."""
    if stream is None:
        return nullcontext()
    context = ExitStack()
    context.enter_context(torch.cuda.stream(stream))
    # float32 means float32; and the fastest of cuDNN's algorithms, found once.
    context.enter_context(
        torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    )
    return context


def run_epoch(
    lanes: Sequence[Lane],
    epochs: Sequence[int],
    *,
    after_step: Callable[[float], None] | None = None,
) -> list[list[float]]:
    """Take every team through an epoch of its own.

    Args:
        lanes: the teams.
        epochs: which epoch each is at, counted from 0.
        after_step: called with the share of the epoch that is done; not for captured steps,
            which are only queued.

    Returns:
        For each team the mean loss of each run.
    """
    for lane, epoch in zip(lanes, epochs, strict=True):
        lane.load(epoch)
    steps = max(len(lane.team.batch_sizes) for lane in lanes)
    for number in range(steps):
        for lane in lanes:
            if number < len(lane.team.batch_sizes):
                lane.step(number)
        if after_step is not None and not lanes[0].graphs:
            after_step((number + 1) / steps)
    for lane, epoch in zip(lanes, epochs, strict=True):
        if lane.graphs:  # while the GPU works through what is queued
            lane.look_ahead(epoch + 1)
    losses = []
    for lane in lanes:
        with lane.active():
            losses.append(lane.team.mean_losses())
    return losses
