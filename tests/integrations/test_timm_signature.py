"""timm's training loop calls ``loss_fn(output, target)``, with dense targets under Mixup.

The targets here are made by hand as Mixup makes them: two smoothed one-hot vectors, mixed.
"""

import numpy as np
import pytest
import torch

from loss_contract import CONTRACTS, NUM_CLASSES
from oracles import smoothed, soft_loss

LOGITS = torch.randn(8, NUM_CLASSES, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(8) % NUM_CLASSES


def mixed_targets(labels, *, lam, smoothing):
    """λ·q(y_i) + (1 − λ)·q(y of the batch in reverse), float32, as the loss gets it."""
    q = np.stack([smoothed(int(y), NUM_CLASSES, smoothing) for y in labels])
    return torch.as_tensor(lam * q + (1 - lam) * q[::-1], dtype=torch.float32)


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
@pytest.mark.parametrize(("lam", "smoothing"), [(0.3, 0.0), (0.8, 0.1)])
def test_mixed_targets_give_the_equation(contract, lam, smoothing):
    """(1/B) Σ_i Σ_y q_iy α_y ℓ(y, f_i), and its gradient."""
    target = mixed_targets(LABELS, lam=lam, smoothing=smoothing)
    output = LOGITS.clone().requires_grad_()
    loss = contract.module()(output, target)
    loss.backward()
    rows = [
        soft_loss(f, q, contract.alpha, contract.delta, contract.scale)
        for f, q in zip(LOGITS.double().numpy(), target.double().numpy(), strict=True)
    ]
    assert loss.ndim == 0
    assert loss.item() == pytest.approx(np.mean([value for value, _, _ in rows]), rel=2e-5)
    terms = np.stack([terms for _, _, terms in rows]) / len(rows)
    slopes = np.stack([slope for _, slope, _ in rows]) / len(rows)
    assert np.all(np.abs(output.grad.double().numpy() - slopes) <= 1e-4 * terms + 1e-9)


def test_a_step_as_timms_loop_does_it():
    """Moved to the device once, called under autocast, then scaled, divided and sent backward."""
    contract = next(c for c in CONTRACTS if c.name == "logit-adjusted")
    model = torch.nn.Linear(5, NUM_CLASSES)
    loss_fn = contract.module().to(device=torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(torch.randn(8, 5, generator=torch.Generator().manual_seed(1)))
        loss = loss_fn(output, mixed_targets(LABELS, lam=0.6, smoothing=0.1))
    assert output.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    (loss / 2).backward()
    assert model.weight.grad.abs().sum() > 0
