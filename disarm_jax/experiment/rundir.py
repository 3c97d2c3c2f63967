"""A run directory: what is in it, and how it stays whole when a run is killed at any moment.

- `config.json`: the resolved config with the version of its fields; a directory belongs to one
- `run.json`: code, versions, settings, machine and data of every process that has begun or resumed the run
- `train_mean.npy`: mean of the training images, which the model is made with
- `metrics.jsonl`: one line per step and seed: functions of config, seed and step only
- `timings.jsonl`: one line per chunk or evaluation: how long it took here
- `checkpoints/`: by step, each a tree of named arrays that orbax can open
- `tensorboard/`: the metrics as events, one folder per seed
- `points/`: such a folder, and those of other writers, for each point of a grid
- `curves.png`: the metrics against steps
- `samples.png`: data, reconstructions and samples of the prior
- `damaged/`: files that could not be read, kept for whoever wants to know why
- `summary.json`: final numbers, versions, device, times
- `DONE`: the steps made, written last
"""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from disarm_jax.experiment.config import Config, ConfigError, differences, digest, is_bound, migrated, versioned
from disarm_jax.experiment.devices import default_platform
from disarm_jax.experiment.grid import Member
from disarm_jax.files import lock_file, move_aside, whole_file

RECORD_FORMAT = 1


class RunDirError(RuntimeError):
    """A run directory that cannot be used; its message says why and what would help."""


