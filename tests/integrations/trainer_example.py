"""Tiny random models and data for the tests of `integrations.huggingface`; no downloads.

As a script under torchrun, it trains one of them and saves the weights: how two real processes
are compared with one.
"""

import argparse
import os
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from longtail import ClassPrior
from longtail.integrations.huggingface import TrainerLoss
from longtail.losses import LogitAdjustedLoss

COUNTS = [160, 40, 8]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": len(COUNTS),
}


class Examples(torch.utils.data.Dataset):
    """A list of batches' parts: one dictionary of tensors per example."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["labels"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.columns.items()}


def sequences(counts=COUNTS, seed=0):
    """Class y's tokens come half from its own third of the vocabulary, half from all of it."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    own = labels[:, None] * 10 + random.integers(10, size=(len(labels), 8))
    tokens = np.where(random.random(own.shape) < 0.3, own, random.integers(30, size=own.shape))
    return Examples(input_ids=torch.as_tensor(tokens), labels=torch.as_tensor(labels))


def tokens(seed=0):
    """Token classification with very unequal numbers of labels per sequence."""
    data = sequences(seed=seed)
    labels = data.columns["input_ids"] // 10
    lengths = torch.as_tensor(np.random.default_rng(seed).integers(1, 9, size=len(labels)))
    hidden = torch.arange(8)[None, :] >= lengths[:, None]
    return Examples(input_ids=data.columns["input_ids"], labels=labels.masked_fill(hidden, -100))


def bert(kind=BertForSequenceClassification):
    torch.manual_seed(0)
    return kind(BertConfig(vocab_size=30, max_position_embeddings=8, **SMALL))


class Gradients(TrainerCallback):
    """What each optimizer step saw."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **rest):
        self.steps.append([p.grad.clone() for p in model.parameters() if p.grad is not None])


def trainer(model, data, loss, *, batch_size, accumulation=1, callbacks=(), **settings):
    arguments = {
        "output_dir": f"{tempfile.gettempdir()}/longtail-trainer",
        "use_cpu": True,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "learning_rate": 1e-2,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **settings,
    }
    return Trainer(
        model,
        TrainingArguments(
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            **arguments,
        ),
        train_dataset=data,
        compute_loss_func=loss,
        callbacks=list(callbacks),
    )


def token_training(batch_size, **settings):
    """One epoch of token classification; (trainer after training, gradients of each step)."""
    gradients = Gradients()
    loss = TrainerLoss(LogitAdjustedLoss(ClassPrior.from_counts(COUNTS)))
    made = trainer(
        bert(BertForTokenClassification),
        tokens(),
        loss,
        batch_size=batch_size,
        callbacks=[gradients],
        optim="sgd",
        **settings,
    )
    made.train()
    return made, gradients.steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made, steps = token_training(
        options.batch_size, ddp_backend="gloo", average_tokens_across_devices=True
    )
    if made.is_world_process_zero():
        tensors = {f"weight.{k}": v for k, v in made.model.state_dict().items()}
        tensors |= {
            f"gradient.{s}.{i}": g for s, step in enumerate(steps) for i, g in enumerate(step)
        }
        losses = [line["loss"] for line in made.state.log_history if "loss" in line]
        save_file({**tensors, "losses": torch.tensor(losses)}, options.out)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads may hang in an orderly end of the interpreter


if __name__ == "__main__":
    main()
