"""What a report says first: how many numbers match, how many would by chance, and the histogram of the differences."""

import numpy as np
import pytest
from scipy import stats
from synthetic import config_at, write_run

from disarm_jax.command_line import get_config
from disarm_jax.report import verdict
from disarm_jax.report.cells import compare
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs

DISARM = Place("mnist", "linear", "disarm")


def given(folder):
    return verdict.give_verdict(compare(pool_runs(read_runs([folder])[0]), get_config))


def test_counts_and_expected_misses(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [-116.2], [-109.1])
    fashion = [-256.0, -255.9, -255.8, -256.1, -256.05]  # the paper has -255.97 ± 0.07
    write_run(
        tmp_path / "b", config_at(Place("fashion_mnist", "linear", "disarm")), fashion, [-250.0, -250.1] * 2 + [-250]
    )
    write_run(tmp_path / "c", config_at(Place("mnist", "linear", "arm"), steps=1000), [-116.0] * 5)
    found = given(tmp_path)
    assert len(found.cells) == 4
    assert found.sentences[0] == (
        "3 of 4 comparable numbers within 2 combined standard errors of the paper's (168 numbers in all); "
        "2 of these rest on a single seed of ours."
    )
    assert found.sentences[1].startswith("1 further apart; a perfect reproduction would have 0.4 on average")
    assert found.sentences[2] == "Beside these: 2 not comparable, 162 without a run."
    # A single seed borrows a spread from 5 (4 degrees of freedom); 5 against 5 have 8.
    expected = 2 * 2 * (stats.t.sf(2, 4) + stats.t.sf(2, 8))
    assert verdict.expected_misses(found.cells) == pytest.approx(expected, abs=0.01)


def test_the_chance_of_a_miss():
    """Exactly Student's t where a single spread is estimated, or two from as many seeds; in between for others."""
    assert verdict._chance(1) == pytest.approx(2 * stats.t.sf(2, 4), abs=0.004)
    assert verdict._chance(5) == pytest.approx(2 * stats.t.sf(2, 8), abs=0.004)
    assert verdict._chance(2) == pytest.approx(0.151, abs=0.005)  # another simulation
    assert verdict._chance(200) == pytest.approx(2 * stats.t.sf(2, 4), abs=0.006)  # of the paper's alone


def test_the_histogram_has_every_difference_once(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0, 1)), [-116.4, -116.2], [-100.0, -100.1])  # far off in test
    cells = given(tmp_path).cells
    (ax,) = verdict.histogram(cells).axes
    assert sum(bar.get_height() for bar in ax.patches) == len(cells) == 2
    curve = ax.get_lines()[0]
    area = np.trapezoid(curve.get_ydata(), curve.get_xdata())
    assert area == pytest.approx(2 * 0.5, rel=0.02)  # numbers times the width of a bar


def test_without_a_comparable_number(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, steps=1000), [-150.0] * 5)
    found = given(tmp_path)
    assert found.cells == ()
    assert found.sentences[0] == "None of our numbers is comparable with the paper's 168 yet."
    assert "None of the paper's 17 claims below can be judged yet." in verdict.markdown(found)
