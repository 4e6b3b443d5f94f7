"""The committed fingerprints, held to the rule, and to the real files where there are any."""

import os
from pathlib import Path

import numpy as np
import pytest

from longtail import runs
from longtail.data import load, make_long_tailed
from longtail.data.official import official_fingerprints, subset_fingerprints, verify_official
from longtail.data.profiles import profile_counts
from longtail.runs import DataSpec

SUBSETS = [(profile, ratio) for profile in ("exp", "step") for ratio in (10, 50, 100)]


def formula(profile, ratio, largest, classes):
    """Class sizes, straight from the notes on the protocol."""
    if profile == "exp":
        return [int(largest * ratio ** (-i / (classes - 1))) for i in range(classes)]
    return [largest] * (classes // 2) + [int(largest / ratio)] * (classes - classes // 2)


@pytest.mark.parametrize(("base", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_table_has_every_subset_with_its_size(base, classes):
    known = official_fingerprints()[base]
    assert list(known["subsets"]) == [f"{profile}-{ratio}" for profile, ratio in SUBSETS]
    everything = [known["train"], known["test"]]
    for profile, ratio in SUBSETS:
        entry = known["subsets"][f"{profile}-{ratio}"]
        sizes = formula(profile, ratio, 50_000 // classes, classes)
        assert entry["examples"] == sum(sizes)
        counts = profile_counts(
            profile, 50_000 // classes, num_classes=classes, imbalance_ratio=ratio
        )
        assert counts.tolist() == sizes
        everything += [entry["indices"], entry["train"]]
    assert len(set(everything)) == len(everything) == 14
    assert all(len(digest) == 64 for digest in everything)


def test_the_literatures_totals():
    totals = {
        base: [known["subsets"][f"exp-{ratio}"]["examples"] for ratio in (10, 50, 100)]
        for base, known in official_fingerprints().items()
    }
    assert totals == {"cifar10": [20_431, 13_996, 12_406], "cifar100": [19_573, 12_608, 10_847]}


# With the real files.


def real_folder():
    folder = os.environ.get("LONGTAIL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real CIFAR files; set LONGTAIL_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="module", params=["cifar10", "cifar100"])
def real(request):
    """(name, training set, test set) as they are read, unverified."""
    from longtail.data.registry import _find_cifar

    read, looked = _find_cifar(real_folder(), request.param, None)
    if read is None:
        pytest.skip(f"LONGTAIL_DATA has no {request.param}; looked for {', '.join(looked)}")
    return request.param, *read()


@pytest.mark.slow
def test_the_real_files_are_the_official_ones(real):
    base, train, test = real
    verify_official(base, train, test, where="LONGTAIL_DATA")
    classes = train.num_classes
    assert train.counts.tolist() == [50_000 // classes] * classes
    assert test.counts.tolist() == [10_000 // classes] * classes
    assert train.image_shape == (3, 32, 32)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "ratio"), SUBSETS)
def test_the_real_subset_is_the_literatures(real, profile, ratio):
    base, train, _ = real
    known = official_fingerprints()[base]["subsets"][f"{profile}-{ratio}"]
    spec = DataSpec(f"{base}-lt", profile=profile, imbalance_ratio=ratio)
    assert subset_fingerprints(train, spec) == known
    # The rule once more, in plain Python, with nothing of the package but the hash.
    random, chosen = np.random.RandomState(0), []
    sizes = formula(profile, ratio, 50_000 // train.num_classes, train.num_classes)
    labels = train.labels.tolist()
    for label, size in enumerate(sizes):
        mine = np.array([i for i, other in enumerate(labels) if other == label])
        random.shuffle(mine)
        chosen += mine[:size].tolist()
    assert runs.fingerprint(np.array(chosen)) == known["indices"]
    assert runs.fingerprint(train.images[chosen], train.labels[chosen]) == known["train"]
    assert make_long_tailed(train, train, spec).train.counts.tolist() == sizes


@pytest.mark.slow
def test_loading_by_name_checks_them():
    data = load("cifar10-lt", data_dir=real_folder())
    known = official_fingerprints()["cifar10"]["subsets"]["exp-100"]
    assert data.train.fingerprint == known["train"]
    assert data.train.class_names[0] == "airplane"
