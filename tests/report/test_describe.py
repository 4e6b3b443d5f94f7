"""A data set described: its numbers, and the chart and figure made of them."""

import numpy as np

from longtail.data.digits import load_digits_lt
from longtail.data.images import ImageSet
from longtail.report.describe import bars, mosaic, summarize, summarize_counts


def test_the_groups_of_the_literature():
    from longtail.data.profiles import exponential_counts

    counts = exponential_counts(500, num_classes=100, imbalance_ratio=100)
    groups = summarize_counts(counts)["groups"]
    assert {name: group["classes"] for name, group in groups.items()} == {
        "many": 35,
        "medium": 35,
        "few": 30,
    }
    assert sum(group["examples"] for group in groups.values()) == 10_847


def test_the_summary_has_both_splits_and_their_fingerprints():
    data = load_digits_lt()
    summary = summarize(data)
    assert summary["train"]["counts"] == data.train.counts.tolist()
    assert summary["train"]["imbalance_ratio"] == 57
    assert summary["train"]["fingerprint"] == data.train.fingerprint
    assert summary["test"] == {
        "examples": 600,
        "counts": [60] * 10,
        "fingerprint": data.test.fingerprint,
    }
    assert summary["spec"]["imbalance_ratio"] == 50


def heights(lines):
    """Eighths of a line in each column of a chart."""
    width = max(map(len, lines))
    rows = [line.ljust(width) for line in lines]
    return [sum(" ▁▂▃▄▅▆▇█".index(row[i]) for row in rows) for i in range(width)]


def test_bars_are_as_high_as_their_values():
    values = [80, 40, 39, 1, 0, 10]
    lines = bars(values, width=6, height=4)
    assert heights(lines) == [32, 16, 16, 1, 0, 4]  # 1 of 80 is too little for an eighth, but seen
    assert heights(bars(values, width=13, height=4)) == [
        v for v in [32, 16, 16, 1, 0, 4] for _ in "ab"
    ]


def test_the_mosaic_shows_the_images_themselves():
    images = np.arange(5 * 3 * 32 * 32, dtype=np.uint32).reshape(5, 3, 32, 32).astype(np.uint8)
    data = ImageSet(images, np.array([0, 1, 0, 0, 1]), ("a", "b"))
    picture = mosaic(data, np.array([1, 0]), columns=3)
    assert picture.shape == (2 * 32 + 2, 3 * 32 + 2 * 2, 3)
    np.testing.assert_array_equal(picture[:32, :32], images[1].transpose(1, 2, 0))
    np.testing.assert_array_equal(picture[34:, 34:66], images[2].transpose(1, 2, 0))
    assert (picture[:32, 68:] == 255).all()  # class b has no third image
