"""Images and labels for training: class profiles, data sets, subsets and splits.

registry     `load`: long-tailed data by name
profiles     how many examples each class gets (exponential, step, natural)
images       ImageSet and LongTailedData: arrays with their fingerprint
subsets      which examples: the long-tailed subset, the development set, the held-out split
samplers     which examples an epoch sees: balanced by class and the like
torch_samplers  the same for torch's DataLoader, also in several processes
decoding     many encoded images into one array
cifar        CIFAR-10 and CIFAR-100 from the official archives, and their fingerprints
hub_parquet  parquet files as the Hugging Face hub has them; frozen data sets
embeddings   features of any model with their labels, from npz, npy and parquet files
digits       scikit-learn's handwritten digits

Data sets too large for memory, as lists of files:

lists        ListedImages: paths, labels and their fingerprint; lists, competition files, folders
             with one sub-folder per class
large        ImageNet-LT, Places-LT and iNaturalist 2018 by name
photos       crops of single photographs
streaming    batches decoded in worker processes
check        every file of a data set tried before training
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
