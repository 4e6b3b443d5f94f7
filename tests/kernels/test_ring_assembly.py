"""The longer texts in assembly of the kernel for wide rows, run line by line in Python.

They are to do, thread by thread, what `gluon_in_numpy` says of a whole slice.
"""

import re

import gluon_in_numpy as gluon
import numpy as np
import pytest

PAIRS, WARPS = 16, 4
HALF = PAIRS * 32 * WARPS
KERNEL = gluon.load_kernel()


def signed(value):
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


TESTS = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "ge": int.__ge__}


def look_up(table, *inputs):
    """What lop3 does: every bit of the result is one of the table's, chosen by three."""
    found = 0
    for bit in range(32):
        a, b, c = (value >> bit & 1 for value in inputs)
        found |= (table >> (4 * a + 2 * b + c) & 1) << bit
    return signed(found)


def execute(operation, to, of, registers, memory):
    """One line; `of` are the values of its operands behind the first."""
    kind, *how = operation.split(".")
    if kind == "setp":
        yes = TESTS[how[0]](of[0], of[1])
        combine = {"and": yes and of[-1], "or": yes or of[-1]}
        registers[to] = combine.get(how[1], yes)
    elif kind == "mov" and to.startswith("{"):
        low, high = to.strip("{}").split(", ")
        registers[low], registers[high] = of[0] & 0xFFFF, of[0] >> 16 & 0xFFFF
    elif kind == "ld":
        for k, name in enumerate(to.strip("{}").split(", ")):
            registers[name] = memory[registers[of[0].strip("[]")] + 4 * k]
    elif kind in ("st", "cp"):
        base, _, plus = to.strip("[]").partition(" + ")
        place = registers[base] + int(plus or 0)
        assert place not in memory, "written twice"
        memory[place] = of[0] if kind == "st" else (registers[of[0].strip("[]")], *of[1:])
    else:
        registers[to] = {
            "mov": lambda: of[0],
            "and": lambda: of[0] & of[1],
            "add": lambda: of[0] + of[1] if how == ["f32"] else signed(of[0] + of[1]),
            "shr": lambda: of[0] >> of[1],
            "shl": lambda: signed(of[0] << of[1]),
            "selp": lambda: signed(of[0] if of[2] else of[1]),
            "lop3": lambda: look_up(of[3], *of[:3]),
        }[kind]()


def of_name(name, registers):
    """An operand's value; an address stays as it is."""
    if name.startswith("["):
        return name
    return registers[name] if name in registers else int(name, 0)


def run(text, registers, memory):
    """The text as one thread would go through it."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if not re.match(r"[{}]|\.reg", line)]
    places = {line[:-1]: k for k, line in enumerate(lines) if line.endswith(":")}
    at = 0
    while at < len(lines):
        line, at = lines[at].rstrip(";"), at + 1
        unless, guard, operation, rest = re.match(
            r"(?:@(!?)(%\w+) )?([\w.]+):? ?(.*)", line
        ).groups()
        if lines[at - 1].endswith(":") or (guard and registers[guard] == (unless == "!")):
            continue
        if operation == "bra":
            at = places[rest]
            continue
        to, *of = re.findall(r"\{.*?\}|\[.*?\]|[^, ]+", rest)
        of = [of_name(name, registers) for name in of]
        execute(operation, to, of, registers, memory)
    return registers


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


@pytest.mark.parametrize("slot", [0, 4])
def test_a_thread_fetches_what_it_reads(slot):
    # Four pairs at a time: their addresses, their places in shared memory, and 16 or 0 for each.
    memory, start, source = {}, 1024, 1 << 40
    read_to = 1000
    for own, _ in threads(()):
        for pairs in own.reshape(-1, 4):
            columns = (
                source + 4 * pairs,
                slot * HALF * 4 + 4 * pairs,
                np.where(pairs < read_to, 16, 0),
            )
            values = [int(value) for column in columns for value in column]
            registers = {f"${4 + k}": value for k, value in enumerate(values)}
            run(KERNEL.parts.FETCH, registers | {"global_smem": start}, memory)
            # The four words that a load of this slot finds in the thread's registers.
            at = start + 4 * (slot * HALF + pairs[0])
            assert memory.pop(at) == (source + 4 * pairs[0], 16, 16 if pairs[0] < read_to else 0)
            assert not memory
            assert pairs.tolist() == list(range(pairs[0], pairs[0] + 4))


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
