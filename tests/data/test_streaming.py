"""Images from disk to batches: crops against their rule, order, workers, processes, bad files."""

import logging
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_factory import photo, write_photos
from longtail._checks import InputError
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, RandomCrop, random_box
from longtail.data.samplers import ClassSampler
from longtail.data.streaming import evaluation_stream, planned_stream, training_stream
from longtail.data.torch_samplers import DistributedClassSampler

SMALL = RandomCrop(size=16)
CENTER = CenterCrop(size=16, resize=20)


@pytest.fixture
def data(tmp_path):
    """Twelve images of a head class, six of a middle one, two of a tail class."""
    labels = np.repeat([0, 1, 2], [12, 6, 2])
    paths = [f"c{label}/{i}.jpg" for i, label in enumerate(labels)]
    write_photos(tmp_path, paths)
    return ListedImages(tmp_path, paths, labels, ("a", "b", "c"))


# The crops.


def rejection_boxes(count, width, height, scale, ratio, random):
    """Boxes by the rule, one by one, without a limit on the attempts."""
    boxes = []
    while len(boxes) < count:
        area = random.uniform(*scale) * width * height
        shape = np.exp(random.uniform(*np.log(ratio)))
        w, h = int(np.rint(np.sqrt(area * shape))), int(np.rint(np.sqrt(area / shape)))
        if w <= width and h <= height:
            boxes.append((w * h / (width * height), np.log(w / h)))
    return np.array(boxes)


def test_random_boxes_follow_the_documented_rule():
    width, height, count = 500, 400, 4000
    random = np.random.default_rng(1)
    boxes = [random_box((width, height), random) for _ in range(count)]
    for box in boxes:
        assert 0 <= box.left <= width - box.width
        assert 0 <= box.top <= height - box.height
    got = np.array([(b.width * b.height / 2e5, math.log(b.width / b.height)) for b in boxes])
    random = np.random.default_rng(2)
    expected = rejection_boxes(count, width, height, (0.08, 1), (3 / 4, 4 / 3), random)
    for column in range(2):
        grid = np.quantile(expected[:, column], np.linspace(0.02, 0.98, 30))
        ours = np.searchsorted(np.sort(got[:, column]), grid) / count
        theirs = np.searchsorted(np.sort(expected[:, column]), grid) / count
        assert np.abs(ours - theirs).max() < 1.95 * math.sqrt(2 / count)  # Kolmogorov, 0.1%
    free = [b for b in boxes if b.width < 300]
    places = np.array([b.left / (width - b.width) for b in free])
    assert abs(places.mean() - 0.5) < 5 / math.sqrt(12 * len(free))


