"""Sweeps on this machine, in this process and in others: what is launched, what is left alone, what the status says."""

import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from quick_processes import quick_environment
from sweeping import ESTIMATORS, run, write_config

from disarm_jax.experiment import loop
from disarm_jax.experiment.loop import TRY_AGAIN
from disarm_jax.sweep import attempt, local, slurm
from disarm_jax.sweep.folder import Attempts, SweepFolder
from disarm_jax.sweep.status import Status, trial_status
from disarm_jax.sweep.tail import last_line, position
from disarm_jax.sweep.trials import SweepError, read_points, trial_names
from scripts import kill_test

NAMES = ["estimator=arm", "estimator=disarm", "estimator=reinforce_loo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sweeps")


@pytest.fixture(autouse=True)
def quick_processes(folder, monkeypatch):
    """Trials compile nothing twice, and little at all."""
    for name, value in quick_environment(kill_test.shared_compilations(folder / "compilations")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)


def states(out):
    record = SweepFolder(out).read_record()
    return {name: trial_status(SweepFolder(out), name, entry).state for name, entry in record.items()}


def test_debug_runs_in_this_process_and_only_what_is_missing(tmp_path, no_figures, capfd, monkeypatch, quick_compile):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")  # as this process has them
    config, out = f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'out'}"
    assert run(config, out, "--cluster=debug", "--only=estimator=arm") == 0
    assert states(tmp_path / "out") == {"estimator=arm": "done"}
    assert run(f"--status={tmp_path / 'out'}") == 0
    assert capfd.readouterr().out.splitlines()[-1] == "1 trials: 1 done"

    made = (tmp_path / "out" / "estimator=arm" / "DONE").stat().st_mtime_ns
    assert run(config, out, "--dry_run") == 0
    said = capfd.readouterr().out
    assert "estimator=arm: done" in said
    assert "estimator=disarm: would be launched" in said
    assert re.search(r"-m main --config=\S+ --config.estimator.name=disarm --workdir=\S+/out/estimator=disarm", said)
    assert "3 trials, 2 of them to be launched on local, " in said
    assert run(config, out, "--cluster=debug", "--only=estimator=arm", "--only=estimator=disarm") == 0
    assert "1 of 2 trials are done and left alone" in capfd.readouterr().err
    assert states(tmp_path / "out") == dict.fromkeys(NAMES[:2], "done")
    assert (tmp_path / "out" / "estimator=arm" / "DONE").stat().st_mtime_ns == made

    found = run(config, out, "--config.batch_size=6")
    assert re.match(r"error: .*/estimator=arm is the run of another config; .* batch_size: 5 in the run", found)
    assert (
        run(config, out, "--cluster=debug", "--only=estimator=arm", "--config.steps=25") == 0
    )  # longer, so it goes on
    assert (tmp_path / "out" / "estimator=arm" / "DONE").read_text() == "25\n"


