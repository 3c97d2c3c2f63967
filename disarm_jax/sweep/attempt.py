"""One attempt to finish a trial: a process of `main`, its log, and a note of how it ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple

from disarm_jax.experiment.rundir import RunDir
from disarm_jax.experiment.train import RUN_ME_AGAIN, SIGNALS
from disarm_jax.files import lock_file
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.tail import last_step

# A signal that comes before `main` listens ends it; nothing is lost then either.
CONTINUE = frozenset({RUN_ME_AGAIN, *(-number for number in SIGNALS)})
MAX_IDLE = 5  # attempts in a row without a step, after which it is not tried again


class Task(NamedTuple):
    """What a process needs to know to attempt a trial, wherever it runs.

    Attributes:
      name: of the trial.
      command: of `main`.
      folder: of the sweep.
      cwd: where the command is to be run.
      env: what is set in the environment.
      xla_flags: what is added to XLA_FLAGS; those that are there already win.
      setup: lines of shell to run first.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    cwd: str
    env: Mapping[str, str]
    xla_flags: str = ""
    setup: tuple[str, ...] = ()


class AlreadyRunning(Exception):  # noqa: N818 - not an error
    """Another process works on the trial."""


class Attempt:
    """A running process."""

    def __init__(self, task: Task, where: str, own_group: bool):
        """Starts it.

        Args:
          task: what to do.
          where: this is; for the log.
          own_group: whether the process leads a group, so that Ctrl-C in a terminal reaches it through us alone.

        Raises:
          AlreadyRunning: if another process works on this trial.
        """
        self.task, self._folder = task, SweepFolder(task.folder)
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        # The process inherits the open file and with it the lock: it is held as long as one of us lives.
        self._log = open(self._folder.log_file(task.name), "ab")  # noqa: SIM115 - closed when the process has ended
        if not lock_file(self._log.fileno()):
            self._log.close()
            raise AlreadyRunning(task.name)
        before = self._folder.read_attempts(task.name)
        self._now = before._replace(count=before.count + 1, status=None)
        self._first_step = self._step()
        self._folder.write_attempts(task.name, self._now)
        self._say(f"attempt {self._now.count} on {where}, {time.strftime('%Y-%m-%d %H:%M:%S')}")
        command = list(task.command)
        if task.setup:
            command = ["bash", "-ec", "\n".join([*task.setup, 'exec "$@"']), "bash", *command]
        env = os.environ | dict(task.env)
        if task.xla_flags:
            env["XLA_FLAGS"] = f"{task.xla_flags} {env.get('XLA_FLAGS', '')}".strip()
        self._process = subprocess.Popen(
            command,
            cwd=task.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            process_group=0 if own_group else None,
        )
        self._kill = os.killpg if own_group else os.kill

    def _step(self) -> int:
        return last_step(RunDir(os.path.join(self.task.folder, self.task.name)))

    def _say(self, line: str) -> None:
        self._log.write(f"== {line}\n".encode())
        self._log.flush()

    def send(self, number: int) -> None:
        """Passes a signal on. Not by `Popen.send_signal`, which must not be called in a signal handler."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._kill(self._process.pid, number)

    def poll(self) -> int | None:
        """The exit status if the process has ended, which is then noted."""
        status = self._process.poll()
        if status is not None and not self._log.closed:
            idle = self._now.idle + 1 if status in CONTINUE and self._step() == self._first_step else 0
            if idle >= MAX_IDLE:
                self._say(f"{idle} attempts in a row made no step; a longer time limit would help")
                status = 1
            elif status < 0 and status not in CONTINUE:
                self._say(f"ended by {signal.Signals(-status).name}")
            self._folder.write_attempts(self.task.name, self._now._replace(status=status, idle=idle))
            self._now = self._now._replace(status=status)
            self._log.close()
        return status if status is None else self._now.status
