"""Checkpoints of a run by orbax; the only file that knows it.

A checkpoint is a tree of named arrays that orbax can read without this library, as a whole or in part: `ocp.load(path)`
returns nested dicts such as `["params"]["encoder"]`. They are arrays of the host without padding, so a run may be
continued on other devices. The metadata hold a checksum of each: a checkpoint that orbax reads although its bytes have
changed is found out as well.
"""

import contextlib
import functools
import hashlib
import logging
import math
import os
import pathlib
import re
import sys
from typing import Any, cast

import jax
import numpy as np
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from disarm_jax.files import move_aside

# What is wrong is told in one line here. Orbax logs the traceback of every error that it raises, twice. It works on all
# arrays at once and looks at the first error only: asyncio logs the others, and Python those of threads that report to
# an event loop which orbax has closed.
absl_logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
logging.getLogger("asyncio").addFilter(lambda record: "OCDBT" not in record.getMessage())
_unraisable_hook = sys.unraisablehook


def _without_closed_loops(unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
        _unraisable_hook(unraisable)


sys.unraisablehook = _without_closed_loops


class CheckpointError(RuntimeError):
    """No checkpoint could be read although there are some, or one could not be written."""


class Checkpoints:
    """The checkpoints that a run writes into a folder, by step."""

    def __init__(self, folder: pathlib.Path, keep: int):
        """Opens the folder, makes it if need be, and removes what an interrupted save has left there."""
        self._folder = folder
        self._saving = None
        policy = cast(Any, ocp.training.preservation_policies.LatestN(keep))  # which does not fit Orbax's own protocol
        self._orbax = ocp.training.Checkpointer(
            str(folder.absolute()), preservation_policy=policy, cleanup_tmp_directories=True
        )

    def save(self, step: int, state: Any) -> None:
        """Saves in the background; the arrays are the caller's to give away, not to change.

        Raises:
          CheckpointError: if this save cannot begin or the one before has failed.
        """
        self.wait()
        metadata: dict[str, Any] = {"sha256": {name: _checksum(leaf) for name, leaf in _by_name(state).items()}}
        try:
            self._saving = self._orbax.save_async(step, _nested(state), force=True, custom_metadata=metadata)
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
    arrays, wanted = _by_name(ocp.load(str(path.absolute()))), _by_name(like)
    if arrays.keys() == {"bytes"}:
        return _unpacked(arrays["bytes"], like)
    metadata = cast(dict[str, Any] | None, ocp.metadata(str(path.absolute())).custom_metadata)
    checksums = (metadata or {}).get("sha256")
    if checksums is None:
        raise CheckpointError("it has no checksums")
    if different := sorted(wanted.keys() ^ checksums.keys()):
        has = "no" if different[0] in wanted else "an"
        raise CheckpointError(f"it has {has} array {different[0]}, unlike the state of this config")
    for name, leaf in wanted.items():
        if name not in arrays or _checksum(arrays[name]) != checksums[name]:
            raise CheckpointError(f"its array {name} is not as it was written")
        if (found := _kind(arrays[name])) != (expected := _kind(leaf)):
            raise CheckpointError(f"its array {name} is {found}, but {expected} in the state of this config")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _by_name(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name, such as "params/encoder/kernel", in its own order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _nested(state: Any) -> dict[str, Any]:
    """The state as nested dicts of arrays, whatever its types are, so that it can be read without them."""
    nested: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        *parents, name = [jax.tree_util.keystr((key,), simple=True) for key in path]
        functools.reduce(lambda part, parent: part.setdefault(parent, {}), parents, nested)[name] = leaf
    return nested


def _kind(leaf: Any) -> str:
    """Type and shape of an array, such as "float32[5, 784]"."""
    return f"{leaf.dtype}{list(leaf.shape)}"


def _checksum(leaf: np.ndarray) -> str:
    return hashlib.sha256(_kind(leaf).encode() + leaf.tobytes()).hexdigest()


def _unpacked(packed: np.ndarray, like: Any) -> Any:
    """The state in a checkpoint of older code: the bytes of all arrays one after the other, behind their checksum."""
    leaves, size = jax.tree.leaves(like), hashlib.sha256().digest_size
    checksum, body = packed[:size].tobytes(), packed[size:].tobytes()
    header = repr([(leaf.shape, np.dtype(leaf.dtype).str) for leaf in leaves]).encode()
    if hashlib.sha256(header + body).digest() != checksum:
        raise CheckpointError("its arrays are not those of this config, or not as they were written")
    arrays, start = [], 0
    for leaf in leaves:
        array = np.frombuffer(body, leaf.dtype, math.prod(leaf.shape), start)
        arrays.append(array.reshape(leaf.shape).copy())
        start += array.nbytes
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _reason(error: Exception) -> str:
    """An error in one line; of tensorstore's long ones that of the operating system is enough."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    text = str(error).strip() if isinstance(error, OSError | RuntimeError | ValueError) else repr(error)
    return (text or type(error).__name__).splitlines()[0][:200]
