"""Images and labels for training: class profiles, data sets, subsets, splits and samplers.

`load` (registry) reads long-tailed data by name into memory: an ImageSet each (images) from the
CIFARs (cifar, hub_parquet), folders of images, embeddings or scikit-learn's digits, cut to a
profile (profiles, subsets). `large.load_listed` reads data sets that stay on disk, as lists of
files (lists), which `streaming` decodes and crops in worker processes and `check` tries beforehand.
"""

from longtail.data.hub_parquet import freeze, read_frozen
from longtail.data.images import ImageSet, LongTailedData
from longtail.data.registry import DATASETS, load
from longtail.data.samplers import ClassSampler
from longtail.data.subsets import held_out_split, long_tailed_indices, make_long_tailed

__all__ = [
    "DATASETS",
    "ClassSampler",
    "ImageSet",
    "LongTailedData",
    "freeze",
    "held_out_split",
    "load",
    "long_tailed_indices",
    "make_long_tailed",
    "read_frozen",
]
