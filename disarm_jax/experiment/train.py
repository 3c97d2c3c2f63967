"""The training loop: from a config to a finished run directory, through any number of interruptions.

The loop wakes up once per chunk of steps. What it does at a step depends on the config alone, never on where a run was
interrupted: chunks end at multiples of `log_every`, rows of a step are on disk before its checkpoint, and whatever was
written past the checkpoint that a run resumes from is dropped and made again, the same to the bit.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from disarm_jax.data.types import SPLITS
from disarm_jax.experiment.checkpoint import Checkpoints
from disarm_jax.experiment.config import ConfigError, resolve
from disarm_jax.experiment.devices import Device
from disarm_jax.experiment.evaluate import bound_name, mean_bound, split_samples
from disarm_jax.experiment.figures import draw_curves, draw_samples
from disarm_jax.experiment.provenance import start_entry
from disarm_jax.experiment.reporting import Progress, Recorder
from disarm_jax.experiment.run import Prepared, prepare
from disarm_jax.experiment.rundir import RunDir, write_text
from disarm_jax.experiment.seeds import SeedAxis
from disarm_jax.experiment.step import ChunkMetrics, State
from disarm_jax.experiment.summary import write_summary

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
RUN_ME_AGAIN = 75  # exit status of a run that has saved itself and wants to be continued


class NonFiniteError(RuntimeError):
    """The objective or its gradient was not finite; the message names step and seed."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal asked the run to stop; it has been saved."""


def train(config: Mapping[str, Any], workdir: str | os.PathLike, devices: list[Device] | None = None) -> dict[str, Any]:
    """Trains a config in a run directory, or continues the run that is there.

    Args:
      config: with the fields of `configs/base.py`.
      workdir: the run directory; made if need be.
      devices: what the seeds are spread over; default all of JAX's.

    Returns:
      The summary, as in `summary.json`.

    Raises:
      ConfigError: for a bad config, or a directory of another one.
      DataError, RunDirError, CheckpointError, NonFiniteError: as their messages say.
      Interrupted: after a signal, when everything is saved.
    """
    config, run_dir = resolve(config), RunDir(workdir)
    with run_dir.disk_errors():
        run_dir.check_owner(config)
        if run_dir.done_steps() == config["steps"] and (summary := run_dir.read_summary()):
            print(f"the run in {run_dir.path} is finished already: {config['steps']:,} steps", file=sys.stderr)
            return summary
    prepared = prepare(config)
    precision = jax.default_matmul_precision(config["matmul_precision"])
    with run_dir.disk_errors(), run_dir.locked(), precision, _SignalFlag() as stop:
        run_dir.check_owner(config)  # once more: now nobody else can take it
        run_dir.remove_leftovers()
        run_dir.check_images(prepared.train_mean)
        axis = SeedAxis(len(config["seeds"]), devices or jax.devices())
        with contextlib.ExitStack() as closing:
            loop = _Loop(prepared, run_dir, axis, stop, closing)
            loop.run()
        draw_curves(run_dir)
        draw_samples(run_dir, prepared, loop.host_state())
        summary = write_summary(run_dir, prepared, axis)
        write_text(run_dir.done_file, f"{config['steps']}\n")
    return summary


class _SignalFlag:
    """Remembers that a signal came, for the loop to look at when it is ready."""

    def __init__(self):
        self.name = None

    def __enter__(self):
        in_main = threading.current_thread() is threading.main_thread()  # Python allows handlers nowhere else
        heard = [number for number in SIGNALS if in_main and signal.getsignal(number) != signal.SIG_IGN]
        self._old = {number: signal.signal(number, self._remember) for number in heard}
        return self

    def _remember(self, number, frame):
        self.name = signal.Signals(number).name
        if number == signal.SIGINT:
            # Not through sys.stderr, which may be in the middle of a line of its own.
            os.write(2, b"\nstopping at the end of this chunk of steps; Ctrl-C again stops at once\n")
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *unused):
        for number, handler in self._old.items():
            signal.signal(number, handler)


