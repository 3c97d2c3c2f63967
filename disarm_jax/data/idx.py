"""The original idx files of MNIST and FashionMNIST: gunzip, parse and verify, all in memory."""

import hashlib
import pathlib
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from disarm_jax.data.network import fetch
from disarm_jax.data.recorded import RecordedFile
from disarm_jax.data.types import DataError, NotFoundError, Progress
from disarm_jax.untrusted import open_regular

MAGIC = 2051  # unsigned bytes, three axes
HEADER = struct.Struct(">IIII")
IMAGE_SHAPE = (28, 28)
PIXELS = 784
MAX_ORIGINAL = 1 << 30  # bytes of a file; the largest has a tenth of it

_CHUNK = 1 << 22


def read_folder(
    folder: pathlib.Path, files: Sequence[RecordedFile], num_validation: int, progress: Progress
) -> dict[str, np.ndarray]:
    """The three splits from a folder with the original `.gz` files.

    Args:
      folder: where they are.
      files: the recorded train and test image files.
      num_validation: how many images at the end of the train file validate.
      progress: told of the bytes unpacked.

    Returns:
      train, validation and test, each `[N, 784]` uint8.

    Raises:
      NotFoundError: if a file is not there.
      DataError: naming the file, if it is not what was published.
    """
    if folder.is_file():
        raise NotFoundError(f"{folder} is a file; give the folder it is in")
    missing = [file.name for file in files if not (folder / file.name).is_file()]
    if missing:
        raise NotFoundError(f"{folder}: no {', no '.join(missing)}")
    paths = [folder / file.name for file in files]
    images = [_unpack(read_bytes(path), file, str(path), progress) for path, file in zip(paths, files, strict=True)]
    return split_images(*images, num_validation=num_validation)


def download(
    files: Sequence[RecordedFile], num_validation: int, progress: Progress
) -> tuple[dict[str, np.ndarray], str]:
    """The three splits from the recorded addresses of the `.gz` files, kept in memory.

    Args:
      files: the recorded train and test image files.
      num_validation: how many images at the end of the train file validate.
      progress: told of the bytes read and unpacked.

    Returns:
      train, validation and test, each `[N, 784]` uint8, and the folder's address.

    Raises:
      NotFoundError: if the network does not answer.
      DataError: naming the address, if a transfer breaks off or its bytes are not those that were published.
    """
    images = []
    for file in files:
        url = file.url + file.name
        images.append(_unpack(fetch(url, file.size, progress), file, url, progress))
    return split_images(*images, num_validation=num_validation), files[0].url


def _unpack(data: bytes, file: RecordedFile, where: str, progress: Progress) -> np.ndarray:
    """The images of a published file; its checksum comes last, so that errors say what is wrong."""
    raw = gunzip(data, HEADER.size + file.count * PIXELS, where, progress)
    images = parse_images(raw, file.count, where)
    check_sum(data, file.size, file.sha256, where)
    return images


def split_images(train: np.ndarray, test: np.ndarray, num_validation: int) -> dict[str, np.ndarray]:
    """The last images of the train file validate; the order within each split is that of the files."""
    return {"train": train[:-num_validation], "validation": train[-num_validation:], "test": test}


def read_bytes(path: pathlib.Path) -> bytes:
    """The bytes of an original file.

    Raises:
      DataError: naming the file, if it cannot be read, is a pipe or device, or larger than any original.
    """
    try:
        with open_regular(path, MAX_ORIGINAL, links=True) as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def gunzip(data: bytes, expected: int, where: str, progress: Progress) -> bytes:
    """The unpacked bytes of a gzip stream, never many more than expected.

    Args:
      data: the gzip stream.
      expected: how many bytes it should unpack to.
      where: its name in error messages.
      progress: told of the bytes unpacked.

    Raises:
      DataError: if the stream is damaged, ends early or is longer than expected.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    parts, done = [], 0
    try:
        while not unpacker.eof and done <= expected:
            part = unpacker.decompress(data if not parts else unpacker.unconsumed_tail, _CHUNK)
            if not part and not unpacker.eof:
                raise DataError(f"{where} is truncated: the gzip stream ends after {done:,} of {expected:,} bytes")
            parts.append(part)
            done += len(part)
            progress(f"unpacking {pathlib.Path(where).name}", min(done, expected), expected)
    except zlib.error as error:
        raise DataError(f"{where} is not a whole gzip file: {error}") from error
    if done > expected:
        raise DataError(f"{where} unpacks to more than the expected {expected:,} bytes")
    return b"".join(parts)


def parse_images(raw: bytes, count: int, where: str) -> np.ndarray:
    """The images of an unpacked idx file.

    Args:
      raw: the file's bytes.
      count: how many 28×28 images it should hold.
      where: its name in error messages.

    Returns:
      `[count, 784]` uint8.

    Raises:
      DataError: if the magic number, the counts or the length are not those of such a file.
    """
    if len(raw) < HEADER.size:
        raise DataError(f"{where} is truncated: {len(raw)} bytes, an idx header alone has {HEADER.size}")
    magic, *shape = HEADER.unpack_from(raw)
    if magic != MAGIC:
        raise DataError(f"{where} has the magic number {magic}; idx images begin with {MAGIC}")
    if shape != [count, *IMAGE_SHAPE]:
        raise DataError(f"{where} says it holds {shape} images, rows, columns; expected {[count, *IMAGE_SHAPE]}")
    if len(raw) != HEADER.size + count * PIXELS:
        raise DataError(f"{where} holds {len(raw):,} bytes, its header promises {HEADER.size + count * PIXELS:,}")
    return np.frombuffer(raw, np.uint8, offset=HEADER.size).reshape(count, PIXELS)


def check_sum(data: bytes, size: int | None, sha256: str, where: str) -> None:
    """Refuses bytes that do not have the recorded size (None: any) and sha256.

    Raises:
      DataError: naming what was found and what was expected.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != sha256 or (size is not None and len(data) != size):
        expected = "" if size is None else f"{size:,} bytes, "
        raise DataError(
            f"{where} has a wrong checksum: {len(data):,} bytes, sha256 {found}; expected {expected}sha256 {sha256}"
        )
