"""A little Gluon in NumPy: runs `longtail.kernels._triton_ring` without a GPU and without Triton.

Triton's interpreter does not know Gluon, and runs programs one after another, while these wait for
each other. Here every program is a thread, one of which runs at a time. They start in the order of
their ids, `resident` at most, and hand over at random wherever they wait. A copy on its way to
shared memory arrives when it is waited for, and not before. Addresses outside a tensor are errors,
as are wrong promises to the compiler (`multiple_of`). Threads of a program, layouts and barriers
have no counterpart: only a GPU can show these.
"""

import importlib.util
import math
import operator
import random
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np

import longtail

BFLOAT16 = "bfloat16"  # a kind of its own: numbers are float32, memory is uint16
SOURCES = Path(longtail.__file__).parent / "kernels"


def data_of(x):
    return x.data if isinstance(x, Value) else x


def to_bfloat16(x):
    """Float32 to bfloat16, rounded to the nearest, as uint16."""
    bits = np.asarray(x, np.float32, order="C").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def alike(a, b):
    """Two operands in one type, as Triton has it: a number without type takes the other's."""
    a, b = data_of(a), data_of(b)
    for one in (a, b):
        if isinstance(one, np.ndarray) and one.dtype == np.float32:
            return np.float32(a), np.float32(b)
    if any(isinstance(one, float) for one in (a, b)):
        return np.float32(a), np.float32(b)
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return np.asarray(a, np.int32), np.asarray(b, np.int32)
    return a, b


