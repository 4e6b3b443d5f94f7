"""The loss in transformers' Trainer: any cut of an optimizer step gives the same step."""

import numpy as np
import pytest
import torch
import trainer_example
from safetensors.torch import load_file
from torch.nn import functional as F

from longtail import ClassPrior, InputError, bake_logit_adjustment
from longtail.integrations.huggingface import DeferredReweighting, TrainerLoss
from longtail.losses import LogitAdjustedLoss, SoftmaxLoss

pytestmark = pytest.mark.usefixtures("one_thread")

COUNTS = trainer_example.COUNTS
PRIOR = ClassPrior.from_counts(COUNTS)
LOG_PRIOR = torch.tensor(PRIOR.log_probs)


def batch(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
    return logits, torch.randint(3, shape, generator=generator)


def equation(logits, labels):
    """Σ log Σ_j exp(f_j + log π_j − f_y − log π_y), one position at a time."""
    total = 0.0
    for row, label in zip(logits.reshape(-1, 3), labels.reshape(-1), strict=True):
        if label != -100:
            scores = row + LOG_PRIOR
            total += float(torch.logsumexp(scores, 0) - scores[label])
    return total


@pytest.fixture
def loss():
    return TrainerLoss(LogitAdjustedLoss(PRIOR).double())


@pytest.mark.parametrize("shape", [(6,), (2, 5)])
@pytest.mark.parametrize("how", ["mapping", "tuple"])
def test_the_sum_over_the_number_of_items(loss, shape, how):
    logits, labels = batch(*shape)
    labels.view(-1)[1] = -100
    outputs = {"logits": logits} if how == "mapping" else (logits,)
    for items in (17, torch.tensor(17)):
        found = loss(outputs, labels, num_items_in_batch=items)
        assert found.item() == pytest.approx(equation(logits, labels) / 17, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("items", [None, 100_000])
@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_half_precision_logits_add_up_in_float32(dtype, items, kind):
    """Their sum is beyond float16, as is the number of items; bfloat16 has three digits."""
    logits, labels = batch(8, 2_500)
    logits = (8 * logits).to(dtype).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    assert F.cross_entropy(exact.reshape(-1, 3), labels.reshape(-1), reduction="sum") > 2 * 65_504
    if kind == "probabilities":  # of which Trainer counts one for each class
        labels, items = F.one_hot(labels, 3).to(dtype), items and 3 * items
    value = TrainerLoss(LogitAdjustedLoss(PRIOR))((logits,), labels, items)
    wanted = TrainerLoss(LogitAdjustedLoss(PRIOR).double())((exact,), labels, items)
    value.backward()
    wanted.backward()
    assert value.item() == pytest.approx(wanted.item(), rel=1e-4)
    # Of the gradient what its type can hold: 1 / 100,000 is among float16's smallest numbers.
    kind = torch.finfo(dtype)
    atol = max(kind.smallest_normal * kind.eps, 1e-11)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=kind.eps, atol=atol)


def test_the_classifier_of_a_peft_model_is_baked_by_its_name():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(trainer_example.bert(), config).eval()
    words = {"input_ids": torch.arange(16).view(2, 8)}
    layer = "base_model.model.classifier.modules_to_save.default"
    baked = bake_logit_adjustment(model, PRIOR, layer=layer, inputs=words)
    merged = model.merge_and_unload()
    with torch.no_grad():
        plain = merged(**words).logits
        for one in (baked, bake_logit_adjustment(merged, PRIOR, inputs=words)):
            torch.testing.assert_close(one(**words).logits, plain - LOG_PRIOR.float())


def test_accumulation_one_and_four_give_the_same_losses_and_gradients():
    """Token labels of very unequal number, and a last step of a different size: 208 = 13 × 16."""
    (one, whole), (four, parts) = (
        trainer_example.token_training(size, accumulation=n) for size, n in ((16, 1), (4, 4))
    )
    assert len(whole) == len(parts) == 13
    for mine, theirs in zip(whole, parts, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    losses = [[h["loss"] for h in t.state.log_history if "loss" in h] for t in (one, four)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_do_the_same_as_one(two_processes, tmp_path):
    file = tmp_path / "two.safetensors"
    two_processes(trainer_example.__file__, "--batch-size=8", f"--out={file}")
    two = load_file(file)
    one, steps = trainer_example.token_training(16)
    losses = [h["loss"] for h in one.state.log_history if "loss" in h]
    np.testing.assert_allclose(two["losses"], losses, rtol=1e-5)
    for s, step in enumerate(steps):
        for i, gradient in enumerate(step):
            torch.testing.assert_close(two[f"gradient.{s}.{i}"], gradient, rtol=1e-4, atol=1e-6)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(two[f"weight.{name}"], value, rtol=1e-4, atol=1e-6)


def reweighted(start, **settings):
    """A trainer of two steps an epoch, and the weights of the classes that its steps see."""
    loss, seen = TrainerLoss(SoftmaxLoss(PRIOR)), []

    class Watch(trainer_example.TrainerCallback):
        def on_step_begin(self, *_, **__):
            weight = loss.loss.weight
            seen.append([1.0] * 3 if weight is None else weight.tolist())

    callbacks = [DeferredReweighting(loss, PRIOR, start=start, beta=0.99), Watch()]
    model, data = trainer_example.bert(), trainer_example.sequences()
    made = trainer_example.trainer(
        model, data, loss, batch_size=104, callbacks=callbacks, **settings
    )
    return made, seen


def test_deferred_reweighting_begins_at_its_epoch():
    trainer, seen = reweighted(start=1, num_train_epochs=3)
    trainer.train()
    weights = np.array([(1 - 0.99) / (1 - 0.99**n) for n in COUNTS])
    weights /= sum(n * w for n, w in zip(COUNTS, weights, strict=True)) / sum(COUNTS)
    assert len(seen) == 6
    np.testing.assert_allclose(seen[:2], np.ones((2, 3)))
    np.testing.assert_allclose(seen[2:], np.tile(weights, (4, 1)), rtol=1e-6)


@pytest.mark.parametrize("saved", [3, 4, 5])
def test_deferred_reweighting_resumes_in_its_epoch(tmp_path, saved):
    settings = {"num_train_epochs": 4, "output_dir": str(tmp_path), "save_strategy": "steps"}
    whole, expected = reweighted(start=2, save_steps=saved, **settings)
    whole.train()
    resumed, seen = reweighted(start=2, save_steps=saved, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
    assert seen == expected[saved:]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ignore_index": 0}, "not -100"), ({"weight": torch.ones(3)}, "weigh the classes")],
)
def test_losses_that_trainer_would_get_wrong_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        TrainerLoss(LogitAdjustedLoss(PRIOR, **options))
