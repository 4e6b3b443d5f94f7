"""Steps on a GPU: captured as CUDA graphs and replayed, on a stream of their own.

A small network's step is hundreds of short kernels, and starting them one by one takes far longer
than running them. So a training's whole step is captured once as a CUDA graph; where there are
several trainings, replaying their graphs in turn keeps the GPU full. Where teachers' networks
answer, the first block of an epoch, often all of it, is made on a second stream while the steps
of the epoch before leave room for it. On a CPU steps just run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

_WARM_UP = 3  # steps before capture, in which libraries choose algorithms and make workspaces


class Stepper:
    """A training and the means to step it.

    Args:
        make: makes the training, a `loop.Training` or `streamed.StreamedTraining`; called on the
            stream on which all its tensors must live.
        device: where it trains.
        graphs: capture the steps; without, a GPU runs them eagerly. Streamed trainings need False.

    Attributes:
        training: what `make` made.
        stream: where its steps run; None on a CPU.
        graphs: the captured step of each batch size; none for eager steps.
        beside: the stream where the first block of the next epoch is made, if that takes long.
    """

    def __init__(
        self, make: Callable[[], Any], *, device: torch.device, graphs: bool = True
    ) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.beside: torch.cuda.Stream | None = None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if device.type == "cuda":
            # Kernels of captured steps are short; what is made beside them is to fill their gaps.
            # (Eager steps of several processes would else get in the way of what these exchange.)
            priority = -1 if graphs else 0
            self.stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.current_stream(device))  # for the resident data
        with self.active():
            self.training = make()
            if self.stream is not None and graphs:
                self._capture()
                if callable(self.training.teachers):
                    self.beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                    # When what was made there was taken over, and may be overwritten.
                    self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    for value in self.training.make_room_ahead().tensors().values():
                        value.record_stream(self.beside)  # not reused while it is written there
                    self.beside.wait_stream(torch.cuda.current_stream(device))

    def active(self) -> AbstractContextManager[object]:
        """The context in which everything that concerns the training has to happen."""
        return _on(self.stream)

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0."""
        with self.active():
            self.training.load(epoch)

    def step(self, number: int) -> None:
        """Take step `number` of the epoch; on a GPU it is only queued."""
        size = self.training.batch_sizes[number]
        with self.active():
            if number == 0 and self.beside is not None:  # the block may have been made there
                here = torch.cuda.current_stream(self.beside.device)
                here.wait_stream(self.beside)
                self.training.prepare(number)
                self._taken.record(here)
            elif number % self.training.block == 0:
                self.training.prepare(number)
            if self.graphs:
                self.graphs[size].replay()
            else:
                self.training.step(size)

    def look_ahead(self, epoch: int) -> None:
        """Get ready for an epoch to come, while the GPU works through what is queued."""
        self.training.look_ahead(epoch)
        if self.beside is not None and epoch < self.training.recipe.epochs:
            with _on(self.beside):
                self.beside.wait_event(self._taken)
                self.training.make_ahead(epoch)

    def _capture(self) -> None:
        """Record one step of each batch size; the training is left as it was."""
        training = self.training
        before = [
            {name: value.clone() for name, value in training.state(member).items()}
            for member in range(len(training))
        ]
        sizes = sorted(set(training.batch_sizes), reverse=True)
        training.load(0)
        training.prepare(0)
        for size in sizes:
            for _ in range(_WARM_UP):
                training.cursor.zero_()
                training.number.zero_()
                training.step(size)
        pool = torch.cuda.graph_pool_handle()
        for size in sizes:
            graph = torch.cuda.CUDAGraph()
            for generator in training.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                training.step(size)
            self.graphs[size] = graph
        for member, tensors in enumerate(before):
            training.load_state(member, tensors)


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Send work to a stream; nothing to do on a CPU."""
    if stream is None:
        return nullcontext()
    context = ExitStack()
    context.enter_context(torch.cuda.stream(stream))
    # float32 means float32; and the fastest of cuDNN's algorithms, found once.
    context.enter_context(
        torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    )
    return context