def truncated(a, b):
    """Division of integers as C has it."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


class Value:
    """A tensor or a scalar on the device."""

    def __init__(self, data):
        self.data = np.asarray(data)

    def to(self, kind, bitcast=False):
        if kind is BFLOAT16:
            return Value(from_bfloat16(to_bfloat16(self.data)))
        return Value(self.data.view(kind) if bitcast else self.data.astype(kind))

    def __bool__(self):
        return bool(self.data)

    def __index__(self):
        return int(self.data)

    def __neg__(self):
        return Value(-self.data)

    def __floordiv__(self, other):
        a, b = alike(self, other)
        return Value(truncated(a, b).astype(np.result_type(a, b)))

    def __mod__(self, other):
        return self - (self // other) * other

    def __rtruediv__(self, other):
        return Value(np.float32(other) / self.data)


MIRRORED = ("add", "sub", "mul", "and", "or")
for name in (*MIRRORED, "truediv", "xor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"):
    plain = getattr(operator, f"__{name}__")

    def method(self, other, plain=plain):
        if isinstance(other, Pointer):
            return NotImplemented
        return Value(plain(*alike(self, other)))

    def mirrored(self, other, plain=plain):
        return Value(plain(*reversed(alike(self, other))))

    setattr(Value, f"__{name}__", method)
    if name in MIRRORED:
        setattr(Value, f"__r{name}__", mirrored)


class Pointer:
    """Places in a flat array; reads and writes outside it are errors."""

    def __init__(self, memory, kind, at=0):
        self.memory, self.kind, self.at = memory, kind, np.asarray(at, np.int64)

    def __add__(self, step):
        return Pointer(self.memory, self.kind, self.at + data_of(step))

    def to(self, kind, bitcast=False):
        assert bitcast
        size = np.dtype(kind).itemsize // self.memory.itemsize
        assert not (self.at % size).any()
        return Pointer(self.memory.view(kind), kind, self.at // size)

    def places(self, mask):
        at, mask = np.broadcast_arrays(self.at, True if mask is None else data_of(mask))
        inside = (at >= 0) & (at < len(self.memory))
        assert inside[mask].all(), "an address outside the tensor"
        return at, mask


def load(pointer, mask=None, other=0, volatile=False):
    at, mask = pointer.places(mask)
    kind = np.float32 if pointer.kind is BFLOAT16 else pointer.kind
    found = np.full(at.shape, data_of(other), kind)
    memory = pointer.memory[at[mask]]
    found[mask] = from_bfloat16(memory) if pointer.kind is BFLOAT16 else memory
    return Value(found)


def store(pointer, value, mask=None, eviction_policy=""):
    at, mask = pointer.places(mask)
    value = np.broadcast_to(data_of(value), at.shape)
    kind = pointer.kind
    value = to_bfloat16(value) if kind is BFLOAT16 else value.astype(kind)
    pointer.memory[at[mask]] = value[mask]


class Shared:
    """Shared memory of a program."""

    def __init__(self, array):
        self.array = array

    def _reinterpret(self, kind, shape, layout):
        flat = self.array.view(kind).reshape(-1)
        return Shared(flat[: math.prod(shape)].reshape(shape))

    def index(self, k):
        assert 0 <= operator.index(k) < len(self.array)
        return Shared(self.array[operator.index(k)])

    def check(self):
        for _, to, _ in (copy for group in here().groups for copy in group):
            assert not np.shares_memory(to, self.array), "a copy that has not arrived is read"

    def load(self, layout):
        self.check()
        return Value(self.array.copy())

    def store(self, value):
        self.check()
        self.array[...] = value.data


def allocate_shared_memory(kind, shape, layout, value=None):
    array = np.full(shape, 0x7FC07FC0, np.int32).view(kind)  # NaN
    if value is not None:
        array[...] = value.data
    return Shared(array)


def async_copy_global_to_shared(slot, source, mask):
    """Start a copy."""
    slot.array[...] = 0x7FC07FC0
    here().started.append((source, slot.array, mask))


def commit_group():
    here().groups.append(here().started)
    here().started = []


def wait_group(outstanding):
    hand_over()
    while len(here().groups) > outstanding:
        for source, to, mask in here().groups.pop(0):
            to[...] = load(source, mask=mask).data  # 0 where masked, as the hardware has it


def multiple_of(value, n):
    assert not (data_of(value) % n).any(), "a false promise to the compiler"
    return value


LANGUAGE = {
    "constexpr": lambda value: value,
    "int32": np.int32,
    "int64": np.int64,
    "float32": np.float32,
    "bfloat16": BFLOAT16,
    "pointer_type": lambda kind: kind,
    "BlockedLayout": lambda *shape: None,
    "SwizzledSharedLayout": lambda *shape: None,
    "program_id": lambda axis: Value(np.int32(here().id)),
    "arange": lambda start, end, layout: Value(np.arange(start, end, dtype=np.int32)),
    "zeros": lambda shape, kind, layout: Value(np.zeros(shape, kind)),
    "to_tensor": lambda value: Value((np.int32 if isinstance(value, int) else np.float32)(value)),
    "where": lambda to, a, b: Value(np.where(data_of(to), *alike(a, b))),
    "sum": lambda x, axis: Value(x.data.sum(axis, dtype=x.data.dtype)),
    "max": lambda x, axis: Value(x.data.max(axis)),
    "minimum": lambda a, b: Value(np.minimum(*alike(a, b))),
    "maximum": lambda a, b: Value(np.maximum(*alike(a, b))),
    "exp2": lambda x: Value(np.exp2(x.data)),
    "log": lambda x: Value(np.log(x.data)),
    "abs": lambda x: Value(np.abs(x.data)),
    "fma": lambda a, b, c: Value(np.float32(np.float64(a.data) * np.float32(b) + c.data)),
    "static_range": range,
    "multiple_of": multiple_of,
    "load": load,
    "store": store,
    "allocate_shared_memory": allocate_shared_memory,
    "barrier": lambda: None,
}


def until(pointer, mask):
    """Words that others write, as soon as none of them is −1."""
    words = load(pointer, mask=mask)
    while (words.data == -1).any():
        hand_over()
        words = load(pointer, mask=mask)
    return words


def quotient(a, b):
    """Of a reciprocal, which is 0 for numbers whose own is below float32's normal ones."""
    return Value(np.where(np.abs(b.data) > 2.0**126, a.data * np.float32(0), (a / b).data))


def replace(x, pair, far, at, place, value):
    """One place at most is changed, and the test before tells of it."""
    found = pair.data == at.data
    assert found.sum() <= 1
    assert not far.data[found].any(), "a test that passes the place by"
    keep = np.int32(0xFFFF if place.data % 2 else -65536)
    return Value(np.where(found, (x.data & keep) | (data_of(value) & ~keep), x.data))


