#!/usr/bin/env bash
# Build the wheel and the sdist, install the wheel alone into a clean environment, and use it there.
set -euo pipefail
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --quiet --outdir "$work/dist" "$root"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/dist/*.whl
cd "$work" # so that nothing of the checkout can be imported

# What is in it: the library, its pages and its type marker, and nothing else.
venv/bin/python - <<'PY'
import glob, tarfile, zipfile
wheel = set(zipfile.ZipFile(*glob.glob("dist/*.whl")).namelist())
more = [name for name in wheel if not name.startswith(("longtail/", "longtail-"))]
assert not more, f"the wheel holds more than the library: {more}"
for name in ("py.typed", "_pages/logit-adjusted.md", "report/page.html"):
    assert f"longtail/{name}" in wheel, f"the wheel lacks {name}"
sdist = tarfile.open(*glob.glob("dist/*.tar.gz")).getnames()
assert any(name.endswith("/studies/exp.py") for name in sdist), "the sdist lacks the studies"
PY

# The README's first example, and two commands.
awk '/^```python$/ {on = 1; next} /^```$/ {if (on) exit} on' "$root/README.md" > example.py
venv/bin/python example.py
venv/bin/python - <<'PY'
import numpy as np
rng = np.random.default_rng(0)
target = rng.choice(3, 600, p=(0.9, 0.08, 0.02))
logits = rng.normal(size=(600, 3)) + np.log((0.9, 0.08, 0.02)) + 2 * np.eye(3)[target]
np.savez("predictions.npz", logits=logits, target=target)
PY
venv/bin/longtail adjust predictions.npz --counts 900,80,20
venv/bin/longtail explain logit-adjusted
venv/bin/python -m pip list --disable-pip-version-check | grep -iqE '^(torch|pandas|matplotlib) ' && exit 1 # no extra in the core
echo "wheel and sdist are in order"
