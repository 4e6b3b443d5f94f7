"""The longer texts in assembly of the kernel for wide rows, run line by line in Python.

They are to do, thread by thread, what `gluon_in_numpy` says of a whole slice.
"""

import gluon_in_numpy as gluon
import numpy as np
import pytest
from assembly import run

PAIRS, WARPS = 16, 4
HALF = PAIRS * 32 * WARPS
KERNEL = gluon.load_kernel()


def threads(columns):
    """For every thread its pairs' places in the slice, and its registers: `columns` cut up."""
    place = np.arange(HALF).reshape(PAIRS // 4, 32 * WARPS, 4).transpose(1, 0, 2)
    for own in place.reshape(32 * WARPS, PAIRS):
        values = [int(value) for column in columns for value in np.broadcast_to(column, HALF)[own]]
        yield own, {f"${PAIRS + k}": value for k, value in enumerate(values)}


@pytest.mark.parametrize("slice_id", [0, 3])
@pytest.mark.parametrize("at", [-2, -1, 0, 2 * HALF - 1, 6 * HALF + 1026, 6 * HALF + 77])
def test_a_half_is_replaced(slice_id, at):
    pair = slice_id * HALF + np.arange(HALF, dtype=np.int32)
    x = np.random.default_rng(0).integers(-(2**31), 2**31, HALF, np.int32)
    value, place = np.int32(-8323200 + 0x55), np.int32(at)
    far = KERNEL.away(gluon.Value(pair), gluon.Value(place >> 1), HALF, WARPS).data
    inputs = [gluon.Value(data) for data in (x, pair, far, place >> 1, place, value)]
    expected = gluon.replace(*inputs).data
    assert (expected != x).any() == (at // (2 * HALF) == slice_id)
    text = KERNEL.parts._replace_text(PAIRS)[0]
    for own, registers in threads([given.data for given in inputs]):
        run(text, registers, {})
        assert [registers[f"${k}"] for k in range(PAIRS)] == expected[own].tolist()


@pytest.mark.parametrize(("shift", "classes"), [(0, 4093), (1, 4090), (7, 3000), (5, 3 * 1024 + 3)])
@pytest.mark.parametrize("live", [True, False])
def test_elements_of_shared_words_are_stored(shift, classes, live):
    pair = np.arange(HALF, dtype=np.int32)
    g = np.random.default_rng(0).integers(-(2**31), 2**31, HALF, np.int32)
    low, high = 4 if shift else 0, (shift + classes) // 8 * 4
    end = shift + classes if live else 0
    near = [gluon.Value(np.int32(word)) for word in (0, high)]
    far = np.minimum(*(KERNEL.away(gluon.Value(pair), at, HALF, WARPS).data for at in near))
    memory = {}
    text = KERNEL.parts._edges_text(PAIRS)[0]
    for _, registers in threads((g, pair, far, low, high, shift, end, 4 * pair)):
        run(text, registers, memory)
    halves = g.view(np.uint16)
    outside = [k for k in range(shift, end) if not 2 * low <= k < 2 * high]
    assert memory == {2 * k: halves[k] for k in outside}
    assert bool(memory) == live


def test_the_sum_of_four_warps():
    sums, memory, at = np.float32([0.1, 2.0**20, 3.0, -7.5]), {}, 40_976
    given = {"global_smem": 1024, "$2": at}
    for warp in range(WARPS):
        for thread in range(32 * warp, 32 * warp + 32):
            left = {}
            run(KERNEL.parts.LEAVE, given | {"$1": sums[warp], "%tid.x": thread}, left)
            assert left == {1024 + at + 4 * warp: sums[warp]}
            memory |= left
    registers = run(KERNEL.parts.TAKE, {"global_smem": 1024, "$1": at}, memory)
    assert registers["$0"] == (sums[0] + sums[1]) + (sums[2] + sums[3])