def store_halves(g, pair, far, low, high, first, end, to):
    """Elements of two words, where the test before tells of them."""
    word = pair.data - pair.data % 4
    place = 2 * pair.data[:, None] + np.arange(2)
    found = ((word < data_of(low)) | (word == high.data))[:, None]
    found = found & (place >= data_of(first)) & (place < data_of(end))
    assert not far.data[found.any(1)].any(), "a test that passes the place by"
    halves = Pointer(to.memory.view(np.uint16), np.uint16, 2 * to.at[:, None] + np.arange(2))
    store(halves, np.ascontiguousarray(g.data).view(np.uint16).reshape(-1, 2), mask=found)


# What the kernel has in assembly, or cut by warps, which are not here.
ASSEMBLY = {
    "wait_for_launch": lambda: None,
    "await_pairs": lambda pointer, mask, early: until(pointer, mask),
    "await_words": until,
    "to_pairs": lambda even, odd: Value(
        np.stack([to_bfloat16(even.data), to_bfloat16(odd.data)], -1).view(np.int32)[..., 0]
    ),
    "quotient": quotient,
    "log2_roughly": lambda a: Value(np.log2(a.data)),
    "usual": lambda z, c: (z > 1e-6) & (z < 1e20) & (c > 0),
    "replace": replace,
    "store_halves": store_halves,
    "warp_sums": lambda v, half, num_warps: v,
    "across_warps": lambda v, at: LANGUAGE["sum"](v, 0),
    "opaque_zero": lambda like: 0,
}


def jit(function=None, **options):
    return function if function is not None else lambda found: found


def load_module(name):
    """A module of the package, kept for those that import it only as long as Triton is replaced."""
    path = SOURCES / f"{name.rpartition('.')[2]}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_kernel():
    """The module, its imports from Triton replaced by what is here."""
    language = SimpleNamespace(**LANGUAGE)
    names = (async_copy_global_to_shared, commit_group, wait_group)
    copies = SimpleNamespace(**{function.__name__: function for function in names})
    home = "triton.experimental"
    found = {
        "triton": {},
        home: {"gluon": SimpleNamespace(jit=jit, language=language)},
        f"{home}.gluon": {"jit": jit, "language": language},
        f"{home}.gluon.language.nvidia.ampere": {"async_copy": copies},
    }
    for name in ("language", "language.nvidia"):
        found[f"{home}.gluon.{name}"] = {}
    modules = {name: ModuleType(name) for name in found}
    for name, content in found.items():
        vars(modules[name]).update(content)
    with mock.patch.dict(sys.modules, modules):
        parts = load_module("longtail.kernels._triton_ring_parts")
        kernel = load_module("longtail.kernels._triton_ring")
    for name, function in ASSEMBLY.items():
        assert hasattr(kernel, name)
        for module in (parts, kernel):
            setattr(module, name, function)
    kernel.parts = parts
    return kernel


RUNNING = threading.local()


def here():
    return RUNNING.program


def hand_over():
    here().pause()


class Program(threading.Thread):
    """One program of a launch: runs from `go` to its next pause or its end."""

    def __init__(self, number, work):
        super().__init__(daemon=True)
        self.id, self.work, self.error = number, work, None
        self.over = self.given_up = False
        self.groups, self.started = [], []
        self.may_run, self.paused = threading.Semaphore(0), threading.Semaphore(0)

    def run(self):
        self.may_run.acquire()
        RUNNING.program = self
        try:
            with np.errstate(all="ignore"):
                self.work()
            assert not any(self.groups), "a copy was never waited for"
        except BaseException as error:
            self.error = error
        self.over = True
        self.paused.release()

    def pause(self):
        self.paused.release()
        self.may_run.acquire()
        if self.given_up:
            raise SystemExit

    def go(self):
        self.may_run.release()
        self.paused.acquire()
        if self.error is not None:
            raise self.error


def launch(kernel, grid, args, constants, *, resident=10**9, seed=0, patience=200_000):
    """Run all programs of a launch, `resident` at a time, started in the order of their ids."""
    choose = random.Random(seed).choice
    programs = [Program(k, lambda: kernel(*args, **constants)) for k in range(grid)]
    waiting, running = list(programs), []
    while waiting or running:
        while waiting and len(running) < resident:
            running.append(waiting.pop(0))
            running[-1].start()
        program = choose(running)
        program.go()
        if program.over:
            running.remove(program)
        patience -= 1
        if patience == 0:
            for program in running:
                program.given_up = True
                program.may_run.release()
            raise AssertionError("programs wait for each other for ever")
