"""Progress is a bar on a terminal and plain lines elsewhere, in training and in every script."""

import io
import sys

from disarm_jax import progress
from disarm_jax.data.bar import Bar
from disarm_jax.progress import ProgressBar
from scripts import mutants


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_in_a_file(capsys, monkeypatch):
    bar = ProgressBar(1_000, "step", done=100)
    bar.update(400, "objective -1.00", seconds=2.0)
    bar.update(600, "too soon for a line", seconds=1.0)
    bar.say("what happened")
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    bar.describe("compiling")
    bar.update(700, seconds=100.0)
    bar.describe("")
    bar.update(1_000, seconds=1.0)
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 400 of 1,000  150 steps/s  ETA 00:04  objective -1.00",
        "what happened",
        "compiling  step 700 of 1,000  140 steps/s  ETA 00:02",
        "step 1,000 of 1,000  156 steps/s  ETA 00:00",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = ProgressBar(4, "step")
    bar.describe("compiling")
    bar.update(3, "objective -1.00")
    bar.say("a line")
    bar.close()
    shown = sys.stderr.getvalue()
    assert "\rcompiling" in shown
    assert "3/4" in shown
    assert "a line\n" in shown


def test_data_sets_and_mutants_are_told_in_lines(capsys):
    with Bar() as bar:
        for part in (("reading train", 1, 2), ("reading train", 2, 2), ("reading test", 1, 1)):
            bar(*part)
    results = [mutants.Result("killed", "a test", 1.0), mutants.Result("SURVIVED", "", 2.0)]
    assert [result for result, _ in mutants.counting(results, 2, "mutants")] == results
    said = capsys.readouterr().err
    assert "\r" not in said
    lines = [line.split("  ")[:2] for line in said.splitlines()]
    assert lines == [["reading train"], ["reading test"], ["mutants", "1 of 2"], ["mutants", "2 of 2"]]
