"""``python -m longtail``: the command line, also for launchers that start modules (torchrun)."""

import sys

from longtail.cli import main

if __name__ == "__main__":
    sys.exit(main())