class RunDir:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike):
        """Names the files; makes nothing."""
        self.path = pathlib.Path(path).expanduser()
        self.config_file = self.path / "config.json"
        self.record_file = self.path / "run.json"
        self.train_mean_file = self.path / "train_mean.npy"
        self.metrics_file = self.path / "metrics.jsonl"
        self.timings_file = self.path / "timings.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.curves = self.path / "curves.png"
        self.samples = self.path / "samples.png"
        self.summary_file = self.path / "summary.json"
        self.done_file = self.path / "DONE"

    @contextlib.contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Turns a full disk, a folder that cannot be written to and the like into a `RunDirError`."""
        try:
            yield
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise RunDirError(f"cannot work in {self.path}: {error.strerror or error}{where}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory and keeps other processes out of it; the lock ends with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a") as lock:
            if not lock_file(lock.fileno()):
                raise RunDirError(f"another process is training in {self.path}")
            yield

    def read_config(self) -> Config:
        """The resolved config of the run, with the fields of today if older code has written it.

        Raises:
          RunDirError: if there is none, or it cannot be read.
        """
        try:
            return migrated(json.loads(self.config_file.read_text(encoding="utf-8")), self.platform)
        except FileNotFoundError:
            raise RunDirError(f"{self.path} is not a run directory: it has no config.json") from None
        except ConfigError as error:
            raise RunDirError(f"{self.config_file}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunDirError(f"{self.config_file} is damaged: {error}") from error

    def platform(self) -> str:
        """What the run was made on, such as "cpu"; before it has ended, what JAX would use here."""
        return ((self.read_summary() or {}).get("device") or {}).get("platform") or default_platform()

    def check_owner(self, config: Mapping[str, Any]) -> None:
        """Refuses a directory of another config, listing the fields that differ; writes nothing.

        Raises:
          ConfigError: for another config.
          RunDirError: for a directory with other things in it.
        """
        if self.config_file.exists():
            if found := differences(self.read_config(), config):
                listed = "\n  ".join(found)
                message = "is the run of another config; choose another --workdir. They differ in"
                raise ConfigError(f"{self.path} {message}\n  {listed}")
        elif self.path.exists():
            foreign = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            if foreign:
                listed = ", ".join(foreign[:5])
                raise RunDirError(f"{self.path} has no config.json but {listed}; choose another --workdir")

    def check_images(self, train_mean: np.ndarray) -> None:
        """Refuses to continue with other training images than the run began with.

        Raises:
          RunDirError: if their mean is another.
        """
        with contextlib.suppress(OSError, ValueError):  # none yet, or cut short: it is written anew
            if not np.array_equal(np.load(self.train_mean_file), train_mean):
                raise RunDirError(f"the training images are not those that the run in {self.path} began with")

    def write_config(self, config: Mapping[str, Any], train_mean: np.ndarray) -> None:
        """Makes this the directory of a config; the mean of its training images is all that a model needs of them."""
        write_text(self.config_file, json.dumps(versioned(config), indent=2) + "\n")  # first: it says whose the rest is
        with whole_file(self.train_mean_file) as stream:
            np.save(stream, train_mean)

    def read_record(self) -> list[dict[str, Any]]:
        """The entries of run.json, one for each process that has begun or resumed the run.

        Empty if there is no such file, as in a run of older code, or if it is damaged.
        """
        try:
            return self._record_entries()
        except (OSError, ValueError):
            return []

    def append_record(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry to run.json; a damaged file is moved to the folder `damaged`."""
        try:
            entries = self._record_entries()
        except FileNotFoundError:
            entries = []
        except (OSError, ValueError) as error:
            moved = move_aside(self.record_file, self.path / "damaged" / self.record_file.name)
            print(f"{self.record_file} is damaged: {error}; it is now {moved}", file=sys.stderr)
            entries = []
        record = {"format": RECORD_FORMAT, "entries": [*entries, entry]}
        write_text(self.record_file, json.dumps(record, indent=2) + "\n")

    def _record_entries(self) -> list[dict[str, Any]]:
        record = json.loads(self.record_file.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != RECORD_FORMAT:
            raise ValueError(f"it is not of format {RECORD_FORMAT}")
        entries = record.get("entries")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("it has no list of entries")
        return entries

    def remove_leftovers(self) -> None:
        """Removes the temporary files of a process that was killed while it wrote; for the one that holds the lock."""
        text = (self.config_file, self.metrics_file, self.timings_file, self.summary_file, self.done_file)
        for file in (*text, self.record_file, self.train_mean_file, self.curves, self.samples):
            for leftover in self.path.glob(f".{file.name}.*.tmp"):  # as `whole_file` calls them
                leftover.unlink(missing_ok=True)

    def read_summary(self) -> dict[str, Any] | None:
        """The contents of summary.json; None if it cannot be read."""
        try:
            return json.loads(self.summary_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def done_steps(self) -> int | None:
        """How many steps a finished run has made; None if it is not finished."""
        try:
            return int(self.done_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl without a last line that was cut short, and without numbers that are not finite."""
        rows = read_rows(self.metrics_file)
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    def drop_rows_after(self, step: int, members: Sequence[Member]) -> None:
        """Forgets what was written past a step, lines cut short, and rows of which not every member's was written."""
        rows = [row for row in read_rows(self.metrics_file) if row["step"] <= step]
        written: dict[tuple, set] = {}
        for row in rows:
            written.setdefault(_kind(row), set()).add((row["seed"], row.get("point")))
        self._rewrite(self.metrics_file, [row for row in rows if written[_kind(row)] == set(members)])
        self._rewrite(self.timings_file, [row for row in read_rows(self.timings_file) if row["step"] <= step])

    def _rewrite(self, file: pathlib.Path, rows: Sequence[Mapping]) -> None:
        write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


def _kind(row: Mapping[str, Any]) -> tuple:
    """What the rows of all members at a step have in common: a row of training, or of an evaluation."""
    return row["step"], tuple(sorted(set(row) - {"seed"}))


def read_rows(file: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; lines that are not whole are left out, a missing file has none."""
    rows = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row:
                rows.append(row)
    return rows


def append_rows(file: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds lines to a file of JSON lines, all of them on disk on return."""
    with open(file, "a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
        stream.flush()
        os.fsync(stream.fileno())


def write_text(file: pathlib.Path, text: str) -> None:
    """Writes a whole file."""
    with whole_file(file) as stream:
        stream.write(text.encode())


def default_workdir(config: Config) -> pathlib.Path:
    """A readable directory under runs/ that is the same for the same config, so that a repeated command continues."""
    widths = "x".join("of".join(map(str, np.atleast_1d(layer))) for layer in config.model.latents)  # 200x200, 20of10
    kind = "nonlinear" if config.model.hidden else "linear"
    objective, dataset, estimator = (
        config[part].name.rsplit(":")[-1] for part in ("objective", "dataset", "estimator")
    )
    objective = f"{objective}{config.objective.num_samples}" if is_bound(config) else objective
    return pathlib.Path("runs", "-".join([dataset, kind, widths, objective, estimator, digest(config)]))
