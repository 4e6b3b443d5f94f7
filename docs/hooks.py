"""Build hook of the site: every public name must be in the API reference, with a docstring."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What stands on the core is reached through the command line and described in its own pages.
NOT_CORE = {"cli", "data", "experiments", "integrations", "kernels", "models", "report", "train"}


def public_definitions(path: Path):
    """(name, has a docstring) of each public function and class that a module defines."""
    for node in ast.parse(path.read_text()).body:
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if named and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) is not None


def undocumented() -> list[str]:
    """Public names of the core without a docstring, and core modules the reference leaves out."""
    pages = (ROOT / "docs" / "api.md").read_text()
    listed = set(re.findall(r"^::: longtail\.(\S+)", pages, flags=re.MULTILINE))
    problems = []
    source = ROOT / "src" / "longtail"
    for path in sorted([*source.glob("*.py"), *source.glob("*/__init__.py")]):
        module = path.parent.name if path.stem == "__init__" else path.stem
        if module.startswith("_") or module in NOT_CORE or path == source / "__init__.py":
            continue
        if module not in listed:
            problems.append(f"longtail.{module} is not in docs/api.md")
        problems += [
            f"longtail.{module}.{name} has no docstring"
            for name, documented in public_definitions(path)
            if not documented
        ]
    return problems


def on_pre_build(config):
    problems = undocumented()
    if problems:
        raise SystemExit("undocumented public names:\n  " + "\n  ".join(problems))
