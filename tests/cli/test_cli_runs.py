import json
import re
from pathlib import Path

from longtail.runs import find_runs
from run_factory import make_run, make_spec, make_writer

RUNS = Path("runs")


def test_the_list_shows_each_run_and_its_state(ok):
    make_run(RUNS, make_spec(seed=0))
    make_writer(RUNS, make_spec(seed=1))
    edited = make_run(RUNS, make_spec(seed=2)).folder / "run.json"
    edited.write_text(edited.read_text().replace("90", "91"))
    result = ok("runs", "list")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].strip() == "runs/digits-lt"
    assert re.fullmatch(r"  logit-adjusted-s0-\w{8} +digits\* +test +2\.5 s", lines[2])
    assert re.fullmatch(r"  logit-adjusted-s1-\w{8} +digits\* +half written", lines[3])
    assert re.fullmatch(r"  logit-adjusted-s2-\w{8} +unreadable", lines[4])
    assert "1 of 3 runs finished" in result.out
    assert "* a recipe with changed values" in result.out
    assert "run.json was edited after it was written" in result.err


def test_the_shown_error_is_the_balanced_error(cli):
    import numpy as np

    # Class 0: 1 of 2 right, class 1: 0 of 1, class 2: 1 of 1, so (1/2 + 1 + 0) / 3.
    logits = np.eye(3)[[0, 1, 0, 2]]
    run = make_run(RUNS, logits=logits, target=np.array([0, 0, 1, 2]))
    assert "4 examples, float64, balanced error 50.00%" in cli("runs", "show", run.folder).out
    document = json.loads(cli("runs", "show", run.folder, "--json").out)
    assert document["balanced_error"] == {"test": 0.5}
    assert document["spec"] == json.loads(json.dumps(run.spec.to_json()))


def test_a_run_by_a_part_of_its_name(cli, refused):
    one, two = make_run(RUNS, make_spec(seed=0)), make_run(RUNS, make_spec(seed=1))
    assert cli("runs", "show", one.spec.hash8).out.startswith(one.folder.as_posix())
    assert cli("runs", "show", "s1-").out.startswith(two.folder.as_posix())
    said = refused("runs", "show", "digits")
    assert "'digits' fits 2 runs in runs: digits-lt/logit-adjusted-s0-" in said
    result = cli("runs", "show", "zzz")
    assert "zzz is not a run folder" in result.err


def test_packing_and_unpacking(cli, ok, refused):
    one = make_run(RUNS, make_spec(seed=0))
    make_run(RUNS, make_spec(seed=1))
    make_writer(RUNS, make_spec(seed=2))
    result = ok("runs", "pack", "runs", "--out", "a.tar.gz")
    assert re.fullmatch(r"a\.tar\.gz: 2 runs, \d+(\.\d)? k?B\n", result.out)
    assert "left out runs/digits-lt/logit-adjusted-s2-" in result.err

    result = cli("runs", "unpack", "a.tar.gz", "--root", "copy")
    assert result.out.splitlines()[0] == f"copy/{one.name}"
    assert [run.spec.seed for run in find_runs("copy")] == [0, 1]
    assert not find_runs("copy")[0].has_model
    assert "pass --force" in refused("runs", "unpack", "a.tar.gz", "--root", "copy")
    assert cli("runs", "unpack", "a.tar.gz", "--root", "copy", "--force", "--json").code == 0
