"""Lines on standard error that never end a run: it may be closed, a terminal that is gone, or a file on a full disk."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Goes on if standard error cannot be written to; nothing more is written to it then."""
    try:
        if sys.stderr is None:  # so Python finds one that was closed
            sys.stderr = _nobody()
        yield
    except (OSError, ValueError):  # a ValueError from a stream that was closed
        sys.stderr = _nobody()


@functools.cache
def _nobody() -> TextIO:
    return open(os.devnull, "w")  # for the rest of the process


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    with unheard():
        return sys.stderr.isatty()
    return False


def say(line: str) -> None:
    """One line on standard error, if there is anybody to read it."""
    with unheard():
        print(line, file=sys.stderr, flush=True)


def keep_standard_streams() -> None:
    """Opens what was closed of the first three files; or the next file would get its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
