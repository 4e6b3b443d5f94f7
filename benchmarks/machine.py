"""Description of the machine for a benchmark's record."""

import os
import platform
from pathlib import Path

import numpy as np

import longtail


def processor_name():
    """The processor's own name where the system tells it, or its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine():
    """Processor and versions, for what runs on one thread."""
    return {
        "device": f"{processor_name()}, {os.cpu_count()} cores, one thread used",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "longtail": longtail.__version__,
    }
