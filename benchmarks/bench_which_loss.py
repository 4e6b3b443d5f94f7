"""Balanced errors by loss and length of training, of small networks on digits and made texts.

    python benchmarks/bench_which_loss.py --record results/bench_which_loss.json   # ~2 min
    python benchmarks/bench_which_loss.py --page results/bench_which_loss.json     # write the page

Digits are scikit-learn's, half of them to train on, thinned out to a long tail. Texts are bags of
60 words out of 2,000: a tenth of them from the class's own distribution, the others from one that
all classes share. The test set has as many examples of each class. Adam, one network for each
seed, judged after the last epoch; nothing was chosen on the test set.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import machine
from longtail import ClassPrior, balanced_error
from longtail.losses import LogitAdjustedLoss, WeightedLogitAdjustedLoss

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "which-loss.md"
SEEDS = 5
EPOCHS = {"digits": (5, 20, 100), "texts": (2, 5, 30)}
FOCUS = 2.0


def class_weighted(prior):
    return nn.CrossEntropyLoss(weight=torch.tensor(1 / prior.probs, dtype=torch.float32))


def focal(prior):
    def loss(logits, target):
        each = F.cross_entropy(logits, target, reduction="none")
        return ((1 - (-each).exp()) ** FOCUS * each).mean()

    return loss


LOSSES = {
    "softmax": lambda prior: nn.CrossEntropyLoss(),
    "focal": focal,
    "class weights": class_weighted,
    "logit-adjusted": LogitAdjustedLoss,
    "weighted logit-adjusted": WeightedLogitAdjustedLoss,
}


def counts_of(classes, most, ratio):
    return (most * ratio ** (-np.arange(classes) / (classes - 1))).astype(int)


def digits(seed):
    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    train, test = [], []
    for label, count in enumerate(counts_of(10, 80, 40)):
        mine = draw.permutation(np.flatnonzero(y == label))
        train.append(mine[:count])
        test.append(mine[-85:])
    train, test = np.concatenate(train), np.concatenate(test)
    return x[train] / 16, y[train], x[test] / 16, y[test]


def texts(seed, classes=20, words=2000, length=60):
    draw = np.random.default_rng(seed)
    common = draw.dirichlet(np.full(words, 0.1))
    own = draw.dirichlet(np.full(words, 0.02), size=classes)

    def bags(counts):
        labels = np.repeat(np.arange(classes), counts)
        return draw.multinomial(length, 0.9 * common + 0.1 * own[labels]), labels

    return *bags(counts_of(classes, 400, 100)), *bags(np.full(classes, 50))


DATA = {"digits": digits, "texts": texts}


def balanced_errors(data, loss, lengths, seed):
    """The balanced error in percent after each of some numbers of epochs, one training each."""
    x, y, test_x, test_y = data
    x, test_x = (torch.tensor(part, dtype=torch.float32) for part in (x, test_x))
    target, prior = torch.tensor(y), ClassPrior.from_labels(y)
    found = []
    for epochs in lengths:
        torch.manual_seed(seed)
        width, classes = x.shape[1], prior.num_classes
        model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        criterion = LOSSES[loss](prior)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                criterion(model(x[rows]), target[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            found.append(round(100 * float(balanced_error(test_y, model(test_x))), 2))
    return found


def measure():
    torch.set_num_threads(1)
    record = {"machine": machine.machine(), "torch": torch.__version__, "errors": {}}
    for name, make in DATA.items():
        sets = [make(seed) for seed in range(SEEDS)]
        record["errors"][name] = {}
        for loss in LOSSES:
            each = [
                balanced_errors(data, loss, EPOCHS[name], seed) for seed, data in enumerate(sets)
            ]
            columns = dict(zip(map(str, EPOCHS[name]), zip(*each, strict=True), strict=True))
            record["errors"][name][loss] = columns
            print(name, loss, {k: round(float(np.mean(v)), 1) for k, v in columns.items()})
    return record


def table(errors):
    """Means over the seeds; bold what is within a paired standard error of the best."""
    lengths = list(next(iter(errors.values())))
    lines = ["| loss | " + " | ".join(f"{length} epochs" for length in lengths) + " |"]
    lines.append("|---|" + "---:|" * len(lengths))
    cells = {loss: [] for loss in errors}
    for length in lengths:
        values = {loss: np.array(columns[length]) for loss, columns in errors.items()}
        best = min(values.values(), key=np.mean)
        for loss, value in values.items():
            apart = value - best
            near = apart.mean() <= apart.std(ddof=1) / np.sqrt(len(apart))
            text = f"{value.mean():.1f}"
            cells[loss].append(f"**{text}**" if near else text)
    return "\n".join([*lines, *(f"| {loss} | {' | '.join(row)} |" for loss, row in cells.items())])


def page(record):
    text = PAGE.read_text()
    for name in DATA:
        mark = f"<!-- {name} -->\n"
        before, rest = text.split(mark)
        text = before + mark + table(record["errors"][name]) + "\n<!-- end -->"
        text += rest.split("<!-- end -->", 1)[1]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="measure, and write this file")
    parser.add_argument("--page", type=Path, help="put the tables of this record into the page")
    options = parser.parse_args()
    if options.record is not None:
        options.record.write_text(json.dumps(measure(), indent=1) + "\n")
    if options.page is not None:
        PAGE.write_text(page(json.loads(options.page.read_text())))


if __name__ == "__main__":
    main()
