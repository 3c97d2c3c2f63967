"""What a Slurm job does with its trial, told by pretended programs: when it goes back into the queue, and when not."""

import signal
import sys

import pytest
from sweeping import write_program

from disarm_jax.experiment.loop import TRY_AGAIN
from disarm_jax.sweep import slurm
from disarm_jax.sweep.attempt import MAX_IDLE, Attempt, Task
from disarm_jax.sweep.folder import Attempts, SweepFolder
from disarm_jax.sweep.status import trial_status

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGUSR2)  # what Slurm does before the time limit
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """The last task of an array, whose number is that of the whole array."""
    for name, value in {"JOB_ID": "20", "ARRAY_JOB_ID": "20", "ARRAY_TASK_ID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    write_program(tmp_path / "bin", "squeue", f"echo $* >>{tmp_path}/asked; echo RUNNING")
    write_program(tmp_path / "bin", "scontrol", f"echo $* >>{tmp_path}/told")
    heard = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    old = {number: signal.getsignal(number) for number in heard}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.logs.mkdir()
    return folder


def task(folder, script):
    return Task("trial", (sys.executable, "-c", script), str(folder.path), str(folder.path), {})


def end(folder, script, patience=60.0):
    """How a job ends, and what it has told Slurm."""
    with pytest.raises(SystemExit) as ended:
        slurm.run_task(task(folder, script), patience)
    told = folder.path / "told"
    return ended.value.code, told.read_text() if told.exists() else ""


def test_one_that_has_saved_requeues_itself_alone(folder):
    assert end(folder, f"raise SystemExit({TRY_AGAIN})") == (TRY_AGAIN, "requeue 20_1\n")
    assert (folder.path / "asked").read_text() == "--noheader --jobs=20_1 --format=%T\n"
    assert folder.log_file("trial").read_text().startswith("== attempt 1 on job 20_1, ")


def test_a_single_one_is_no_array(folder, monkeypatch):
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert end(folder, f"raise SystemExit({TRY_AGAIN})") == (TRY_AGAIN, "requeue 20\n")


@pytest.mark.parametrize("status", [0, 1])
def test_one_that_is_done_or_has_failed_does_not(folder, status):
    assert end(folder, f"raise SystemExit({status})") == (status, "")


def test_a_cancelled_one_does_not(folder, tmp_path):
    write_program(tmp_path / "bin", "squeue", "echo COMPLETING")
    assert end(folder, f"raise SystemExit({TRY_AGAIN})") == (TRY_AGAIN, "")


def test_one_that_does_not_save_in_time_is_killed_first(folder):
    assert end(folder, STUBBORN, patience=0.5) == (TRY_AGAIN, "requeue 20_1\n")
    assert folder.read_attempts("trial") == Attempts(1, TRY_AGAIN, 1, 0)
    assert "== killed: not saved within 0 s; the last checkpoint must do" in folder.log_file("trial").read_text()
    next_one = Attempt(task(folder, ""), "here")  # so nothing is left that has the lock
    next_one.kill("")


def test_it_is_not_tried_for_ever(folder):
    folder.write_attempts("trial", Attempts(7, TRY_AGAIN, MAX_IDLE - 1, 0))
    assert end(folder, STUBBORN, patience=0.5) == (1, "")
    folder.write_attempts("trial", Attempts(7, None, MAX_IDLE - 1, 0))  # job and trial were killed together
    assert end(folder, "raise SystemExit(0)") == (1, "")
    assert folder.read_attempts("trial") == Attempts(8, 1, MAX_IDLE, 0)
    found = trial_status(folder, "trial", {"job": "20_1", "steps": 5}, {})
    assert (found.state, found.note[:35]) == ("failed", "== 5 attempts in a row saved no ste")
    folder.write_attempts("trial", Attempts(7, None, MAX_IDLE - 1, 0))
    (folder.run_dir("trial").checkpoints / "100").mkdir(parents=True)
    assert end(folder, "raise SystemExit(0)") == (0, "")


def test_it_lets_another_process_end_first(folder, monkeypatch):
    other = Attempt(task(folder, "import time; time.sleep(60)"), "elsewhere")
    monkeypatch.setattr(slurm, "TURN_SECONDS", 0)
    slurm.run_task(task(folder, ""), 60.0)
    assert (folder.path / "told").read_text() == "requeue 20_1\n"
    monkeypatch.setattr(slurm, "TURN_SECONDS", 60)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: other.kill("enough") if seconds == 1 else None)
    assert end(folder, "raise SystemExit(0)")[0] == 0
