import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import InputError
from longtail.data import load
from longtail.data.profiles import fit_counts, profile_counts, read_counts

# Examples of the published subsets in all, by ratio.
PUBLISHED = {
    (5000, 10): {10: 20_431, 20: 17_023, 50: 13_996, 100: 12_406, 200: 11_203},
    (500, 100): {10: 19_573, 20: 15_907, 50: 12_608, 100: 10_847, 200: 9_502},
}


def exact_counts(largest, num_classes, ratio):
    """Without floating point: the largest n with n^(L−1) · ρ^i ≤ n_max^(L−1)."""
    steps, counts, n = max(num_classes - 1, 1), [], largest
    for i in range(num_classes):
        while n**steps * ratio**i > largest**steps:
            n -= 1
        counts.append(n)
    return counts


@pytest.mark.parametrize("ratio", [10, 20, 50, 100, 200])
@pytest.mark.parametrize(("largest", "num_classes"), PUBLISHED)
def test_the_standard_profiles_have_exactly_the_published_counts(largest, num_classes, ratio):
    counts = profile_counts("exp", largest, num_classes=num_classes, imbalance_ratio=ratio).tolist()
    published = [
        int(largest * (1 / ratio) ** (i / (num_classes - 1.0))) for i in range(num_classes)
    ]
    assert counts == published == exact_counts(largest, num_classes, ratio)
    assert sum(counts) == PUBLISHED[largest, num_classes][ratio]


@settings(max_examples=200, deadline=None)
@given(largest=st.integers(1, 400), num_classes=st.integers(1, 12), ratio=st.integers(1, 400))
def test_the_profile_is_the_formula_in_whole_numbers(largest, num_classes, ratio):
    expected = exact_counts(largest, num_classes, ratio)
    if min(expected) < 1:
        return
    found = profile_counts("exp", largest, num_classes=num_classes, imbalance_ratio=ratio)
    assert found.tolist() == expected


def test_profiles_that_can_not_be_made_are_refused():
    with pytest.raises(InputError, match=r"at least 1; got 0.01; did you mean 100\?"):
        load("digits-lt", imbalance_ratio=0.01)
    with pytest.raises(InputError, match=r"leaves class 2 without examples; lower .* ratio to 50"):
        profile_counts("step", 50, num_classes=4, imbalance_ratio=100)


# Natural profiles.


def test_counts_are_read_from_a_file(tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text("# examples of each class\n1280\n5\n\n7, 9 1e3  # three in a line\n")
    assert read_counts(path).tolist() == [1280, 5, 7, 9, 1000]
    assert read_counts(str(path)).dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"12\nmany\n", "must hold one number of examples a line: .*'many'"),
        (b"3\n0\n", r"leaves class\(es\) 1 without examples"),
        (b"0.75\n0.25\n", "must be whole numbers of examples.*, but class 0 has 0.75"),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path, content, message):
    path = tmp_path / "counts.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_counts(path)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    num_classes=st.integers(1, 60),
    largest=st.integers(1, 6000),
)
def test_a_fitted_profile_keeps_shape_and_ratio(counts, num_classes, largest):
    fitted = fit_counts(counts, num_classes=num_classes, largest=largest)
    assert len(fitted) == num_classes
    assert fitted[0] == largest
    assert (np.diff(fitted) <= 0).all()
    if num_classes > 1:
        wanted = largest * min(counts) / max(counts)
        assert abs(fitted[-1] - max(wanted, 1)) <= 0.5 + 1e-6 * largest
