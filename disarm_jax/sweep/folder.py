"""The folder of a sweep: run directories, one for each trial, and what is known of the attempts to finish them.

- `<trial>/`: the run directory
- `sweep.json`: the trials, the command of each, its config and file, and the Slurm job that it was given to
- `configs/<trial>.json`: the resolved config, which every attempt starts from, whatever becomes of the config file
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

from disarm_jax.experiment.config import migrated, versioned
from disarm_jax.experiment.fields import ConfigError
from disarm_jax.files import expand_user, lock_file, write_text
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.sweep.trials import SweepError
from disarm_jax.untrusted import read_json


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
        try:
            self.path = expand_user(path).absolute()
        except FileNotFoundError as error:
            raise SweepError(f"--out={os.fspath(path)}: {error.strerror}") from error
        if "\0" in os.fspath(path) or not os.fspath(path).isprintable():
            raise SweepError(f"--out={os.fspath(path)!r}: accepted: a path of printable characters")
        self.record_file = self.path / "sweep.json"
        self.configs = self.path / "configs"
        self.logs = self.path / "logs"
        self.submitted = self.path / "slurm"

    def run_dir(self, name: str) -> RunDir:
        """The run directory of a trial."""
        return RunDir(self.path / name)

    def log_file(self, name: str) -> pathlib.Path:
        """What a trial has said."""
        return self.logs / f"{name}.log"

    def config_file(self, name: str) -> pathlib.Path:
        """The resolved config of a trial."""
        return self.configs / f"{name}.json"

    def write_config(self, name: str, config: Mapping[str, Any]) -> None:
        """Stores the config that every attempt at a trial starts from."""
        self.configs.mkdir(exist_ok=True)
        write_text(self.config_file(name), json.dumps(versioned(config), indent=2) + "\n")

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
            trials = read_json(self.record_file)["trials"]
            for name, entry in trials.items():
                if not {"command", "steps", "job"} <= set(entry):
                    raise ValueError(f"{name} has no command, steps or job")
                if type(entry["steps"]) is not int or not isinstance(entry["job"], str | None):
                    raise ValueError(f"{name} has steps or a job of another kind")
                if pathlib.PurePath(name).name != name or not name.isprintable():
                    raise ValueError(f"{name!r} is not the name of a trial")
                if entry.get("config") is not None:
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
            found = Attempts(**read_json(self._attempts_file(name)))
        except (OSError, TypeError, ValueError):
            return Attempts()
        numbers = (found.count, found.idle, found.step, found.status or 0)
        return found if all(type(number) is int for number in numbers) else Attempts()

    def write_attempts(self, name: str, attempts: Attempts) -> None:
        """Replaces what is known of the attempts of a trial."""
        write_text(self._attempts_file(name), json.dumps(attempts._asdict()) + "\n")

    def _attempts_file(self, name: str) -> pathlib.Path:
        return self.logs / f"{name}.json"
