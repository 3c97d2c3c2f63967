"""Comparing estimators at points of a run."""

import json

import numpy as np
import pytest
from absl import flags
from tiny import tiny_config

import disarm_jax as dj
from disarm_jax.analysis import comparison
from disarm_jax.analysis.at_checkpoint import split_names
from disarm_jax.experiment.build import parse_estimator
from disarm_jax.experiment.loop import train
from scripts import compare

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    train(tiny_config(folder, **{"steps": 10, "checkpoint.keep": 5}), folder / "run")
    return folder / "run"


def parsed(*arguments):
    values = flags.FlagValues()
    compare.define_flags(values)
    values(["compare", *arguments])
    return values


def test_variance_time_and_bias_at_two_points(run, tmp_path):
    names = "disarm(num_pairs=4), straight_through, leg"
    arguments = ["--workdir", str(run), "--steps=5,10", "--estimators", names, "--num_draws=600", "--tune_steps=3"]
    compare.main(["compare"], parsed(*arguments, "--rounds=2", "--out", str(tmp_path / "out")))
    points = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [point["step"] for point in points] == [5, 10]
    for point in points:
        rows = {row["estimator"]: row for row in point["estimators"]}
        assert list(rows) == ["disarm", "disarm(num_pairs=4)", "straight_through", "leg"]
        assert [row["evaluations"] for row in rows.values()] == [2, 8, 1, 1 + sum(point["latents"])]
        # Four pairs have a quarter of the variance of one: within 4.5 standard errors, on parameters and on logits.
        for group in ("encoder", "logits"):
            one, four = rows["disarm"][group], rows["disarm(num_pairs=4)"][group]
            stderr = four["ratio"] * np.hypot(one["stderr"] / one["variance"], four["stderr"] / four["variance"])
            assert stderr < 0.03
            assert abs(four["ratio"] - 0.25) < 4.5 * stderr
        assert [name for name in rows if not rows[name]["unbiased"]] == ["straight_through"]
        assert rows["straight_through"]["bias"] > 0
        assert all(row["time"] > 0 for row in rows.values())
    table = (tmp_path / "out" / "compare.md").read_text()
    assert "## npz, linear, step 5 with disarm" in table
    assert "biased: bias² " in table
    assert (tmp_path / "out" / "npz_linear_step_10_with_disarm.png").exists()


def test_all_are_compared_by_default():
    names = {parse_estimator(label).name for label in split_names(comparison.EVERY_ONE)}
    assert names == {name for name in dj.estimator_names() if dj.estimator_info(name).objective == "expectation"}
    names = {parse_estimator(label).name for label in split_names(comparison.EVERY_ONE_OF_A_CHAIN)}
    assert names == set(dj.hierarchical_names()) - {"leg"}  # which has a branch for each bit


@pytest.mark.parametrize(
    ("label", "unbiased"), [("relax", True), ("relax(later_layers='hard')", False), ("reinmax", False), ("a:b", True)]
)
def test_what_is_biased_is_said_to_be(label, unbiased):
    assert comparison.is_unbiased(label) is unbiased


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=7"], "has no step 7; it has 5, 10"),
        (["--steps=five"], "--steps: 'five' is no step; accepted: numbers"),
        (["--estimators=amr"], r"--estimators\[1\] is 'amr'; accepted: arm"),
        (["--workdir=/nosuch"], "/nosuch is not a run directory"),
    ],
)
def test_bad_flags_are_one_line(run, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        compare.main(["compare"], parsed("--workdir", str(run), "--out", str(tmp_path / "out"), *arguments))
    assert not (tmp_path / "out").exists()
