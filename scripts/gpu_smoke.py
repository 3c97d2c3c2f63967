"""Does this machine train as it should? The first thing to run on a GPU node.

    python -m scripts.gpu_smoke                                          # a minute or two
    JAX_NUM_CPU_DEVICES=4 python -m scripts.gpu_smoke --platform=cpu     # the same with pretended devices

Trains a few hundred steps of a config on one device, once more on the same one, on all devices, and on the CPU. Prints
steps per second, and compares: all must learn the same, and the same device twice must give the same bits.

- The bits are the same only with a flag in `XLA_FLAGS`, `--xla_gpu_exclude_nondeterministic_ops=true`, or where that is
  not known `--xla_gpu_deterministic_ops=true`; `scripts.sweep` sets it for trials on GPUs. Only then does a run that is
  continued after an interruption end as if there had been none. It also needs the same compiled programs, which are
  kept in the user's cache: compiled anew, XLA may choose other kernels, unless the second flag is set.
- JAX takes three quarters of a GPU's memory when it starts, so a second process on the same GPU finds none. These
  models need little: `XLA_PYTHON_CLIENT_PREALLOCATE=false`, or `XLA_PYTHON_CLIENT_MEM_FRACTION=0.2`, lets several share
  one.

Exit status: 0 all is well; 1 with a line that says what is not.
"""

import pathlib
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from disarm_jax.command_line import check_config_file, flags_only, run_script
from disarm_jax.data import DataError
from disarm_jax.experiment.devices import deterministic_gpu_flag, keep_compiled_programs
from disarm_jax.experiment.fields import ConfigError
from disarm_jax.experiment.loop import train
from disarm_jax.run_directory.directory import RunDir

PLATFORMS = ("gpu", "tpu", "cpu")
# Rounding differs between devices, and now and then flips a bit.
TOLERANCE = 0.02


class SmokeError(RuntimeError):
    """Something is not as it should be."""


def find_devices(platform: str) -> list[jax.Device]:
    """The devices of a platform; an error names what there is instead."""
    try:
        return jax.devices(platform)
    except RuntimeError as error:
        there = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        hint = (
            'pip install -e ".[experiments,cuda12]" and a driver would help' if platform == "gpu" else "see --platform"
        )
        raise SmokeError(f"JAX sees no {platform}, only {there}; {hint}") from error


def short(config: ConfigDict, steps: int, num_devices: int) -> ConfigDict:
    """The config with few steps in four chunks, evaluated at the end, and at least one seed for each device."""
    config = ConfigDict(config)
    config.steps, config.log_every, config.seeds = steps, steps // 4, tuple(range(max(2, num_devices)))
    config.eval.train_every = config.eval.test_every = config.checkpoint.every = config.log_every * 4
    return config


def objectives(workdir: pathlib.Path) -> np.ndarray:
    """`[steps on record, S]`, the training objective."""
    rows = [row for row in RunDir(workdir).read_metrics() if "objective" in row]
    seeds = len({row["seed"] for row in rows})
    return np.array([row["objective"] for row in rows]).reshape(-1, seeds)


def check(config: ConfigDict, devices: list[jax.Device], folder: pathlib.Path) -> None:
    """Trains, prints and compares.

    Raises:
      SmokeError: if runs differ that should not.
    """
    print(f"JAX {jax.__version__}, {len(devices)} × {devices[0].device_kind} ({devices[0].platform})")
    runs = {"one device": devices[:1], "one device again": devices[:1], f"all {len(devices)} devices": devices}
    try:
        runs["one CPU device"] = jax.devices("cpu")[:1]
    except RuntimeError:  # hidden on purpose, as JAX_PLATFORMS=cuda does
        print("JAX sees no CPU, so nothing is compared with it; JAX_PLATFORMS=cuda,cpu would help")
    found: dict[str, np.ndarray] = {}
    for number, (name, where) in enumerate(runs.items()):
        summary: dict[str, Any] = train(config, folder / str(number), where)
        found[name] = objectives(folder / str(number))
        rate = summary["times"]["steps_per_second"]
        print(f"{name:<18} {rate:10,.0f} steps/s of {len(config.seeds)} seeds, objective {found[name][-1].mean():.3f}")
    same = RunDir(folder / "0").metrics_file.read_bytes() == RunDir(folder / "1").metrics_file.read_bytes()
    print(f"one device twice: {'the same bits' if same else 'other bits'}")
    first = found["one device"]
    for name, values in list(found.items())[1:]:
        difference = np.max(np.abs(values - first) / np.abs(first))
        print(f"one device and {name}: the objective differs by {difference:.1e} at most")
        if not difference < TOLERANCE:
            raise SmokeError(f"one device and {name} do not learn the same; at most {TOLERANCE:g} was expected")
    if not same:
        raise SmokeError(f"one device twice gave other bits; XLA_FLAGS={deterministic_gpu_flag()} would help")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    config_flags.DEFINE_config_file("config", "configs/quickstart.py", "The config file.", lock_config=True, **options)
    flags.DEFINE_integer("steps", 400, "Steps of each run.", lower_bound=8, **options)
    flags.DEFINE_enum("platform", "gpu", PLATFORMS, "What to check.", **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """All runs, in a folder that is removed again."""
    flags_only(argv)
    try:
        check_config_file(values["config"])
        devices = find_devices(values.platform)
        with tempfile.TemporaryDirectory(prefix="gpu_smoke_") as folder:
            check(short(values.config, values.steps // 4 * 4, len(devices)), devices, pathlib.Path(folder))
    except (ConfigError, DataError, SmokeError) as error:
        sys.exit(f"error: {error}")
    print("all is well")


if __name__ == "__main__":
    keep_compiled_programs()  # one device has the same ones three times on a CPU, and twice on a GPU
    run_script(main, define_flags)
