"""How far long work has come, on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time

import tqdm

from disarm_jax.console import is_terminal, say, unheard

LINE_SECONDS = 10.0  # between plain lines


class ProgressBar:
    """So many steps, or whatever else there is to do, of which some are done."""

    def __init__(self, total: int, unit: str = "", done: int = 0):
        """Begins where `done` of `total` are done; the unit is a noun in the singular."""
        self.total, self.done, self._unit, self._what, self._rate = total, done, unit, "", None
        self._updated, self._last_line = time.monotonic(), 0.0
        self._bar = None
        if is_terminal():
            with unheard():
                self._bar = tqdm.tqdm(total=total, initial=done, unit=unit or "it", dynamic_ncols=True, smoothing=0.1)

    def say(self, line: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar is None:
            say(line)
            return
        with unheard():
            self._bar.write(line, file=sys.stderr)

    def describe(self, what: str) -> None:
        """Says before the bar, or at the beginning of lines, what is being done."""
        self._what = what
        if self._bar is not None:
            with unheard():
                self._bar.set_description(what or None)

    def update(self, done: int, note: str = "", seconds: float | None = None) -> None:
        """So many are done; outside of a terminal a line at most every ten seconds, and at the end.

        Args:
          done: all together.
          note: shown behind.
          seconds: that the last ones took; by default the time since the last call.
        """
        now = time.monotonic()
        rate = (done - self.done) / max(now - self._updated if seconds is None else seconds, 1e-9)
        self._rate = rate if self._rate is None else 0.9 * self._rate + 0.1 * rate
        self.done, self._updated = done, now
        if self._bar is not None:
            with unheard():
                self._bar.set_postfix_str(note, refresh=False)
                self._bar.update(done - self._bar.n)
        elif now - self._last_line >= LINE_SECONDS or done == self.total:
            self._last_line = now
            eta = tqdm.tqdm.format_interval((self.total - done) / self._rate) if self._rate else "unknown"
            speed = f"{self._rate:,.0f}" if self._rate >= 10 else f"{self._rate:.2g}"
            before, unit = (f"{self._unit} ", f" {self._unit}s") if self._unit else ("", "")
            where = f"{before}{done:,} of {self.total:,}  {speed}{unit}/s  ETA {eta}"
            self.say("  ".join(filter(None, (self._what, where, note))))

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            with unheard():
                self._bar.close()
