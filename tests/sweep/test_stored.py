"""Trials start from the config that was checked at launch; what lies in a sweep's folder is not believed."""

import json
import os
import pathlib

import pytest
from sweeping import run, write_config

from disarm_jax.run_directory.directory import read_stored_config
from disarm_jax.sweep.folder import SweepFolder
from scripts import sweep


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """A sweep whose trials have been launched here but have not begun; its tasks."""
    tasks = []
    monkeypatch.setattr(sweep.local, "run_local", lambda todo, *unused: tasks.extend(todo) or True)
    assert run(f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'out'}") == 1
    return tasks


def edited(folder):
    file = pathlib.Path(write_config(folder, **{"steps": 40, "optimizer.encoder.learning_rate": 0.5}))
    return file


def test_an_edited_file_does_not_reach_them(tmp_path, launched, capfd):
    folder = SweepFolder(tmp_path / "out")
    record = folder.read_record()
    file = edited(tmp_path)
    assert len(launched) == 3
    for task in launched:
        (stored,) = [part.partition("=")[2] for part in task.command if part.startswith("--stored_config=")]
        config = read_stored_config(stored)
        assert config == record[task.name]["config"]
        assert (config.steps, config.optimizer.encoder.learning_rate) == (20, 1e-2)
        assert not any(part.startswith(("--config", "--allow_imports")) for part in task.command)
    capfd.readouterr()
    assert run(f"--status={tmp_path / 'out'}") == 1
    assert f"{file} has changed since trials were launched from it, which train what it said then: 3 trials" in (
        capfd.readouterr().out
    )


def test_an_edited_file_is_named_at_launch(tmp_path, launched, capfd):
    """Of the trials that are left alone."""
    folder = SweepFolder(tmp_path / "out")
    for task in launched:
        folder.run_dir(task.name).path.mkdir()
        (folder.run_dir(task.name).path / "DONE").write_text("20\n")
    file = pathlib.Path(tmp_path / "sweep_config.py")
    file.write_text(file.read_text() + "\n# another line\n")
    assert run(f"--config={file}", f"--out={tmp_path / 'out'}") == 0
    assert f"{file} has changed since trials were launched" in capfd.readouterr().err


def test_custom_parts_of_a_checked_config_are_imported(tmp_path, monkeypatch):
    tasks = []
    monkeypatch.setattr(sweep.local, "run_local", lambda todo, *unused: tasks.extend(todo) or True)
    file = write_config(tmp_path, 'hyper.sweep("batch_size", [5, 6])', **{"estimator.name": "disarm_jax:disarm"})
    assert run(f"--config={file}", f"--out={tmp_path / 'out'}") == 1
    assert all("--allow_imports" in task.command for task in tasks)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        "null",
        "[" * 100_000,
        '{"trials": []}',
        '{"trials": {"a": 3}}',
        '{"trials": {"a": {"command": [], "steps": "x", "job": null}}}',
        '{"trials": {"a": {"command": [], "steps": 5, "job": 7}}}',
        '{"trials": {"../a": {"command": [], "steps": 5, "job": null}}}',
        '{"trials": {"a": {"command": [], "steps": 5, "job": null, "config": []}}}',
    ],
)
def test_a_damaged_sweep_json_is_one_line(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    found = run(f"--status={tmp_path}")
    assert found.startswith(f"error: {tmp_path}/sweep.json is damaged: "), found
    assert "\n" not in found
    assert len(found) < 300


def test_damaged_attempts_and_rows_are_left_out(tmp_path, launched, capfd):
    folder = SweepFolder(tmp_path / "out")
    for task in launched:
        (folder.logs / f"{task.name}.json").write_text('{"count": [], "idle": null}')
        run_dir = folder.run_dir(task.name)
        run_dir.path.mkdir()
        run_dir.metrics_file.write_text(
            '{"step": "x", "objective": 1}\n{"step": 1e400, "objective": 2}\n' + "[" * 100_000
        )
        run_dir.timings_file.write_text('{"step": 5, "what": "train", "seconds": 2, "steps": "x"}\n')
    capfd.readouterr()
    assert run(f"--status={folder.path}") == 1
    assert "0 / 20" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--mem_gb=nan"], "--mem_gb=nan: accepted: a number of gigabytes"),
        (["--mem_gb=inf"], "--mem_gb=inf: accepted: a number of gigabytes"),
        (["--sbatch=account=x\n#SBATCH --wrap=rm"], r"--sbatch='account=x\n#SBATCH --wrap=rm': accepted: one line"),
        (["--partition=a\nb"], r"--partition='a\nb': accepted: the name of a partition"),
        (["--out=a\nb"], r"--out='a\nb': accepted: a path of printable characters"),
        (["--out=~nosuchuser/a"], "--out=~nosuchuser/a: there is no such user"),
        (["--config.model.latents=(9,)", "--config.model.latents=(5,)"], "--config.model.latents is given 2 times"),
    ],
)
def test_flags_that_are_refused(tmp_path, more, message):
    command = (f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'out'}", "--cluster=slurm", "--dry_run")
    found = run(*command, *more)
    assert found.startswith(f"error: {message}"), found
    assert "\n" not in found
    assert not (tmp_path / "out").exists()


def test_the_record_says_where_it_comes_from(tmp_path, launched):
    entry = json.loads((tmp_path / "out" / "sweep.json").read_text())["trials"]["estimator=arm"]
    assert entry["config_file"] == str(tmp_path / "sweep_config.py")
    assert len(entry["config_sha256"]) == 64


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_status_of_somebody_elses_sweep_opens_no_pipes_and_devices(tmp_path, launched, kind, capfd):
    """Its sweep.json names the config file, and its folder holds the logs."""
    pipe, record = tmp_path / "pipe", tmp_path / "out" / "sweep.json"
    os.mkfifo(pipe)
    found = json.loads(record.read_text())
    for name, entry in found["trials"].items():
        entry["config_file"] = str(pipe) if kind == "pipe" else "/dev/zero"
        os.mkfifo(tmp_path / "out" / "logs" / f"{name}.log")
    record.write_text(json.dumps(found))
    capfd.readouterr()
    assert run(f"--status={tmp_path / 'out'}") == 1
    assert "has changed since trials were launched from it" in capfd.readouterr().out
