"""One attempt to finish a trial: a process of `main`, its log, and a note of how it ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from disarm_jax.experiment.loop import SIGNALS, TRY_AGAIN
from disarm_jax.files import lock_file
from disarm_jax.sweep.folder import Attempts, SweepFolder
from disarm_jax.sweep.tail import saved_step

# A signal that comes before `main` listens ends it; nothing is lost then either.
CONTINUE = frozenset({TRY_AGAIN, *(-number for number in SIGNALS)})
MAX_IDLE = 5  # attempts in a row that save no step, after which it is not tried again


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


class NoProgress(Exception):  # noqa: N818 - it is on record as the error of the trial
    """Nothing was saved by several attempts in a row."""


def checked_setup(setup: Sequence[str]) -> list[str]:
    """Lines of bash that end with the first one that fails, and print it."""
    trap = """trap 'echo "--setup: exit status $? of $BASH_COMMAND" >&2' ERR"""
    return ["set -eE", trap, *setup, "trap - ERR"]


class Attempt:
    """A running process."""

    def __init__(self, task: Task, where: str):
        """Starts it, as the leader of a group: Ctrl-C in a terminal reaches it through us alone, a kill all of it.

        Args:
          task: what to do.
          where: this is; for the log.

        Raises:
          AlreadyRunning: if another process works on this trial.
          NoProgress: if those before have saved nothing and were killed together with whoever watched them.
        """
        self.task, self._folder = task, SweepFolder(task.folder)
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        # The process inherits the open file and with it the lock: it is held as long as one of us lives.
        self._log = open(self._folder.log_file(task.name), "ab")  # noqa: SIM115 - closed when the process has ended
        if not lock_file(self._log.fileno()):
            self._log.close()
            raise AlreadyRunning(task.name)
        before, step, self._killed = self._folder.read_attempts(task.name), self._saved_step(), False
        idle = before.idle
        if before.count and before.status is None:  # nobody saw it end
            idle = idle + 1 if step <= before.step else 0
        self._now = Attempts(before.count + 1, None, idle, step)
        if idle >= MAX_IDLE:
            self._note(self._give_up(idle), idle)
            raise NoProgress(task.name)
        self._folder.write_attempts(task.name, self._now)
        self._say(f"attempt {self._now.count} on {where}, {time.strftime('%Y-%m-%d %H:%M:%S')}")
        command = list(task.command)
        if task.setup:
            command = ["bash", "-c", "\n".join([*checked_setup(task.setup), 'exec "$@"']), "bash", *command]
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
            process_group=0,
        )

    def _saved_step(self) -> int:
        """Where the next attempt would begin; rows of metrics past it are made again."""
        return saved_step(self._folder.run_dir(self.task.name))

    def _say(self, line: str) -> None:
        self._log.write(f"== {line}\n".encode())
        self._log.flush()

    def send(self, number: int) -> None:
        """Passes a signal on. Not by `Popen.send_signal`, which must not be called in a signal handler."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self, why: str) -> int:
        """Ends the process at once, which counts as a stop that was asked for; the exit status."""
        self._say(why)
        self.send(signal.SIGKILL)
        self._process.wait()
        self._killed = True
        status = self.poll()
        assert status is not None  # the process has ended
        return status

    def poll(self) -> int | None:
        """The exit status if the process has ended, which is then noted."""
        status = self._process.poll()
        if status is not None and not self._log.closed:
            if self._killed and status == -signal.SIGKILL:
                status = TRY_AGAIN
            idle = self._now.idle + 1 if status in CONTINUE and self._saved_step() <= self._now.step else 0
            if idle >= MAX_IDLE:
                status = self._give_up(idle)
            elif status < 0 and status not in CONTINUE:
                self._say(f"ended by {signal.Signals(-status).name}")
            self._note(status, idle)
        return status if status is None else self._now.status

    def _give_up(self, idle: int) -> int:
        self._say(f"{idle} attempts in a row saved no step; a longer time limit or a smaller log_every would help")
        return 1

    def _note(self, status: int, idle: int) -> None:
        self._now = self._now._replace(status=status, idle=idle)
        self._folder.write_attempts(self.task.name, self._now)
        self._log.close()
