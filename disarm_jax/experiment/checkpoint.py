"""Checkpoints of a run by orbax; the only file that knows it.

What is saved are host arrays without padding, so a run may be continued on other devices, and a checksum of them: a
checkpoint that orbax reads but whose bytes have changed is found out as well.
"""

import hashlib
import pathlib
from typing import Any

import jax
import numpy as np
from absl import logging
from orbax.checkpoint import v1 as ocp


class CheckpointError(RuntimeError):
    """No checkpoint could be read although there are some, or one could not be written."""


class Checkpoints:
    """The checkpoints in a folder, by step."""

    def __init__(self, folder: pathlib.Path, keep: int = 1, *, read_only: bool = False):
        """Opens the folder, makes it if need be, and removes what an interrupted save has left there.

        A reader changes nothing: the run may be in the middle of a save.
        """
        self._folder, self._read_only = folder, read_only
        policy = ocp.training.preservation_policies.LatestN(keep)
        self._orbax = ocp.training.Checkpointer(
            folder.absolute(), preservation_policy=policy, cleanup_tmp_directories=not read_only
        )

    def save(self, step: int, state: Any) -> None:
        """Saves in the background; the arrays are the caller's to give away, not to change.

        A failure of the save before is raised here.
        """
        leaves = jax.tree.leaves(state)
        named = {f"{number:04d}": leaf for number, leaf in enumerate(leaves)}
        self.wait()
        self._orbax.save_async(step, named | {"checksum": _checksum(leaves)}, force=True)

    def wait(self) -> None:
        """Returns when the last save is on disk."""
        self._orbax.wait()

    def restore_latest(self, like: Any) -> Any | None:
        """The newest state that can be read, or None if there is no checkpoint.

        Damaged ones are set aside with a warning, and the one before is tried.

        Args:
          like: a pytree of arrays or shapes, as saved.

        Raises:
          CheckpointError: if none of them can be read.
        """
        steps = sorted((checkpoint.step for checkpoint in self._orbax.checkpoints), reverse=True)
        for number, step in enumerate(steps):
            try:
                state = self._restore(step, like)
            except Exception as error:  # damage in the right place makes tensorstore raise almost anything
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                logging.warning("checkpoint %d is damaged (%s)", step, reason)
                continue
            for damaged in [] if self._read_only else steps[:number]:
                self._set_aside(damaged)
            return state
        if steps:
            raise CheckpointError(f"none of the checkpoints {steps} in {self._folder} can be read")
        return None

    def _restore(self, step: int, like: Any) -> Any:
        leaves, structure = jax.tree.flatten(like)
        saved = self._orbax.load(step)
        checksum = np.asarray(saved.pop("checksum"))
        found = [np.asarray(saved[name]) for name in sorted(saved)]
        if not np.array_equal(checksum, _checksum(found)):
            raise CheckpointError("its arrays do not have the checksum written with them")
        shapes = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        if [(leaf.shape, leaf.dtype) for leaf in found] != shapes:
            raise CheckpointError("its arrays are not those of this config")
        return jax.tree.unflatten(structure, found)

    def _set_aside(self, step: int) -> None:
        source = self._folder / str(step)
        target = self._folder.parent / "damaged" / f"checkpoint_{step}"
        target.parent.mkdir(exist_ok=True)
        number = 0
        while target.exists():
            number += 1
            target = target.with_name(f"checkpoint_{step}_{number}")
        source.rename(target)
        self._orbax.reload()
        logging.warning("the damaged checkpoint %d is now %s; continuing from the one before", step, target)

    def close(self) -> None:
        """Waits for the last save and ends orbax's threads."""
        self._orbax.close()


def _checksum(leaves: list[np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256()
    for leaf in leaves:
        digest.update(f"{leaf.shape} {leaf.dtype}".encode() + np.ascontiguousarray(leaf).tobytes())
    return np.frombuffer(digest.digest(), np.uint8).copy()
