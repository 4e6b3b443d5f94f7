"""Build hooks of the site.

Every public name must be in the API reference, with a docstring. And formulas, which the pages hold
as plain text for terminals and editors (π_y^{−1/4}), get real subscripts and superscripts.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What stands on the core is reached through the command line and described in its own pages.
NOT_CORE = {"cli", "data", "integrations", "kernels", "models", "report", "train"}


def public_definitions(path: Path):
    """(name, has a docstring) of each public function and class that a module defines."""
    for node in ast.parse(path.read_text()).body:
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if named and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) is not None


def undocumented() -> list[str]:
    """Public names of the core without a docstring, and core modules the reference leaves out."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"^::: longtail\.(\S+)", pages, flags=re.MULTILINE))
    problems = []
    source = ROOT / "src" / "longtail"
    for path in sorted([*source.glob("*.py"), *source.glob("*/__init__.py")]):
        module = path.parent.name if path.stem == "__init__" else path.stem
        if module.startswith("_") or module in NOT_CORE or path == source / "__init__.py":
            continue
        if module not in listed:
            problems.append(f"longtail.{module} is in no page of docs/api")
        problems += [
            f"longtail.{module}.{name} has no docstring"
            for name, documented in public_definitions(path)
            if not documented
        ]
    return problems


# One sign below or above, as in f_y, error_y, z^τ and e^−z; or two below a single letter, as in
# A_jk. Not num_classes, to_df.
SHORT = re.compile(
    r"(?<=[^\W\d_])_([^\W_]|∞)(?!\w)"
    r"|(?<=[^\W\d_])(?<!\w\w)_([^\W_]{2})(?!\w)"
    r"|(?<=[\w)\]])\^([−+]?\w)(?!\w)"
)
BRACED = re.compile(r"([_^])\{([^{}]*)\}")
CODE_OR_TAG = re.compile(
    r"(<(?:pre|code|script|style)\b.*?</(?:pre|code|script|style)>|<[^>]*>)", re.DOTALL
)


def with_scripts(text: str) -> str:
    """A formula in plain text as HTML: π_y^{−1/4} with a subscript and a superscript."""
    text = SHORT.sub(lambda m: f"<sup>{m[3]}</sup>" if m[3] else f"<sub>{m[1] or m[2]}</sub>", text)
    while BRACED.search(text):  # from the inside outwards
        text = BRACED.sub(
            lambda m: f"<sub>{m[2]}</sub>" if m[1] == "_" else f"<sup>{m[2]}</sup>", text
        )
    return text


def formulas(html: str) -> str:
    """The same of a whole page, but for its code."""
    parts = CODE_OR_TAG.split(html)
    return "".join(part if i % 2 else with_scripts(part) for i, part in enumerate(parts))


def on_page_content(html, page, config, files):
    return formulas(html)


def on_pre_build(config):
    problems = undocumented()
    if problems:
        raise SystemExit("undocumented public names:\n  " + "\n  ".join(problems))
