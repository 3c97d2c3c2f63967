"""What a run tells while it goes on: a progress bar on a terminal, plain lines elsewhere, metrics, timings, events."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
import tqdm
from tensorboardX.proto import event_pb2, summary_pb2
from tensorboardX.record_writer import RecordWriter

from disarm_jax.experiment.rundir import RunDir, append_rows


class Progress:
    """Where the run is, on standard error."""

    def __init__(self, step: int, steps: int):
        """Begins at a step, out of so many."""
        self._step, self._steps, self._last_line, self._rate = step, steps, 0.0, None
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(total=steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.1)

    def say(self, line: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def compiling(self) -> None:
        """The first steps are on their way, and take a while."""
        if self._bar is not None:
            self._bar.set_description("compiling")

    def update(self, step: int, objective: float, seconds: float, compiled: bool) -> None:
        """The run has reached a step; outside of a terminal a line at most every ten seconds, and at the end.

        Args:
          step: that has been reached.
          objective: since the last step.
          seconds: that these steps took.
          compiled: whether these include a compilation, and so say nothing of what is to come.
        """
        if not compiled:
            rate = (step - self._step) / max(seconds, 1e-9)
            self._rate = rate if self._rate is None else 0.9 * self._rate + 0.1 * rate
        self._step = step
        if self._bar is not None:
            self._bar.set_description(None, refresh=False)
            self._bar.set_postfix(objective=f"{objective:.2f}", refresh=False)
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._last_line >= 10 or step == self._steps:
            self._last_line = time.monotonic()
            eta = tqdm.tqdm.format_interval((self._steps - step) / self._rate) if self._rate else "unknown"
            speed = f"  {self._rate:,.0f} steps/s" if self._rate else ""
            self.say(f"step {step:,} of {self._steps:,}{speed}  ETA {eta}  objective {objective:.2f}")

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class Recorder:
    """Writes metrics to the run directory: JSON lines, on disk before anything else happens, and TensorBoard events."""

    def __init__(self, run_dir: RunDir, seeds: Sequence[int], step: int):
        """Continues after a step; events past it, from a run that was killed, are marked as void."""
        self._run_dir, self._seeds = run_dir, seeds
        self._events = [_Events(run_dir.tensorboard / f"seed_{seed}", step) for seed in seeds]

    def metrics(self, step: int, values: Mapping[str, np.ndarray | jax.Array]) -> None:
        """One row per seed, from arrays `[S]`."""
        rows = [
            {"step": step, "seed": seed} | {name: float(column[number]) for name, column in values.items()}
            for number, seed in enumerate(self._seeds)
        ]
        append_rows(self._run_dir.metrics_file, rows)
        for events, row in zip(self._events, rows, strict=True):
            events.add(step, {name: row[name] for name in values})

    def timing(self, step: int, what: str, seconds: float, **more: Any) -> None:
        """How long something took that ended at a step."""
        append_rows(self._run_dir.timings_file, [{"step": step, "what": what, "seconds": round(seconds, 4)} | more])

    def close(self) -> None:
        """Ends the event files."""
        with contextlib.ExitStack() as closing:
            for events in self._events:
                closing.callback(events.close)


# Protocol buffers make their classes at run time, where a type checker cannot see them.
_event = cast(Any, event_pb2)
_summary = cast(Any, summary_pb2)


class _Events:
    """An event file, written at once: tensorboardX's own writer has a thread that hangs when the disk is full."""

    def __init__(self, folder: pathlib.Path, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = RecordWriter(str(folder / f"events.out.tfevents.{time.time_ns()}"))
        self._write(file_version="brain.Event:2")
        if step:
            self._write(step=step + 1, session_log=_event.SessionLog(status=_event.SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [_summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=_summary.Summary(value=scalars))

    def _write(self, **fields: Any) -> None:
        self._file.write(_event.Event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        self._file.close()
