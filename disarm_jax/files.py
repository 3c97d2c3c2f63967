"""Files that are whole or not there at all, and locks that end with their process, however it ends."""

import contextlib
import errno
import fcntl
import os
import pathlib
import tempfile
import time
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


def write_text(file: pathlib.Path, text: str) -> None:
    """Writes a whole file."""
    with whole_file(file) as stream:
        stream.write(text.encode())


def move_aside(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Renames a file or folder to `target`, with a number if that name is taken; returns the name it has now."""
    target.parent.mkdir(exist_ok=True)
    free, number = target, 0
    while free.exists():
        number += 1
        free = target.with_name(f"{target.stem}_{number}{target.suffix}")
    return path.rename(free)


def lock_file(descriptor: int) -> bool:
    """Takes the lock of an open file, which ends with the last process that has it open; False if another has it."""
    for _ in range(5):  # `is_locked` has it for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            return True  # a file system without locks
    return False


def is_locked(file: pathlib.Path) -> bool:
    """Whether some process has the lock of a file."""
    with contextlib.ExitStack() as closing:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
            closing.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # no such file, or a file system without locks
    return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def expand_user(path: str | os.PathLike) -> pathlib.Path:
    """A path with a home folder in the place of ~ or ~user; raises FileNotFoundError if there is no such user."""
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such user", os.fspath(path)) from error


def user_cache() -> pathlib.Path:
    """This package's folder in the user's cache folder."""
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "disarm_jax"
