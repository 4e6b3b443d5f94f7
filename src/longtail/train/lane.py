"""The names that studies use until they have moved to `cuda_graphs` and `loop`."""

from longtail import _checks

_checks.require("torch", extra="torch")

from longtail.train.cuda_graphs import Stepper as Lane
from longtail.train.loop import run_epoch

__all__ = ["Lane", "run_epoch"]
