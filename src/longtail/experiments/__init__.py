"""The paper's tables and figures, one module each: what is computed, not how it looks.

A module has ``run(*, progress=None, ...)``, which returns an object with ``to_dict()`` (plain
JSON values); `progress`, if given, is called as ``progress(done, total, what)``. How the
results look lives in the module of the same name in `longtail.report`, with ``FILES`` (what it
writes), ``tables(results)`` and ``write(results, folder)``. ``longtail reproduce NAME`` joins
the two.

`table_exp` trains: `exp_runs` says which runs and trains them, `records` keeps what tables need of
each, and `weight_norms`, `tau_curves`, `per_class` and `claims` are made from its result. It may
stop before everything is trained; its result has `stopped` then. `strong` trains in the same way:
`strong_kinds` says in which ways, `strong_runs` which runs, `selection` what was compared before,
and `development` chooses by the development set. So does `table_large`, from images on disk:
`large_runs` says which runs, `large_hours` how long they take.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with the steps done, their total, and what comes next."""