class _Loop:
    def __init__(
        self, prepared: Prepared, run_dir: RunDir, axis: SeedAxis, stop: _SignalFlag, closing: contextlib.ExitStack
    ):
        config, experiment = prepared.config, prepared.experiment
        self._config, self._prepared, self._run_dir, self._axis, self._stop = config, prepared, run_dir, axis, stop
        self._images = {split: axis.share(getattr(prepared.dataset, split)) for split in SPLITS}
        self._bounds = {samples: axis.map(self._bound_of(samples)) for samples in split_samples(config).values()}
        self._chunks: dict[int, Callable] = {}

        if not run_dir.config_file.exists():  # before anything else is in the directory, or it would be nobody's
            run_dir.write_config(config, prepared.train_mean)
        self._checkpoints = Checkpoints(run_dir.checkpoints, config["checkpoint"]["keep"])
        closing.callback(self._checkpoints.close)
        seeds = np.asarray(config["seeds"], np.uint32)
        saved = self._checkpoints.restore_latest(jax.eval_shape(jax.vmap(experiment.init), seeds))
        self._state = axis.map(experiment.init)(axis.put(seeds)) if saved is None else axis.put(saved)
        self.step = self._saved_step = 0 if saved is None else int(saved.step[0])
        if self.step > config["steps"]:
            made = f"at least {self.step}, which the run in {run_dir.path} has made"
            raise ConfigError(f"steps is {config['steps']}; accepted: {made}")
        run_dir.done_file.unlink(missing_ok=True)
        run_dir.write_config(config, prepared.train_mean)
        run_dir.append_record(start_entry(self.step, prepared, axis.devices))
        run_dir.drop_rows_after(self.step, config["seeds"])
        self._recorder = Recorder(run_dir, config["seeds"], self.step)
        closing.callback(self._recorder.close)
        self._progress = Progress(self.step, config["steps"])
        closing.callback(self._progress.close)
        if self.step:
            self._progress.say(f"resuming {run_dir.path} at step {self.step:,}")

    def run(self) -> None:
        """To the last step, or until a signal comes."""
        config = self._config
        if self.step:
            on_record = [row for row in self._run_dir.read_metrics() if row["step"] == self.step]
            self._evaluate({name for row in on_record for name in row})  # it may have been killed in the middle of it
        while self.step < config["steps"]:
            length = min(config["log_every"] - self.step % config["log_every"], config["steps"] - self.step)
            self._train(length)
            if self.step == config["steps"] or self.step % config["checkpoint"]["every"] == 0:
                self._save()
            self._evaluate()
            self._checkpoints.wait()  # a kill in the middle of a save must not cost the steps after it as well

    def _save(self) -> None:
        if self._saved_step != self.step:
            self._checkpoints.save(self.step, self.host_state())
            self._saved_step = self.step

    def _stop_if_told(self) -> None:
        """Saves and leaves if a signal came; what is left to do at this step is done when the run continues."""
        if self._stop.name:
            self._save()
            self._checkpoints.wait()
            raise Interrupted(f"{self._stop.name}: saved at step {self.step:,} of {self._config['steps']:,}")

    def host_state(self) -> State:
        """The state of all seeds on the host."""
        return self._axis.take(self._state)

    def _train(self, length: int) -> None:
        begin = time.monotonic()
        what = "train" if length in self._chunks else "compile and train"
        if length not in self._chunks:
            self._progress.compiling()
            self._chunks[length] = self._compiled_chunk(length)
        self._state, metrics = self._chunks[length](self._state, self._images["train"])
        metrics: ChunkMetrics = self._axis.take(metrics)
        seconds = time.monotonic() - begin
        self.step += length
        for seed, first_bad in zip(self._config["seeds"], metrics.first_bad, strict=True):
            if first_bad:
                raise NonFiniteError(
                    f"seed {seed}: the objective or its gradient is not finite at step {first_bad:,}; "
                    "the last checkpoint is untouched"
                )
        variances = zip(self._prepared.experiment.labels, metrics.gradient_variance, strict=True)
        values = {"objective": metrics.objective}
        for number, (label, variance) in enumerate(variances):
            values[f"gradient_variance/{label}" if number else "gradient_variance"] = variance
        self._recorder.metrics(self.step, values | {f"tunables/{name}": x for name, x in metrics.tunables.items()})
        rate = {"steps": length, "steps_per_second": round(length / seconds, 2)}
        self._recorder.timing(self.step, what, seconds, **rate)
        self._progress.update(self.step, float(np.mean(metrics.objective)), seconds, what != "train")
        self._stop_if_told()

    def _compiled_chunk(self, length: int) -> Callable:
        run_chunk = self._prepared.experiment.run_chunk
        return self._axis.map(lambda state, images: run_chunk(state, images, length), donate=True)

    def _bound_of(self, samples: int) -> Callable:
        settings = (self._config["dataset"]["binarization"], self._config["eval"]["batch_size"])

        def bound(state: State, images: jax.Array, split_number: jax.Array) -> jax.Array:
            return mean_bound(self._prepared.model, state, images, split_number, samples, *settings)

        return bound

    def _evaluate(self, on_record: Collection[str] = ()) -> None:
        """The evaluations that are due at this step, except those on record."""
        last = self.step == self._config["steps"]
        every = {"train": self._config["eval"]["train_every"]}
        every |= dict.fromkeys(("validation", "test"), self._config["eval"]["test_every"])
        names = {split: bound_name(split, samples) for split, samples in split_samples(self._config).items()}
        for number, split in enumerate(SPLITS):
            if names[split] in on_record or not (last or self.step % every[split] == 0):
                continue
            begin, bound = time.monotonic(), self._bounds[split_samples(self._config)[split]]
            bounds = self._axis.take(bound(self._state, self._images[split], self._axis.share(np.int32(number))))
            self._recorder.metrics(self.step, {names[split]: bounds})
            self._recorder.timing(self.step, f"evaluate {split}", time.monotonic() - begin)
            self._progress.say(f"step {self.step:,}  {names[split]} {np.mean(bounds):.3f}")
            self._stop_if_told()
