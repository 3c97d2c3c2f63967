"""Trials on this machine: as many side by side as fit, each pinned to its share, all of them on one screen."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from disarm_jax.signals import signals_to
from disarm_jax.sweep.attempt import AlreadyRunning, Attempt, Task
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.status import Status, objective_text, summary_line, table, trial_status
from disarm_jax.sweep.trials import SweepError

POLL_SECONDS = 0.1
REFRESH_SECONDS = 2.0  # of the screen
LINE_SECONDS = 60.0  # between lines about running trials where there is no screen


class Share(NamedTuple):
    """A part of the machine.

    Attributes:
      cores: to be pinned to.
      gpus: as in CUDA_VISIBLE_DEVICES; none if the trials use none.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]

    def __str__(self) -> str:
        """In words."""
        gpus = f"GPU {', '.join(self.gpus)} and " if self.gpus else ""
        return f"{gpus}core{'s' if len(self.cores) > 1 else ''} {', '.join(map(str, self.cores))}"


def machine_gpus() -> list[str]:
    """The GPUs that a process here may use, as CUDA_VISIBLE_DEVICES names them."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed))]


def machine_shares(num_trials: int, gpus: int | None, cpus: int | None, max_parallel: int | None) -> list[Share]:
    """Divides this machine: one trial per GPU, or per core if there are none.

    How large a share is depends on the whole sweep, not on what is left of it: a trial that is continued on as many
    devices as before ends with the same bits.

    Args:
      num_trials: of the whole sweep.
      gpus: for each trial; None is 1 where there are any.
      cpus: for each trial; None is an equal part of all.
      max_parallel: how many trials at once, even if they share cores; None is as many as fit.

    Raises:
      SweepError: if not even one trial fits.
    """
    cores, found = sorted(os.sched_getaffinity(0)), machine_gpus()
    gpus = min(1, len(found)) if gpus is None else gpus
    if gpus > len(found) or (cpus or 1) > len(cores):
        raise SweepError(f"--gpus={gpus} --cpus={cpus or 1}: this machine has {len(found)} GPUs and {len(cores)} cores")
    fit = len(found) // gpus if gpus else len(cores) // (cpus or 1)
    count = min(max_parallel or fit, num_trials)
    if gpus:
        count = min(count, fit)
    size = cpus or max(1, len(cores) // count)
    return [
        Share(
            tuple(sorted({cores[(number * size + place) % len(cores)] for place in range(size)})),
            tuple(found[number * gpus : (number + 1) * gpus]),
        )
        for number in range(count)
    ]


def run_local(
    tasks: Sequence[Task], folder: SweepFolder, record: Mapping[str, Mapping[str, Any]], shares: Sequence[Share]
) -> bool:
    """Runs the tasks to their ends; whether nobody has interrupted it.

    Ctrl-C, SIGTERM and SIGHUP let the trials save and end; Ctrl-C once more kills them.
    """
    waiting, running, free = deque(tasks), {}, deque(shares)
    signals = _PassOn(running)
    screen = _Screen(folder, record, sys.stderr)
    with signals_to(signals, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        while running or (waiting and not signals.came):
            while waiting and free and not signals.came:
                task, share = waiting.popleft(), free.popleft()
                try:
                    attempt = _start(task, share)
                except AlreadyRunning:
                    screen.say(f"{task.name}: another process is at work on it")
                    free.append(share)
                    continue
                running[attempt] = share
                if signals.came:  # while it was being started, so it was not passed on
                    attempt.send(signal.SIGTERM)
                screen.say(f"{task.name}: started on {share}")
            for attempt in [attempt for attempt in running if attempt.poll() is not None]:
                free.append(running.pop(attempt))
                screen.ended(attempt.task.name)
            if signals.came:
                screen.announce("the trials save and end; Ctrl-C again kills them")
            screen.refresh([attempt.task.name for attempt in running])
            time.sleep(POLL_SECONDS)
    screen.close()
    return not signals.came


def _start(task: Task, share: Share) -> Attempt:
    """Starts a task with what is its own; the process inherits on which cores it may run."""
    if share.gpus:
        task = task._replace(env=dict(task.env) | {"CUDA_VISIBLE_DEVICES": ",".join(share.gpus)})
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share.cores)
    try:
        return Attempt(task, f"{platform.node()}, {share}")
    finally:
        os.sched_setaffinity(0, all_cores)


class _PassOn:
    """Passes a signal on to the running trials, as SIGTERM; the second Ctrl-C as SIGKILL."""

    def __init__(self, running: Mapping[Attempt, Share]):
        self.came, self._running = False, running

    def __call__(self, number: int, frame: Any) -> None:
        again = self.came and number == signal.SIGINT
        self.came = True
        for attempt in list(self._running):
            attempt.send(signal.SIGKILL if again else signal.SIGTERM)


class _Screen:
    """A table that is drawn again and again on a terminal; elsewhere lines."""

    def __init__(self, folder: SweepFolder, record: Mapping[str, Mapping[str, Any]], stream: TextIO):
        self._folder, self._record, self._stream = folder, record, stream
        self._terminal, self._drawn, self._next, self._announced = stream.isatty(), 0, time.monotonic(), ""
        self._found = {name: trial_status(folder, name, entry) for name, entry in record.items()}

    def say(self, line: str) -> None:
        """A line, where there is no table."""
        if not self._terminal:
            print(line, file=self._stream, flush=True)

    def announce(self, line: str) -> None:
        """A line that stays below the table; without one it is said once."""
        if line != self._announced:
            self._announced = line
            self.say(line)
            self._next = time.monotonic() if self._terminal else self._next

    def ended(self, name: str) -> None:
        """A trial has ended."""
        found = self._look(name)
        objective = "" if found.objective is None else f", objective {objective_text(found.objective)}"
        note = f": {found.note}" if found.note else ""
        self.say(f"{name}: {found.state} at step {found.step:,} of {found.steps:,}{objective}{note}")
        self._next = time.monotonic()

    def _look(self, name: str) -> Status:
        self._found[name] = trial_status(self._folder, name, self._record[name])
        return self._found[name]

    def refresh(self, running: Sequence[str]) -> None:
        """Draws the table if it is time to; only running trials are looked at."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (REFRESH_SECONDS if self._terminal else LINE_SECONDS)
        lines = table([self._look(name) for name in running])
        if self._terminal:
            self._draw()
        else:
            for line in lines[1:] if any(self._found[name].step for name in running) else ():
                self.say(line)

    def _draw(self, final: bool = False) -> None:
        width, height = shutil.get_terminal_size()
        found = list(self._found.values())
        shown = found
        if len(found) > height - 4:  # those that matter now
            order = {"running": 0, "failed": 1}
            shown = sorted(found, key=lambda status: order.get(status.state, 2))[: max(1, height - 4)]
        lines = table(shown, width - 1)
        if not final:
            lines += [line[: width - 1] for line in (summary_line(found), self._announced) if line]
        up = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        self._stream.write(up + "\n".join(lines) + "\n")
        self._stream.flush()
        self._drawn = len(lines)

    def close(self) -> None:
        """The table as it is in the end, without the summary: who launched the trials tells it, wherever they ran."""
        if self._terminal:
            self._draw(final=True)
