"""Comparing estimators at points of a run."""

import json

import numpy as np
import pytest
from absl import flags
from tiny import tiny_config

import disarm_jax as dj
from disarm_jax.analysis import comparison
from disarm_jax.analysis.at_checkpoint import split_names
from disarm_jax.experiment.build import make_model, parse_estimator
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.load import Run, make_experiment
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


def test_a_bound_of_several_sizes_at_any_run(run, tmp_path):
    names = "multisample_disarm_midpoint(num_pairs=2), vimco(num_samples=4)"
    arguments = ["--workdir", str(run), "--pairs=1,2", "--estimators", names, "--num_draws=400", "--tune_steps=0"]
    compare.main(["compare"], parsed(*arguments, "--rounds=2", "--out", str(tmp_path)))
    one, two = json.loads((tmp_path / "compare.json").read_text())
    assert (one["reference"], two["reference"]) == tuple(f"multisample_disarm(num_pairs={n})" for n in (1, 2))
    rows = {row["estimator"]: row for row in two["estimators"]}
    assert [row["evaluations"] for row in rows.values()] == [4, 6, 4]
    assert rows["multisample_disarm(num_pairs=2)"]["encoder"]["ratio"] == 1
    assert rows["multisample_disarm_midpoint(num_pairs=2)"]["encoder"]["ratio"] < 0.85  # 0.69, by chance ± 0.05
    # The gradient of another bound is another one: decoder and prior see it, too, in the time that is measured.
    assert one["estimators"][0]["encoder"]["variance"] != two["estimators"][0]["encoder"]["variance"]
    table = (tmp_path / "compare.md").read_text()
    assert "## npz, linear, bound of 2 pairs, step 10 with disarm" in table
    assert "ratios to `multisample_disarm(num_pairs=2)`." in table
    assert (tmp_path / "npz_linear_bound_of_1_pair_step_10_with_disarm.png").exists()


@pytest.mark.parametrize(
    ("changes", "pairs", "reference", "every_one"),
    [
        ({"model.latents": ((3, 4),), "estimator.name": "disarm_iw"}, None, "disarm_iw", comparison.OF_CLASSES),
        (
            {"model.latents": ((3, 4),), "estimator.name": "vimco", "objective.name": "multisample"},
            1,
            "multisample_disarm(num_pairs=1)",
            comparison.OF_A_BOUND_OF_CLASSES,
        ),
        (
            {"estimator.name": "vimco", "objective.name": "multisample", "objective.num_samples": 6},
            3,
            "multisample_disarm(num_pairs=3)",
            comparison.OF_A_BOUND,
        ),
        ({"model.latents": (4, 3)}, None, "disarm", comparison.OF_A_CHAIN),
    ],
)
def test_what_a_run_was_trained_for_is_compared(tmp_path, changes, pairs, reference, every_one):
    config = resolve(tiny_config(tmp_path, **changes))
    model = make_model(config.model, 16, np.full(16, 0.5))
    experiment = make_experiment(config, model)
    (subject,) = comparison.subjects_of(Run(model, (), config, 0, None, experiment), [])
    assert subject.pairs == pairs
    chosen = comparison.chosen_estimators(subject, None)
    assert chosen[0] == reference
    assert len(chosen) == len(split_names(every_one))


def test_all_are_compared_by_default():
    def names(text):
        text = text.format(pairs=2, samples=4)
        return {parse_estimator(label).name for label in split_names(text)}

    def known(of, objective):
        return {name for name in of.estimator_names() if of.estimator_info(name).objective == objective}

    assert names(comparison.OF_THE_ELBO) == known(dj, "expectation")
    assert names(comparison.OF_A_CHAIN) == set(dj.hierarchical_names()) - {"leg"}  # which has a branch for each bit
    assert names(comparison.OF_A_BOUND) == known(dj, "bound")
    assert names(comparison.OF_CLASSES) == known(dj.categorical, "expectation")
    assert names(comparison.OF_A_BOUND_OF_CLASSES) == known(dj.categorical, "bound")


@pytest.mark.parametrize(
    ("label", "unbiased"), [("relax", True), ("relax(later_layers='hard')", False), ("reinmax", False), ("a:b", True)]
)
def test_what_is_biased_is_said_to_be(label, unbiased):
    assert comparison.is_unbiased(label) is unbiased


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=7"], "has no step 7; it has 5, 10"),
        (["--steps=five"], "--steps: 'five' is not one; accepted: positive numbers, as in 1000,50000"),
        (["--pairs=0"], "--pairs: '0' is not one; accepted: positive numbers"),
        (["--pairs=2", "--estimators=disarm"], r"--estimators\[0\] is 'disarm'; accepted: multisample_arms"),
        (["--estimators=amr"], r"--estimators\[0\] is 'amr'; accepted: arm"),
        (["--workdir=/nosuch"], "/nosuch is not a run directory"),
        (["--out=~nosuchuser/x"], "there is no such user: '~nosuchuser/x'"),
    ],
)
def test_bad_flags_are_one_line(run, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        compare.main(["compare"], parsed("--workdir", str(run), "--out", str(tmp_path / "out"), *arguments))
    assert not (tmp_path / "out").exists()
