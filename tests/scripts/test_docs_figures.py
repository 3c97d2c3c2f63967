"""`python -m scripts.figures`: what the pages show is what is committed in results/."""

import pathlib

from scripts import figures, step_times

ROOT = pathlib.Path(__file__).parents[2]


def test_the_table_of_the_page_is_that_of_the_runs():
    runs = figures.read_runs()
    assert {run.label.partition("(")[0] for run in runs} == set(step_times.NAMES)
    assert figures.table(runs) in (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_a_bound_between_two_measurements_is_on_their_line():
    run = figures.Run("disarm", figures.np.array([0, 100, 200]), figures.np.array([-9.0, -5.0, -4.0]), -3.0, ratio=2.0)
    assert run.bound_after(250) == -4.75


def test_all_figures_are_drawn_and_committed(tmp_path):
    files = figures.draw(tmp_path)
    assert len(files) == 6
    for file in files:
        committed = ROOT / "docs/figures" / file.name
        assert 10_000 < committed.stat().st_size < 200_000
        assert abs(file.stat().st_size / committed.stat().st_size - 1) < 0.2
