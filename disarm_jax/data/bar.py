"""Progress for people: bars on a terminal, and in a log file one line for each thing that is done."""

from typing import Self

import tqdm

from disarm_jax.console import is_terminal, say, unheard


class Bar:
    """A `Progress` that shows one bar for each thing to do; a context manager, which ends the last bar."""

    def __init__(self):
        self._bar = self._what = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` are done."""
        if self._what != what:
            self.close()
            self._what = what
            if is_terminal():
                with unheard():
                    self._bar = tqdm.tqdm(desc=what, total=total, unit_scale=True)
            else:
                say(what)
        if self._bar is not None:
            with unheard():
                self._bar.total = total
                self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            with unheard():
                self._bar.close()
        self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
