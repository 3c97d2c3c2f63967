"""Omniglot at 28×28 as published by Burda et al. (Importance weighted autoencoders, 2016): their chardata.mat.

Other reductions of Omniglot to 28×28 give other likelihoods under the same name, so a file is taken only if its git
blob hash is that of the file in their repository.
"""

import hashlib
import io
import pathlib

import numpy as np

from disarm_jax.data import recorded
from disarm_jax.data.idx import IMAGE_SHAPE, PIXELS, read_bytes
from disarm_jax.data.network import fetch
from disarm_jax.data.types import DataError, NotFoundError, Progress

FILE = "chardata.mat"

_SIZE_LIMIT = 200_000_000


def read_file(folder: pathlib.Path, counts: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], str]:
    """The splits from a `chardata.mat` in a folder.

    Args:
      folder: where it is.
      counts: images in train, validation and test.

    Returns:
      train, validation and test, `[N, 784]` uint8, and the file's path.

    Raises:
      NotFoundError: if there is no such file.
      DataError: if it is another file.
    """
    path = folder / FILE
    if not path.is_file():
        raise NotFoundError(f"{folder}: no {FILE}")
    return parse(read_bytes(path), counts, str(path)), str(path)


def download(counts: tuple[int, int, int], progress: Progress) -> tuple[dict[str, np.ndarray], str]:
    """The splits from the public address of `chardata.mat`; as `read_file`."""
    url = recorded.CHARDATA_URL
    return parse(fetch(url, _SIZE_LIMIT, progress), counts, url), url


def git_blob_hash(data: bytes) -> str:
    """What `git hash-object` prints for a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def parse(data: bytes, counts: tuple[int, int, int], where: str) -> dict[str, np.ndarray]:
    """The splits in the bytes of chardata.mat, which are parsed only if their hash is right.

    Its columns are images, stored column by column, with values in [0, 1]; the last of its train images validate.

    Args:
      data: the file's bytes.
      counts: images in train, validation and test.
      where: its name in error messages.

    Returns:
      train, validation and test, `[N, 784]` uint8: 255 times the values, rounded.
    """
    found = git_blob_hash(data)
    if found != recorded.CHARDATA_GIT_BLOB:
        raise DataError(
            f"{where} is not the chardata.mat of Burda et al. and is refused: its git blob hash is {found} "
            f"({len(data):,} bytes), theirs is {recorded.CHARDATA_GIT_BLOB}"
        )
    try:
        import scipy.io
    except ImportError as error:
        raise DataError("reading chardata.mat needs scipy, which is not installed: pip install scipy") from error
    contents = scipy.io.loadmat(io.BytesIO(data), variable_names=["data", "testdata"])
    num_train, num_validation, num_test = counts
    train = _images(contents, "data", num_train + num_validation, where)
    test = _images(contents, "testdata", num_test, where)
    return {"train": train[:num_train], "validation": train[num_train:], "test": test}


def _images(contents: dict, name: str, count: int, where: str) -> np.ndarray:
    columns = contents.get(name)
    if columns is None or columns.shape != (PIXELS, count):
        found = "nothing" if columns is None else f"the shape {columns.shape}"
        raise DataError(f"{where} has {found} under {name!r}; expected the shape {(PIXELS, count)}")
    if not (columns.min() >= 0 and columns.max() <= 1):
        raise DataError(f"{where} has values from {columns.min()} to {columns.max()} under {name!r}; expected 0 to 1")
    images = columns.T.reshape(count, *IMAGE_SHAPE).transpose(0, 2, 1).reshape(count, PIXELS)
    return np.rint(255 * images).astype(np.uint8)
