"""The last lines of files that grow, read without the rest of them."""

import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from disarm_jax.run_directory.directory import RunDir
from disarm_jax.untrusted import open_regular, parse_json

TAIL_BYTES = 20_000  # about a hundred rows
# What follows an error without saying more of it: a note of JAX, and srun about its task.
NOISE = re.compile(r"-+$|For simplicity, JAX has removed its internal frames|srun: error: .* Exited with exit code")


class Position(NamedTuple):
    """Where a run is.

    Attributes:
      step: the last one on record.
      objective: of that step, the mean over seeds; None before the first.
      steps_per_second: with everything that happens between steps; None if not known.
    """

    step: int
    objective: float | None
    steps_per_second: float | None


def position(run_dir: RunDir) -> Position:
    """Where a run is, from the ends of its files."""
    rows, timings = _rows(run_dir.metrics_file, "objective"), _rows(run_dir.timings_file, "seconds")
    step = rows[-1]["step"] if rows else 0
    objective = float(np.mean([row["objective"] for row in rows if row["step"] == step])) if rows else None
    usual = [row for row in timings if row.get("what") != "compile and train"] or timings
    seconds = sum(row["seconds"] for row in usual)
    made = sum(row["steps"] for row in usual if type(row.get("steps")) is int)
    return Position(step, objective, made / seconds if seconds and made else None)


def saved_step(run_dir: RunDir) -> int:
    """The step of the newest checkpoint, 0 if there is none; one that is being written has another kind of name."""
    entries = run_dir.checkpoints.iterdir() if run_dir.checkpoints.is_dir() else ()
    return max((int(entry.name) for entry in entries if entry.name.isdecimal()), default=0)


def last_line(file: pathlib.Path) -> str:
    """The last line that says anything, without what a progress bar has overwritten; empty if there is none."""
    lines = [line.rsplit("\r", 1)[-1].strip() for line in _tail(file).split("\n")]
    return next((line for line in reversed(lines) if line and not NOISE.match(line)), "")


def _rows(file: pathlib.Path, number: str) -> list[dict[str, Any]]:
    """The rows with a step and a certain number; a damaged file has others, which are left to whoever trains."""
    rows = []
    for line in _tail(file).splitlines():
        try:
            row = parse_json(line)
        except ValueError:  # cut short, at either end
            continue
        if isinstance(row, dict) and type(row.get("step")) is int and type(row.get(number)) in (int, float):
            rows.append(row)
    return rows


def _tail(file: pathlib.Path) -> str:
    try:
        with open_regular(file) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
