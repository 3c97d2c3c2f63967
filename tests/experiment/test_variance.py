"""Variances at a fixed checkpoint: against numpy on the same draws, and the script from its flags to its file."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from tiny import tiny_config

from disarm_jax.analysis.at_checkpoint import measure
from disarm_jax.experiment.build import load_dataset
from disarm_jax.experiment.load import load_run
from disarm_jax.experiment.loop import train
from disarm_jax.experiment.step import draw_gradients
from scripts import variance

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variance")
    train(tiny_config(folder, seeds=(2, 5), steps=5, **{"estimator.name": "relax"}), folder / "run")
    return folder / "run"


def parsed(*arguments):
    values = flags.FlagValues()
    variance.define_flags(values)
    values(["variance", *arguments])
    return values


def test_variance_and_standard_error_of_the_same_draws(run):
    found = load_run(run)
    objective, build, params = found.experiment.objective, found.experiment.builders[0], found.params[1]
    tunables = jax.tree.map(lambda leaf: leaf[1], found.state.measured[0].tunables)
    x, key = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 16)), jnp.float32), jax.random.key(3)
    measured = jax.jit(lambda: measure(objective, build, tunables, params, key, x, 40))()
    draw = jax.jit(jax.vmap(lambda key: draw_gradients(objective, build(x), tunables, params, key, x)))
    draws = draw(jax.random.split(key, 40))
    draws = draws.params | {"logits": draws.logits}
    assert set(measured) == {"encoder", "decoder", "prior", "logits"}
    for group, variances in measured.items():
        flat = np.concatenate([np.asarray(leaf).reshape(40, -1) for leaf in jax.tree.leaves(draws[group])], axis=1)
        np.testing.assert_allclose(variances.variance, flat.var(axis=0, ddof=1).mean(), rtol=1e-4)
        mean = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(variances.mean)])
        np.testing.assert_allclose(mean, flat.mean(axis=0), rtol=1e-4, atol=1e-6)
        squares = ((flat - flat.mean(axis=0)) ** 2).mean(axis=1)
        np.testing.assert_allclose(variances.stderr, squares.std(ddof=1) / np.sqrt(40), rtol=1e-3)


def test_the_script(run, capsys):
    names = "relax, disarm, disarm(num_pairs=4),interpolated"
    arguments = ["--workdir", str(run), "--estimators", names, "--num_draws=400", "--tune_steps=3", "--seed=5"]
    variance.main(["variance"], parsed(*arguments))
    printed = capsys.readouterr().out
    assert "at step 5, seed 5, batch of 5, 400 draws" in printed
    record = json.loads((run / "variance.json").read_text())
    by_name = {name: groups["encoder"] for name, groups in record["estimators"].items()}
    assert list(by_name) == ["relax", "disarm", "disarm(num_pairs=4)", "interpolated"]
    # Four pairs have a quarter of the variance of one: 0.25 within 4.5 standard errors, which are below 10%.
    one, four = by_name["disarm"], by_name["disarm(num_pairs=4)"]
    ratio = four["variance"] / one["variance"]
    stderr = ratio * np.hypot(four["stderr"] / four["variance"], one["stderr"] / one["variance"])
    assert stderr < 0.1 * 0.25
    assert abs(ratio - 0.25) < 4.5 * stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimators=amr"], r"--estimators\[0\] is 'amr'; accepted: arm, arms, "),
        (["--estimators=vimco"], r"--estimators\[0\] is 'vimco'; accepted: .* for the objective elbo"),
        (["--estimators=arm,arm"], "accepted: different estimators"),
        (["--estimators=arm", "--seed=1"], "--seed is 1; accepted: 2, 5"),
        (["--estimators=arm", "--batch_size=61"], "--batch_size is 61; accepted: at most 60"),
        (["--estimators=arm", "--workdir=/nosuch"], "/nosuch is not a run directory"),
    ],
)
def test_bad_flags_are_one_line(run, arguments, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        variance.main(["variance"], parsed("--workdir", str(run), *arguments))


@pytest.mark.parametrize("flag", ["num_draws", "batch_size"])
def test_more_than_can_be_counted_is_refused(flag):
    with pytest.raises(flags.IllegalFlagValueError, match=rf"{flag}=3000000000: .* integer in the range"):
        parsed("--workdir=x", "--estimators=arm", f"--{flag}=3000000000")


def test_the_data_of_a_run_is_found_again(run):
    assert load_dataset(load_run(run).config["dataset"]).train.shape == (60, 16)
