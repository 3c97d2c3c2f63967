"""Checkpoints of a run by orbax; the only file that knows it.

What is saved are the bytes of host arrays without padding, so a run may be continued on other devices, and a checksum
of them: a checkpoint that orbax reads but whose bytes have changed is found out as well. They are one array to orbax,
which would print a traceback for every further one that cannot be read.
"""

import contextlib
import hashlib
import math
import os
import pathlib
import re
import sys
from typing import Any

import jax
import numpy as np
from absl import logging
from orbax.checkpoint import v1 as ocp

from disarm_jax.files import move_aside

# Orbax logs the traceback of every error that it raises, twice.
logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname or record.levelno < logging.ERROR)


CHECKSUM_BYTES = hashlib.sha256().digest_size


class CheckpointError(RuntimeError):
    """No checkpoint could be read although there are some, or one could not be written."""


class Checkpoints:
    """The checkpoints that a run writes into a folder, by step."""

    def __init__(self, folder: pathlib.Path, keep: int):
        """Opens the folder, makes it if need be, and removes what an interrupted save has left there."""
        self._folder = folder
        self._saving = None
        policy = ocp.training.preservation_policies.LatestN(keep)
        self._orbax = ocp.training.Checkpointer(
            folder.absolute(), preservation_policy=policy, cleanup_tmp_directories=True
        )

    def save(self, step: int, state: Any) -> None:
        """Saves in the background; the arrays are the caller's to give away, not to change.

        Raises:
          CheckpointError: if this save cannot begin or the one before has failed.
        """
        self.wait()
        try:
            self._saving = self._orbax.save_async(step, {"bytes": _pack(state)}, force=True)
        except Exception as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Returns when the last save is on disk.

        Raises:
          CheckpointError: if it has failed.
        """
        saving, self._saving = self._saving, None
        try:
            if saving is not None:
                saving.result()  # ends the thread that waits for it, which orbax's own wait does not
        except Exception as error:  # a full disk is a ValueError of tensorstore or an OSError, depending on the file
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"a checkpoint in {self._folder} could not be written: {_reason(error)}")

    def restore_latest(self, like: Any) -> Any | None:
        """The newest state that can be read, or None if there is no checkpoint; damaged ones are set aside.

        Args:
          like: a pytree of arrays or shapes, as saved.

        Raises:
          CheckpointError: if none of them can be read.
        """
        state, damaged = _newest(self._folder, like)
        for step in damaged:
            self._set_aside(step)
        return state

    def _set_aside(self, step: int) -> None:
        target = move_aside(self._folder / str(step), self._folder.parent / "damaged" / f"checkpoint_{step}")
        self._orbax.reload()
        print(f"the damaged checkpoint {step} is now {target}; continuing from the one before", file=sys.stderr)

    def close(self) -> None:
        """Waits for the last save and ends orbax's threads."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # the failure of a save, which `wait` has raised, once more
                self._orbax.close()


def read_latest(folder: pathlib.Path, like: Any) -> Any | None:
    """The newest state in a folder that can be read, or None if there is none.

    Changes nothing: the run may be in the middle of a save.

    Args:
      folder: of the checkpoints.
      like: a pytree of arrays or shapes, as saved.

    Raises:
      CheckpointError: if there are some, but none of them can be read.
    """
    return _newest(folder, like)[0]


def read_step(folder: pathlib.Path, step: int, like: Any) -> Any:
    """The state of one step in a folder.

    Raises:
      CheckpointError: if there is none, naming those that there are, or if it cannot be read.
    """
    there = _steps(folder)
    if step not in there:
        raise CheckpointError(f"{folder} has no step {step}; it has {', '.join(map(str, sorted(there))) or 'none'}")
    try:
        return _read(folder / str(step), like)
    except Exception as error:  # damage in the right place makes tensorstore raise almost anything
        raise CheckpointError(f"checkpoint {folder / str(step)} is damaged: {_reason(error)}") from error


def _newest(folder: pathlib.Path, like: Any) -> tuple[Any | None, list[int]]:
    """The newest state that can be read, and the later steps, whose checkpoints are damaged."""
    steps, tried = _steps(folder), None
    while steps != tried:  # a run that goes on may have replaced them in the meantime
        for number, step in enumerate(steps):
            path = folder / str(step)
            try:
                return _read(path, like), steps[:number]
            except Exception as error:  # damage in the right place makes tensorstore raise almost anything
                if path.exists():
                    print(f"checkpoint {path} is damaged: {_reason(error)}", file=sys.stderr)
        steps, tried = _steps(folder), steps
    if steps:
        listed = ", ".join(map(str, steps))
        raise CheckpointError(f"none of the checkpoints {listed} in {folder} can be read; choose another --workdir")
    return None, []


def _steps(folder: pathlib.Path) -> list[int]:
    """The steps that have a checkpoint, the newest first."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(entry.name) for entry in entries if entry.name.isdecimal() and entry.is_dir()), reverse=True)


def _read(path: pathlib.Path, like: Any) -> Any:
    saved = np.asarray(ocp.load(path.absolute())["bytes"]).tobytes()
    leaves, structure = jax.tree.flatten(like)
    found, start = [], CHECKSUM_BYTES
    for leaf in leaves:
        dtype, count = np.dtype(leaf.dtype), math.prod(leaf.shape)
        found.append(np.frombuffer(saved, dtype, count, start).reshape(leaf.shape).copy())
        start += count * dtype.itemsize
    state = jax.tree.unflatten(structure, found)
    if saved != _pack(state).tobytes():
        raise CheckpointError("its arrays are not those of this config, or not as they were written")
    return state


def _pack(state: Any) -> np.ndarray:
    """The bytes of all arrays, behind a checksum of them with their shapes and types."""
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(state)]
    body = b"".join(leaf.tobytes() for leaf in leaves)
    header = repr([(leaf.shape, leaf.dtype.str) for leaf in leaves]).encode()
    return np.frombuffer(hashlib.sha256(header + body).digest() + body, np.uint8)


def _reason(error: Exception) -> str:
    """An error in one line; of tensorstore's long ones that of the operating system is enough."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
