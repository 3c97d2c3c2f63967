"""Run directories as a report sees them, finished, running or damaged."""

import os
import pathlib
import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from disarm_jax.experiment.fields import ConfigError, flat, plain
from disarm_jax.experiment.grid import at_point, members_of, point_text, points_of
from disarm_jax.files import expand_user
from disarm_jax.report.origin import Code, Entry, Evaluation, code_of, read_entries, read_evaluations
from disarm_jax.run_directory.directory import RunDir, RunDirError


class StepTime(NamedTuple):
    """Seconds of one step of one seed: the median over chunks of steps, and their quartiles."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance of the quartiles, relative to the median."""
        return (self.high - self.low) / self.median


class Run(NamedTuple):
    """One run directory, finished or not, or one point of its grid.

    Attributes:
      path: as found.
      config: resolved; of a point, as if it had been trained alone.
      rows: of metrics.jsonl, each with step, seed and metrics.
      timings: rows of timings.jsonl.
      summary: contents of summary.json, {} before the run has ended.
      entries: of run.json, one for each start; () if the run is older than this file.
      evaluations: what `--mode eval` has found.
      finished: whether it has made all its steps.
      samples: the picture of samples, a PNG file of the run's own; None if there is none.
      num_members: of its program, one for each seed and point.
      point: of a grid, in words; empty for a whole run.
    """

    path: pathlib.Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    timings: list[dict[str, Any]]
    summary: dict[str, Any]
    entries: tuple[Entry, ...]
    evaluations: tuple[Evaluation, ...]
    finished: bool
    samples: pathlib.Path | None
    num_members: int
    point: str = ""

    @property
    def name(self) -> str:
        """Of the directory, with the point of a grid."""
        return f"{self.path.name} ({self.point})" if self.point else self.path.name

    @property
    def step(self) -> int:
        """The last step on record."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def devices(self) -> tuple[str, ...]:
        """What it ran on, each once; () if that is not known."""
        if self.entries:
            return tuple(dict.fromkeys(entry.device for entry in self.entries if entry.device))
        device = self.summary.get("device")
        if not device:
            return ()
        processor = device.get("processor", "unknown").replace(", 1 cores", ", 1 core")  # as in newer runs
        return (f"{device['count']} × {device['kind']}, {processor}",)

    @property
    def command(self) -> str:
        """How it was started last; empty if that is not known."""
        argv = (self.entries[-1].command if self.entries else ()) or self.summary.get("command")
        if not argv:
            return ""
        return shlex.join(["python", "-m", "main", *argv[1:]] if argv[0].endswith("main.py") else argv)

    @property
    def data_sums(self) -> dict[str, str]:
        """The sha256 of its images by split; empty if that is not known."""
        found = self.entries[-1].data_sums if self.entries else {}
        return found or self.summary.get("data", {}).get("sha256", {})

    @property
    def codes(self) -> tuple[Code, ...]:
        """The code of every start, each once, in order."""
        found = [entry.code for entry in self.entries] or [code_of({}, self.summary.get("versions", {}))]
        return tuple(dict.fromkeys(found))

    @property
    def started(self) -> str:
        """When it was started first; empty if that is not known."""
        return self.entries[0].started if self.entries else ""

    @property
    def precision(self) -> str:
        """Of products of matrices; empty if that is not known."""
        return self.entries[-1].precision if self.entries else self.config["matmul_precision"]

    @property
    def step_time(self) -> StepTime | None:
        """Of one seed; chunks that were compiled first do not count."""
        found = [row["seconds"] / row["steps"] for row in self.timings if row["what"] == "train"]
        if not found:
            return None
        low, median, high = np.quantile(found, (0.25, 0.5, 0.75)) / self.num_members
        return StepTime(float(median), float(low), float(high))

    def seconds(self, what: str) -> float:
        """The time that the program spent on everything with this word in its name: "train" or "evaluate"."""
        return sum(row["seconds"] for row in self.timings if what in row["what"])


def read_runs(folders: Iterable[str | os.PathLike]) -> tuple[list[Run], list[str]]:
    """All run directories below some folders, each once, point by point; and a line for each that cannot be read."""
    found = {path.resolve(): path for folder in folders for path in _run_paths(expand_user(folder))}
    runs, problems = [], []
    for path in sorted(found.values()):
        try:
            runs += by_point(read_run(path))
        except RunDirError as error:
            problems.append(" ".join(str(error).split()))
        except Exception as error:  # whatever is in one directory, the others are reported on
            problems.append(f"{path} is damaged: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return runs, problems


def _run_paths(folder: pathlib.Path) -> Iterable[pathlib.Path]:
    """Folders with a config.json; what lies below one belongs to it."""
    for path, folders, files in os.walk(folder):
        if "config.json" in files:
            folders.clear()
            yield pathlib.Path(path)


def read_run(path: pathlib.Path) -> Run:
    """A run directory, also while it is being written to.

    Raises:
      RunDirError: if it is damaged.
    """
    run_dir = RunDir(path)
    try:
        config = plain(run_dir.read_config())
        _check(config)
        if changed := run_dir.changed_rows():
            raise RunDirError(changed)
        rows, timings = run_dir.read_metrics(), run_dir.read_timings()
        summary = run_dir.read_summary()
        # A copy of a run may have come without its DONE; the summary is written at the end, too.
        finished = config["steps"] in (run_dir.done_steps(), (summary or {}).get("steps"))
        samples = run_dir.samples if run_dir.has_samples() else None
        entries, evaluations = read_entries(path / "run.json"), read_evaluations(path)
        num_members = len(members_of(config))
        run = Run(path, config, rows, timings, summary or {}, entries, evaluations, finished, samples, num_members)
        _ = run.devices, run.command, run.data_sums, run.codes, run.step_time, run.seconds("")  # made of other files
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror} ({error.filename})") from error
    except (ArithmeticError, AttributeError, ConfigError, KeyError, TypeError) as error:
        raise RunDirError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return run


def by_point(run: Run) -> list[Run]:
    """A run for each point of a grid, as if it had been trained alone; a run without a grid as it is."""
    if not run.config["grid"]:
        return [run]
    found = []
    for number, point in enumerate(points_of(run.config)):
        rows = [{name: row[name] for name in row if name != "point"} for row in run.rows if row.get("point") == number]
        own = {"config": plain(at_point(run.config, point)), "rows": rows, "point": point_text(point)}
        evaluations, samples = read_evaluations(run.path, number), None if number else run.samples
        found.append(run._replace(**own, evaluations=evaluations, samples=samples))
    return found


def _check(config: dict[str, Any]) -> None:
    """Raises TypeError if a field has no value that a report looks at; `RunDir.read_config` has checked their form."""
    fields, kinds = dict(flat(config)), dict.fromkeys(("estimator.name", "model.name"), str)
    kinds |= dict.fromkeys(("objective.num_samples", "eval.train_samples", "eval.test_samples"), int)
    for field, kind in kinds.items():
        if not isinstance(fields[field], kind):
            raise TypeError(f"{field} is {fields[field]!r}")
