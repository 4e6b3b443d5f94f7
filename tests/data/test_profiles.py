import numpy as np
import pytest

from longtail import InputError
from longtail.data.profiles import exponential_counts, profile_counts, step_counts


def test_the_literatures_cifar_profiles():
    ten = exponential_counts(5000, num_classes=10, imbalance_ratio=100)
    assert ten.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert ten.sum() == 12_406
    hundred = exponential_counts(500, num_classes=100, imbalance_ratio=100)
    assert (hundred[0], hundred[-1], hundred.sum()) == (500, 5, 10_847)
    assert step_counts(5000, num_classes=10, imbalance_ratio=100).sum() == 25_250
    assert step_counts(500, num_classes=100, imbalance_ratio=100).sum() == 25_250


def test_no_imbalance_keeps_every_class_whole():
    for profile in ("exp", "step"):
        counts = profile_counts(profile, 7, num_classes=3, imbalance_ratio=1)
        np.testing.assert_array_equal(counts, 7)
    assert profile_counts("exp", 7, num_classes=1, imbalance_ratio=10).tolist() == [7]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: exponential_counts(500, num_classes=5, imbalance_ratio=0.01),
            r"at least 1; got 0.01; did you mean 100\?",
        ),
        (
            lambda: step_counts(50, num_classes=4, imbalance_ratio=100),
            "leaves class 2 without examples; lower the imbalance ratio to 50",
        ),
        (lambda: profile_counts("linear", 5, num_classes=2, imbalance_ratio=2), "'exp', 'step'"),
        (lambda: step_counts(5, num_classes=0, imbalance_ratio=2), "must be at least 1"),
    ],
)
def test_bad_input_gets_one_clear_error(call, message):
    with pytest.raises(InputError, match=message):
        call()
