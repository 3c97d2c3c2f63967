"""A run directory: what is in it, and how it stays whole when a run is killed at any moment.

- `config.json`: the resolved config with the version of its fields; a directory belongs to one
- `run.json`: code, versions, settings, machine and data of every process that has begun or resumed the run
- `train_mean.npy`: mean of the training images, which the model is made with
- `metrics.jsonl`: one line per step and seed: functions of config, seed and step only
- `metrics.sums.json`: number and checksum of these lines after the last evaluation; checkpoints have theirs
- `timings.jsonl`: one line per chunk or evaluation: how long it took here
- `checkpoints/`: by step, each a tree of named arrays that orbax can open
- `tensorboard/`: the metrics as events, one folder per seed
- `points/`: such a folder, and those of other writers, for each point of a grid
- `curves.png`: the metrics against steps
- `samples.png`: data, reconstructions and samples of the prior
- `damaged/`: files that could not be read, kept for whoever wants to know why
- `summary.json`: final numbers, versions, device, times
- `DONE`: the steps made, written last

None of these files is trusted when it is read: see `untrusted`, and docs/run-directory.md for what is checked.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from disarm_jax.console import say
from disarm_jax.experiment.config import Config, ConfigError, differences, digest, is_bound, migrated, versioned
from disarm_jax.experiment.devices import default_platform
from disarm_jax.experiment.fields import check_form, plain
from disarm_jax.files import expand_user, lock_file, move_aside, whole_file, write_text
from disarm_jax.run_directory.rows import (
    RowSums,
    is_metrics_row,
    is_timings_row,
    missing_rows,
    parse_rows,
    read_rows,
    rows_text,
    whole_steps,
)
from disarm_jax.untrusted import MAX_ROWS, read_array, read_bytes, read_json, read_picture

RECORD_FORMAT = 1
POINTS = "points"  # the folder of the points of a grid, each of which has writers, as if it were a run directory


class RunDirError(RuntimeError):
    """A run directory that cannot be used; its message says why and what would help."""


class RunDir:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike):
        """Names the files; makes nothing.

        Raises:
          RunDirError: if the path cannot be that of a folder.
        """
        try:
            self.path = expand_user(path)
        except FileNotFoundError as error:
            raise RunDirError(f"--workdir={os.fspath(path)}: {error.strerror}") from error
        if "\0" in os.fspath(path):
            raise RunDirError(f"--workdir={os.fspath(path)!r}: a path has no NUL in it")
        self.config_file = self.path / "config.json"
        self.record_file = self.path / "run.json"
        self.train_mean_file = self.path / "train_mean.npy"
        self.metrics_file = self.path / "metrics.jsonl"
        self.sums_file = self.path / "metrics.sums.json"
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
    def locked(self) -> Iterator[Callable[[], None]]:
        """Makes the directory and keeps other processes out of it; the lock ends with the process, however it ends.

        The directory itself is locked, which cannot be removed under a process that works in it; and a file, for older
        code and for network file systems that lock no folders between machines.

        Yields:
          A function that raises RunDirError if the directory has been moved: what has its name now is not locked.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as closing:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            closing.callback(os.close, folder)
            self.refuse_links()
            lock = closing.enter_context(open(self.path / ".lock", "a"))
            if not (lock_file(folder) and lock_file(lock.fileno())):
                raise RunDirError(f"another process is training in {self.path}")

            def check_place() -> None:
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(folder), os.stat(self.path)):
                        return
                where = "continue it where it is now, with --workdir"
                raise RunDirError(f"{self.path} was moved or replaced while this process trained in it; {where}")

            yield check_place

    def refuse_links(self) -> None:
        """Refuses a directory whose entries are links, pipes or devices: what is written through one lies elsewhere.

        Entries of other programs, which are not written to here, may be anything.

        Raises:
          RunDirError: which names the first of them.
        """
        top = lambda entry: entry.name in (".lock", "damaged", POINTS) or entry in vars(self).values()
        found = sorted(filter(top, self.path.iterdir()))
        for pattern in ("", "tensorboard/*", f"{POINTS}/*", f"{POINTS}/*/tensorboard", f"{POINTS}/*/tensorboard/*"):
            for entry in sorted(self.path.glob(pattern)) if pattern else found:
                if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                    raise RunDirError(f"{entry} is no regular file or folder; a run writes to its own directory alone")

    def read_config(self) -> Config:
        """The resolved config of the run, with the fields of today if older code has written it; nothing is imported.

        Raises:
          RunDirError: if there is none, or it cannot be read, or it has not the fields of a config.
        """
        try:
            return _read_config(self.config_file, self.platform)
        except FileNotFoundError:
            raise RunDirError(f"{self.path} is not a run directory: it has no config.json") from None
        except ConfigError as error:
            raise RunDirError(f"{self.config_file}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunDirError(f"{self.config_file} is damaged: {error}") from error

    def read_train_mean(self) -> np.ndarray:
        """The mean of the training images `[pixels]`, in [0, 1].

        Raises:
          RunDirError: if it has not been written yet, or is no such array.
        """
        name = self.train_mean_file.name
        try:
            mean = read_array(self.train_mean_file)
        except FileNotFoundError as error:
            raise RunDirError(f"{self.path} has not begun: {name} cannot be read ({error})") from error
        except (OSError, TypeError, ValueError) as error:
            raise RunDirError(f"{self.train_mean_file} is damaged: {error}") from error
        if mean.ndim != 1 or mean.dtype.kind != "f" or not np.all((mean >= 0) & (mean <= 1)):
            raise RunDirError(f"{self.train_mean_file} is damaged: it is no mean of images, numbers from 0 to 1")
        return mean

    def platform(self) -> str:
        """What the run was made on, such as "cpu"; before it has ended, what JAX would use here."""
        device = (self.read_summary() or {}).get("device")
        found = device.get("platform") if isinstance(device, dict) else None
        return found if isinstance(found, str) and found else default_platform()

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

    def check_images(self, train_mean: np.ndarray, sums: Mapping[str, str]) -> None:
        """Refuses to continue with other images than the run has had, as far as the directory tells.

        Args:
          train_mean: of the images that were loaded.
          sums: sha256 of each split.

        Raises:
          RunDirError: for other images.
        """
        data = (self.read_record() or [{}])[-1].get("data")
        known = data.get("sha256") if isinstance(data, dict) else None
        if isinstance(known, dict):
            self.check_sums(known, sums)
            return
        with contextlib.suppress(OSError, TypeError, ValueError):  # none yet, or cut short: it is written anew
            if not np.array_equal(read_array(self.train_mean_file), train_mean):
                raise RunDirError(f"the training images are not those that the run in {self.path} began with")

    def check_sums(self, known: Mapping[str, str], found: Mapping[str, str]) -> None:
        """Refuses images with other checksums than those that the run has had; raises RunDirError, naming the split."""
        for split, value in found.items():
            if known.get(split) not in (None, value):
                what = f"the {'training' if split == 'train' else split} images are not those that the run in"
                raise RunDirError(
                    f"{what} {self.path} began with: their sha256 is {value[:12]}…, not {known[split]!s:.12}…"
                )

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
            say(f"{self.record_file} is damaged: {error}; it is now {moved}")
            entries = []
        record = {"format": RECORD_FORMAT, "entries": [*entries, entry]}
        write_text(self.record_file, json.dumps(record, indent=2) + "\n")

    def _record_entries(self) -> list[dict[str, Any]]:
        record = read_json(self.record_file)
        if not isinstance(record, dict) or record.get("format") != RECORD_FORMAT:
            raise ValueError(f"it is not of format {RECORD_FORMAT}")
        entries = record.get("entries")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("it has no list of entries")
        return entries

    def remove_leftovers(self) -> None:
        """Removes the temporary files of a process that was killed while it wrote; for the one that holds the lock."""
        files = (self.config_file, self.record_file, self.train_mean_file, self.metrics_file, self.sums_file)
        for file in (*files, self.timings_file, self.curves, self.samples, self.summary_file, self.done_file):
            for leftover in self.path.glob(f".{file.name}.*.tmp"):  # as `whole_file` calls them
                leftover.unlink(missing_ok=True)

    def read_summary(self) -> dict[str, Any] | None:
        """The contents of summary.json; None if it cannot be read."""
        try:
            found = read_json(self.summary_file)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def done_steps(self) -> int | None:
        """How many steps a finished run has made; None if it is not finished."""
        try:
            return int(read_bytes(self.done_file, 100))
        except (OSError, ValueError):
            return None

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, without lines that are none, and without numbers that are not finite."""
        rows = [row for row in read_rows(self.metrics_file) if is_metrics_row(row)]
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    def read_timings(self) -> list[dict[str, Any]]:
        """The rows of timings.jsonl, without lines that are cut short or are no such rows."""
        return [row for row in read_rows(self.timings_file) if is_timings_row(row)]

    def metrics_content(self) -> bytes:
        """The bytes of metrics.jsonl; none if it is missing.

        Raises:
          RunDirError: if it is there but cannot be read, so that nobody takes its rows for lost and replaces them.
        """
        try:
            return read_bytes(self.metrics_file, MAX_ROWS)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunDirError(f"{self.metrics_file} cannot be read: {error.strerror}") from error

    def keep_rows(self, config: Config, step: int, recorded: RowSums | None) -> str:
        """Forgets what was written past the checkpoint that a run continues from, and lines that are not whole.

        What is kept has the checksum that the checkpoint has recorded, followed by evaluations at its step with the
        checksum of `metrics.sums.json`; all else is computed again.

        Args:
          config: resolved.
          step: of the checkpoint.
          recorded: in the checkpoint; None if older code has written it, whose rows cannot be checked.

        Returns:
          What is missing or has changed, in words; empty if nothing is.
        """
        content, lost = self.metrics_content(), ""
        later = RowSums.from_json(self._read_sums())
        if recorded is not None and self.has_rows(recorded, content):
            whole = recorded.size if recorded.fits(content) else 0
            kept = content[:whole]
            if later is not None and later.size > whole and later.fits(content):
                rows, _ = parse_rows(content[whole : later.size], is_metrics_row)
                kept += rows_text(whole_steps([row for row in rows if row["step"] <= step], config)).encode()
        else:
            rows, skipped = parse_rows(content, is_metrics_row)
            rows = [row for row in rows if row["step"] <= step]
            kept = rows_text(whole_steps(rows, config)).encode()
            if recorded is not None:
                what = missing_rows(rows, step, config) or "some were changed"
                lost = (
                    f"{self.metrics_file} is not as it was written: of {recorded.rows} rows up to step {step:,} {what}"
                )
            elif skipped > 1:  # one line is cut short by a kill
                say(f"{skipped} lines of {self.metrics_file} are no rows of metrics and are left out")
        with whole_file(self.metrics_file) as stream:
            stream.write(kept)
        self.write_sums(RowSums.of(kept), recorded if lost else None)
        try:
            rows, skipped = parse_rows(read_bytes(self.timings_file, MAX_ROWS), is_timings_row)
        except OSError:
            rows, skipped = [], 0
        if skipped > 1:
            say(f"{skipped} lines of {self.timings_file} are no rows of timings and are left out")
        write_text(self.timings_file, rows_text([row for row in rows if row["step"] <= step]))
        return lost

    def changed_rows(self) -> str:
        """Says that metrics.jsonl does not begin with the rows on record; empty if it does, or if none are."""
        sums = RowSums.from_json(self._read_sums())
        if sums is None or sums.fits(self.metrics_content()):
            return ""
        return f"{self.metrics_file} is not as it was written: it does not begin with the {sums.rows} rows on record"

    def has_samples(self) -> bool:
        """Whether there is a picture of samples: a PNG file, no link to one elsewhere."""
        try:
            read_picture(self.samples)
        except OSError:
            return False
        return True

    def _read_sums(self) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return read_json(self.sums_file)
        return None

    def _given_up(self) -> list[Any]:
        """The checksums of rows that are lost, and of which that was said."""
        found = self._read_sums()
        known = found.get("given_up") if isinstance(found, dict) else None
        return known if isinstance(known, list) else []

    def write_sums(self, sums: RowSums, given_up: RowSums | None = None) -> None:
        """Writes down what metrics.jsonl has after an evaluation, which no checkpoint may follow.

        Args:
          sums: of the file.
          given_up: what a checkpoint has recorded that is lost; to be said once.
        """
        lost = [*self._given_up(), *([given_up.sha256] if given_up else [])]
        write_text(self.sums_file, json.dumps(sums.as_json() | ({"given_up": lost} if lost else {})) + "\n")

    def has_rows(self, recorded: RowSums, content: bytes) -> bool:
        """Whether all rows are there that a checkpoint has recorded, or it was said already that they are not."""
        if recorded.fits(content):
            return True
        sums = RowSums.from_json(self._read_sums())
        return recorded.sha256 in self._given_up() and sums is not None and sums.fits(content)


def read_stored_config(file: str | os.PathLike) -> Config:
    """A config from a JSON file, such as a run's config.json, its fields those of today; nothing is imported.

    Raises:
      ConfigError: if it cannot be read or has not the fields of a config.
    """
    try:
        return _read_config(pathlib.Path(file), default_platform)
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{os.fspath(file)}: {reason}") from error


def _read_config(file: pathlib.Path, platform: Callable[[], str]) -> Config:
    config = migrated(read_json(file), platform)
    check_form(plain(config))
    return config


def default_workdir(config: Config) -> pathlib.Path:
    """A readable directory under runs/ that is the same for the same config, so that a repeated command continues."""
    widths = "x".join("of".join(map(str, np.atleast_1d(layer))) for layer in config.model.latents)  # 200x200, 20of10
    kind = "nonlinear" if config.model.hidden else "linear"
    objective, dataset, estimator = (
        config[part].name.rsplit(":")[-1] for part in ("objective", "dataset", "estimator")
    )
    objective = f"{objective}{config.objective.num_samples}" if is_bound(config) else objective
    return pathlib.Path("runs", "-".join([dataset, kind, widths, objective, estimator, digest(config)]))
