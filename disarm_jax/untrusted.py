"""Reads files that somebody else may have made, such as those of a run directory, without trusting any of them.

A file is read only if it is a regular one, no symbolic link, and not larger than its kind can be; JSON only if it is
not nested deeper than a run's own files are. A pipe does not block, a device is not read, and whatever is wrong is a
`BadFileError`, an OSError and a ValueError with a message of one line.
"""

import io
import json
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

MAX_JSON = 64 << 20  # bytes of a file that holds one JSON value
MAX_ROWS = 2 << 30  # of a file of JSON lines: some ten million rows
MAX_PICTURE = 64 << 20
MAX_ARRAY = 1 << 30  # of an npy file
MAX_DEPTH = 30  # of nested lists and objects
LARGEST = 2**53  # integers in JSON beyond it are not exact in every program, and no step, seed or count comes near
PNG = b"\x89PNG\r\n\x1a\n"


class BadFileError(OSError, ValueError):
    """A file that is not what it should be; its message says why, without the file's name, which is an attribute."""

    def __init__(self, reason: str, file: pathlib.Path | None = None):
        """Keeps the reason as the text of an error of the file system."""
        super().__init__(reason)
        self.strerror, self.filename = reason, file

    def __str__(self) -> str:
        """The reason."""
        return str(self.strerror)


def open_regular(file: pathlib.Path, most: int | None = None, *, links: bool = False) -> BinaryIO:
    """Opens a regular file to read; a pipe or device is refused without waiting for it.

    Args:
      file: to be opened.
      most: bytes that it may have; None for any number.
      links: whether the file may be a symbolic link to a regular one.

    Raises:
      FileNotFoundError: if there is none.
      OSError: if it cannot be read.
      BadFileError: if it is something else, or larger.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if not links and file.is_symlink():
            raise BadFileError("it is a symbolic link; accepted: a regular file", file) from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise BadFileError("it is not a regular file", file)
    if most is not None and found.st_size > most:
        os.close(descriptor)
        raise BadFileError(f"it has {found.st_size:,} bytes; accepted: at most {most:,}", file)
    return os.fdopen(descriptor, "rb")


def read_bytes(file: pathlib.Path, most: int) -> bytes:
    """The contents of a regular file of at most so many bytes; raises as `open_regular`."""
    with open_regular(file, most) as stream:
        content = stream.read(most + 1)
    if len(content) > most:  # it has grown in the meantime
        raise BadFileError(f"it has more than {most:,} bytes")
    return content


def parse_json(text: str | bytes) -> Any:
    """A JSON value that is not nested too deeply and has no integers that are too large.

    Raises:
      BadFileError: if it is no such value.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadFileError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise BadFileError(str(error)) from error
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return value
    raise BadFileError(f"it is nested more than {MAX_DEPTH} levels deep")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadFileError(f"it has the integer {str(value)[:20]}…; accepted: up to {LARGEST}")
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_json(file: pathlib.Path) -> Any:
    """The JSON value in a regular file; raises as `open_regular` and `parse_json`."""
    return parse_json(read_bytes(file, MAX_JSON))


def json_rows(content: bytes) -> Iterator[dict[str, Any] | None]:
    """The object in every line; None for a line that is not whole, or holds something else or an object within it."""
    for line in content.decode(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (RecursionError, ValueError):
            row = None
        yield row if isinstance(row, dict) and not any(map(_is_no_cell, row.values())) else None


def _is_no_cell(value: Any) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, int) and abs(value) > LARGEST)


def read_array(file: pathlib.Path) -> np.ndarray:
    """The array in an npy file, without unpickling anything; raises as `open_regular`, or a ValueError."""
    content = io.BytesIO(read_bytes(file, MAX_ARRAY))
    version = np.lib.format.read_magic(content)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(content)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size != content.getbuffer().nbytes - content.tell():
        raise BadFileError(f"its header promises {size:,} bytes")
    content.seek(0)
    return np.load(content, allow_pickle=False)


def read_picture(file: pathlib.Path) -> bytes:
    """The contents of a PNG file; raises as `open_regular`, and a BadFileError if it is no PNG."""
    content = read_bytes(file, MAX_PICTURE)
    if not content.startswith(PNG):
        raise BadFileError("it is no PNG file")
    return content


def first_foreign(folder: pathlib.Path, most: int) -> str | None:
    """What in a folder cannot be trusted to be read: a link, a pipe, a device, or too many bytes; None if nothing.

    Args:
      folder: with all that lies below it.
      most: bytes of all files together.
    """
    total, folders = 0, [os.fspath(folder)]
    if os.path.islink(folder):
        return "it is a symbolic link"
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    return f"{entry.name} is not a regular file"
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return f"it has {total:,} bytes; accepted: at most {most:,}" if total > most else None
