"""Where the trials of a sweep are, from its folder and from Slurm's queue."""

import contextlib
import hashlib
import os
import pathlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from disarm_jax.experiment.config import differences
from disarm_jax.experiment.loop import TRY_AGAIN
from disarm_jax.files import is_locked
from disarm_jax.report.palette import count
from disarm_jax.run_directory.directory import RunDir, RunDirError
from disarm_jax.sweep import slurm
from disarm_jax.sweep.attempt import CONTINUE
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.tail import last_line, position
from disarm_jax.untrusted import open_regular

STATES = ("done", "running", "waiting", "preempted", "cancelled", "failed", "unknown")
MAX_CONFIG_FILE = 64 << 20  # bytes of Python
MIN_NAME = 12  # letters of a trial's name, however narrow a terminal is; a note with less room is left out


class Status(NamedTuple):
    """Where one trial is.

    Attributes:
      name: of the trial.
      state: one of `STATES`. Preempted: it was stopped, is saved, and waits in the queue to go on; also after its time
        limit. Cancelled: it has not finished, without an error, and nobody will go on with it until it is launched.
        Unknown: it was given to Slurm, which does not answer.
      active: whether it runs or will run without being launched again, as far as is known.
      step: the last one on record.
      steps: how many there are to be.
      objective: of that step, the mean over seeds; None before the first.
      eta: seconds until it is done, if it runs; None if not known.
      note: why it is where it is.
    """

    name: str
    state: str
    active: bool
    step: int
    steps: int
    objective: float | None
    eta: float | None
    note: str


def sweep_status(folder: SweepFolder, record: Mapping[str, Mapping[str, Any]]) -> list[Status]:
    """Where the trials of a record are."""
    queue = slurm.queue_states([entry["job"] for entry in record.values() if entry["job"]])
    found = [trial_status(folder, name, entry, queue) for name, entry in record.items()]
    return [
        status._replace(note=f"not the config that was launched: {other}") if other else status
        for status, entry in zip(found, record.values(), strict=True)
        for other in [_other_config(folder.run_dir(status.name), entry.get("config"))]
    ]


def _other_config(run_dir: RunDir, launched: Mapping[str, Any] | None) -> str:
    """How a run differs from what was launched: its config file was edited before the job began."""
    if launched is None or not run_dir.config_file.exists():
        return ""
    with contextlib.suppress(RunDirError):  # a damaged one is told by whoever trains it
        return "; ".join(differences(run_dir.read_config(), launched))
    return ""


def trial_status(
    folder: SweepFolder, name: str, entry: Mapping[str, Any], queue: Mapping[str, slurm.Queued] | None = None
) -> Status:
    """Where one trial is.

    Args:
      folder: of the sweep.
      name: of the trial.
      entry: what the record says of it.
      queue: what Slurm says of jobs; None if it does not answer.
    """
    run_dir, steps = folder.run_dir(name), entry["steps"]
    state, active, note = _state(folder, name, queue, entry["job"])
    step, objective, rate = position(run_dir)
    if (run_dir.done_steps() or 0) >= steps:
        state, active, note = "done", False, ""
    eta = (steps - step) / rate if rate and state == "running" else None
    return Status(name, state, active, step, steps, objective, eta, note)


