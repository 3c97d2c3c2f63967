"""The check of a GPU node, on pretended devices."""

import sys
import warnings
from unittest import mock

import jax
import numpy as np
import pytest
from absl import flags
from tiny import tiny_settings

from disarm_jax.experiment import loop
from disarm_jax.run_directory.rows import append_rows
from scripts import gpu_smoke


def smoke(*arguments):
    values, argv = flags.FlagValues(), ["gpu_smoke", *arguments]
    with mock.patch.object(sys, "argv", argv), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the way in which ml_collections reads a file
        gpu_smoke.define_flags(values)
        rest = values(argv)
    gpu_smoke.main(rest, values)


@pytest.fixture
def arguments(tmp_path, monkeypatch, quick_compile):
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)
    fields = [f"--config.{name}={value}" for name, value in tiny_settings(tmp_path).items()]
    return ["--platform=cpu", "--steps=40", *fields]


def test_all_is_well_here(arguments, capsys):
    smoke(*arguments)
    said = capsys.readouterr().out
    assert f"{len(jax.devices())} × cpu (cpu)" in said
    assert said.count("steps/s of 4 seeds") == 4
    assert "one device twice: the same bits" in said
    assert said.endswith("all is well\n")


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ((1.0, 1.0, 1.03, 1.0), "one device and all 4 devices do not learn the same"),
        ((1.0, 1.0, 1.0, np.nan), "one device and one CPU device do not learn the same"),
        ((1.0, 1.0001, 1.0, 1.0), "one device twice gave other bits"),
    ],
)
def test_what_differs_is_told(arguments, monkeypatch, objectives, message):
    values = iter(objectives)

    def pretend(config, workdir, devices):
        workdir.mkdir()
        append_rows(workdir / "metrics.jsonl", [{"step": 1, "seed": 0, "objective": next(values)}])
        return {"times": {"steps_per_second": 1.0}}

    monkeypatch.setattr(gpu_smoke, "train", pretend)
    with pytest.raises(SystemExit, match=f"error: {message}"):
        smoke(*arguments)


def test_without_a_cpu_nothing_is_compared_with_it(arguments, monkeypatch, capsys):
    """As JAX_PLATFORMS=cuda has it."""
    here = jax.devices()

    def devices(platform=None):
        if platform == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return here

    def pretend(config, workdir, devices):
        workdir.mkdir()
        append_rows(workdir / "metrics.jsonl", [{"step": 1, "seed": 0, "objective": 1.0}])
        return {"times": {"steps_per_second": 1.0}}

    monkeypatch.setattr(gpu_smoke, "find_devices", lambda platform: here)
    monkeypatch.setattr(gpu_smoke, "train", pretend)
    monkeypatch.setattr(jax, "devices", devices)
    smoke(*arguments)
    said = capsys.readouterr().out
    assert "nothing is compared with it; JAX_PLATFORMS=cuda,cpu would help" in said
    assert said.count("steps/s of 4 seeds") == 3


def test_no_gpu():
    with pytest.raises(SystemExit, match=r"error: JAX sees no gpu, only cpu; pip install .* would help$"):
        smoke()


def test_no_config():
    with pytest.raises(SystemExit, match=r"error: --config: .* No such file or directory: '/nope.py'$"):
        smoke("--config=/nope.py")
