"""What is made aside, in which order: the lane of a GPU with streams that only take notes.

Everything is computed on the CPU at once. The notes say what would wait for what on a GPU;
`test_gpu_cohort` has the numbers there.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_factory import pixels
from longtail.data.images import ImageSet
from longtail.train.cuda_graphs import Stepper
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe

IMAGES = ImageSet(
    pixels(40, shape=(3, 8, 8)), np.repeat(np.arange(3), (20, 12, 8)), ("a", "b", "c")
)
EPOCHS = 3


class Notes:
    """A GPU of which only the order of work is kept: (stream, what)."""

    def __init__(self):
        self.lines, self.streams, self.at = [], 0, "default"

    def note(self, what, stream=None):
        self.lines.append((stream or self.at, what))


@pytest.fixture
def notes(monkeypatch):
    kept = Notes()

    class Stream:
        def __init__(self, device=None, priority=0):
            self.name, self.priority, self.device = f"stream {kept.streams}", priority, device
            kept.streams += 1

        def wait_stream(self, other):
            kept.note(f"waits for {getattr(other, 'name', 'default')}", self.name)

        def wait_event(self, event):
            kept.note(f"waits for {event.when}", self.name)

    class Event:
        when = "nothing"

        def record(self, stream):
            self.when = f"what {stream.name} has been told so far"
            kept.note("taken", stream.name)

    @contextmanager
    def on(stream):
        before, kept.at, kept.now = kept.at, stream.name, stream
        yield
        kept.at = before

    class Graph:
        def register_generator_state(self, generator):
            pass

    @contextmanager
    def graph(captured, pool, stream):
        captured.replay = lambda: kept.note("step")
        yield

    fakes = {
        "Stream": Stream,
        "Event": Event,
        "stream": on,
        "CUDAGraph": Graph,
        "graph": graph,
        "graph_pool_handle": lambda: None,
        "current_stream": lambda device=None: kept.now,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None, raising=False)
    kept.now = SimpleNamespace(name="default")
    return kept


def a_lane(notes, *, teachers, graphs=True):
    weight = {} if teachers is None else {"distill_weight": 0.5}
    recipe = get_recipe(
        "tuned",
        **{"model": "resnet20", "epochs": EPOCHS, "warmup_epochs": 1, "milestones": ((2, 0.1),)},
        **{"batch_size": 16, "crop_padding": 1, **weight},
    )
    everything = np.arange(len(IMAGES))
    planner = Planner(recipe, Method.of("softmax"), IMAGES.labels, everything, IMAGES.prior, seed=0)
    resident = Resident(IMAGES, torch.device("cpu"))
    return Stepper(
        lambda: Training([planner], resident, teachers=teachers),
        device=SimpleNamespace(type="cuda"),
        graphs=graphs,
    )


def test_the_order_of_what_is_made_aside(notes):
    def teachers(images):
        notes.note("asked")
        return torch.zeros(len(images), IMAGES.num_classes)

    one = a_lane(notes, teachers=teachers)
    main, aside = one.stream.name, one.aside.name
    assert (one.stream.priority, one.aside.priority) == (-1, 0)
    assert notes.lines[-1] == (aside, f"waits for {main}")  # for all that was made so far
    steps = len(one.training.batch_sizes)
    for epoch in range(EPOCHS):
        notes.lines.clear()
        run_epoch([one], [epoch])
        expected = [(main, f"waits for {aside}")]
        expected += [(main, "asked")] if epoch == 0 else []
        expected += [(main, "taken")] + [(main, "step")] * steps
        if epoch + 1 < EPOCHS:
            # What was taken may be overwritten, and the steps go on meanwhile.
            expected += [(aside, f"waits for what {main} has been told so far"), (aside, "asked")]
        assert notes.lines == expected


def test_without_teachers_nothing_is_made_aside(notes):
    one = a_lane(notes, teachers=None)
    assert one.aside is None
    assert one.training.ahead is None
    table = torch.zeros(len(IMAGES), IMAGES.num_classes)
    assert a_lane(notes, teachers=table).aside is None  # answers that are there take no time


def test_steps_that_are_not_captured_do_not_push_in(notes):
    one = a_lane(notes, teachers=None, graphs=False)
    assert one.stream.priority == 0
