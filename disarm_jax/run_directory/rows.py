"""Rows of metrics and timings: which lines are rows, what is missing, and checksums of those that were written."""

import hashlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from disarm_jax.experiment.grid import Member, members_of
from disarm_jax.untrusted import MAX_ROWS, json_rows, read_bytes

MAX_STEP = 2**31 - 1


class RowSums(NamedTuple):
    """How many rows a file begins with, how many bytes they have, and the sha256 of these."""

    rows: int
    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "RowSums":
        """Of all rows in a file."""
        return cls(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())

    @classmethod
    def from_json(cls, value: Any) -> "RowSums | None":
        """From what `as_json` has given; None for anything else."""
        names = {"rows": int, "size": int, "sha256": str}
        if not isinstance(value, dict) or not all(type(value.get(name)) is kind for name, kind in names.items()):
            return None
        return cls(*(value[name] for name in names))

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return self._asdict()

    def fits(self, content: bytes) -> bool:
        """Whether a file begins with just these rows."""
        return len(content) >= self.size and hashlib.sha256(content[: self.size]).hexdigest() == self.sha256


class RunningSums:
    """Checksums of a file that grows."""

    def __init__(self, content: bytes):
        """Begins with what is in the file."""
        self._rows, self._size, self._hash = content.count(b"\n"), len(content), hashlib.sha256(content)

    def add(self, text: str) -> None:
        """Adds what was appended."""
        content = text.encode()
        self._rows, self._size = self._rows + content.count(b"\n"), self._size + len(content)
        self._hash.update(content)

    def now(self) -> RowSums:
        """Of all that was added."""
        return RowSums(self._rows, self._size, self._hash.hexdigest())


def rows_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def parse_rows(content: bytes, good: Callable[[dict[str, Any]], bool]) -> tuple[list[dict[str, Any]], int]:
    """The rows among JSON lines that have a step and are good, and how many lines are not."""
    found = [
        row if isinstance(row, dict) and _is_step(row.get("step")) and good(row) else None for row in json_rows(content)
    ]
    rows = [row for row in found if row is not None]
    return rows, len(found) - len(rows)


def read_rows(file: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; lines that are not whole are left out, a missing file has none."""
    try:
        return parse_rows(read_bytes(file, MAX_ROWS), lambda row: True)[0]
    except FileNotFoundError:
        return []


def append_rows(file: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds lines to a file of JSON lines, all of them on disk on return."""
    with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "a") as stream:
        stream.write(rows_text(rows))
        stream.flush()
        os.fsync(stream.fileno())


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_STEP


def is_metrics_row(row: Mapping[str, Any]) -> bool:
    """Whether a row with a step has a seed and metrics that are numbers."""
    metrics = [value for name, value in row.items() if name not in ("step", "seed", "point")]
    whose = type(row.get("seed")) is int and type(row.get("point")) in (int, type(None))
    return whose and all(type(value) in (int, float, type(None)) for value in metrics)  # None: not finite


def is_timings_row(row: Mapping[str, Any]) -> bool:
    """Whether a row with a step says what has taken how long, and in how many steps if it was training."""
    number = lambda value: type(value) in (int, float) and 0 <= value < math.inf
    if not isinstance(row.get("what"), str) or not number(row.get("seconds")):
        return False
    return number(row.get("steps")) and row["steps"] > 0 if row["what"] == "train" or "steps" in row else True


def _kind(row: Mapping[str, Any]) -> tuple:
    """What the rows of all members at a step have in common: a row of training, or of an evaluation."""
    return row["step"], tuple(sorted(set(row) - {"seed"}))


def whole_steps(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of which every member's was written."""
    members, written = set(members_of(config)), {}
    for row in rows:
        written.setdefault(_kind(row), set()).add(_member(row))
    return [row for row in rows if written[_kind(row)] == members]


def _member(row: Mapping[str, Any]) -> Member:
    return Member(row["seed"], row.get("point"))


def missing_rows(rows: Sequence[Mapping[str, Any]], step: int, config: Mapping[str, Any]) -> str:
    """The rows of training up to a step that are not there, in words; empty if none is missing.

    >>> config = {"log_every": 5, "seeds": (0, 3), "grid": ""}
    >>> rows = [{"step": 5, "seed": 0, "objective": 1.0}, {"step": 5, "seed": 3, "objective": 1.0}]
    >>> missing_rows(rows, 10, config)
    'are missing: step 10 of seeds 0, 3'
    """
    there = {(row["step"], _member(row)) for row in rows if "objective" in row}
    every, members = config["log_every"], members_of(config)
    absent: dict[int, list[Member]] = {}
    for at in range(every, step + 1, every):
        if gone := [member for member in members if (at, member) not in there]:
            absent[at] = gone

    def whose(gone: Sequence[Member]) -> str:
        points = sorted({member.point for member in gone if member.point is not None})
        of_points = f" of points {', '.join(map(str, points))}" if points else ""
        return f"seeds {', '.join(map(str, dict.fromkeys(member.seed for member in gone)))}{of_points}"

    listed = [f"step {at:,} of {whose(gone)}" for at, gone in list(absent.items())[:3]]
    more = [f"and {len(absent) - 3:,} more steps up to {max(absent):,}"] if len(absent) > 3 else []
    return f"are missing: {'; '.join(listed + more)}" if absent else ""
