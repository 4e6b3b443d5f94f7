"""Frozen files: nothing is lost, and nothing edited is read."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_factory import pixels
from longtail import InputError
from longtail.data import frozen
from longtail.data.digits import load_digits_lt
from longtail.data.frozen import freeze, read_frozen, read_record
from longtail.data.images import ImageSet, LongTailedData
from longtail.runs import DataSpec, files
from longtail.runs.folder import seal


def make(counts=(20, 6, 2), *, shape=(3, 32, 32), test_per_class=3, pixel_range=255):
    names = tuple(f"class {i}" for i in range(len(counts)))
    labels = np.repeat(np.arange(len(counts)), counts)
    test = np.repeat(np.arange(len(counts)), test_per_class)
    spec = DataSpec("toy", profile="natural", imbalance_ratio=10, settings={"counts": counts})
    return LongTailedData(
        ImageSet(pixels(len(labels), shape=shape, seed=1), labels, names, pixel_range),
        ImageSet(pixels(len(test), shape=shape, seed=2), test, names, pixel_range),
        spec,
    )


def same(one, other):
    for a, b in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.labels, b.labels)
        assert (a.class_names, a.pixel_range) == (b.class_names, b.pixel_range)
        assert a.labels.dtype == b.labels.dtype
        assert a.fingerprint == b.fingerprint
    return one.spec == other.spec


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 4),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    sheet=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_whatever_its_shape_it_comes_back(
    tmp_path_factory, channels, height, width, counts, sheet, seed
):
    data = make(tuple(counts), shape=(channels, height, width))
    noise = np.random.default_rng(seed).integers(0, 256, data.test.images.shape, dtype=np.uint8)
    test = ImageSet(noise, data.test.labels, data.test.class_names)
    data = LongTailedData(data.train, test, data.spec)
    path = tmp_path_factory.mktemp("frozen") / "a.frozen"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen, "_SHEET_PIXELS", sheet)  # from one image to many in a sheet
        freeze(data, path)
        assert same(read_frozen(path), data)


def test_many_sheets_with_a_smaller_last_one(tmp_path):
    data = make((200, 60, 1))
    assert len(frozen._grids(261, (3, 32, 32))) == 3
    steps = []
    path = freeze(data, tmp_path / "a.frozen", progress=lambda *step: steps.append(step))
    assert same(read_frozen(path), data)
    assert steps[-1] == (270, 270, "test images")
    assert [done for done, _, _ in steps] == [128, 256, 261, 270]


def test_the_digits_with_their_own_range_come_back(tmp_path):
    data = load_digits_lt()
    assert same(read_frozen(freeze(data, tmp_path / "digits.frozen")), data)


def test_without_webp_it_is_png_and_comes_back(tmp_path, monkeypatch):
    data = make()
    monkeypatch.setattr("PIL.features.check", lambda name: False)
    path = freeze(data, tmp_path / "a.frozen")
    assert read_record(path)["codec"] == "png"
    assert same(read_frozen(path), data)
    monkeypatch.undo()
    path = freeze(data, tmp_path / "b.frozen")
    assert read_record(path)["codec"] == "webp"
    monkeypatch.setattr("PIL.features.check", lambda name: False)
    with pytest.raises(InputError, match="holds WebP images, which this machine's Pillow can't"):
        read_frozen(path)


def test_a_codec_that_loses_something_is_noticed(tmp_path, monkeypatch):
    real = frozen._encode
    monkeypatch.setattr(frozen, "_encode", lambda sheet, codec: real(sheet // 2 * 2, codec))
    with pytest.raises(InputError, match="loses information"):
        freeze(make(), tmp_path / "a.frozen")
    assert list(tmp_path.iterdir()) == []


def test_equal_data_give_equal_bytes(tmp_path):
    one, two = freeze(make(), tmp_path / "a"), freeze(make(), tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()


def test_the_record_says_what_it_is(tmp_path):
    data = make()
    record = read_record(freeze(data, tmp_path / "a.frozen"))
    assert record["spec"] == json.loads(json.dumps(data.spec.to_json()))
    assert record["class_names"] == ["class 0", "class 1", "class 2"]
    assert record["splits"]["train"] == {
        "examples": 28,
        "image_shape": [3, 32, 32],
        "pixel_range": 255,
        "fingerprint": data.train.fingerprint,
    }
    assert record["splits"]["test"]["fingerprint"] == data.test.fingerprint


def test_others_can_read_the_container(tmp_path):
    from safetensors.numpy import load_file

    tensors = load_file(freeze(make(), tmp_path / "a.frozen"))
    assert tensors["train_labels"].tolist() == make().train.labels.tolist()
    assert json.loads(tensors["record"].tobytes())["kind"] == "longtail-frozen-data"


def test_reading_needs_neither_torch_nor_scikit_learn(tmp_path):
    path = freeze(make(), tmp_path / "a.frozen")
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'scipy', 'typer', 'rich', 'pyarrow', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from longtail.data import load\n"
        "print(len(load(sys.argv[1]).train))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "28\n"


# What is refused.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return freeze(make(), tmp_path_factory.mktemp("frozen") / "a.frozen").read_bytes()


def test_a_truncated_file_is_refused(tmp_path, whole):
    path = tmp_path / "a.frozen"
    for size in [0, 1, 7, 8, 9, 100, *range(200, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"truncated, or was never one \(.+\); copy or freeze"):
            read_frozen(path)


def test_an_added_byte_is_noticed(tmp_path, whole):
    path = tmp_path / "a.frozen"
    path.write_bytes(whole + b"x")
    with pytest.raises(InputError, match="something was added to it"):
        read_frozen(path)


def test_any_changed_bit_is_noticed(tmp_path, whole):
    path = tmp_path / "a.frozen"
    header = 8 + int.from_bytes(whole[:8], "little")
    places = np.random.default_rng(0).integers(0, len(whole), 150).tolist()
    for place in [*range(0, header, 3), *places]:
        for bit in (0, 5):
            edited = bytearray(whole)
            edited[place] ^= 1 << bit
            path.write_bytes(edited)
            with pytest.raises(InputError, match=r"not a whole frozen data set|is no frozen data"):
                read_frozen(path)


def rewritten(whole, path, change):
    """The file with its record changed and, like an honest one, sealed again."""
    from safetensors.numpy import load, save

    tensors = load(bytes(whole))
    record = json.loads(tensors["record"].tobytes())
    change(record, tensors)
    tensors["record"] = np.frombuffer(files.canonical_json(seal(record)).encode(), np.uint8)
    path.write_bytes(save(tensors))
    return path


def test_the_record_is_held_to_what_is_there(tmp_path, whole):
    def other_fingerprint(record, tensors):
        record["splits"]["test"]["fingerprint"] = "0" * 64

    def fewer(record, tensors):
        record["splits"]["train"]["examples"] = 27

    def other_shape(record, tensors):
        record["splits"]["train"]["image_shape"] = [3, 16, 64]

    def huge(record, tensors):
        record["splits"]["train"]["image_shape"] = [3, 32, 1 << 14]

    for change, message in (
        (other_fingerprint, "its test images are decoded to others than were frozen"),
        (fewer, "its train images can't be decoded"),
        (other_shape, "its train images can't be decoded"),
        (huge, "its train images can't be decoded"),
    ):
        path = rewritten(whole, tmp_path / "a.frozen", change)
        with pytest.raises(InputError, match=message):
            read_frozen(path)


def test_an_edited_record_is_refused(tmp_path, whole):
    assert whole.count(b'"class 1"') == 1
    path = tmp_path / "a.frozen"
    path.write_bytes(whole.replace(b'"class 1"', b'"class 7"'))
    for read in (read_frozen, read_record):
        with pytest.raises(InputError, match="its record was edited"):
            read(path)


def test_a_newer_format_is_refused(tmp_path, whole):
    path = rewritten(whole, tmp_path / "a.frozen", lambda record, _: record.update(format=2))
    with pytest.raises(InputError, match=re.escape("has format 2, newer than this longtail")):
        read_frozen(path)


def test_other_files_are_no_frozen_data(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(InputError, match="is no frozen data set; make one with: longtail data"):
        read_frozen(path)
    path.write_text("hello")
    with pytest.raises(InputError, match="not a whole frozen data set"):
        read_frozen(path)
    with pytest.raises(InputError, match="there is no file"):
        read_frozen(tmp_path / "nowhere")


def test_a_file_is_replaced_only_on_demand_and_only_by_a_whole_one(tmp_path, monkeypatch):
    path = tmp_path / "a.frozen"
    freeze(make(), path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists; pass --force"):
        freeze(make((5, 5)), path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("longtail.runs.files._sync", full)
        with pytest.raises(OSError, match="No space left"):
            freeze(make((5, 5)), path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.frozen"]
    freeze(make((5, 5)), path, force=True)
    assert read_frozen(path).train.counts.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("place", "message"), [("no/a.frozen", "there is no folder .*no to put"), ("", "is a folder")]
)
def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path, place, message):
    def working(*_):
        pytest.fail("it began to encode")

    with pytest.raises(InputError, match=message):
        freeze(make(), tmp_path / place, force=True, progress=working)
    assert not list(tmp_path.iterdir())
