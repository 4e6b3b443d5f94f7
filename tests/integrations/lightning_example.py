"""A tiny LightningModule and long-tailed data for the tests of `integrations.lightning`.

As a script under torchrun it trains and tests in two processes, into a folder of runs.
"""

import argparse
import logging
import os
import warnings

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassPrior
from longtail.data import ClassSampler
from longtail.data.torch_samplers import DistributedClassSampler
from longtail.integrations.lightning import LongTailMixin
from longtail.losses import LogitAdjustedLoss
from longtail.runs import RecipeSpec, RunSpec, fingerprint

COUNTS = [160, 40, 8]
PRIOR = ClassPrior.from_counts(COUNTS)
SPEC = RunSpec("blobs-lt", "linear", "logit-adjusted", RecipeSpec("sgd", {"epochs": 3, "lr": 0.1}))
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def blobs(counts, seed):
    """Three overlapping clouds in the plane."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(3), counts))
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    points = (centres[labels] + 1.5 * random.normal(size=(len(labels), 2))).astype(np.float32)
    return TensorDataset(torch.as_tensor(points), torch.as_tensor(labels))


TRAIN, HELD, TEST = blobs(COUNTS, 0), blobs([30, 20, 11], 1), blobs([31, 29, 33], 2)


class Net(LongTailMixin, lightning.LightningModule):
    def __init__(self, criterion=None):
        super().__init__()
        torch.manual_seed(0)
        self.fc = torch.nn.Linear(2, 3)
        self.criterion = criterion or LogitAdjustedLoss(PRIOR)
        self.weights_seen = []

    def forward(self, points):
        return self.fc(points)

    def training_step(self, batch, _):
        points, target = batch
        weight = self.criterion.weight
        self.weights_seen.append(None if weight is None else weight.tolist())
        return self.criterion(self(points), target)

    def validation_step(self, batch, _):
        points, target = batch
        self.collect(self(points), target)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    """Loaders are made when the processes are there, so that the sampler finds them."""

    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        sampler = DistributedClassSampler(ClassSampler(TRAIN.tensors[1], rule="instance", seed=4))
        return DataLoader(TRAIN, batch_size=self.batch_size, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(HELD, batch_size=7)

    def test_dataloader(self):
        return DataLoader(TEST, batch_size=16)


def trainer(**settings):
    return lightning.Trainer(**{**QUIET, "max_epochs": 3, **settings})


def logits_of(net, data):
    with torch.no_grad():
        return net(data.tensors[0]).numpy()


def record(net, root, **changes):
    values = {"prior": PRIOR, "data": fingerprint(*TRAIN.tensors), "head": "fc", **changes}
    net.record_run(root, values.pop("spec", SPEC), **values)
    return net


def fit_and_test(root, *, batch_size, **settings):
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    net = record(Net(), root)
    used = trainer(**settings)
    used.fit(net, Data(batch_size))
    used.test(net, Data(batch_size), verbose=False)
    return net, used


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    torch.set_num_threads(1)
    fit_and_test(parser.parse_args().root, batch_size=8, devices=2, strategy="ddp")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads may hang in an orderly end of the interpreter


if __name__ == "__main__":
    main()
