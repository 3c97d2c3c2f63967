"""A run says from its first moment on which code, versions, settings, machine and data made it."""

import datetime
import json
import os
import shutil
import subprocess
import sys

import jax
import pytest
from tiny import tiny_config

import disarm_jax as dj
from disarm_jax.experiment import loop
from disarm_jax.run_directory import record, writers
from disarm_jax.run_directory.directory import RunDir

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run in it, which was begun once."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda *unused: None)
        patch.setattr(loop, "draw_samples", lambda *unused: None)
        loop.train(tiny_config(folder), folder / "run")
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """The run as if it had been killed when all was done but the end."""
    run_dir = RunDir(shutil.copytree(finished / "run", tmp_path / "run"))
    run_dir.done_file.unlink()
    return run_dir


class TestRecord:
    def test_it_is_there_before_the_first_step(self, tmp_path, monkeypatch):
        def crash(*unused):
            raise ZeroDivisionError

        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
        monkeypatch.setenv("PJRT_NPROC", "2")
        monkeypatch.setattr(writers, "append_rows", crash)
        with pytest.raises(ZeroDivisionError):
            loop.train(tiny_config(tmp_path, matmul_precision="default"), tmp_path / "run", jax.devices()[:1])
        run_dir = RunDir(tmp_path / "run")
        assert run_dir.read_metrics() == []
        assert json.loads(run_dir.record_file.read_text())["format"] == 1
        (entry,) = run_dir.read_record()
        started = datetime.datetime.fromisoformat(entry.pop("started"))
        assert datetime.timedelta(0) <= datetime.datetime.now(datetime.UTC) - started < datetime.timedelta(minutes=5)
        flags = entry.pop("flags")
        assert flags["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
        assert flags["PJRT_NPROC"] == "2"
        assert all(name.startswith(("JAX_", "XLA_")) or name == "PJRT_NPROC" for name in flags)
        assert entry.pop("versions")["jax"] == jax.__version__
        data = entry.pop("data")
        assert data["dataset"] == "npz"
        assert {len(digest) for digest in data["sha256"].values()} == {64}
        assert entry.pop("host")["cores"] == os.cpu_count()
        assert entry == {
            "step": 0,
            "command": sys.argv,
            "code": record.code(),
            "matmul_precision": "default",
            "device": {"platform": "cpu", "kind": "cpu", "count": 1},
        }

    def test_a_summary_says_the_same(self, finished):
        run_dir = RunDir(finished / "run")
        (entry,), summary = run_dir.read_record(), run_dir.read_summary()
        assert {name: summary[name] for name in ("versions", "data", "command")} == {
            name: entry[name] for name in ("versions", "data", "command")
        }
        host = entry["host"]
        processor = f"{host['processor']}, {host['usable_cores']} cores"
        assert summary["device"] == entry["device"] | {"processor": processor}

    def test_a_resumed_run_has_one_more_entry(self, finished, copy):
        shutil.rmtree(copy.checkpoints / "20")
        before = copy.read_record()
        loop.train(tiny_config(finished), copy.path)
        assert copy.read_record()[:1] == before
        assert [entry["step"] for entry in copy.read_record()] == [0, 15]
        loop.train(tiny_config(finished), copy.path)
        assert len(copy.read_record()) == 2, "the run was finished"

    def test_a_run_of_older_code(self, finished, copy):
        copy.record_file.unlink()
        assert copy.read_record() == []
        loop.train(tiny_config(finished), copy.path)
        assert [entry["step"] for entry in copy.read_record()] == [20]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "entries": []}', '{"format": 1}', "\xff"])
    def test_a_damaged_one_is_kept_aside(self, finished, copy, capfd, text):
        for name in ("run.json", "run_1.json"):
            copy.record_file.write_text(text, encoding="latin1")
            assert copy.read_record() == []
            copy.done_file.unlink(missing_ok=True)
            loop.train(tiny_config(finished), copy.path)
            assert [entry["step"] for entry in copy.read_record()] == [20]
            (line,) = [line for line in capfd.readouterr().err.splitlines() if "run.json" in line]
            assert line.startswith(f"{copy.record_file} is damaged: ")
            assert line.endswith(f"; it is now {copy.path}/damaged/{name}")
            assert (copy.path / "damaged" / name).read_text(encoding="latin1") == text


@pytest.fixture
def checkout(tmp_path):
    """A repository with a committed package."""
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "notes.txt").write_text("")
    (package.parent / ".gitignore").write_text("venv/\n")
    run = lambda *arguments: subprocess.run(["git", "-C", package.parent, *arguments], check=True, capture_output=True)
    run("init")
    run("add", ".")
    run("-c", "user.name=n", "-c", "user.email=e", "commit", "-m", "c")
    return package


class TestCode:
    def test_a_clean_checkout(self, checkout):
        head = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()
        assert len(head) == 40
        (checkout.parent / "log.txt").write_text("new, but no code")
        assert record.code(checkout) == {"commit": head, "dirty": False, "version": dj.__version__}

    @pytest.mark.parametrize("name", ["notes.txt", "package/__init__.py", "package/new.py", "scripts/new.py"])
    def test_changes(self, checkout, name):
        file = checkout.parent / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x = 1\n")
        found = record.code(checkout)
        assert found["dirty"] is True
        assert found["commit"] is not None

    def test_installed_in_another_checkout(self, checkout):
        nothing = {"commit": None, "dirty": None, "version": dj.__version__}
        for place in ("venv/lib/package", "copied/package"):  # ignored, and not yet added
            installed = shutil.copytree(checkout, checkout.parent / place)
            assert record.code(installed) == nothing

    def test_no_repository_and_no_git(self, checkout, tmp_path, monkeypatch):
        (tmp_path / "__init__.py").write_text("")
        assert record.code(tmp_path)["commit"] is None
        monkeypatch.setenv("PATH", str(tmp_path))
        assert record.code(checkout) == {"commit": None, "dirty": None, "version": dj.__version__}

    def test_a_git_that_hangs(self, checkout, tmp_path, monkeypatch):
        (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / "git").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(record, "GIT_SECONDS", 0.2)
        assert record.code(checkout)["commit"] is None

    def test_the_repository_of_a_hook_is_not_taken(self, checkout, tmp_path, monkeypatch):
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        assert record.code(checkout)["commit"] is not None
