"""What the curves of a report show."""

import json

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from synthetic import DEVICE, config_at, write_run

from disarm_jax.files import write_text
from disarm_jax.report.curves import draw_all
from disarm_jax.report.paper import Place
from disarm_jax.report.pools import pool_runs
from disarm_jax.report.runs import read_runs
from disarm_jax.run_directory.directory import RunDir

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


def test_the_papers_number_is_a_line_with_its_error_in_the_estimators_colour(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [-117.0], [-112.0])
    write_run(tmp_path / "b", config_at(ARM, seeds=(0,)), [-118.0], [-113.0])
    train, test, variance, _ = panels(tmp_path)
    assert paper_lines(train) == {"#d55e00": -116.30, "#009e73": -117.66}
    assert paper_lines(test) == {"#d55e00": -109.13, "#009e73": -109.70}
    assert paper_lines(variance) == {}
    for ax, number, stderr in ((train, -116.30, 0.08), (test, -109.13, 0.04)):
        low, high = ax.get_ylim()
        assert low < number - stderr < number + stderr < high
        bands = [drawn.get_datalim(ax.transData) for drawn in ax.collections if isinstance(drawn, PolyCollection)]
        assert any((band.y0, band.y1) == pytest.approx((number - stderr, number + stderr)) for band in bands)
    labels = [text.get_text() for text in train.figure.legends[0].get_texts()]
    assert labels == ["ARM", "DisARM", "paper (± s.e.)"]


def paper_lines(ax):
    found = [drawn for drawn in ax.collections if isinstance(drawn, LineCollection)]
    return {to_hex(drawn.get_color()[0]): drawn.get_segments()[0][0, 1] for drawn in found}


def test_what_the_paper_does_not_have_has_no_line(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,), **{"estimator.name": "arms"}), [-117.0])
    train, *_ = panels(tmp_path)
    assert paper_lines(train) == {}
    assert [text.get_text() for text in train.figure.legends[0].get_texts()] == ["ARMS"]


def test_bounds_of_different_numbers_of_samples_have_panels_of_their_own(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,), steps=1000), [-117.0])
    write_run(tmp_path / "b", config_at(ARM, seeds=(0,), steps=1000, **{"eval.test_samples": 1000}), [-118.0])
    axes = panels(tmp_path)
    assert [ax.get_title() for ax in axes[1::3]] == ["test 100-sample bound", "test 1000-sample bound"]
    assert [len(ax.get_lines()) for ax in axes] == [1] * 6
    assert paper_lines(axes[4]) == {}  # the paper has no such bound


def test_short_runs_have_an_axis_of_their_own(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [-117.0])
    write_run(tmp_path / "b", config_at(ARM, seeds=(0,), steps=5000), [-118.0])
    write_run(tmp_path / "c", config_at(DISARM, seeds=(0,), steps=5000, batch_size=20), [-118.0])
    long, short = panels(tmp_path)[::4]
    assert (long.get_title(), short.get_title()) == ("Linear: train ELBO", "Linear, 5k steps: train ELBO")
    assert [line.get_label() for line in long.get_lines()] == ["DisARM, batch size 50"]
    assert [line.get_label() for line in short.get_lines()] == ["ARM", "DisARM, batch size 20"]


def test_a_custom_model_has_a_row_of_its_own(tmp_path):
    write_run(tmp_path / "a", config_at(DISARM, seeds=(0,)), [-117.0])
    config = config_at(ARM, seeds=(0,), steps=5000)
    config["model"]["name"] = "mine:QuietVAE"
    write_run(tmp_path / "b", config, [-118.0])
    assert [ax.get_title() for ax in panels(tmp_path)[::3]] == ["Linear: train ELBO", "QuietVAE, Linear: train ELBO"]


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
