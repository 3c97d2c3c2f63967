"""A prepared data set as one verified file, so that later starts are quick and need neither sources nor network.

Two processes that prepare the same set at once each write a whole file, and the later replaces the first by the same
bytes: no lock is needed, and none that a network file system must support.
"""

import contextlib
import json
import os
import pathlib

import numpy as np

from disarm_jax.data.npz import read_npz
from disarm_jax.data.types import SPLITS, DataError, Dataset, Provenance, sha256_of_arrays
from disarm_jax.files import expand_user, user_cache, whole_file


def user_path(path: str | os.PathLike) -> pathlib.Path:
    """A path with a home folder in the place of ~ or ~user; raises DataError if there is no such user."""
    try:
        return expand_user(path)
    except FileNotFoundError as error:
        raise DataError(f"{os.fspath(path)}: {error.strerror}") from error


def data_folder(data_dir: str | pathlib.Path | None) -> pathlib.Path:
    """`data_dir`, or if None `DISARM_DATA_DIR`, or a folder of this package's own in the user's cache folder."""
    return user_path(data_dir or os.environ.get("DISARM_DATA_DIR") or user_cache())


def cache_file(data_dir: pathlib.Path, name: str) -> pathlib.Path:
    """Where the data set `name` is cached."""
    return data_dir / f"{name}.npz"


def read(file: pathlib.Path) -> Dataset | None:
    """The data set in a cache file, or None if there is no such file.

    Raises:
      DataError: naming the file, if it is not whole or its images are not those that were written.
    """
    try:
        contents = read_npz(file, [*SPLITS, "provenance"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        raise DataError(f"the cached file is cut short or damaged: {error}") from error
    splits = {name: contents[name] for name in SPLITS}
    try:
        record = json.loads(contents["provenance"].tobytes())
        image_shape = tuple(record.pop("image_shape"))
        provenance = Provenance(**record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the cached file {file} has another provenance record than this version writes") from error
    if provenance.sha256 != sha256_of_arrays(splits):
        raise DataError(f"the cached file {file} is damaged: its images do not have the sha256 written beside them")
    return Dataset(**splits, image_shape=image_shape, provenance=provenance)


def write(file: pathlib.Path, dataset: Dataset) -> None:
    """Writes the data set; on any failure nothing is left of it, and an older file stays as it was.

    Raises:
      DataError: naming the folder, if it cannot be made or written to, or is full.
    """
    record = dataset.provenance._asdict() | {"image_shape": dataset.image_shape}
    contents = {name: getattr(dataset, name) for name in SPLITS}
    contents["provenance"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    new_folder = not file.parent.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as stream:
            np.savez(stream, **contents)
        new_folder = False  # to stay
    except OSError as error:
        raise DataError(_cannot_write(file.parent, error.strerror or str(error))) from error
    finally:
        if new_folder:
            with contextlib.suppress(OSError):  # not if another process has put its file there
                file.parent.rmdir()


def check_writable(data_dir: pathlib.Path) -> None:
    """Refuses a folder that cannot be written to before any work is done for it; makes nothing.

    Raises:
      DataError: naming the folder.
    """
    existing = data_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise DataError(_cannot_write(data_dir, f"{existing} is not a folder"))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise DataError(_cannot_write(data_dir, f"{existing} is not writable"))


def _cannot_write(folder: pathlib.Path, reason: str) -> str:
    return (
        f"cannot write to the data folder {folder}: {reason}. "
        "Name a folder you can write to with --data_dir or DISARM_DATA_DIR"
    )