def test_local_with_a_failure_and_several_devices(tmp_path, capfd, monkeypatch):
    """One trial has no data at first; seeds are spread over two devices of each process."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    hyper = f'hyper.sweep("dataset.path", ["{tmp_path}/images.npz", "{tmp_path}/later.npz"])'
    config = f"--config={write_config(tmp_path, hyper, seeds=(0, 1, 2))}"
    command = (config, f"--out={tmp_path / 'out'}", "--setup=echo hello from setup")
    assert run(*command) == 1
    good, bad = SweepFolder(tmp_path / "out").read_record()
    assert states(tmp_path / "out") == {good: "done", bad: "failed"}
    summary = json.loads((tmp_path / "out" / good / "summary.json").read_text())
    assert summary["device"]["count"] == 2
    log = (tmp_path / "out" / "logs" / f"{good}.log").read_text()
    assert re.match(r"== attempt 1 on \S+, cores? [\d, ]+, \d{4}-.*\nhello from setup\nrun directory", log)

    capfd.readouterr()
    assert run(f"--status={tmp_path / 'out'}") == 1
    lines = capfd.readouterr().out.splitlines()
    assert re.match(rf"{re.escape(good)} +done +20 / 20 +-\d+\.\d\d$", lines[1])
    assert re.match(rf"{re.escape(bad)} +failed +0 / 20 +error: .*later.npz", lines[2])
    assert lines[3] == "2 trials: 1 done, 1 failed"

    assert run(*command) == 1  # as it is
    assert "--rerun_failed launches them again" in capfd.readouterr().err
    os.link(tmp_path / "images.npz", tmp_path / "later.npz")
    assert run(*command, "--rerun_failed") == 0
    assert states(tmp_path / "out") == {good: "done", bad: "done"}


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_interrupted_sweep_goes_on_to_the_same_bits(tmp_path):
    """Two trials at once on one share each; the launching process gets the signal, as from Ctrl-C or `kill`."""
    config = write_config(tmp_path, ESTIMATORS, **{"steps": 4000, "checkpoint.every": 200})
    options = [f"--config={config}", "--max_parallel=2", "--only=estimator=arm", "--only=estimator=disarm"]
    out = tmp_path / "out"
    command = [sys.executable, "-m", "scripts.sweep", *options, f"--out={out}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all(position(SweepFolder(out).run_dir(name)).step for name in NAMES[:2]) or process.poll())
    assert states(out) == dict.fromkeys(NAMES[:2], "running")
    assert "another launch is at work in" in run(f"--config={config}", f"--out={out}")
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == TRY_AGAIN, said
    assert states(out) == dict.fromkeys(NAMES[:2], "cancelled")
    assert said.count("the trials save and end; Ctrl-C again kills them\n") == 1
    assert said.endswith("interrupted; the same command continues\n")
    for name in NAMES[:2]:
        assert re.search(rf"{name}: started on core", said)
        assert re.search(rf"{name}: cancelled at step \d.*: SIGTERM: saved at step .* the same command continues", said)

    assert run(*options, f"--out={out}") == 0
    assert run(*options[:-1], f"--out={tmp_path / 'undisturbed'}") == 0
    for name in NAMES[:2]:
        assert "resuming" in SweepFolder(out).log_file(name).read_text()
    assert kill_test.compare(tmp_path / "undisturbed" / NAMES[0], out / NAMES[0]) == []


class TestShares:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    @pytest.mark.parametrize(
        ("asked", "cores"),
        [
            ((24, None, None, None), [(core,) for core in range(8)]),
            ((3, None, None, None), [(0, 1), (2, 3), (4, 5)]),
            ((24, None, 4, None), [(0, 1, 2, 3), (4, 5, 6, 7)]),
            ((24, None, None, 2), [(0, 1, 2, 3), (4, 5, 6, 7)]),
            ((24, None, 1, 2), [(0,), (1,)]),
            ((24, None, None, 9), [*((core,) for core in range(8)), (0,)]),
            ((1, None, None, 4), [tuple(range(8))]),
        ],
    )
    def test_cores(self, monkeypatch, asked, cores):
        monkeypatch.setenv("PATH", "")
        assert [share.cores for share in local.machine_shares(*asked)] == cores

    def test_gpus(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
        shares = local.machine_shares(24, None, None, None)
        assert [(share.gpus, share.cores) for share in shares] == [(("4",), (0, 1)), (("5",), (2, 3)), (("6",), (4, 5))]
        assert [share.gpus for share in local.machine_shares(24, 2, None, 5)] == [("4", "5")]
        assert [share.gpus for share in local.machine_shares(24, 0, 8, None)] == [()]
        assert str(shares[0]) == "GPU 4 and cores 0, 1"
        with pytest.raises(SweepError, match="this machine has 3 GPUs and 8 cores"):
            local.machine_shares(24, 4, None, None)


class TestAttempts:
    def task(self, tmp_path, script, **more):
        return attempt.Task(
            "trial", (sys.executable, "-c", script), str(tmp_path), str(tmp_path), {"WORD": "x"}, **more
        )

    def finish(self, task):
        started = attempt.Attempt(task, "here")
        wait_for(lambda: started.poll() is not None)
        return started.poll()

    def test_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XLA_FLAGS", "--mine")
        task = self.task(tmp_path, "import os; print(os.environ['WORD'], os.environ['XLA_FLAGS'])", xla_flags="--det")
        assert self.finish(task) == 0
        assert last_line(SweepFolder(tmp_path).log_file("trial")) == "x --det --mine"

    def test_one_at_a_time_even_if_the_launcher_dies(self, tmp_path):
        first = attempt.Attempt(self.task(tmp_path, "input(); import time; time.sleep(60)"), "here")
        wait_for(lambda: first.poll() is not None)  # nothing to read: an error
        assert first.poll() == 1
        second = attempt.Attempt(self.task(tmp_path, "import time; time.sleep(60)"), "here")
        with pytest.raises(attempt.AlreadyRunning):
            attempt.Attempt(self.task(tmp_path, ""), "here")
        second._log.close()  # as if we had ended: the process still has the lock
        assert trial_status(SweepFolder(tmp_path), "trial", {"job": None, "steps": 5}).state == "running"
        second.send(signal.SIGKILL)
        wait_for(lambda: second._process.poll() is not None)
        assert trial_status(SweepFolder(tmp_path), "trial", {"job": None, "steps": 5}).state == "cancelled"

    @pytest.mark.parametrize(
        ("setup", "note"), [("(exit 3)", "--setup: exit status 3 of"), ("exit 4", "exit status 4")]
    )
    def test_a_setup_that_fails_says_so(self, tmp_path, setup, note):
        assert self.finish(self.task(tmp_path, "print('too late')", setup=("true", setup, "echo later"))) in (3, 4)
        found = trial_status(SweepFolder(tmp_path), "trial", {"job": None, "steps": 5})
        assert (found.state, found.note[: len(note)]) == ("failed", note)

    def test_ctrl_c_while_a_trial_is_being_started_reaches_it(self, tmp_path, monkeypatch):
        start = local._start

        def interrupted(*arguments):
            started = start(*arguments)
            signal.raise_signal(signal.SIGINT)
            return started

        monkeypatch.setattr(local, "_start", interrupted)
        share = local.Share(tuple(os.sched_getaffinity(0)), ())
        task, begin = self.task(tmp_path, "import time; time.sleep(60)"), time.monotonic()
        assert not local.run_local([task], SweepFolder(tmp_path), {"trial": {"job": None, "steps": 5}}, [share])
        assert time.monotonic() < begin + 30
        assert SweepFolder(tmp_path).read_attempts("trial").status == -signal.SIGTERM

    def test_a_kill_is_a_failure_and_a_stop_is_not(self, tmp_path):
        die = "import os, signal; os.kill(os.getpid(), signal.{})"
        entry, folder = {"job": None, "steps": 5}, SweepFolder(tmp_path)
        assert self.finish(self.task(tmp_path, die.format("SIGKILL"))) == -signal.SIGKILL
        assert trial_status(folder, "trial", entry)[1::6] == ("failed", "== ended by SIGKILL")
        assert self.finish(self.task(tmp_path, die.format("SIGUSR2"))) == -signal.SIGUSR2
        assert trial_status(folder, "trial", entry).state == "cancelled"
        assert folder.read_attempts("trial") == Attempts(2, -signal.SIGUSR2, 1, 0)

    def test_it_gives_up_when_nothing_moves(self, tmp_path):
        folder, task = SweepFolder(tmp_path), self.task(tmp_path, f"import sys; sys.exit({TRY_AGAIN})")
        folder.logs.mkdir()
        folder.write_attempts("trial", Attempts(8, TRY_AGAIN, attempt.MAX_IDLE - 2))
        assert self.finish(task) == TRY_AGAIN
        assert self.finish(task) == 1
        found = trial_status(folder, "trial", {"job": None, "steps": 5})
        assert found.state == "failed"
        message = "== 5 attempts in a row saved no step; a longer time limit or a smaller log_every would help"
        assert found.note == message


@pytest.mark.parametrize(
    ("queued", "attempts", "state", "active"),
    [
        ("PENDING", Attempts(), "waiting", True),
        ("PENDING", Attempts(1, 75), "preempted", True),
        ("RUNNING", Attempts(2), "running", True),
        ("COMPLETING", Attempts(2), "running", True),
        ("CANCELLED", Attempts(), "cancelled", False),
        ("CANCELLED", Attempts(1, 75), "cancelled", False),
        ("PREEMPTED", Attempts(1, 75), "preempted", False),
        ("TIMEOUT", Attempts(1), "failed", False),
        ("FAILED", Attempts(1, 1), "failed", False),
        (None, Attempts(1, 1), "failed", False),
        (None, Attempts(1, 75), "cancelled", False),
        (None, Attempts(), "cancelled", False),
    ],
)
def test_states_of_jobs(tmp_path, queued, attempts, state, active):
    folder = SweepFolder(tmp_path)
    folder.logs.mkdir()
    folder.write_attempts("trial", attempts)
    found = trial_status(folder, "trial", {"job": "7_1", "steps": 5}, {"7_1": slurm.Queued(queued)} if queued else {})
    assert (found.state, found.active) == (state, active)


def test_the_folder_must_be_writable(tmp_path):
    (tmp_path / "file").write_text("")
    found = run(f"--config={write_config(tmp_path)}", f"--out={tmp_path / 'file'}")
    assert found.startswith(f"error: cannot write to --out={tmp_path / 'file'}: ")


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"trials": []}', '{"trials": {"estimator=arm": {}}}', '{"trials": {"a": 3}}']
)
def test_a_damaged_record_is_told(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    for command in ([f"--status={tmp_path}"], [f"--config={write_config(tmp_path)}", f"--out={tmp_path}"]):
        assert run(*command).startswith(f"error: {tmp_path / 'sweep.json'} is damaged: ")


def test_damaged_metrics_are_left_out(tmp_path):
    run_dir = SweepFolder(tmp_path).run_dir("trial")
    run_dir.path.mkdir()
    good = '{"step": 10, "seed": 0, "objective": -2.5}'
    run_dir.metrics_file.write_text(
        f'jective": 1}}\n{good}\n{{"step": "x", "objective": "y"}}\n[1, 2]\n{{"step": 20, "obj'
    )
    run_dir.timings_file.write_text('{"step": 10, "steps": 10, "seconds": 2.0}\n{"step": 20}\n')
    assert position(run_dir) == (10, -2.5, 5.0)


def test_the_end_of_a_log(tmp_path):
    file = pathlib.Path(tmp_path / "log")
    assert last_line(file) == ""
    file.write_bytes(b"x" * 100_000 + b"\nerror: \xff bad\n 10%\r 20%\rerror: the last\n\n")
    assert last_line(file) == "error: the last"
    note = "For simplicity, JAX has removed its internal frames from the traceback of the following exception."
    file.write_text(f"  File x\nTypeError: of the trial\n--------------------\n{note} Set JAX_TRACEBACK_…\n")
    assert last_line(file) == "TypeError: of the trial"


def test_a_job_that_dies_before_main_says_why(tmp_path):
    folder, entry = SweepFolder(tmp_path), {"job": "9_1", "steps": 5}
    folder.submitted.mkdir()
    (folder.submitted / "9_1_0_log.err").write_text("module: no such module\n")
    found = trial_status(folder, "trial", entry, {"9_1": slurm.Queued("FAILED")})
    assert (found.state, found.note) == ("failed", "Slurm says FAILED of job 9_1; module: no such module")


class Terminal(io.StringIO):
    isatty = lambda self: True


class TestScreen:
    @pytest.fixture
    def draw(self, monkeypatch):
        """What is on a terminal of some size while the trials of the paper run."""

        def drawn(file, columns, rows, running):
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setenv("LINES", str(rows))
            stream = Terminal()
            screen = local._Screen(None, {}, stream)
            for number, name in enumerate(trial_names(read_points(file))):
                state = "running" if number in running else "waiting"
                screen._found[name] = Status(name, state, True, 123_000, 1_000_000, -7e31, 86_399, "not launched")
            screen._draw()
            return stream.getvalue().splitlines()

        return drawn

    @pytest.mark.parametrize("sweep", ["elbo", "layers", "multisample"])
    def test_progress_is_there_on_a_narrow_terminal(self, draw, sweep):
        lines = draw(f"configs/sweeps/{sweep}.py", 80, 60, running=range(60))
        assert max(map(len, lines)) < 80
        for line in lines[1:-1]:
            assert re.search(r" running  123,000 / 1,000,000 +-7e\+31  23:59:59", line), line
        assert len({line.split(" running ")[0] for line in lines[1:-1]}) > len(lines) * 0.6

    def test_a_short_one_shows_each_trial_once(self, draw):
        lines = draw("configs/sweeps/elbo.py", 200, 12, running=(0, 20))
        names = [line.split()[0] for line in lines[1:-1]]
        assert len(lines) == 10  # one is left for an announcement, one for the cursor
        assert len(set(names)) == len(names) == 8
        assert [" running " in line for line in lines[1:-1]] == [True, True] + [False] * 6

    def test_an_announcement_stays_below_the_table(self, monkeypatch):
        stream = Terminal()
        screen = local._Screen(None, {}, stream)
        for _ in range(2):
            screen.announce("saving")
            screen.refresh([])
        assert stream.getvalue().count("saving\n") == 1, "it is drawn at once, and then when it is time to"
        stream.truncate(0)
        screen._next = 0
        screen.refresh([])
        assert stream.getvalue().endswith("0 trials: \nsaving\n")
        assert "\x1b[3A" in stream.getvalue(), "and counts among the lines that are drawn over"
        screen.close()
        assert not stream.getvalue().endswith("saving\n")
