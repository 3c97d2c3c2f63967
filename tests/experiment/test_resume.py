"""A run that is interrupted in any way ends as if it had not been; whatever cannot be continued is refused clearly."""

import errno
import functools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_processes import quick_environment
from tiny import tiny_config, tiny_settings

from disarm_jax import data, files
from disarm_jax.experiment import devices, loop
from disarm_jax.experiment.config import ConfigError
from disarm_jax.experiment.fields import plain
from disarm_jax.experiment.load import load_run
from disarm_jax.experiment.step import run_keys
from disarm_jax.models import BernoulliVAE
from disarm_jax.run_directory import checkpoint, writers
from disarm_jax.run_directory.checkpoint import CheckpointError
from disarm_jax.run_directory.directory import RunDir, RunDirError
from scripts import kill_test

pytestmark = pytest.mark.usefixtures("quick_compile")

SEEDS = (0, 3)
LONG = {"steps": 2000, "log_every": 10, "checkpoint.every": 50, "eval.train_every": 500, "eval.test_every": 500}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)


def config_of(folder, **overrides):
    return tiny_config(folder, **{"seeds": SEEDS} | overrides)


@pytest.fixture(scope="module", autouse=True)
def one_program_for_each_config(quick_compile):
    """Runs of equal configs share what is compiled; `TestProcesses` has processes that share nothing."""
    made = {}
    prepare, bounds_of, map_seeds = loop.prepare, loop.bounds_of, devices.SeedAxis.map

    def once(key, make):
        if key not in made:
            made[key] = make()
        return made[key]

    def prepare_once(config):  # what it returns stays in `made`, so that ids below are those of nothing else
        return once(json.dumps(plain(config), sort_keys=True), lambda: prepare(config))

    def bounds_once(model, config, axis, num_samples):
        key = id(model), axis.num_seeds, *axis.devices
        return once(key, lambda: bounds_of(model, config, axis, num_samples))

    def map_once(axis, function, *, num_own=1, donate=False):
        make = lambda: map_seeds(axis, function, num_own=num_own, donate=donate)
        if not isinstance(function, functools.partial):  # the bounds, of which there is one program already
            return make()
        experiment, *options = function.args
        key = function.func.__name__, id(experiment), *options, axis.num_seeds, *axis.devices, donate
        return once(key, make)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "prepare", prepare_once)
        patch.setattr(loop, "bounds_of", bounds_once)
        patch.setattr(devices.SeedAxis, "map", map_once)
        yield


