"""The published results that `strong` stands beside, as their papers and their code say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A published result of one narrow ResNet-32 at imbalance ratio 100.

    Attributes:
        name: of the method.
        dataset: which.
        error: in percent.
        epochs: of its training, where known.
        network: what was trained, where it is more than one ResNet-32.
        selection: what its epoch was chosen on, where its public code shows that.
        source: where it was published, if that was found.
    """

    name: str
    dataset: str
    error: float
    epochs: int | None = None
    network: str = "ResNet-32"
    selection: str | None = None
    source: str | None = None


_BEST = "the test set: its code keeps the best epoch"
_REPORTED = "the test set: its code reports the best epoch"
_THREE = "ResNet-32, one of three trained together"
_PROCO = "Du et al., TPAMI 2024, arXiv:2403.06726"
_NCL = "Li et al., CVPR 2022, arXiv:2203.15359"
_PACO = "Cui et al., ICCV 2021, arXiv:2107.12028"
_BCL = "Zhu et al., CVPR 2022, arXiv:2207.09052"
PUBLISHED = (
    Published("ProCo", "cifar100-lt", 45.8, 400, selection=_BEST, source=_PROCO),
    Published("NCL", "cifar100-lt", 46.7, 400, network=_THREE, selection=_BEST, source=_NCL),
    Published("PaCo", "cifar100-lt", 48.0, 400, selection=_REPORTED, source=_PACO),
    Published("BCL", "cifar100-lt", 48.1, 200, source=_BCL),
    Published("DDC", "cifar10-lt", 13.6, network="not confirmed"),
    Published("ProCo", "cifar10-lt", 14.1, 200, selection=_BEST, source=_PROCO),
    Published("NCL", "cifar10-lt", 15.3, 400, network=_THREE, selection=_BEST, source=_NCL),
)
