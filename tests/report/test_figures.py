"""What the curves of a report show."""

import json

import numpy as np
from synthetic import DEVICE, config_at, write_run

from disarm_jax.experiment.rundir import RunDir, write_text
from disarm_jax.report.figures import draw_all
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs

DISARM, RELAX, ARM = (Place("mnist", "linear", estimator) for estimator in ("disarm", "relax", "arm"))


def panels(folder):
    (drawing,) = draw_all(pool_runs(read_runs([folder])[0]))
    return drawing.figure.axes


def test_bound_by_time(tmp_path):
    """The train bound again, each estimator's steps at its own pace."""
    seconds = {"DisARM": 0.006, "RELAX": 0.018}
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,), steps=1000), [-100.0], seconds_per_step=0.006)
    write_run(tmp_path / "b", config_at(RELAX, seeds=(0,), steps=1000), [-90.0], seconds_per_step=0.018)
    train, _, _, by_time = panels(tmp_path)
    assert "minutes" in by_time.get_xlabel()
    assert by_time.get_xlim()[1] >= 0.3
    assert [line.get_label() for line in by_time.get_lines()] == list(seconds)
    for line, timed in zip(train.get_lines(), by_time.get_lines(), strict=True):
        np.testing.assert_array_equal(timed.get_ydata(), line.get_ydata())
        np.testing.assert_allclose(timed.get_xdata(), line.get_xdata() * seconds[line.get_label()] / 60)


def another_device(path):
    write_text(RunDir(path).summary_file, json.dumps({"device": DEVICE | {"kind": "another"}}))


def test_times_of_different_devices_are_not_compared(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,), steps=1000), [-100.0])
    another_device(write_run(tmp_path / "b", config_at(RELAX, seeds=(0,), steps=1000), [-90.0]))
    assert len(panels(tmp_path)) == 3
    another_device(write_run(tmp_path / "c", config_at(ARM, seeds=(0,), steps=1000), [-95.0]))
    *_, by_time = panels(tmp_path)
    assert [line.get_label() for line in by_time.get_lines()] == ["ARM", "RELAX"]
    assert "another" in by_time.get_xlabel()


def test_times_of_one_and_two_seeds_are_not_compared(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,), steps=1000), [-100.0])
    write_run(tmp_path / "b", config_at(RELAX, seeds=(0, 1), steps=1000), [-90.0, -91.0])
    assert len(panels(tmp_path)) == 3


def test_an_unfinished_run_has_no_time_yet(tmp_path):
    for name, place in (("a", DISARM), ("b", RELAX)):
        write_run(tmp_path / name, config_at(place, seeds=(0,), steps=1000), [-100.0])
    write_run(tmp_path / "c", config_at(ARM, seeds=(0,), steps=1000), [-95.0], step=500)
    train, *_, by_time = panels(tmp_path)
    assert len(train.get_lines()) == 3
    assert [line.get_label() for line in by_time.get_lines()] == ["DisARM", "RELAX"]
