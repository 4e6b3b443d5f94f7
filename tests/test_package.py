"""The package as a whole: import order, lazy names, light start."""

import ast
import json
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import longtail

SOURCE = Path(longtail.__file__).parent

# The order in which data walks through the house; a module imports only what stands above it.
ORDER = [
    "_checks",
    "priors",
    "metrics",
    "posthoc",
    "tuning",
    "multilabel",
    "shift",
    "conformal",
    "sklearn",
    "margins",
    "consistency",
    "kernels",
    "losses",
    "runs",
    "bake",
    "predictions",
    "data",
    "models",
    "train",
    "report",
    "integrations",
    "cli",
    "__main__",
]


def imports_of(path: Path):
    """The parts of longtail that a file imports, but for type checking."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if id(node) not in typing_only:
            yield from (name.split(".")[1] for name in names if name.startswith("longtail."))


SOURCES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def test_imports_go_only_upward():
    for path in SOURCES:
        relative = path.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        assert own in ORDER, f"{own} has no place in the reading order"
        for part in imports_of(path):
            if part in ORDER and own != "_checks":
                assert ORDER.index(part) <= ORDER.index(own), f"{relative} imports longtail.{part}"


def test_files_stay_readable():
    for path in SOURCES:
        text = path.read_text()
        assert len(text.splitlines()) <= 900, f"{path.name}: more than one idea?"
        assert ast.get_docstring(ast.parse(text)), f"{path.name}: the first lines say what it is"


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_the_package_imports_nothing_heavy():
    heavy = ["torch", "sklearn", "scipy", "numpy", "typer", "rich", "matplotlib", "plotly"]
    loaded = json.loads(
        run_python(
            "import sys, json, longtail;"
            f"print(json.dumps([m for m in {heavy} if m in sys.modules]))"
        )
    )
    assert loaded == []


def test_the_core_needs_no_torch():
    run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import longtail\n"
        "p = longtail.ClassPrior.from_counts([9, 1])\n"
        "assert longtail.margins.logit_adjusted(p).matrix()[1, 0] > 0\n"
        "assert longtail.adjust_logits([[1.0, 0.0]], p).argmax() == 1\n"
    )


HIDE = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.split(".")[0] in HIDDEN
        return None if hidden else super().find_spec(name, path, target)
sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""
HIDE_TORCH = f"HIDDEN = ['torch']\n{HIDE}"

# Prints how each module fails that does not import: [module, error, words]. What goes wrong inside
# another package is not this one's: some look only at what else is said to be installed.
IMPORT_EACH = """
import importlib, json, traceback
failed = []
for name in NAMES:
    try:
        importlib.import_module(name)
    except ImportError as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = [f for f in frames if not f.filename.startswith("<frozen")][-1]
        if last.filename.startswith(SOURCE):
            failed.append([name, type(error).__name__, str(error)])
print(json.dumps(failed))
"""


def dotted(path: Path) -> str:
    return ".".join(("longtail", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


# Private modules are reached through public ones, which have checked by then; training's through
# the names of `longtail.train`.
PUBLIC = [name for name in map(dotted, SOURCES) if "._" not in name]
PUBLIC = [name for name in PUBLIC if not name.startswith("longtail.train.")]

IMPORTED_WHERE_USED = ["plotly", "jinja2", "matplotlib", "tensorboard", "safetensors", "pyarrow"]
IMPORTED_WHERE_USED += ["PIL", "onnx", "onnxruntime"]


@pytest.mark.parametrize(
    ("hidden", "extra", "needing"),
    [
        (
            ["torch"],
            "torch",
            """
            losses.pairwise models models.resnet losses.linear
            data.streaming data.torch_samplers integrations.huggingface integrations.lightning
            """,
        ),
        (["transformers"], "hf", "integrations.huggingface"),
        (["lightning"], "lightning", "integrations.lightning"),
        (IMPORTED_WHERE_USED, None, ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_module_imported_without_its_extra_names_the_install_command(hidden, extra, needing):
    out = run_python(
        f"HIDDEN, NAMES, SOURCE = {hidden}, {PUBLIC}, {str(SOURCE)!r}\n{HIDE}\n{IMPORT_EACH}"
    )
    failed = json.loads(out.splitlines()[-1])
    assert {f"longtail.{name}" for name in needing.split()} <= {name for name, _, _ in failed}
    for name, kind, words in failed:
        assert kind == "MissingExtraError", f"{name}: {words}"
        assert words == (
            f"this needs {hidden[0]}, which is not installed; run: pip install 'longtail[{extra}]'"
        )


def test_training_without_torch_names_the_install_command():
    run_python(
        HIDE_TORCH + "import longtail.train\n"
        "from longtail.train import Method, get_recipe\n"
        "try:\n    longtail.train.train_cohort\n"
        "except ImportError as error:\n    assert \"pip install 'longtail[train]'\" in str(error)\n"
        "else:\n    raise AssertionError\n"
    )


def test_a_star_import_without_torch_goes_without_the_losses():
    run_python(
        HIDE_TORCH + "from longtail import *\n"
        "assert ClassPrior and LogitAdjustedClassifierCV and 'LogitAdjustedLoss' not in globals()\n"
        "import longtail\n"
        "assert {'losses', 'LogitAdjustedLoss'} <= set(dir(longtail))\n"
    )
    assert "LogitAdjustedLoss" in longtail.__all__


def test_a_star_import_leaves_scikit_learn_alone():
    run_python("import sklearn\nfrom longtail import *\nassert sklearn.__name__ == 'sklearn'")
    assert not set(longtail._SUBMODULES) & set(longtail.__all__)


def test_every_public_name_loads():
    for name in longtail.__all__:
        assert getattr(longtail, name) is not None
        assert name in dir(longtail)
    with pytest.raises(AttributeError, match="no attribute 'adjust_logit'"):
        longtail.adjust_logit  # noqa: B018


def test_the_typed_names_are_the_lazy_names():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    }
    assert typed == {*longtail._HOMES, *longtail._SUBMODULES}


def test_the_source_archive_has_what_tests_and_make_read():
    """That is all that is in the repository but hidden files, which serve only there."""
    root = SOURCE.parents[1]
    if not (root / ".git").exists():
        pytest.skip("no repository, such as an unpacked source archive")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    )
    names = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    project = tomllib.loads((root / "pyproject.toml").read_text())
    by_itself = {"pyproject.toml", *project["project"]["license-files"]}
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {name for name in names if not name.startswith(".")} == {*included, *by_itself}


@pytest.mark.parametrize("name", ["InputError", "MissingExtraError"])
def test_errors_are_called_by_their_public_names(name):
    error = getattr(longtail, name)
    assert f"{error.__module__}.{error.__qualname__}" == f"longtail.{name}"
    again = pickle.loads(pickle.dumps(error("what to do")))
    assert type(again) is error
    assert str(again) == "what to do"