@pytest.fixture(scope="module")
def reference(folder, one_program_for_each_config):
    """A run that nobody interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda *unused: None)
        patch.setattr(loop, "draw_samples", lambda *unused: None)
        loop.train(config_of(folder), folder / "reference")
    return folder / "reference"


@pytest.fixture
def copy(reference, tmp_path):
    """The reference as if it had been killed when all was done but the end."""
    shutil.copytree(reference, tmp_path / "copy")
    (tmp_path / "copy" / "DONE").unlink()
    return tmp_path / "copy"


def newest(run: pathlib.Path) -> pathlib.Path:
    return max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))


def tree(run: pathlib.Path) -> set[tuple]:
    return {(path, path.stat().st_mtime_ns, path.stat().st_ino) for path in run.rglob("*")}


class TestInterrupted:
    """In this process."""

    @pytest.mark.parametrize(("number", "step"), [*((number, 5) for number in loop.SIGNALS), (signal.SIGTERM, 10)])
    def test_a_signal_saves_and_the_run_continues(self, folder, reference, tmp_path, monkeypatch, number, step):
        """The metrics of step 5 are written while the steps to 10 run, at whose end it is saved."""
        metrics = writers.Recorder.metrics

        def signalled(self, at, values, *rest):
            metrics(self, at, values, *rest)
            if at == step and not on:
                on.append(True)
                signal.raise_signal(number)

        on = []
        monkeypatch.setattr(writers.Recorder, "metrics", signalled)
        handlers = [signal.getsignal(each) for each in loop.SIGNALS]
        config = config_of(folder, **{"checkpoint.every": 20})
        with pytest.raises(loop.Interrupted, match=f"{signal.Signals(number).name}: saved at step 10 of 20"):
            loop.train(config, tmp_path / "run")
        assert [signal.getsignal(each) for each in loop.SIGNALS] == handlers
        assert load_run(tmp_path / "run").step == 10
        loop.train(config, tmp_path / "run")
        assert kill_test.compare(reference, tmp_path / "run") == []

    @pytest.mark.parametrize(("place", "name"), [(10, "train_elbo"), (20, "objective"), (20, "train_elbo")])
    def test_a_signal_at_an_evaluation_saves_at_once(self, folder, reference, tmp_path, monkeypatch, place, name):
        """What is left to evaluate is evaluated when the run continues."""
        metrics, on = writers.Recorder.metrics, []

        def signalled(self, at, values, *rest):
            metrics(self, at, values, *rest)
            if at == place and name in values and not on:
                on.append(True)
                signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(writers.Recorder, "metrics", signalled)
        with pytest.raises(loop.Interrupted, match=f"saved at step {place} of 20"):
            loop.train(config_of(folder, **{"checkpoint.every": 20}), tmp_path / "run")
        assert not [
            row for row in RunDir(tmp_path / "run").read_metrics() if row["step"] == place and "test" in str(row)
        ]
        loop.train(config_of(folder, **{"checkpoint.every": 20}), tmp_path / "run")
        assert kill_test.compare(reference, tmp_path / "run") == []

    @pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 9])
    def test_a_crash_after_any_row(self, folder, reference, tmp_path, monkeypatch, rows, capfd):
        """Ten rows of each seed: of four chunks, and of three evaluations at two steps."""
        append, calls = writers.append_rows, []

        def crashing(file, new):
            calls.append(file.name == "metrics.jsonl")
            if sum(calls) > rows:
                raise ZeroDivisionError
            append(file, new)

        with monkeypatch.context() as patch:
            patch.setattr(writers, "append_rows", crashing)
            with pytest.raises(ZeroDivisionError):
                loop.train(config_of(folder), tmp_path / "run")
        loop.train(config_of(folder), tmp_path / "run")
        resumed = {1: 5, 2: 10, 3: 10, 5: 10, 7: 20, 9: 20}[rows]
        assert f"at step {resumed}\n" in capfd.readouterr().err
        assert kill_test.compare(reference, tmp_path / "run") == []

    def test_killed_before_the_first_checkpoint(self, folder, reference, tmp_path):
        run = tmp_path / "run"
        shutil.copytree(
            reference, run, ignore=shutil.ignore_patterns("DONE", "summary.json", "[0-9]*", "train_mean.npy")
        )
        loop.train(config_of(folder), run)
        assert kill_test.compare(reference, run) == []

    def test_torn_and_half_written_rows(self, folder, reference, copy):
        shutil.rmtree(copy / "checkpoints" / "20")
        lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
        at_15 = next(number for number, line in enumerate(lines) if '"step": 15' in line)
        (copy / "metrics.jsonl").write_text("".join(lines[: at_15 + 3]) + lines[at_15 + 3][:17])
        (copy / "timings.jsonl").write_bytes(b'{"step": 5, "what": "train"\n\xff\xfe{')
        loop.train(config_of(folder), copy)
        assert kill_test.compare(reference, copy) == []

    @pytest.mark.parametrize("keep", [1, 2, 5])
    def test_evaluations_of_only_some_seeds(self, folder, reference, copy, keep):
        """Killed at the end, in the middle of an evaluation: what is missing is evaluated again."""
        lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
        last = [number for number, line in enumerate(lines) if '"step": 20' in line]
        (copy / "metrics.jsonl").write_text("".join(lines[: last[1] + 1 + keep]))
        loop.train(config_of(folder), copy)
        assert kill_test.compare(reference, copy) == []

    def test_leftovers_are_removed(self, folder, reference, copy):
        left = [".config.json.a1_.tmp", ".metrics.jsonl.b2.tmp", ".DONE.c3.tmp"]
        for name in left:
            (copy / name).write_text("half")
        mine = copy / ".evaluation_3_samples.json.d4.tmp"  # of another process, which is not waited for
        mine.write_text("half")
        save = copy / "checkpoints" / "25.orbax-checkpoint-tmp"
        save.mkdir()
        loop.train(config_of(folder), copy)
        assert not save.exists()
        assert mine.exists()
        assert not any((copy / name).exists() for name in left)
        assert kill_test.compare(reference, copy) == []


class TestDamage:
    """Of the newest checkpoints."""

    @staticmethod
    def flip(path):
        largest = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 0xFF
        largest.write_bytes(content)

    @staticmethod
    def truncate(path):
        for file in [file for file in path.rglob("*") if file.is_file()]:
            os.truncate(file, file.stat().st_size // 2)

    @staticmethod
    def delete_metadata(path):
        (path / "state" / "_METADATA").unlink()

    @staticmethod
    def empty(path):
        shutil.rmtree(path)
        path.mkdir()

    DAMAGES = ("flip", "truncate", "delete_metadata", "empty")

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_the_one_before_is_taken(self, folder, reference, copy, capfd, damage):
        getattr(self, damage)(newest(copy))
        loop.train(config_of(folder), copy)
        said = capfd.readouterr().err
        assert "checkpoints/20 is damaged" in said
        assert f"now {copy}/damaged/checkpoint_20" in said
        assert f"resuming {copy} at step 15\n" in said
        assert "Traceback" not in said
        assert (copy / "damaged" / "checkpoint_20").is_dir()
        assert kill_test.compare(reference, copy) == []

    def test_twice(self, folder, reference, copy):
        """The first damaged checkpoint is kept beside the second one of the same step."""
        for _ in range(2):
            self.flip(newest(copy))
            (copy / "DONE").unlink(missing_ok=True)
            loop.train(config_of(folder), copy)
        assert sorted(os.listdir(copy / "damaged")) == ["checkpoint_20", "checkpoint_20_1"]
        assert kill_test.compare(reference, copy) == []

    def test_none_is_left(self, folder, copy, capfd):
        for path in (copy / "checkpoints").iterdir():
            self.flip(path)
        before = tree(copy / "checkpoints")
        for run in (lambda: loop.train(config_of(folder), copy), lambda: load_run(copy)):
            with pytest.raises(CheckpointError, match=r"none of the checkpoints 20, 15, 10 in .* can be read"):
                run()
        assert tree(copy / "checkpoints") == before
        assert not (copy / "damaged").exists()

    def test_a_reader_takes_the_one_before_and_touches_nothing(self, copy, capfd):
        self.flip(newest(copy))
        before = tree(copy)
        assert load_run(copy).step == 15
        assert tree(copy) == before
        assert "checkpoints/20 is damaged" in capfd.readouterr().err


class TestSameDirectory:
    """What a directory may be used for again."""

    def test_another_config_is_refused(self, folder, copy):
        before = (copy / "config.json").read_bytes()
        other = config_of(folder, **{"estimator.name": "arm", "batch_size": 7, "steps": 40})
        with pytest.raises(ConfigError) as caught:
            loop.train(other, copy)
        assert str(caught.value).splitlines()[1:] == [
            "  batch_size: 5 in the run directory, 7 now",
            "  estimator.name: 'disarm' in the run directory, 'arm' now",
        ]
        assert (copy / "config.json").read_bytes() == before

    def test_other_images_are_refused(self, folder, copy):
        """Of a run of older code, which has recorded their mean alone; for others see test_trust."""
        (copy / "run.json").unlink()
        shutil.rmtree(copy / "checkpoints")
        np.save(copy / "train_mean.npy", np.full(16, 0.5))
        with pytest.raises(RunDirError, match=r"the training images are not those that the run in .* began with"):
            loop.train(config_of(folder), copy)

    def test_more_steps_extend_it(self, folder, reference, tmp_path):
        loop.train(config_of(folder, steps=10), tmp_path / "run")
        loop.train(config_of(folder), tmp_path / "run")
        assert kill_test.compare(reference, tmp_path / "run") == []
        assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 20
        assert (tmp_path / "run" / "DONE").read_text() == "20\n"

    def test_another_cadence_continues_it(self, folder, reference, tmp_path):
        loop.train(config_of(folder, steps=12), tmp_path / "run")
        cadence = {"log_every": 2, "checkpoint.every": 4, "checkpoint.keep": 1, "eval.train_every": 4}
        loop.train(config_of(folder, **cadence), tmp_path / "run")
        expected, actual = load_run(reference).state, load_run(tmp_path / "run").state
        jax.tree.map(np.testing.assert_array_equal, expected, actual)
        assert os.listdir(tmp_path / "run" / "checkpoints") == ["20"]

    def test_fewer_steps_than_made_are_refused(self, folder, reference, tmp_path):
        shutil.copytree(reference, tmp_path / "run")
        before = tree(tmp_path / "run" / "checkpoints"), (tmp_path / "run" / "config.json").read_bytes()
        with pytest.raises(ConfigError, match=r"steps is 10; accepted: at least 20, which the run in .* has made"):
            loop.train(config_of(folder, steps=10), tmp_path / "run")
        assert (tree(tmp_path / "run" / "checkpoints"), (tmp_path / "run" / "config.json").read_bytes()) == before
        assert (tmp_path / "run" / "DONE").exists()

    def test_a_finished_run_is_left_as_it_is(self, folder, reference, capfd):
        before = tree(reference)
        summary = loop.train(config_of(folder), reference)
        assert "is finished already: 20 steps" in capfd.readouterr().err
        assert tree(reference) == before
        assert summary == json.loads((reference / "summary.json").read_text())

    def test_a_lost_summary_is_made_again(self, folder, reference, tmp_path):
        shutil.copytree(reference, tmp_path / "run")
        (tmp_path / "run" / "summary.json").write_text("{")
        found = loop.train(config_of(folder), tmp_path / "run")["metrics"]
        assert found == json.loads((reference / "summary.json").read_text())["metrics"]

    def test_a_directory_of_other_things_is_refused(self, folder, tmp_path):
        (tmp_path / "thesis.tex").write_text("")
        with pytest.raises(RunDirError, match=r"has no config.json but thesis.tex; choose another --workdir"):
            loop.train(config_of(folder), tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["thesis.tex"]

    def test_two_at_once_are_refused(self, folder, copy):
        with RunDir(copy).locked(), pytest.raises(RunDirError, match="another process is training in"):
            loop.train(config_of(folder), copy)


class TestDisk:
    """Errors of the file system are one line, and the run continues when they are gone."""

    @pytest.mark.parametrize("calls", [1, 9, 16])
    def test_full_while_writing(self, folder, reference, tmp_path, monkeypatch, calls):
        counted = iter(range(calls))

        def full(descriptor):
            if next(counted, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(RunDirError, match=f"^cannot work in {tmp_path}/run: No space left on device$"):
                loop.train(config_of(folder), tmp_path / "run")
        loop.train(config_of(folder), tmp_path / "run")
        assert kill_test.compare(reference, tmp_path / "run") == []

    def test_full_while_saving(self, folder, reference, tmp_path, monkeypatch, capfd):
        """A real error in orbax's threads: files may not grow while it saves for the second time."""
        save = checkpoint.Checkpoints.save

        def limited(self, step, state, record):
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 if step == 10 else soft, hard))
            try:
                save(self, step, state, record)
                self.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.Checkpoints, "save", limited)
            with pytest.raises(CheckpointError, match=r"a checkpoint in .* could not be written: File too large$"):
                loop.train(config_of(folder), tmp_path / "run")
        assert "Traceback" not in capfd.readouterr().err
        loop.train(config_of(folder), tmp_path / "run")
        assert f"resuming {tmp_path / 'run'} at step 5\n" in capfd.readouterr().err
        assert kill_test.compare(reference, tmp_path / "run") == []

    def test_a_file_instead_of_a_folder(self, folder, tmp_path):
        (tmp_path / "file").write_text("")
        for path in ("file", "file/run"):
            with pytest.raises(RunDirError, match=f"cannot work in {tmp_path}/{path}: "):
                loop.train(config_of(folder), tmp_path / path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_to(self, folder, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(RunDirError, match="Permission denied"):
            loop.train(config_of(folder), tmp_path / "run")


class WhiteBreaks(BernoulliVAE):
    """A model whose objective is finite everywhere, and its gradient everywhere but at a white image."""

    def encode(self, t, inputs):
        logits = super().encode(t, inputs)
        white = jnp.all(inputs == 1, axis=-1, keepdims=True)
        return logits + jnp.sqrt(jnp.where(white, 0 * logits, 1)) - jnp.where(white, 0, 1)


class TestNonFinite:
    def test_the_step_and_the_seed_are_named(self, folder, tmp_path):
        images = dict(np.load(tiny_settings(tmp_path)["dataset.path"]))
        images["train"][7] = 255
        np.savez(tmp_path / "images.npz", **images)
        first = {}
        for seed in SEEDS:
            batches = (data.batch_indices(run_keys(jnp.uint32(seed)).batches, step, 5, 60) for step in range(12))
            first[seed] = next(step for step, batch in enumerate(batches, 1) if 7 in batch)
        step = max(first.values())
        seed = max(first, key=first.get)
        assert step > 5, "no checkpoint before it"
        model = {
            "model.name": f"{__name__}:WhiteBreaks",
            "dataset.binarization": "threshold",
            "model.center_input": False,
        }
        config = config_of(tmp_path, **model, seeds=(seed,), **{"checkpoint.every": 5})
        for _ in range(2):  # started again it finds the same
            with pytest.raises(loop.NonFiniteError, match=f"^seed {seed}: .* is not finite at step {step};"):
                loop.train(config, tmp_path / "run")
            run = load_run(tmp_path / "run", allow_imports=True)
            assert run.step == (step - 1) // 5 * 5
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(run.state))
            assert max(row["step"] for row in RunDir(tmp_path / "run").read_metrics()) == run.step


@pytest.fixture(scope="module")
def env(folder):
    """It is the compiler that would take most of the time."""
    return quick_environment(kill_test.shared_compilations(folder / "in_processes"))


def command_of(folder, workdir, **overrides):
    settings = tiny_settings(folder, **{"seeds": (0,)} | LONG | overrides)
    return kill_test.train_command("configs/base.py", settings, workdir)


@pytest.fixture(scope="module")
def long_reference(folder, env):
    kill_test.run_to_the_end(command_of(folder, folder / "long"), env, folder / "long.log")
    return folder / "long"


class TestProcesses:
    """Real processes, real signals."""

    def test_kills(self, folder, long_reference, env, tmp_path, monkeypatch):
        monkeypatch.setitem(kill_test.KINDS, "at the start", 3.0)  # or the run would be over on a fast machine
        kinds = ["in a save", "in training", "at the start", "in a save"]
        settings = (kinds, np.random.default_rng(0), env, tmp_path / "log")
        kills, begun = kill_test.run_with_kills(command_of(folder, tmp_path / "run"), tmp_path / "run", *settings)
        assert len(kills) == len(kinds)
        assert any(kill.in_save for kill in kills)
        assert any(begun), "nothing was ever resumed"
        assert kill_test.most_lost(kills, begun) <= LONG["checkpoint.every"]
        assert kill_test.compare(long_reference, tmp_path / "run") == []
        assert "Traceback" not in (tmp_path / "log").read_text()

    def test_signals(self, folder, long_reference, env, tmp_path):
        run_dir, command = RunDir(tmp_path / "run"), command_of(folder, tmp_path / "run")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            reached = max((row["step"] for row in run_dir.read_metrics()), default=0)
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while process.poll() is None and max((row["step"] for row in run_dir.read_metrics()), default=0) <= reached:
                time.sleep(0.001)
            process.send_signal(number)
            _, said = process.communicate()
            assert process.returncode == loop.TRY_AGAIN, said
            name = signal.Signals(number).name
            assert said.splitlines()[-1].startswith(f"{name}: saved at step "), said
            assert said.splitlines()[-1].endswith("of 2,000; the same command continues")
        assert kill_test.run_to_the_end(command, env, tmp_path / "log") > 0
        assert kill_test.compare(long_reference, tmp_path / "run") == []

    def test_read_while_it_trains(self, folder, long_reference, env, tmp_path):
        """With one checkpoint at a time, which is replaced all the time; and no second process beside it."""
        command = command_of(folder, tmp_path / "run", **{"steps": 500, "checkpoint.every": 10, "checkpoint.keep": 1})
        steps, second = [], None
        with open(tmp_path / "log", "wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        while process.poll() is None:
            try:
                steps.append(load_run(tmp_path / "run").step)
            except RunDirError:  # it has not come so far
                assert not steps
                time.sleep(0.01)
                continue
            if second is None:
                second = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert process.returncode == 0, (tmp_path / "log").read_text()
        assert len(set(steps)) > 1
        assert steps == sorted(steps)
        assert second.returncode == 1
        assert second.stderr.splitlines()[-1] == f"error: another process is training in {tmp_path / 'run'}"
        metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        assert (long_reference / "metrics.jsonl").read_bytes().startswith(metrics)

    def test_errors_are_one_line(self, folder, long_reference, env, tmp_path):
        shutil.copytree(long_reference, tmp_path / "damaged")
        (tmp_path / "damaged" / "DONE").unlink()
        for path in (tmp_path / "damaged" / "checkpoints").iterdir():
            TestDamage.flip(path)
        (tmp_path / "file").write_text("")
        commands = {
            "error: none of the checkpoints": command_of(folder, tmp_path / "damaged"),
            f"error: cannot work in {tmp_path / 'file'}: ": command_of(folder, tmp_path / "file"),
        }
        started = {
            expected: subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for expected, command in commands.items()
        }
        for expected, process in started.items():
            _, said = process.communicate()
            assert process.returncode == 1, said
            assert said.splitlines()[-1].startswith(expected), said
            assert "Traceback" not in said

    def test_finished_and_evaluated(self, folder, long_reference, env):
        again = subprocess.run(command_of(folder, long_reference), env=env, capture_output=True, text=True, check=True)
        assert "is finished already: 2,000 steps" in again.stderr
        evaluate = [sys.executable, "-m", "main", "--mode=eval", f"--workdir={long_reference}", "--num_samples=3"]
        subprocess.run(evaluate, env=env, capture_output=True, check=True)
        found = json.loads((long_reference / "evaluation_3_samples.json").read_text())
        summary = json.loads((long_reference / "summary.json").read_text())
        assert found["step"] == 2000
        name = "test_3_sample_bound"
        assert found["metrics"][name] == summary["metrics"][name]
