"""Runs on disk: the one source of truth for every number that is published.

    files     atomic writes, hashes, fingerprints, tensors in files
    spec      RunSpec: everything that decides a run's result, to JSON and back
    folder    Run and RunWriter: a run's folder, read and written; which runs compare
    ensemble  the mean logits of several runs, as a run
    naming    what runs are called side by side: their methods, and what tells them apart
    packing   finished runs into one archive, and out again

Training writes a run folder without seeing the test set; evaluation adds a split's logits,
once; tuning, metrics and reports read them.
"""

from longtail.runs.ensemble import ensemble, mean_logits
from longtail.runs.files import fingerprint
from longtail.runs.folder import (
    FORMAT,
    Head,
    Run,
    RunError,
    RunWriter,
    SplitLogits,
    UnfinishedRunError,
    find_runs,
    run_folders,
    same_data,
)
from longtail.runs.packing import pack, unpack
from longtail.runs.spec import DataSpec, Part, RecipeSpec, RunSpec, Settings

__all__ = [
    "FORMAT",
    "DataSpec",
    "Head",
    "Part",
    "RecipeSpec",
    "Run",
    "RunError",
    "RunSpec",
    "RunWriter",
    "Settings",
    "SplitLogits",
    "UnfinishedRunError",
    "ensemble",
    "find_runs",
    "fingerprint",
    "mean_logits",
    "pack",
    "run_folders",
    "same_data",
    "unpack",
]
