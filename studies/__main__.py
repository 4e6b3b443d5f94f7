"""`python -m studies`: lists the studies; `python -m studies NAME [--help]` does one.

A study is a module of this folder with ``main(options)``, and ``add_arguments(parser)`` for options
of its own beside ``--out``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from longtail import InputError, MissingExtraError

STUDIES = {
    "holds": "What of the paper holds: every claim with a verdict and a figure.",
    "synthetic": "Every loss and post-hoc method on two Gaussians (the paper's figure 2).",
    "theory": "Table 1 with witnesses, link functions, Bayes risks, separable data.",
    "exp": "The paper's CIFAR table and figures (training: a GPU, minutes).",
    "methods": "The other methods that the paper names (training: a GPU, an hour).",
    "settings": "The CIFAR table at other ratios, subsets, weight decay (training: a GPU, 1.5 h).",
    "step": "The paper's STEP table and figure (training: a GPU, an hour).",
    "pretrained": "Pretrained against from scratch (training: a GPU, minutes).",
    "strong": "How far the logit-adjusted loss goes (training: a GPU, hours).",
    "large": "ImageNet-LT and iNaturalist (training: GPUs, days).",
    "large_simulation": "1,000 and 8,142 classes of real sizes against Bayes (an hour).",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a study.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong usage.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, STUDIES))
        lines = [f"  {name:<{width}}  {text}" for name, text in STUDIES.items()]
        sys.stdout.write("\n".join(["usage: python -m studies NAME [--help]", "", *lines, ""]))
        return 0
    name = words[0].replace("-", "_")
    if name not in STUDIES:
        sys.stderr.write(f"there is no study {words[0]!r}; the studies are {', '.join(STUDIES)}\n")
        return 2
    study = importlib.import_module(f"studies.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m studies {name}",
        description=study.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if hasattr(study, "add_arguments"):
        study.add_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="Write the page below this folder instead of this checkout.",
    )
    try:
        options = parser.parse_args(words[1:])
    except SystemExit as left:
        return int(left.code or 0)
    options.defaults = vars(parser.parse_args([]))
    try:
        study.main(options)
    except (InputError, MissingExtraError, OSError) as error:
        sys.stderr.write(f"studies {name}: error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"studies {name}: interrupted; finished runs are kept\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
