"""The documentation's part on the simulation at full class count, made from its record alone.

    python -m longtail.report.large_page [ROOT]

reads ``ROOT/results/large-simulation/large-simulation.json`` and writes the figure below
``ROOT/docs/large-scale`` and the part of ``ROOT/docs/large-scale.md`` between the two marks. The
same record gives the same bytes.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from longtail.data.large import LARGE
from longtail.experiments.large_simulation import DATASETS, Study
from longtail.report import figures, large_simulation
from longtail.report.reproduction import with_block
from longtail.runs import files

RECORD = Path("results/large-simulation/large-simulation.json")
PAGE = Path("docs/large-scale.md")
FIGURE = Path("docs/large-scale/simulation")
BEGIN, END = "<!-- large-simulation: begin -->", "<!-- large-simulation: end -->"

logger = logging.getLogger("longtail")


def read(root: Path | str) -> Study:
    """The study of the record below a root."""
    return Study.from_dict(files.read_json(Path(root) / RECORD, caller="large_page"))


def block(study: Study) -> str:
    """What stands between the two marks: findings, figure and tables."""
    absent = [LARGE[name].title for name in DATASETS if name not in study.datasets()]
    parts = [
        BEGIN,
        *large_simulation.findings(study),
        *(f"The record has no trial with the class sizes of {title} yet." for title in absent),
        f"![{large_simulation.TITLE}]({FIGURE.parent.name}/{FIGURE.name}.svg)",
        *(table.markdown() for table in large_simulation.tables(study)),
        END,
    ]
    return "\n\n".join(parts)


def write(root: Path | str) -> list[Path]:
    """Write the figure and the page's part below a root.

    Args:
        root: the repository.

    Returns:
        The paths written.
    """
    root = Path(root)
    study, page = read(root), root / PAGE
    text = with_block(
        page.read_text(encoding="utf-8"), block(study), begin=BEGIN, end=END, page=PAGE.name
    )
    drawn = figures.save(large_simulation.draw(study), root / FIGURE, title=large_simulation.TITLE)
    files.write_bytes(page, text.encode())
    return [page, *drawn]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for written in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")):
        logger.info("wrote %s", written)
