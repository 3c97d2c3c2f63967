"""Whatever is wrong with flags or a config file is said in one line."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest
from absl import flags
from ml_collections import config_flags

from disarm_jax import command_line
from disarm_jax.experiment.fields import ConfigError, defaults, flat, plain

GOOD = "from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict({'steps': 1})\n"
BAD = [
    (GOOD, ["--config.nosuch=1"], r"the config has no field 'nosuch'; accepted: those that --help lists$"),
    (GOOD, ["--config.stesp=1"], r"the config has no field 'stesp'; accepted: .*; did you mean 'steps'\?$"),
    (GOOD, ["--config.steps=1.5"], r"flag --config\.steps=1\.5: invalid literal for int"),
    (GOOD, ["--config.steps=x"], r"flag --config\.steps=x: invalid literal for int"),
    (GOOD, ["--config.steps.x=1"], r"--config: KeyError: .*steps\.x"),
    (GOOD, ["--nosuch"], r"Unknown command line flag 'nosuch'"),
    ("def get_config(:", [], r"--config: SyntaxError: invalid syntax \(.*bad\.py, line 1\)$"),
    ("import nosuchmodule", [], r"--config: ModuleNotFoundError: No module named 'nosuchmodule' \(bad\.py, line 1\)$"),
    ("x = 1", [], r"--config: the file has no function get_config\(\)"),
    ("def get_config():\n    return {}[1]", [], r"--config: KeyError: 1 \(bad\.py, line 2\)$"),
    ("def get_config():\n    return int('x')", [], r"--config: ValueError: invalid literal for int.* 'x'$"),
    (
        "def get_config():\n    return ''.nosuch",
        [],
        r"--config: AttributeError: 'str' object has no attribute 'nosuch'",
    ),
    (
        "def get_config():\n    open('/nosuch')",
        ["--config.steps=1"],
        r"--config: .*No such file or directory: '/nosuch'$",
    ),
]


@pytest.fixture
def values(monkeypatch):
    """The flags of a command, instead of those of the whole process."""
    values = flags.FlagValues()
    monkeypatch.setattr(command_line.flags, "FLAGS", values)
    config_flags.DEFINE_config_file("config", None, "", lock_config=True, flag_values=values)
    return values


def parse(monkeypatch, *argv):
    monkeypatch.setattr(sys, "argv", ["command", *argv])
    monkeypatch.delitem(sys.modules, "config_config", raising=False)  # ml_collections loads into the one that is there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        command_line.parse_flags(sys.argv)


@pytest.mark.parametrize(("text", "more", "message"), BAD)
def test_errors(values, tmp_path, monkeypatch, text, more, message):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(SystemExit, match=f"^error: {message}") as ended:
        parse(monkeypatch, f"--config={tmp_path / 'bad.py'}", *more)
    assert "\n" not in ended.value.code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory: '.*bad.py'"),
        ("def get_config():\n    open('/nosuch')", "No such file or directory: '/nosuch'"),
        ("def get_config():\n    return []", "returns \\[\\]; accepted: a ConfigDict"),
    ],
)
def test_what_is_no_config_is_refused_when_it_is_asked_for(values, tmp_path, monkeypatch, text, message):
    if text:
        (tmp_path / "bad.py").write_text(text)
    parse(monkeypatch, f"--config={tmp_path / 'bad.py'}")
    with pytest.raises(ConfigError, match=message):
        command_line.check_config_file(values["config"])


def test_help_lists_every_field():
    """With its default; of every command that takes a config, with exit status 0."""
    for command in ("main", "scripts.sweep", "scripts.compare"):
        done = subprocess.run([sys.executable, "-m", command, "--help"], capture_output=True, text=True, check=True)
        listed = [line.split("=")[0].split()[0] for line in done.stdout.splitlines() if line.startswith("  --config.")]
        fields = [f"--config.{field}" for field, _ in flat(plain(defaults()))] if command != "scripts.compare" else []
        assert set(fields) <= set(listed)
        assert bool(fields) == bool(listed)


def test_a_tuple_is_given_once(values, tmp_path, monkeypatch):
    """Two of them would be joined: two layers from two widths."""
    (tmp_path / "config.py").write_text(GOOD.replace("'steps': 1", "'steps': 1, 'latents': (200,)"))
    file = f"--config={tmp_path / 'config.py'}"
    parse(monkeypatch, file, "--config.latents=(50,)", "--config.steps=2", "--config.steps=3")
    command_line.check_config_file(values["config"])
    assert (values.config.latents, values.config.steps) == ((50,), 3)


def test_a_tuple_is_not_given_twice(values, tmp_path, monkeypatch):
    (tmp_path / "config.py").write_text(GOOD.replace("'steps': 1", "'latents': (200,)"))
    parse(monkeypatch, f"--config={tmp_path / 'config.py'}", "--config.latents=(200,)", "--config.latents=(50,)")
    with pytest.raises(ConfigError, match=r"^--config\.latents is given 2 times; accepted: one tuple"):
        command_line.check_config_file(values["config"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"),
            "out of memory: Out of memory all",
        ),
        (
            RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 9 bytes."),
            r"out of memory: Out of memory allocating 9 bytes\.; a smaller batch_size",
        ),
        (MemoryError("cannot allocate"), "out of memory: cannot allocate; a smaller batch_size"),
        (MemoryError(), "out of memory; a smaller batch_size"),
    ],
)
def test_out_of_memory_is_one_line(error, message):
    with pytest.raises(SystemExit, match=f"^error: {message}") as ended, command_line.memory_errors():
        raise error
    assert "\n" not in ended.value.code
    with pytest.raises(RuntimeError, match="something else"), command_line.memory_errors():
        raise RuntimeError("something else")


def test_what_ends_a_start_is_one_line(tmp_path):
    """Settings that JAX refuses when it is imported, a flag file that is not there, no device, and Ctrl-C."""
    train = ["--config=configs/quickstart.py", f"--workdir={tmp_path / 'run'}"]
    no_number, refused = {"JAX_NUM_CPU_DEVICES": "abc"}, "JAX_NUM_CPU_DEVICES|jax_num_cpu_devices"
    cases = [
        (no_number, ["main", *train], 1, refused),
        (no_number, ["scripts.report", "--runs=runs"], 1, refused),
        ({}, ["main", "--flagfile=/nosuch"], 1, "Unable to open flagfile.*/nosuch"),
        ({"JAX_PLATFORMS": "nosuch"}, ["main", *train], 1, "JAX_PLATFORMS is 'nosuch'"),
        ({}, ["main", *train], -signal.SIGINT, "KeyboardInterrupt"),
    ]
    started = [
        subprocess.Popen([sys.executable, "-m", *command], env=os.environ | more, stderr=subprocess.PIPE, text=True)
        for more, command, _, _ in cases
    ]
    mapped = pathlib.Path(f"/proc/{started[-1].pid}/maps")
    while "numpy" not in mapped.read_text():  # it is being imported, as JAX will be
        time.sleep(0.01)
    started[-1].send_signal(signal.SIGINT)
    for process, (_, _, status, message) in zip(started, cases, strict=True):
        _, said = process.communicate()
        assert process.returncode == status, said
        assert re.search(f"^error: .*({message})", said.splitlines()[-1]), said
        assert "Traceback" not in said
        assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
