"""The folder of a sweep: run directories, one for each trial, and what is known of the attempts to finish them.

- `<trial>/`: the run directory
- `sweep.json`: the trials, the command of each, and the Slurm job that it was given to
- `logs/<trial>.log`: what its processes have said, one attempt after the other
- `logs/<trial>.json`: how many attempts there were since it was launched, and how the last one ended
- `slurm/`: the submitted job scripts and their own output
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from disarm_jax.experiment.config import ConfigError, migrated, versioned
from disarm_jax.experiment.rundir import RunDir, write_text
from disarm_jax.files import lock_file
from disarm_jax.sweep.trials import SweepError


class Attempts(NamedTuple):
    """What is known of a trial since it was launched.

    Attributes:
      count: processes that were started.
      status: exit status of the last one, negative for a signal; None if it has not ended, or nobody saw it end.
      idle: how many in a row had to stop before they had saved a step.
      step: what was saved when the last one began.
    """

    count: int = 0
    status: int | None = None
    idle: int = 0
    step: int = 0


class SweepFolder:
    """The files of a sweep."""

    def __init__(self, path: str | os.PathLike):
        """Names the files; makes nothing."""
        self.path = pathlib.Path(path).expanduser().absolute()
        self.record_file = self.path / "sweep.json"
        self.logs = self.path / "logs"
        self.submitted = self.path / "slurm"

    def run_dir(self, name: str) -> RunDir:
        """The run directory of a trial."""
        return RunDir(self.path / name)

    def log_file(self, name: str) -> pathlib.Path:
        """What a trial has said."""
        return self.logs / f"{name}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and keeps other launches out of it.

        Raises:
          SweepError: if there is another one, or the folder cannot be written to.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "a")  # noqa: SIM115 - closed below
        except OSError as error:
            raise SweepError(f"cannot write to --out={self.path}: {error.strerror}") from error
        with lock:
            if not lock_file(lock.fileno()):
                raise SweepError(f"another launch is at work in {self.path}")
            yield

    def read_record(self) -> dict[str, dict[str, Any]]:
        """What was launched: the `command`, `steps`, `config` and Slurm `job` (None here) of each trial."""
        try:
            trials = json.loads(self.record_file.read_text(encoding="utf-8"))["trials"]
            if missing := [name for name, entry in trials.items() if not {"command", "steps", "job"} <= set(entry)]:
                raise ValueError(f"{missing[0]} has no command, steps or job")
            for name, entry in trials.items():
                if entry.get("config"):
                    entry["config"] = migrated(entry["config"], self.run_dir(name).platform)
        except FileNotFoundError:
            return {}
        except ConfigError as error:
            raise SweepError(f"{self.record_file}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SweepError(f"{self.record_file} is damaged: {error}") from error
        return trials

    def write_record(self, trials: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds trials, or replaces what was said of them."""
        all_trials = {
            name: {**entry, **({"config": versioned(entry["config"])} if entry.get("config") else {})}
            for name, entry in {**self.read_record(), **trials}.items()
        }
        write_text(self.record_file, json.dumps({"trials": all_trials}, indent=2) + "\n")

    def forget_attempts(self, names: Iterable[str]) -> None:
        """Begins to count anew, for trials that are launched again."""
        for name in names:
            self._attempts_file(name).unlink(missing_ok=True)

    def read_attempts(self, name: str) -> Attempts:
        """The attempts of a trial since it was launched."""
        try:
            return Attempts(**json.loads(self._attempts_file(name).read_text(encoding="utf-8")))
        except (FileNotFoundError, TypeError, ValueError):
            return Attempts()

    def write_attempts(self, name: str, attempts: Attempts) -> None:
        """Replaces what is known of the attempts of a trial."""
        write_text(self._attempts_file(name), json.dumps(attempts._asdict()) + "\n")

    def _attempts_file(self, name: str) -> pathlib.Path:
        return self.logs / f"{name}.json"
