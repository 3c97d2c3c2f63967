"""Finished runs are copied without what only this machine needs."""

import json
import os
import pathlib
import shutil
import types

import pytest

from disarm_jax.report.runs import read_run
from scripts import collect

FROZEN = pathlib.Path(__file__).parent.parent / "experiment" / "frozen_v1"


@pytest.fixture
def runs(tmp_path):
    shutil.copytree(FROZEN, tmp_path / "runs")
    finished = tmp_path / "runs" / "finished"
    summary = json.loads((finished / "summary.json").read_text())
    summary["command"] = [
        "/opt/env/bin/python",
        f"--workdir={tmp_path}/runs/finished",
        "--config.dataset.path=~/x/y.npz",
    ]
    (finished / "summary.json").write_text(json.dumps(summary))
    entry = {"command": [str(tmp_path / "main.py")], "data": {"origin": "/home/me/data/mnist"}, "step": 0}
    (finished / "run.json").write_text(json.dumps({"format": 1, "entries": [entry]}))
    return tmp_path / "runs"


def call(*folders, out):
    collect.main(["collect"], types.SimpleNamespace(runs=[str(folder) for folder in folders], out=str(out)))


def test_a_finished_run_is_copied_and_an_interrupted_one_is_not(runs, tmp_path, capsys):
    out = tmp_path / "out"
    for _ in range(2):  # the second time it is replaced
        call(runs, out=out)
        assert "1 finished runs of 2" in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["finished"]
    names = {path.name for path in (out / "finished").iterdir()}
    assert names == {"config.json", "run.json", "metrics.jsonl", "summary.json", "DONE"}
    found, original = read_run(out / "finished"), read_run(runs / "finished")
    assert found.finished
    assert found.rows == original.rows
    assert found.config == original.config
    assert found.summary["metrics"] == original.summary["metrics"]
    assert found.summary["command"] == ["python", "--workdir=finished", "--config.dataset.path=y.npz"]
    (entry,) = json.loads((out / "finished" / "run.json").read_text())["entries"]
    assert entry == {"command": ["main.py"], "data": {"origin": "mnist"}, "step": 0}
    assert str(tmp_path) not in "".join(path.read_text() for path in (out / "finished").iterdir())


def test_names_that_are_there_twice_are_refused(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "more" / "finished")
    with pytest.raises(SystemExit, match="several run directories are called finished"):
        call(runs, tmp_path / "more", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(SystemExit, match=r"no such folder: .*nothing"):
        call(tmp_path / "nothing", out=tmp_path / "out")


@pytest.mark.parametrize("kind", ["link", "pipe", "deep"])
def test_files_from_elsewhere_are_not_copied(runs, tmp_path, kind, capsys):
    """A run directory may be anybody's; the others are collected."""
    shutil.copytree(runs / "finished", runs / "other")
    file, secret = runs / "other" / "run.json", tmp_path / "secret.json"
    secret.write_text('{"password": "secret"}')
    file.unlink()
    make = {"link": lambda: file.symlink_to(secret), "pipe": lambda: os.mkfifo(file)}
    make.get(kind, lambda: file.write_text("[" * 100_000))()
    call(runs, out=tmp_path / "out")
    said = capsys.readouterr()
    assert f"skipped: {file} cannot be copied: it is " in said.err
    assert "1 finished runs of 3" in said.out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["finished"]


def test_a_run_without_its_last_file_is_copied_with_it(runs, tmp_path):
    """Its summary says that it is finished."""
    (runs / "finished" / "DONE").unlink()
    call(runs, out=tmp_path / "out")
    assert (tmp_path / "out" / "finished" / "DONE").read_text() == f"{read_run(runs / 'finished').config['steps']}\n"


def test_a_user_that_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match="error: ~nosuchuser/x: there is no such user"):
        call("~nosuchuser/x", out=tmp_path / "out")
