"""What a run tells while it goes on: a progress bar on a terminal, plain lines elsewhere, metrics, timings, events."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorboardX
import tqdm

from disarm_jax.experiment.rundir import RunDir, append_rows


class Progress:
    """Where the run is, on standard error."""

    def __init__(self, step: int, steps: int):
        """Begins at a step, out of so many."""
        self._terminal, self._first, self._start, self._last_line = sys.stderr.isatty(), step, time.monotonic(), 0.0
        self._steps = steps
        self._bar = None
        if self._terminal:
            self._bar = tqdm.tqdm(total=steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.1)

    def say(self, line: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def update(self, step: int, objective: float) -> None:
        """The run has reached a step; outside of a terminal a line at most every ten seconds, and at the end."""
        if self._bar is not None:
            self._bar.set_postfix(objective=f"{objective:.2f}", refresh=False)
            self._bar.update(step - self._bar.n)
            return
        now = time.monotonic()
        if now - self._last_line >= 10 or step == self._steps:
            self._last_line = now
            rate = (step - self._first) / max(now - self._start, 1e-9)
            eta = time.strftime("%H:%M:%S", time.gmtime((self._steps - step) / max(rate, 1e-9)))
            self.say(f"step {step:,} of {self._steps:,}  {rate:,.0f} steps/s  ETA {eta}  objective {objective:.2f}")

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class Recorder:
    """Writes metrics to the run directory: JSON lines, on disk before anything else happens, and TensorBoard events."""

    def __init__(self, run_dir: RunDir, seeds: Sequence[int], step: int):
        """Continues after a step; events past it, from a run that was killed, are marked as void."""
        self._run_dir, self._seeds = run_dir, seeds
        self._writers = [
            tensorboardX.SummaryWriter(str(run_dir.tensorboard / f"seed_{seed}"), purge_step=step + 1 if step else None)
            for seed in seeds
        ]

    def metrics(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """One row per seed, from arrays `[S]`."""
        rows = [
            {"step": step, "seed": seed} | {name: float(column[number]) for name, column in values.items()}
            for number, seed in enumerate(self._seeds)
        ]
        append_rows(self._run_dir.metrics_file, rows)
        for writer, row in zip(self._writers, rows, strict=True):
            for name in values:
                writer.add_scalar(name, row[name], step)
            writer.flush()

    def timing(self, step: int, what: str, seconds: float, **more: Any) -> None:
        """How long something took that ended at a step."""
        append_rows(self._run_dir.timings_file, [{"step": step, "what": what, "seconds": round(seconds, 4)} | more])

    def close(self) -> None:
        """Ends the event files."""
        for writer in self._writers:
            writer.close()
