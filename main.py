"""Trains a Bernoulli VAE from a config, or evaluates a trained one.

    python -m main --config configs/elbo_linear.py --config.estimator.name=arm
    python -m main --config configs/elbo_linear.py --workdir runs/mine     # started again, it continues
    python -m main --mode eval --workdir runs/mine --num_samples 1000

`--help` lists every field of a config, which can be set with `--config.field=value`. Exit status: 0 finished; 75
stopped by a signal and saved, to be started again; 1 with one line on standard error that says what is wrong.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from disarm_jax.command_line import check_config_file, parse_flags
from disarm_jax.data import DataError
from disarm_jax.experiment.checkpoint import CheckpointError
from disarm_jax.experiment.config import ConfigError, resolve
from disarm_jax.experiment.devices import keep_compiled_programs, one_cpu_device_per_core
from disarm_jax.experiment.evaluate import evaluate_run
from disarm_jax.experiment.grid import members_of
from disarm_jax.experiment.loop import TRY_AGAIN, Interrupted, NonFiniteError, train
from disarm_jax.experiment.record import result_lines, summary_text
from disarm_jax.experiment.rundir import RunDirError, default_workdir

MODES = ("train", "eval")
_CONFIG = config_flags.DEFINE_config_file("config", None, "The config file to train.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run directory; default a name from the config, under runs/.")
_MODE = flags.DEFINE_enum("mode", "train", MODES, "Train a config, or evaluate the run in --workdir.")
_PROFILE = flags.DEFINE_string("profile", None, "A folder for a trace of the second chunk of steps.")
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Samples of the bounds in --mode=eval.", lower_bound=1)


def main(argv: list[str]) -> None:
    """One run, or one evaluation."""
    if len(argv) > 1:
        sys.exit(f"error: unexpected arguments {argv[1:]}; accepted: flags only")
    keep_compiled_programs()
    try:
        run_evaluation() if _MODE.value == "eval" else run_training()
    except (CheckpointError, ConfigError, DataError, NonFiniteError, RunDirError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except Interrupted as interrupted:
        print(f"{interrupted}; the same command continues", file=sys.stderr)
        sys.exit(TRY_AGAIN)


def run_training() -> None:
    """Trains `--config` in `--workdir`."""
    if _CONFIG.value is None:
        raise ConfigError("--config is missing; for instance --config configs/quickstart.py")
    check_config_file(flags.FLAGS["config"])
    config = resolve(_CONFIG.value)
    workdir = _WORKDIR.value or default_workdir(config)
    print(f"run directory: {workdir}", file=sys.stderr)
    one_cpu_device_per_core(len(members_of(config)))
    print(summary_text(train(config, workdir, profile=_PROFILE.value)))
    print(f"in {workdir}: curves.png, samples.png, summary.json, metrics.jsonl")


def run_evaluation() -> None:
    """Evaluates the newest checkpoint in `--workdir`."""
    if _WORKDIR.value is None:
        raise RunDirError("--workdir is missing: the run directory to evaluate")
    file, results = evaluate_run(_WORKDIR.value, _NUM_SAMPLES.value)
    print("\n".join(result_lines(results)))
    print(f"written to {file}")


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)  # JAX and orbax tell of much that is as it should be
    app.run(main, flags_parser=parse_flags)
