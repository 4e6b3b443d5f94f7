"""Kernels' texts in assembly (PTX), run line by line on Python's numbers.

Only what those texts have. Registers are a dict by name, memory is one by address.
"""

import re


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
    elif kind == "st":
        base, _, plus = to.strip("[]").partition(" + ")
        place = registers[base] + int(plus or 0)
        assert place not in memory, "written twice"
        memory[place] = of[0]
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
