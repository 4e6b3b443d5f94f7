"""The page "What of the paper holds" is made from the records."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from studies import __main__, exp, holds
from studies._records import ROOT


def test_the_page_is_made_from_the_records(tmp_path, capsys):
    assert __main__.main(["holds", "--out", str(tmp_path)]) == 0
    path = "docs/what-holds.md"
    assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()


def test_every_claim_is_one_that_is_judged():
    texts = {claim.text for column in holds.columns() for claim in exp.claims(column)}
    assert {text for _, text in holds.TRAINED} <= texts
