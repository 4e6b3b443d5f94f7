"""The paper's tables and figures, one module each: what is computed, not how it looks.

A module has ``run(*, progress=None, ...)``, which returns an object with ``to_dict()`` (plain
JSON values); `progress`, if given, is called as ``progress(what, done, total)``. How the
results look lives in the module of the same name in `longtail.report`, with ``FILES`` (what it
writes), ``tables(results)`` and ``write(results, folder)``. ``longtail reproduce NAME`` joins
the two.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and of how many."""
