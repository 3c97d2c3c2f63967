"""Checkpoints of a run by orbax; the only file that knows it.

A checkpoint is a tree of named arrays that orbax can read without this library, as a whole or in part: `ocp.load(path)`
returns nested dicts such as `["params"]["encoder"]`. They are arrays of the host without padding, so a run may be
continued on other devices. The metadata hold a checksum of each: a checkpoint that orbax reads although its bytes have
changed is found out as well. They also hold a record of the run that the checkpoint belongs to, see `fingerprint`; this
file only stores it.
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
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from disarm_jax.console import say
from disarm_jax.files import move_aside
from disarm_jax.untrusted import first_foreign

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


NEVER = 10**9  # seconds: orbax measures by the wall clock, which may jump, when a save has taken too long
MARGIN = 64 << 20  # bytes that a checkpoint may have beyond its arrays, for what orbax writes beside them


class CheckpointError(RuntimeError):
    """No checkpoint could be read although there are some, or one could not be written."""


class OtherRunError(CheckpointError):
    """A checkpoint that does not belong to the run in whose folder it is."""


class Saved(NamedTuple):
    """What a checkpoint holds: its step, the state, and what it says of its run; None if older code has written it."""

    step: int
    state: Any
    record: Any


# Raises OtherRunError if a checkpoint does not belong to the run.
Check = Callable[[Saved], None]


def accept_all(saved: Saved) -> None:
    """Takes any checkpoint."""


class Checkpoints:
    """The checkpoints that a run writes into a folder, by step."""

    def __init__(self, folder: pathlib.Path, keep: int):
        """Opens the folder, makes it if need be, and removes what an interrupted save has left there."""
        self._folder = folder
        self._saving = None
        if folder.is_dir():
            for entry in folder.iterdir():  # orbax would take these for checkpoints, and fail to remove a link
                is_folder = entry.is_dir() and not entry.is_symlink()
                if entry.name.isdecimal() and (not is_folder or entry.name != str(int(entry.name))):
                    moved = move_aside(entry, folder.parent / "damaged" / f"checkpoint_{entry.name}")
                    say(f"{entry} is no checkpoint; it is now {moved}")
        self._keep, self._unsaved = keep, None
        self._orbax = self._opened()

    def _opened(self) -> Any:
        policy = cast(Any, ocp.training.preservation_policies.LatestN(self._keep))  # not of Orbax's own protocol
        with ocp.Context(async_options=ocp.options.AsyncOptions(timeout_secs=NEVER)):
            return ocp.training.Checkpointer(
                str(self._folder.absolute()), preservation_policy=policy, cleanup_tmp_directories=True
            )

    def save(self, step: int, state: Any, record: Mapping[str, Any] | None = None) -> None:
        """Saves in the background; the arrays are the caller's to give away, not to change.

        Args:
          step: that was reached.
          state: a pytree of arrays.
          record: of the run, as JSON.

        Raises:
          CheckpointError: if this save cannot begin or the one before has failed.
        """
        self.wait()
        metadata: dict[str, Any] = {"sha256": {name: _checksum(leaf) for name, leaf in _by_name(state).items()}}
        if record is not None:
            metadata["run"] = dict(record)
        self._unsaved = (step, _nested(state), metadata)
        self._begin()

    def _begin(self) -> None:
        assert self._unsaved is not None  # `save` has set it
        step, arrays, metadata = self._unsaved
        try:
            self._saving = self._orbax.save_async(step, arrays, force=True, custom_metadata=metadata)
        except Exception as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Returns when the last save is on disk.

        Raises:
          CheckpointError: if it has failed.
        """
        for again in (False, True):
            saving, self._saving = self._saving, None
            try:
                if saving is not None:
                    saving.result()  # ends the thread that waits for it, which orbax's own wait does not
                break
            except TimeoutError as error:  # orbax measures by the wall clock: it has jumped
                if again:
                    raise self._failure(error) from error
                say(f"a checkpoint in {self._folder} was not written in time by the clock of this machine; once more")
                with contextlib.suppress(Exception):  # the same error once more
                    self._orbax.close()
                self._orbax = self._opened()
                self._begin()
            except (
                Exception
            ) as error:  # a full disk is a ValueError of tensorstore or an OSError, depending on the file
                raise self._failure(error) from error
        self._unsaved = None

    def _failure(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"a checkpoint in {self._folder} could not be written: {_reason(error)}")

    def restore_latest(
        self, like: Any, check: Check = accept_all, whole: Callable[[Saved], bool] = lambda saved: True
    ) -> Saved | None:
        """The newest checkpoint that can be read, or None if there is none; later ones are set aside.

        Args:
          like: a pytree of arrays or shapes, as saved.
          check: raises OtherRunError for a checkpoint that is not of this run.
          whole: whether all that was written before a checkpoint is still there. An older checkpoint of which this
            holds is taken instead of newer ones of which it does not.

        Raises:
          CheckpointError: if none of them can be read.
        """
        saved, damaged = _newest(self._folder, like, check)
        if saved is not None and not whole(saved):
            for step in [step for step in _steps(self._folder) if step < saved.step]:
                with contextlib.suppress(Exception):  # it is not needed
                    older = _read(self._folder, step, like, check)
                    if older.record is not None and whole(older):
                        damaged, saved = [s for s in _steps(self._folder) if s > older.step], older
                        break
        for step in damaged:
            self._set_aside(step)
        if damaged and saved is not None:
            say(f"continuing from the checkpoint {saved.step}")
        return saved

    def _set_aside(self, step: int) -> None:
        target = move_aside(self._folder / str(step), self._folder.parent / "damaged" / f"checkpoint_{step}")
        self._orbax.reload()
        say(f"the checkpoint {step} cannot be continued from; it is now {target}")

    def close(self) -> None:
        """Waits for the last save and ends orbax's threads."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # the failure of a save, which `wait` has raised, once more
                self._orbax.close()


def read_latest(folder: pathlib.Path, like: Any, check: Check = accept_all) -> Saved | None:
    """The newest checkpoint in a folder that can be read, or None if there is none.

    Changes nothing: the run may be in the middle of a save.

    Args:
      folder: of the checkpoints.
      like: a pytree of arrays or shapes, as saved.
      check: raises OtherRunError for a checkpoint that is not of this run.

    Raises:
      CheckpointError: if there are some, but none of them can be read.
    """
    return _newest(folder, like, check)[0]


def read_step(folder: pathlib.Path, step: int, like: Any, check: Check = accept_all) -> Saved:
    """The checkpoint of one step in a folder.

    Raises:
      CheckpointError: if there is none, naming those that there are, or if it cannot be read.
    """
    there = _steps(folder)
    if step not in there:
        raise CheckpointError(f"{folder} has no step {step}; it has {', '.join(map(str, sorted(there))) or 'none'}")
    try:
        return _read(folder, step, like, check)
    except Exception as error:  # damage in the right place makes tensorstore raise almost anything
        raise CheckpointError(f"checkpoint {folder / str(step)} {_problem(error)}") from error


def _newest(folder: pathlib.Path, like: Any, check: Check) -> tuple[Saved | None, list[int]]:
    """The newest checkpoint that can be read, and the later steps, whose checkpoints are damaged."""
    steps, tried = _steps(folder), None
    while steps != tried:  # a run that goes on may have replaced them in the meantime
        for number, step in enumerate(steps):
            path = folder / str(step)
            try:
                return _read(folder, step, like, check), steps[:number]
            except Exception as error:  # damage in the right place makes tensorstore raise almost anything
                if path.exists():
                    say(f"checkpoint {path} {_problem(error)}")
        steps, tried = _steps(folder), steps
    if steps:
        listed = ", ".join(map(str, steps))
        raise CheckpointError(f"none of the checkpoints {listed} in {folder} can be read; choose another --workdir")
    return None, []


def _steps(folder: pathlib.Path) -> list[int]:
    """The steps that have a checkpoint, the newest first."""
    entries = folder.iterdir() if folder.is_dir() else ()
    named = [entry.name for entry in entries if entry.name.isdecimal() and entry.is_dir()]
    return sorted((int(name) for name in named if name == str(int(name))), reverse=True)


def _read(folder: pathlib.Path, step: int, like: Any, check: Check) -> Saved:
    path, wanted = folder / str(step), _by_name(like)
    size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in wanted.values())
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a symbolic link")
    if foreign := first_foreign(path, 4 * size + MARGIN):
        raise CheckpointError(foreign)
    metadata = ocp.metadata(str(path.absolute()))
    shapes = [leaf for leaf in jax.tree.leaves(metadata.metadata) if hasattr(leaf, "shape")]
    promised = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in shapes)
    if promised > 2 * size + MARGIN:  # before it fills the memory
        raise CheckpointError(f"its arrays have {promised:,} bytes, and those of this config {size:,}")
    arrays = _by_name(ocp.load(str(path.absolute())))
    if arrays.keys() == {"bytes"}:
        saved = Saved(step, _unpacked(arrays["bytes"], like), None)
        check(saved)
        return saved
    custom = cast(dict[str, Any], metadata.custom_metadata or {})
    checksums = custom.get("sha256")
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
    state = jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])
    saved = Saved(step, state, custom.get("run"))
    check(saved)
    return saved


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


def _problem(error: Exception) -> str:
    return f"is {'refused' if isinstance(error, OtherRunError) else 'damaged'}: {_reason(error)}"


def _reason(error: Exception) -> str:
    """An error in one line; of tensorstore's long ones that of the operating system is enough."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    text = str(error).strip() if isinstance(error, OSError | RuntimeError | ValueError) else repr(error)
    return (text or type(error).__name__).splitlines()[0][:200]
