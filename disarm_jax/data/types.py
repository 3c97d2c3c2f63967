"""What a loaded data set is, and the one exception that says what is wrong with the data."""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "validation", "test")

Progress = Callable[[str, int, int], None]  # (what is being done, how much of it is done, how much there is)


class Provenance(NamedTuple):
    """Where the images of a data set came from, to be written beside results.

    Attributes:
      dataset: its name.
      source: one of the sources of `load`; of the first preparation if the images came from the cache.
      origin: the folder, file, package or address that the source read.
      order: which images are in which split, in words.
      sha256: of the bytes of train, validation and test, by split.
      binarization: "none" as loaded; what `binarize_once` did to the images.
    """

    dataset: str
    source: str
    origin: str
    order: str
    sha256: dict[str, str]
    binarization: str = "none"


class Dataset(NamedTuple):
    """Images in three splits, flattened.

    Attributes:
      train: `[N, D]` uint8, 0 to 255; sets that are binary hold 0 and 255.
      validation: `[N, D]` uint8.
      test: `[N, D]` uint8.
      image_shape: the shape before flattening, for pictures: (28, 28), or what an `npz` file holds.
      provenance: where the images came from.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    image_shape: tuple[int, ...]
    provenance: Provenance


class DataError(RuntimeError):
    """Data that is missing or not what it should be; its message names it and says what would help."""


class NotFoundError(DataError):
    """A source that does not have the data set, so that another may be tried; damaged data is a plain DataError."""


def no_progress(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def sha256_of_arrays(splits: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The sha256 of the bytes of each split, in C order."""
    return {name: hashlib.sha256(np.ascontiguousarray(splits[name]).data).hexdigest() for name in SPLITS}
