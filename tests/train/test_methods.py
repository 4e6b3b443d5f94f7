import numpy as np
import pytest
import torch
from torch.nn import functional as F

from longtail import ClassPrior, InputError, margins
from longtail.data.samplers import ClassSampler
from longtail.train.methods import SAMPLINGS, THRESHOLD, Method

COUNTS = np.array([5000, 600, 50])
PRIOR = ClassPrior.from_counts(COUNTS)
BETAS = {"beta": 0.9, "drw_beta": 0.99}
DELTA = {"consistent": ":delta=3/1/2", THRESHOLD: ":threshold=0.1"}


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("logit-adjusted:tau=1.5", "logit-adjusted", {"tau": 1.5}),
        ("ldam+label-smoothing:epsilon=0.05", "ldam+label-smoothing", {"epsilon": 0.05}),
        # One method has one form, however it is typed.
        ("logit_adjusted:tau=1", "logit-adjusted", {}),
        (" LDAM + DRW:beta=0.9999 ", "ldam+drw", {}),
        ("softmax+label-smoothing:epsilon=0", "softmax", {}),
        ("ldam+sqrt-sampling+label-smoothing", "ldam+label-smoothing+sqrt-sampling", {}),
        # β of the loss and β of DRW stay apart.
        ("class-balanced:beta=0.9+drw:beta=0.99", "class-balanced+drw", BETAS),
        ("ldam:max-margin=0.4, scale=20", "ldam", {"max_margin": 0.4, "scale": 20.0}),
        ("consistent:delta=1/2/0.5", "consistent", {"delta": (1.0, 2.0, 0.5)}),
        ("two-parameter:tau1=0,tau2=1e-1", "two-parameter", {"tau1": 0.0, "tau2": 0.1}),
        ("equalized-threshold:gamma=0.5", "equalized-threshold", {"gamma": 0.5}),
    ],
)
def test_a_text_becomes_a_part(text, name, settings):
    part = Method.of(text).part
    assert (part.name, dict(part.settings)) == (name, settings)
    assert Method.of(part).part == Method.of(text).part == part


@pytest.mark.parametrize("loss", margins.MARGINS)
def test_the_criterion_is_the_loss_of_that_name(loss):
    text = loss + DELTA.get(loss, "")
    criterion = Method.of(text).criterion(PRIOR)
    settings = {"delta": (3.0, 1.0, 2.0)} if loss == "consistent" else {}
    margin = margins.by_name(loss, PRIOR, **settings)
    np.testing.assert_allclose(criterion.alpha, margin.alpha, rtol=1e-6)
    np.testing.assert_allclose(criterion.positive, margin.positive, rtol=1e-6)
    np.testing.assert_allclose(criterion.negative, margin.negative, rtol=1e-6)
    assert criterion.scale == margin.scale
    assert criterion.weight is None
    assert criterion.label_smoothing == 0


def test_drw_is_weighted_cross_entropy_from_its_start_on():
    """With weights (1 - β) / (1 - βⁿ) that sum to the number of classes."""
    raw = [(1 - 0.9999) / (1 - 0.9999 ** int(n)) for n in COUNTS]
    expected = [len(raw) * value / sum(raw) for value in raw]
    method = Method.of("softmax+drw")
    weights = method.class_weights(PRIOR, 160, 200)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    logits = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(64) % 3
    criterion = method.criterion(PRIOR)
    torch.testing.assert_close(criterion(logits, target), F.cross_entropy(logits, target))
    criterion.weight.copy_(torch.as_tensor(weights))
    weighted = F.cross_entropy(logits, target, weight=torch.tensor(expected).float())
    torch.testing.assert_close(criterion(logits, target), weighted)


@pytest.mark.parametrize(
    ("text", "epochs", "first"),
    [("ldam+drw", 200, 160), ("ldam+drw:start=120", 200, 120), ("ldam+drw", 1, 0)],
)
def test_where_drw_starts(text, epochs, first):
    method = Method.of(text)
    has = [method.class_weights(PRIOR, epoch, epochs) is not None for epoch in range(epochs)]
    assert has == [epoch >= first for epoch in range(epochs)]


def test_label_smoothing_reaches_the_loss():
    logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(9) % 3
    found = Method.of("softmax+label-smoothing:epsilon=0.3").criterion(PRIOR)(logits, target)
    expected = F.cross_entropy(logits, target, label_smoothing=0.3)
    torch.testing.assert_close(found, expected)
    assert Method.of("softmax+label-smoothing").criterion(PRIOR).label_smoothing == 0.1


def test_samplings_are_rules_of_the_sampler():
    labels = np.repeat([0, 1, 2], [40, 9, 4])
    shares = {}
    for name in (None, *SAMPLINGS):
        method = Method.of("+".join(filter(None, ("softmax", name))))
        drawn = labels[ClassSampler(labels, rule=method.sampling, seed=0).indices(0)]
        shares[name] = np.bincount(drawn, minlength=3)
    np.testing.assert_array_equal(shares[None], [40, 9, 4])
    np.testing.assert_array_equal(shares["under-sampling"], [4, 4, 4])
    assert np.ptp(shares["over-sampling"]) <= 1
    roots = np.sqrt([40, 9, 4])
    np.testing.assert_allclose(shares["sqrt-sampling"], 53 * roots / roots.sum(), atol=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("logit-adjust", r"no loss 'logit-adjust'; did you mean logit-adjusted or .*There are sof"),
        ("softmax+ldam", "one loss, but 'softmax' and 'ldam' are two; after the loss may come drw"),
        ("softmax+over-sampling+sqrt-sampling", "one way, but over-sampling and sqrt-sampling"),
        ("posthoc-logit-adjusted", "a post-hoc method is not trained; train softmax"),
        ("logit-adjusted:tua=1", "'logit-adjusted' has no setting 'tua'; it has tau"),
        ("logit-adjusted+over-sampling", "both correct for class frequencies"),
    ],
)
def test_bad_methods_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        Method.of(text)
