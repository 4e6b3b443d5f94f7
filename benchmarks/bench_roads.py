"""Count the functions of ours that a user's call enters: the fewer, the easier to read.

    python benchmarks/bench_roads.py                  # every road, as a table
    python benchmarks/bench_roads.py adjust --names   # one road, with its functions by file

Each road runs twice, so that lazy imports and caches are done, and the second time counts under
`sys.setprofile`: distinct functions with code in `src/longtail`, comprehensions not counted.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import longtail
from longtail import ClassPrior

HOME = str(Path(longtail.__file__).parent)
MOST = {"loss": 8, "core": 50, "adjust": 80, "bake": 60, "train": 150}


def held_out(rows=2000, classes=10):
    """Labels of a long tail and logits that know something of them."""
    rng = np.random.default_rng(0)
    prior = np.geomspace(1, 0.01, classes)
    target = np.concatenate([np.arange(classes), rng.choice(classes, rows, p=prior / prior.sum())])
    logits = rng.normal(size=(len(target), classes)) + np.log(prior)
    logits[np.arange(len(target)), target] += 2
    return target, logits.astype(np.float32)


def loss():
    import torch

    target, logits = held_out()
    module = longtail.LogitAdjustedLoss(ClassPrior.from_labels(target))
    f, y = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(target)
    return lambda: module(f, y).backward()


def core():
    target, logits = held_out()

    def walk():
        prior = ClassPrior.from_labels(target)
        longtail.adjust_logits(logits, prior)
        longtail.tune_tau(logits, target, prior)
        longtail.balanced_error(target, logits)

    return walk


def command(*words):
    """A call of the command line, which prints into nothing."""
    from longtail.cli import main

    def call():
        with (
            Path(os.devnull).open("w") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            code = main([str(word) for word in words])
        if code:
            raise SystemExit(f"longtail {words[0]} ended with {code}")

    return call


def adjust():
    folder = Path(tempfile.mkdtemp())
    target, logits = held_out()
    np.savez(folder / "preds.npz", logits=logits, target=target)
    counts = "".join(f"{count}\n" for count in np.bincount(target))
    (folder / "c.txt").write_text(counts)
    return command("adjust", folder / "preds.npz", "--counts", folder / "c.txt")


def bake():
    import torch

    folder = Path(tempfile.mkdtemp())
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    with contextlib.redirect_stdout(None):
        torch.onnx.export(net.eval(), (torch.zeros(2, 8),), folder / "model.onnx", dynamo=False)
    (folder / "c.txt").write_text("".join(f"{1000 // 2**k}\n" for k in range(10)))
    out = folder / "b.onnx"
    words = ("bake", folder / "model.onnx", "--counts", folder / "c.txt", "--out", out)

    def call():
        out.unlink(missing_ok=True)
        command(*words)()

    return call


def train():
    folder, turn = Path(tempfile.mkdtemp()), iter(range(9))
    words = ("train", "--dataset", "digits-lt", "--method", "logit-adjusted")
    return lambda: command(*words, "--out", folder / str(next(turn)))()


ROADS = {"loss": loss, "core": core, "adjust": adjust, "bake": bake, "train": train}


def entered(call):
    """The functions of ours that a second call enters."""
    seen = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            seen.add(frame.f_code)

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    left_out = {"<module>", "<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>"}
    return sorted(
        (code.co_filename[len(HOME) + 1 :], code.co_qualname)
        for code in seen
        if code.co_name not in left_out
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("roads", nargs="*", default=[], help=f"some of {', '.join(ROADS)}")
    parser.add_argument("--names", action="store_true", help="the functions too")
    options = parser.parse_args()
    for name in options.roads or ROADS:
        functions = entered(ROADS[name]())
        files = Counter(file for file, _ in functions)
        print(
            f"{name:8} {len(functions):4} functions in {len(files):2} files (at most {MOST[name]})"
        )
        if options.names:
            for file, function in functions:
                print(f"    {file:40} {function}")


if __name__ == "__main__":
    main()
