"""Trains a Bernoulli VAE from a config, or evaluates a trained one.

    python -m main --config configs/elbo_linear.py --config.estimator.name=arm
    python -m main --config configs/elbo_linear.py --workdir runs/mine     # started again, it continues
    python -m main --mode eval --workdir runs/mine --num_samples 1000

`--help` lists every field of a config, which can be set with `--config.field=value`. Exit status: 0 finished; 75
stopped by a signal and saved, to be started again; 1 with one line on standard error that says what is wrong.
"""

import signal
import sys

if __name__ == "__main__":  # until `main` begins: Ctrl-C, or a setting that JAX refuses when it is imported
    sys.excepthook = lambda kind, error, trace: print(f"error: {kind.__name__}: {error}".rstrip(": "), file=sys.stderr)

    def end_at_once(number: int, _: object) -> None:
        """In one line; an exception would be lost while a C extension is imported."""
        print("error: KeyboardInterrupt", file=sys.stderr)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it may be ignored
        signal.signal(signal.SIGINT, end_at_once)

from absl import app, flags, logging
from ml_collections import config_flags

from disarm_jax.command_line import check_config_file, flag_errors, flags_only, memory_errors, parse_flags
from disarm_jax.console import keep_standard_streams, say
from disarm_jax.data import DataError
from disarm_jax.experiment.config import refuse_imports, resolve
from disarm_jax.experiment.devices import keep_compiled_programs, one_cpu_device_per_core
from disarm_jax.experiment.evaluate import evaluate_run
from disarm_jax.experiment.fields import Config, ConfigError, plain
from disarm_jax.experiment.grid import members_of
from disarm_jax.experiment.loop import TRY_AGAIN, Interrupted, NonFiniteError, train
from disarm_jax.run_directory.checkpoint import CheckpointError
from disarm_jax.run_directory.directory import RunDirError, default_workdir, read_stored_config
from disarm_jax.run_directory.record import result_lines, summary_text

MODES = ("train", "eval")
with flag_errors():
    _CONFIG = config_flags.DEFINE_config_file("config", None, "The config file to train.", lock_config=True)
_STORED = flags.DEFINE_string("stored_config", None, "Instead of --config: a JSON file, such as a config.json.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The run directory; default a name from the config, under runs/.")
_MODE = flags.DEFINE_enum("mode", "train", MODES, "Train a config, or evaluate the run in --workdir.")
_PROFILE = flags.DEFINE_string("profile", None, "A folder for a trace of the second chunk of steps.")
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Samples of the bounds in --mode=eval.", lower_bound=1)
_ALLOW_IMPORTS = flags.DEFINE_bool(
    "allow_imports", False, "Import the custom parts that --stored_config, or with --mode=eval the run, names."
)
_OTHER_NUMBERS = flags.DEFINE_bool(
    "other_random_numbers", False, "Continue although settings of JAX have changed that change the random numbers."
)


def main(argv: list[str]) -> None:
    """One run, or one evaluation."""
    sys.excepthook = sys.__excepthook__
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_standard_streams()
    flags_only(argv)
    keep_compiled_programs()
    try:
        with memory_errors():
            run_evaluation() if _MODE.value == "eval" else run_training()
    except (CheckpointError, ConfigError, DataError, NonFiniteError, RunDirError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except Interrupted as interrupted:
        say(f"{interrupted}; the same command continues")
        sys.exit(TRY_AGAIN)
    except KeyboardInterrupt:  # while training, the loop listens
        say("SIGINT: stopped before the first step; the same command starts it")
        sys.exit(TRY_AGAIN)


def run_training() -> None:
    """Trains `--config`, or `--stored_config`, in `--workdir`."""
    config = config_to_train()
    workdir = _WORKDIR.value or default_workdir(config)
    say(f"run directory: {workdir}")
    one_cpu_device_per_core(len(members_of(config)))
    summary = train(config, workdir, profile=_PROFILE.value, other_random_numbers=_OTHER_NUMBERS.value)
    print(summary_text(summary))
    print(f"in {workdir}: curves.png, samples.png, summary.json, metrics.jsonl")


def config_to_train() -> Config:
    """The config that the command line names, resolved."""
    if _STORED.value is not None:
        if _CONFIG.value is not None:
            raise ConfigError("--config and --stored_config are given; accepted: one of them")
        config = read_stored_config(_STORED.value)
        if not _ALLOW_IMPORTS.value:
            refuse_imports(config, _STORED.value)
        return resolve(plain(config))
    if _CONFIG.value is None:
        raise ConfigError("--config is missing; for instance --config configs/quickstart.py")
    check_config_file(flags.FLAGS["config"])
    return resolve(_CONFIG.value)


def run_evaluation() -> None:
    """Evaluates the newest checkpoint in `--workdir`."""
    if _WORKDIR.value is None:
        raise RunDirError("--workdir is missing: the run directory to evaluate")
    file, results = evaluate_run(_WORKDIR.value, _NUM_SAMPLES.value, allow_imports=_ALLOW_IMPORTS.value)
    print("\n".join(result_lines(results)))
    print(f"written to {file}")


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)  # JAX and orbax tell of much that is as it should be
    app.run(main, flags_parser=parse_flags)