@pytest.mark.parametrize("size", [(500, 333), (333, 500), (257, 256), (90, 40), (224, 224)])
def test_the_centre_is_that_of_the_resized_image(tmp_path, size):
    image = photo(*size)
    image.save(tmp_path / "a.png")
    got = CenterCrop()(str(tmp_path / "a.png"))
    width, height = (int(256 * side / min(size)) for side in size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    assert got.shape == (224, 224, 3)
    assert np.abs(got.astype(int) - expected).max() <= 1


def test_a_crop_is_that_part_of_the_image(tmp_path):
    image = photo(120, 90)
    image.save(tmp_path / "a.png")
    file = str(tmp_path / "a.png")
    for seed in range(5):
        box = random_box(image.size, np.random.default_rng(seed))
        got = RandomCrop(size=16, flip=0.0)(file, np.random.default_rng(seed))
        right, bottom = box.left + box.width, box.top + box.height
        part = image.crop((box.left, box.top, right, bottom))
        expected = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
        # Only the outermost pixels see beyond the box.
        assert np.abs(got[1:-1, 1:-1] - expected[1:-1, 1:-1]).max() <= 1
        mirrored = RandomCrop(size=16, flip=1.0)(file, np.random.default_rng(seed))
        assert np.array_equal(mirrored, got[:, ::-1])
    view = RandomCrop(size=20, scale=(1, 1), ratio=(4 / 3, 4 / 3))
    counts = Counter(view(file, np.random.default_rng(s)).tobytes() for s in range(200))
    assert len(counts) == 2
    assert min(counts.values()) > 70


# The stream.


def by_draw(batches):
    """Every image of some batches under (index, its pixels)."""
    return [
        (int(i), int(label), image.numpy().tobytes())
        for batch in batches
        for image, label, i in zip(batch.images, batch.labels, batch.indices, strict=True)
    ]


def sampler_of(data, *, replicas=1, rank=0, rule="instance", **options):
    sampler = ClassSampler(data.labels, rule=rule, seed=5, **options)
    return DistributedClassSampler(sampler, num_replicas=replicas, rank=rank)


def test_an_epoch_has_every_example_once_as_bytes(data):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    stream = training_stream(data, batch_size=8, view=SMALL, workers=0)
    batches = list(stream)
    assert [len(batch.images) for batch in batches] == [8, 8, 4]
    assert len(stream) == 3
    first = batches[0]
    assert first.images.shape == (8, 3, 16, 16)
    assert first.images.dtype == torch.uint8
    assert first.images.is_contiguous(memory_format=torch.channels_last)
    assert sorted(int(i) for batch in batches for i in batch.indices) == list(range(20))
    for batch in batches:
        assert np.array_equal(batch.labels.numpy(), data.labels[batch.indices.numpy()])
    dropped = training_stream(data, batch_size=8, view=SMALL, workers=0, drop_last=True)
    assert [len(batch.images) for batch in dropped] == [8, 8]
    assert len(dropped) == 2
    assert torch.equal(before, torch.random.get_rng_state())  # no random numbers but its own


@pytest.mark.parametrize("several", [False, True], ids=["forked", "served"])
def test_workers_change_nothing(data, several, monkeypatch):
    """However they start: a process with a group or CUDA has threads, so it must not fork."""

    def epochs(workers):
        stream = training_stream(data, batch_size=6, view=SMALL, seed=3, workers=workers)
        made = []
        for epoch in (0, 1):
            stream.set_epoch(epoch)
            made.append(by_draw(stream))
        return made, stream._loader.multiprocessing_context

    alone, _ = epochs(0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: several)
    shared, context = epochs(2)
    assert alone == shared
    assert several == (context is not None and context.get_start_method() == "forkserver")
    assert alone[0] != alone[1]
    pixels = [{i: p for i, _, p in epoch} for epoch in alone]
    assert all(pixels[0][i] != pixels[1][i] for i in range(20))  # other crops, not only order


@pytest.mark.parametrize("rule", ["instance", "class-balanced"])
def test_processes_change_nothing(data, rule):
    def share(replicas, rank):
        sampler = sampler_of(data, replicas=replicas, rank=rank, rule=rule)
        sampler.set_epoch(2)
        options = {"batch_size": 12 // replicas, "view": SMALL, "workers": 0}
        return by_draw(training_stream(data, sampler=sampler, **options))

    together = [pair for pairs in zip(share(2, 0), share(2, 1), strict=True) for pair in pairs]
    assert together == share(1, 0)


def test_an_epoch_goes_on_where_it_was_left(data):
    def stream(sampler):
        return training_stream(data, batch_size=4, view=SMALL, sampler=sampler, workers=0)

    whole = by_draw(stream(sampler_of(data)))
    sampler = sampler_of(data)
    batches = iter(stream(sampler))
    begun = [next(batches), next(batches)]
    state = sampler.state_dict(taken=8)
    again = sampler_of(data)
    again.load_state_dict(state)
    assert by_draw(begun) + by_draw(stream(again)) == whole


def test_evaluation_sees_each_example_once_over_all_processes(data):
    options = {"batch_size": 4, "view": CENTER, "workers": 0, "num_replicas": 3}
    parts = [by_draw(evaluation_stream(data, rank=rank, **options)) for rank in range(3)]
    seen = [draw for part in parts for draw in part]
    assert sorted(seen) == [
        (i, label, CENTER(data.file(i)).transpose(2, 0, 1).tobytes())
        for i, label in enumerate(data.labels.tolist())
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_planned_stream_gives_what_was_laid_down(data, workers):
    stream = planned_stream(data, view=SMALL, seed=5, workers=workers)
    assert list(stream) == []
    for epoch in (3, 4):  # workers stay; the plan is another
        plan = [(np.array([7, 7, epoch]), np.array([0, 9, 4])), (np.array([19]), np.array([2]))]
        stream.set_plan(epoch, plan)
        batches = list(stream)
        assert [batch.indices.tolist() for batch in batches] == [[7, 7, epoch], [19]]
        for batch, (rows, draws) in zip(batches, plan, strict=True):
            for image, row, draw in zip(batch.images, rows, draws, strict=True):
                random = np.random.default_rng([5, epoch, draw])
                expected = SMALL(data.file(row), random)
                assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


# Bad files, lost workers, too little memory.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_file_in_an_epoch_stops_with_its_name(data, workers):
    with open(data.file(7), "r+b") as file:
        file.truncate(300)
    stream = evaluation_stream(data, batch_size=3, view=CENTER, workers=workers)
    batches = iter(stream)
    assert next(batches).indices.tolist() == [0, 1, 2]
    assert next(batches).indices.tolist() == [3, 4, 5]
    with pytest.raises(InputError, match=r"7\.jpg can't be decoded: .*on_error='skip'"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_files_are_left_out_and_counted_if_asked(data, workers, caplog):
    with open(data.file(7), "r+b") as file:
        file.truncate(300)
    os.unlink(data.file(12))
    stream = evaluation_stream(data, batch_size=5, view=CENTER, workers=workers, on_error="skip")
    with caplog.at_level(logging.WARNING, logger="longtail"):
        batches = list(stream)
        assert [len(batch.images) for batch in batches] == [5, 4, 4, 5]
        assert stream.skipped == {7: 1, 12: 1}
        left = [i for i, _, _ in by_draw(batches)]
        assert left == [i for i in range(20) if i not in (7, 12)]
        for batch in batches:
            assert np.array_equal(batch.labels.numpy(), data.labels[batch.indices.numpy()])
            for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
                assert np.array_equal(image.permute(1, 2, 0).numpy(), CENTER(data.file(index)))
        list(stream)
    assert stream.skipped.total() == 4
    assert len(caplog.records) == 2  # once for each file, not for each epoch
    for index in range(5):
        Path(data.file(index)).unlink()
    with pytest.raises(InputError, match="none of the 5 images of a batch can be decoded"):
        list(stream)


# A process of its own, to be killed: one of several, whose workers are forked by a server.
SCRIPT = """
import os, signal, sys
import numpy as np
from torch import distributed
from longtail.data import streaming
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop

folder = sys.argv[1]
labels = np.repeat([0, 1, 2], [12, 6, 2])
paths = [f"c{label}/{i}.jpg" for i, label in enumerate(labels)]
if __name__ == "__main__":
    where = f"file://{folder}/meet"
    distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    data = ListedImages(folder, paths, labels, ("a", "b", "c"))
    stream = streaming.evaluation_stream(data, batch_size=4, view=CenterCrop(16, 20), workers=2)
    batches = iter(stream)
    next(batches)
    print(*(worker.pid for worker in stream._loader._iterator._workers), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_the_process_they_work_for(data):
    (data.root / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(data.root / "script.py"), str(data.root)]
    # Not through a pipe: workers that stay would keep it open.
    with open(data.root / "out", "w") as out:
        subprocess.run(words, stdout=out, timeout=120, check=False)
    workers = [int(word) for word in (data.root / "out").read_text().split()]
    assert len(workers) == 2
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until, "they live on"
        time.sleep(0.1)
