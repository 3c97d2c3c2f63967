"""Signals that reach work which has to come to its own end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def signals_to(handler: Callable[[int, Any], None], numbers: Iterable[int]) -> Iterator[None]:
    """Calls `handler(number, frame)` for some signals; at the end whoever had them before has them again.

    Signals that are ignored stay ignored, as nohup wants it, and outside of the main thread Python allows no handlers.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in numbers if in_main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