def _state(
    folder: SweepFolder, name: str, queue: Mapping[str, slurm.Queued] | None, job: str | None
) -> tuple[str, bool, str]:
    """State, whether it is active, and a note, of a trial that is not done."""
    attempts, printed = folder.read_attempts(name), last_line(folder.log_file(name))
    queued = (queue or {}).get(job or "", slurm.Queued(""))
    if queued.state in slurm.PENDING:
        return ("preempted", True, printed) if attempts.count else ("waiting", True, f"job {job}: {queued.reason}")
    if queued.state in slurm.RUNNING or is_locked(folder.log_file(name)):
        return "running", True, f"job {job}" if job else ""
    if attempts.status not in (None, 0, *CONTINUE):
        return "failed", False, f"exit status {attempts.status}" if printed.startswith("== attempt") else printed
    if job and queue is None:
        return "unknown", True, f"job {job}: Slurm does not answer"
    if queued.state == "PREEMPTED":  # by a Slurm that does not requeue
        return "preempted", False, printed
    if not job and not attempts.count:
        return "waiting", False, "not launched"
    if not job:
        return "cancelled", False, printed if attempts.status == TRY_AGAIN else ""
    note = f"Slurm says {queued.state} of job {job}" if queued.state else f"job {job} has left the queue"
    if attempts.status is None:  # `main` did not come to its end, or has never begun
        printed = last_line(folder.submitted / f"{job}_0_log.err")
    failed = attempts.status is None and queued.state not in ("", "CANCELLED", "COMPLETED")
    return "failed" if failed else "cancelled", False, f"{note}; {printed}" if printed else note


def file_sum(file: str | os.PathLike) -> str | None:
    """The sha256 of a config file; None if it cannot be read."""
    try:
        with open_regular(pathlib.Path(file), MAX_CONFIG_FILE, links=True) as stream:  # sweep.json may name anything
            return hashlib.sha256(stream.read()).hexdigest()
    except (OSError, ValueError):
        return None


def changed_files(record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each config file that is not what it was when trials of a sweep were launched from it."""
    files: dict[str, int] = {}
    for entry in record.values():
        file, known = entry.get("config_file"), entry.get("config_sha256")
        if isinstance(file, str) and isinstance(known, str) and file_sum(file) != known:
            files[file] = files.get(file, 0) + 1
    what = "has changed since trials were launched from it, which train what it said then"
    return [f"{file} {what}: {count(number, 'trial')}" for file, number in files.items()]


def summary_line(found: Sequence[Status]) -> str:
    """How many trials are in which state."""
    counts = Counter(status.state for status in found)
    return f"{len(found)} trials: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def table(found: Iterable[Status], width: int | None = None) -> list[str]:
    """One line for each trial, below a heading; with a width, names are shortened and notes cut so that it fits."""
    rows = [("trial", "state", "step", "objective", "ETA", "")]
    for status in found:
        step = f"{status.step:,} / {status.steps:,}"
        rows.append(
            (status.name, status.state, step, objective_text(status.objective), _clock(status.eta), status.note)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        left = max(MIN_NAME, width - sum(widths[1:5]) - 2 * 4)
        names = _shortened([row[0] for row in rows], left)
        rows = [(name, *row[1:]) for name, row in zip(names, rows, strict=True)]
        widths[0] = max(map(len, names))
        if width - sum(widths[:5]) - 2 * 5 < MIN_NAME:  # no room for notes
            rows = [(*row[:5], "") for row in rows]
    aligned = [[f"{cell:{side}{size}}" for cell, side, size in zip(row, "<<>>><", widths, strict=True)] for row in rows]
    return ["  ".join(cells).rstrip()[:width] for cells in aligned]


def objective_text(objective: float | None) -> str:
    """An objective in few letters, also one that has run away."""
    return "" if objective is None else f"{objective:.2f}" if abs(objective) < 1e6 else f"{objective:.2g}"


def _shortened(names: Sequence[str], width: int) -> list[str]:
    """Names in so many letters: all of each, or the values alone of each, of one that is still too long its two ends.

    >>> [_shortened(["dataset=mnist,estimator=arm", "steps=5"], width) for width in (30, 20, 8)]
    [['dataset=mnist,estimator=arm', 'steps=5'], ['mnist,arm', '5'], ['mn…t,arm', '5']]
    """
    if max(map(len, names)) > width:
        names = [re.sub(r"(^|,)[^,=]+=", r"\1", name) for name in names]
    head = width // 3
    ends = lambda name: f"{name[:head]}…{name[len(name) - (width - head - 1) :]}"
    return [name if len(name) <= width else ends(name) for name in names]


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return ""
    days, rest = divmod(int(seconds), 86_400)
    return (f"{days}d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(rest))
