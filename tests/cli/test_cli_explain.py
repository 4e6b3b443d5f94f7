import json
from pathlib import Path

import pytest

from longtail.cli import explain

SOURCE = Path(__file__).parents[2] / "docs" / "methods"
NAMES = sorted(path.stem for path in SOURCE.glob("*.md"))


def test_there_is_a_page_for_every_part_of_a_method():
    assert list(explain.pages()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_plain_or_rendered_at_80_columns(cli, name, ok):
    plain = cli("explain", name, "--plain").out
    assert plain.rstrip("\n") == (SOURCE / f"{name}.md").read_text().rstrip("\n")
    result = ok("explain", name)
    assert "When to use it" in result.out
    assert "## " not in result.out
    assert ".md" not in result.out


def test_no_method_lists_them_with_a_sentence_each(cli, ok):
    result = ok("explain")
    for name in NAMES:
        assert f"\n{name} " in "\n" + result.out
    listed = json.loads(cli("explain", "--json").out)
    assert sorted(entry["name"] for entry in listed) == NAMES
    assert all(entry["summary"].endswith(".") and entry["title"] for entry in listed)


def test_a_composed_method_is_explained_by_its_parts(cli, ok):
    source = [(SOURCE / f"{name}.md").read_text() for name in ("ldam", "drw")]
    result = ok("explain", "ldam+drw")
    assert result.out == cli("explain", "ldam").out + "\n" + cli("explain", "drw").out
    assert cli("explain", "LDAM:scale=20 + drw:start=120").out == result.out
    assert cli("explain", "ldam+drw", "--plain").out == "\n".join(source)


def test_what_is_no_method_is_said_in_one_line(refused):
    assert f"the methods are {', '.join(NAMES)}" in refused("explain", "focal", code=2)
    assert "did you mean drw?" in refused("explain", "ldam+drv", code=2)
