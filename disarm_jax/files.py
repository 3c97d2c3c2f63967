"""Files that are whole or not there at all, however the process that writes them ends."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(file: pathlib.Path) -> Iterator[BinaryIO]:
    """A stream to write to, under a temporary name; at the end it is renamed over `file`, or removed after an error.

    A reader sees the old contents or all of the new ones. Two processes that write the same file at once each write
    their own, and the later rename wins; there is no lock to be left behind by a killed job.

    Raises:
      OSError: if the folder cannot be written to or is full; an older file stays as it was.
    """
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # a disk that fills up says so here, before the rename
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide a shared file from others
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
