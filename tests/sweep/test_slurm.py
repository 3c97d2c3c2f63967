"""The real Slurm: a sweep is submitted, preempted, asked to stop, cancelled and continued, and ends with the same bits.

Needs `export SLURM_CONF=$(scripts/slurm_sandbox.sh start)`. Left out where there is none, unless DISARM_REQUIRE_SLURM
is set, as it is where every change is tested.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest
from quick_processes import quick_environment
from sweeping import write_config

from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.status import sweep_status
from disarm_jax.sweep.tail import position
from scripts import kill_test

HYPER = 'hyper.sweep("config.estimator.name", ["arm", "disarm", "reinforce_loo"])'
NAMES = ["estimator=arm", "estimator=disarm", "estimator=reinforce_loo"]
# Long enough to be there when it is preempted: evaluations take most of the time.
LONG = {"steps": 4000, "log_every": 10, "checkpoint.every": 500, "eval.train_every": 10, "seeds": (0, 1, 2)}


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    """Only there: nobody wants to be preempted by a test."""
    file = pathlib.Path(os.environ.get("SLURM_CONF", "nosuch"))
    if shutil.which("sbatch") is None or not file.exists() or "ClusterName=sandbox" not in file.read_text():
        if os.environ.get("DISARM_REQUIRE_SLURM"):
            pytest.fail("DISARM_REQUIRE_SLURM is set, but SLURM_CONF is not that of scripts/slurm_sandbox.sh")
        pytest.skip("no Slurm here")


@pytest.fixture
def folder(tmp_path):
    """Of the sweep; jobs that are left over are cancelled."""
    folder = SweepFolder(tmp_path / "out")
    yield folder
    if jobs := [entry["job"] for entry in folder.read_record().values() if entry["job"]]:
        slurm("scancel", "--quiet", *jobs)


@pytest.fixture(autouse=True)
def quick_processes(tmp_path_factory, monkeypatch):
    """Jobs compile nothing twice, and little at all; they inherit the environment."""
    compiled = kill_test.shared_compilations(tmp_path_factory.mktemp("compilations"))
    for name, value in quick_environment(compiled).items():
        monkeypatch.setenv(name, value)


def slurm(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def sweep(*arguments):
    """Exit status and output of the command, as a user has them."""
    command = [sys.executable, "-m", "scripts.sweep", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def states(folder):
    return {status.name: status.state for status in sweep_status(folder, folder.read_record())}


def wait_for(condition, folder, seconds=400):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            logs = "\n".join(file.read_text() for file in sorted(folder.logs.glob("*.log")))
            pytest.fail(f"{states(folder)} after {seconds} s; {slurm('squeue')}\n{logs}")
        time.sleep(0.3)


def test_preempted_trials_end_as_if_nothing_had_happened(tmp_path, folder, monkeypatch):
    config = f"--config={write_config(tmp_path, HYPER, **LONG)}"
    command = (config, "--cluster=slurm", "--partition=main", "--cpus=2", "--gpus=0", "--mem_gb=0.5", "--time_min=30")
    command += ("--setup=echo hello from setup", "--sbatch=comment=a sweep", f"--out={folder.path}")
    status, said = sweep(*command, "--max_parallel=2")
    assert status == 0, said
    assert re.search(r"submitted 3 trials as job \d+, each with 0 GPUs, 2 CPUs, 0\.5 GB, 30 minutes, partition", said)
    jobs = [entry["job"] for entry in folder.read_record().values()]
    array = jobs[0].partition("_")[0]
    assert jobs == [f"{array}_{number}" for number in range(3)], "one array"
    assert set(states(folder).values()) <= {"waiting", "running"}
    assert "ArrayTaskThrottle=2" in slurm("scontrol", "show", "job", array)
    assert sweep(*command)[0] == 0, "nothing to add: all are on their way"
    assert [entry["job"] for entry in folder.read_record().values()] == jobs

    # A job that needs both nodes takes them from those that run.
    at_work = lambda name: position(folder.run_dir(name)).step >= 20 and states(folder)[name] == "running"
    wait_for(lambda: all(map(at_work, NAMES[:2])), folder)
    urgent = ("--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    urgent = slurm("sbatch", *urgent).strip()
    try:
        wait_for(lambda: list(states(folder).values())[:2] == ["preempted", "preempted"], folder)
        status, said = sweep(f"--status={folder.path}")
    finally:
        slurm("scancel", urgent)
    assert status == 1
    assert re.search(
        r"estimator=arm +preempted +[\d,]+ / 4,000 +-\d.* SIGUSR2: saved at step [\d,]+ of 4,000; the", said
    )
    assert "3 trials: 1 waiting, 2 preempted" in said

    # What Slurm sends before the time limit, to the last task, whose SLURM_JOB_ID is that of the array: only it stops.
    slurm("scontrol", "update", f"jobid={array}", "arraytaskthrottle=3")
    attempts = lambda: [folder.read_attempts(name).count for name in NAMES]
    wait_for(lambda: attempts() == [2, 2, 1] and all(map(at_work, NAMES)), folder)
    slurm("scancel", "--signal=USR2", jobs[2])
    wait_for(lambda: states(folder)[NAMES[2]] == "preempted", folder)

    # One that is cancelled stays so until it is launched again, and it alone is.
    wait_for(lambda: attempts() == [2, 2, 2] and at_work(NAMES[2]), folder)
    slurm("scancel", jobs[2])
    wait_for(lambda: states(folder)[NAMES[2]] == "cancelled", folder)
    time.sleep(7)  # longer than it takes to be requeued
    status, said = sweep(f"--status={folder.path}")
    assert status == 1
    assert re.search(rf"estimator=reinforce_loo +cancelled .*Slurm says CANCELLED of job {jobs[2]}", said)
    assert attempts() == [2, 2, 2], "the others were left alone"
    status, said = sweep(*command)
    assert (status, "submitted 1 trials" in said) == (0, True), said
    assert [entry["job"] for entry in folder.read_record().values()][:2] == jobs[:2]

    wait_for(lambda: set(states(folder).values()) == {"done"}, folder)
    assert sweep(f"--status={folder.path}")[0] == 0
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")  # as many as the jobs have, wherever this runs
    status, said = sweep(config, "--cluster=local", f"--out={tmp_path / 'undisturbed'}")
    assert status == 0, said
    for name in NAMES:
        assert "resuming" in folder.log_file(name).read_text()
        summary = json.loads((folder.path / name / "summary.json").read_text())
        assert summary["device"]["count"] == 2, "three seeds on the two devices of a job"
        assert kill_test.compare(tmp_path / "undisturbed" / name, folder.path / name) == []


def test_one_that_does_not_save_in_time_does_not_outlive_its_job(tmp_path, folder):
    """One chunk of steps that never ends: it is killed, and the next job can go on."""
    cadence = ("steps", "log_every", "checkpoint.every", "eval.train_every", "eval.test_every")
    config = write_config(tmp_path, 'hyper.sweep("batch_size", [5])', **dict.fromkeys(cadence, 10**9))
    command = (f"--config={config}", "--cluster=slurm", "--cpus=1", "--time_min=1", f"--out={folder.path}")
    status, said = sweep(*command)
    assert status == 0, said
    ((name, entry),) = folder.read_record().items()
    wait_for(lambda: (folder.path / name / "train_mean.npy").exists(), folder)  # so it listens to signals
    slurm("scancel", "--signal=USR2", entry["job"])
    wait_for(lambda: folder.read_attempts(name).count == 2 and states(folder)[name] == "running", folder)
    assert "== killed: not saved within 10 s" in folder.log_file(name).read_text()
    assert folder.read_attempts(name).idle == 1
    processes = lambda: slurm("ps", "-ewwo", "args").splitlines()
    wait_for(lambda: sum(f"--workdir={folder.path / name}" in line for line in processes()) == 1, folder, seconds=20)


def test_a_failing_trial_and_what_slurm_refuses(tmp_path, folder):
    hyper = f'hyper.sweep("dataset.path", ["{tmp_path}/nosuch.npz"])'
    command = (f"--config={write_config(tmp_path, hyper)}", "--cluster=slurm")
    status, said = sweep(*command, f"--out={tmp_path / 'refused'}", "--partition=nosuch")
    assert (status, said) == (1, "error: --partition=nosuch: no such partition; accepted: main, urgent\n")
    assert not (tmp_path / "refused").exists()
    status, said = sweep(*command, f"--out={tmp_path / 'refused'}", "--mem_gb=100000")
    assert status == 1
    assert re.match("error: Slurm has refused the job: .*node configuration is not available", said), said

    command += (f"--out={folder.path}",)
    assert sweep(*command)[0] == 0
    (name,) = folder.read_record()
    wait_for(lambda: states(folder)[name] == "failed", folder)
    status, said = sweep(f"--status={folder.path}")
    assert status == 1
    assert re.search(r"failed +0 / 20 +error: .*nosuch\.npz", said), said
    assert sweep(*command)[0] == 1
    os.rename(tmp_path / "images.npz", tmp_path / "nosuch.npz")
    assert sweep(*command, "--rerun_failed")[0] == 0
    wait_for(lambda: states(folder)[name] == "done", folder)
