import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from longtail import InputError
from longtail.runs import Run, RunError, UnfinishedRunError, find_runs, pack, unpack
from longtail.runs.packing import half_logits
from run_factory import make_run, make_spec, make_writer


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "runs.tar.gz"


def test_runs_come_out_as_they_went_in_but_for_rounding(run, archive, tmp_path):
    pack([run], archive)
    (again,) = unpack(archive, tmp_path / "copy")
    assert again.folder == tmp_path / "copy" / run.spec.folder
    assert again.spec == run.spec
    assert again.prior == run.prior
    assert [line["epoch"] for line in again.log()] == [0, 1]
    assert again.head.norms.tolist() == run.head.norms.tolist()
    assert Run.open(again.folder).finished  # its hashes are its own
    one, two = run.logits("test"), again.logits("test")
    assert two.logits.dtype == np.float32
    np.testing.assert_array_equal(one.target, two.target)
    np.testing.assert_array_equal(one.indices, two.indices)
    change = np.abs(two.logits.astype(float) - one.logits.astype(float)).max()
    stated = again.record["splits"]["test"]["largest_change"]
    assert 0 < change <= stated + 1e-6
    assert stated < 2**-11 * 5
    original = run.record["files"]["logits-test.safetensors"]
    assert again.record["packed"]["originals"]["logits-test.safetensors"] == original
    assert sorted(os.listdir(tmp_path / "copy")) == ["digits-lt"]


def test_weights_travel_only_if_asked(run, archive, tmp_path):
    pack([run], archive)
    (again,) = unpack(archive, tmp_path / "copy")
    with pytest.raises(RunError, match="pack it with --weights"):
        again.model()
    pack([run], archive, weights=True, force=True)
    (again,) = unpack(archive, tmp_path / "copy", force=True)
    np.testing.assert_array_equal(again.model()["weight"], run.model()["weight"])


def test_the_same_runs_give_the_same_bytes(root, archive, tmp_path):
    one, two = make_run(root, make_spec(seed=0)), make_run(root, make_spec(seed=1))
    first = pack([one, two], archive).read_bytes()
    os.utime(one.folder / "log.jsonl", (1, 1))
    os.chmod(two.folder / "run.json", 0o600)
    second = pack([two.folder, str(one.folder)], tmp_path / "other.tar.gz").read_bytes()
    assert first == second


def test_an_unfinished_run_is_not_packed(root, archive):
    writer = make_writer(root)
    with pytest.raises(UnfinishedRunError, match="half written"):
        pack([writer.folder], archive)
    assert not archive.exists()


def test_existing_runs_are_not_replaced_unless_forced(run, root, archive):
    pack([run], archive)
    before = (run.folder / "run.json").read_bytes()
    with pytest.raises(InputError, match="already; pass `force=True` to replace"):
        unpack(archive, root)
    assert (run.folder / "run.json").read_bytes() == before
    unpack(archive, root, force=True)
    assert find_runs(root)[0].record["packed"]


def rewritten(change):
    """Spoil an archive by a change of its list of (header, content)."""

    def spoil(archive):
        with tarfile.open(archive) as tar:
            entries = [(member, tar.extractfile(member).read()) for member in tar]
        with tarfile.open(archive, "w:gz") as tar:
            for member, content in change(entries):
                tar.addfile(member, io.BytesIO(content))

    return spoil


def named(name):
    """Spoil an archive by the name of its entries."""
    return rewritten(lambda entries: [(m.replace(name=name), content) for m, content in entries])


def truncated(archive):
    archive.write_bytes(archive.read_bytes()[:-9])


def goes_on(archive):
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()) + bytes(1 << 21)))


def edited(entries):
    return [(member, content.replace(b"1.5", b"1.4")) for member, content in entries]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (named("/etc/x/y"), "which is not a file of a run"),
        (named("a/../../b"), "which is not a file of a run"),
        (named("a/b/.hidden"), "which is not a file of a run"),
        (rewritten(edited), r"log\.jsonl was edited or damaged"),
        (rewritten(lambda entries: entries * 2), "or occurs twice; nothing was unpacked"),
        (truncated, "is truncated or not an archive of runs"),
        (goes_on, "goes on behind its last run"),
    ],
)
def test_a_spoilt_archive_leaves_nothing(run, archive, tmp_path, spoil, message):
    spoil(pack([run], archive))
    with pytest.raises(InputError, match=message):
        unpack(archive, tmp_path / "copy")
    assert os.listdir(tmp_path / "copy") == []


@pytest.mark.parametrize("fails", [1, 2])
def test_a_run_is_never_lost_while_it_is_replaced(run, archive, tmp_path, monkeypatch, fails):
    pack([run], archive)
    (old,) = unpack(archive, tmp_path / "copy")
    rename, left = Path.rename, [fails]

    def killed(self, target):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            unpack(archive, tmp_path / "copy", force=True)
    assert [p for p in (tmp_path / "copy").rglob("run.json") if Run.open(p.parent).finished]
    with pytest.raises(InputError, match="already"):  # the next call has put it back
        unpack(archive, tmp_path / "copy")
    assert Run.open(old.folder).splits == run.splits
    unpack(archive, tmp_path / "copy", force=True)
    assert os.listdir(tmp_path / "copy") == ["digits-lt"]
    assert os.listdir(old.folder.parent) == [old.folder.name]


# The rounding.


matrices = arrays.arrays(
    st.sampled_from([np.float32, np.float64]),
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(-1000, 1000, width=32)
    | st.sampled_from([0.0, 1.0, 1.0 + 2**-23, 1.0 - 2**-24, 8.0, 8.0 - 2**-21, 1e-30, 0.5]),
)


@given(matrices)
@settings(max_examples=300, deadline=None)
def test_half_precision_keeps_maximum_ties_and_argmax(logits):
    half, peak, change = half_logits(logits)
    found = peak[:, None] + half.astype(peak.dtype)
    np.testing.assert_array_equal(found.max(axis=1), logits.max(axis=1))
    np.testing.assert_array_equal(
        found == found.max(axis=1, keepdims=True), logits == logits.max(axis=1, keepdims=True)
    )
    exact = logits.astype(np.float64)
    distance = exact.max(axis=1, keepdims=True) - exact
    allowed = np.maximum(distance * 2.0**-11, 2.0**-24)
    roundoff = np.finfo(found.dtype).eps * np.abs(exact).max()
    assert np.all(np.abs(found - exact) <= allowed + roundoff)
    assert change <= allowed.max()
