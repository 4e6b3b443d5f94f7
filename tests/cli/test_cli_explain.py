import json
from pathlib import Path

import pytest

from longtail.cli import explain

SOURCE = Path(__file__).parents[2] / "docs" / "methods"
NAMES = sorted(path.stem for path in SOURCE.glob("*.md"))


def test_there_is_a_page_for_every_loss():
    from longtail import margins

    for name in ("softmax", "balanced", "class_balanced", "adaptive", "ldam", "equalized"):
        assert hasattr(margins, name)
        assert name.replace("_", "-") in explain.pages()
    assert sorted(explain.pages()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_plain_prints_the_page_as_it_is(cli, name):
    result = cli("explain", name, "--plain")
    assert (result.code, result.err) == (0, "")
    assert result.out.rstrip("\n") == (SOURCE / f"{name}.md").read_text().rstrip("\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_rendered_at_80_columns(cli, name):
    result = cli("explain", name)
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert "When to use it" in result.out
    assert "## " not in result.out


def test_spelling_is_forgiving(cli):
    assert cli("explain", "Logit_Adjusted").out == cli("explain", "logit-adjusted").out


def test_an_unknown_method_gets_the_list(cli):
    result = cli("explain", "focal")
    assert result.code == 2
    assert result.out == ""
    assert f"there is no method 'focal'; the methods are {', '.join(NAMES)}" in result.err


def test_no_method_lists_them_with_a_sentence_each(cli):
    result = cli("explain")
    assert result.code == 0
    for name in NAMES:
        assert f"\n{name} " in "\n" + result.out
    assert max(map(len, result.out.splitlines())) <= 80
    listed = json.loads(cli("explain", "--json").out)
    assert [entry["name"] for entry in listed] == NAMES
    assert all(entry["summary"].endswith(".") and entry["title"] for entry in listed)


def test_a_page_as_json(cli):
    document = json.loads(cli("explain", "softmax", "--json").out)
    assert document["title"] == "Softmax cross-entropy"
    assert document["page"] == (SOURCE / "softmax.md").read_text()


def test_the_pages_of_an_installed_package_come_first(cli, monkeypatch, tmp_path):
    package = tmp_path / "longtail"
    (package / "_pages").mkdir(parents=True)
    (package / "_pages" / "one.md").write_text("# One\n\nThe first.\n")
    monkeypatch.setattr(explain, "__file__", str(package / "cli" / "explain.py"))
    assert list(explain.pages()) == ["one"]
    assert "One" in cli("explain", "one").out


def test_a_wheel_ships_the_pages():
    import tomllib

    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"docs/methods": "longtail/_pages"}
