"""The parts of docs/extend.md, trained with; schedules, clipping and writers."""

import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_config

from configs import quickstart
from disarm_jax.experiment import loop
from disarm_jax.experiment.build import make_optimizer, schedule_of
from disarm_jax.experiment.config import ConfigError, resolve
from disarm_jax.experiment.fields import plain
from disarm_jax.experiment.load import load_run, prepare
from disarm_jax.experiment.loop import train
from disarm_jax.run_directory.directory import RunDir

pytestmark = pytest.mark.usefixtures("quick_compile")

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "extend.md"
BLOCKS = re.findall(r"^```python(?: notest)?\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *unused: None)
    monkeypatch.setattr(loop, "draw_samples", lambda *unused: None)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's `mine.py`, and the config of its last block with few steps."""
    *parts, config = BLOCKS
    (tmp_path / "mine.py").write_text("\n\n".join(parts))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    names = {"quickstart": quickstart}
    exec(config, names)
    config = names["get_config"]()
    few = {"steps": 20, "batch_size": 5, "seeds": (0,), "log_every": 5, "eval.test_samples": 2, "eval.batch_size": 8}
    few |= {
        "eval.train_every": 10,
        "eval.test_every": 10,
        "checkpoint.every": 10,
        "model.latents": (4,),
        "optimizer.prior.warmup_steps": 4,
    }
    config.update_from_flattened_dict(few)
    return config


def test_the_examples_are_short_and_all_joints_have_one():
    assert max(block.count("\n") for block in BLOCKS) <= 40
    assert len(BLOCKS) == 7


def test_a_run_with_all_parts_of_the_page(mine, tmp_path):
    """It trains, is continued as if it had not stopped, and every part has had its effect."""
    mine.steps = 10
    train(mine, tmp_path / "run")
    mine.steps = 20
    with pytest.raises(ConfigError, match=r"decoder\.decay_steps: 10 in the run directory, 20 now"):
        train(mine, tmp_path / "run")
    summary = train(mine, tmp_path / "other")
    assert summary["estimators"] == ["mine:damped(factor=0.5)"]
    run = load_run(tmp_path / "other", allow_imports=True)
    assert run.model.contrast == 0.9
    rows = [row for row in RunDir(tmp_path / "other").read_metrics() if "objective" in row]
    table = [line.split(",") for line in (tmp_path / "other" / "metrics.csv").read_text().splitlines()]
    written = {(int(step), int(seed), name): float(value) for step, seed, name, value in table}
    assert all(written[row["step"], row["seed"], "objective"] == row["objective"] for row in rows)
    rates = [row["learning_rate/prior"] for row in rows]
    cosine = (1 + np.cos(np.pi * (np.array([5, 10, 15, 20]) - 4) / 16)) / 2
    np.testing.assert_allclose(rates, 1e-2 * cosine, rtol=1e-5, atol=1e-8)
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.params[0]):
        assert np.all(np.isfinite(leaf)), path


def test_a_custom_objective_with_its_default_is_the_elbo(mine, tmp_path):
    """β = 1 is the ELBO of the same run to rounding, β = 2 is not."""

    def trained(name, **options):
        config = tiny_config(tmp_path, **{"objective.name": name, "steps": 5})
        config.objective.options = options
        prepared = prepare(resolve(config))
        state = prepared.experiment.init(jnp.uint32(0))
        return jax.jit(prepared.experiment.run_chunk, static_argnums=2)(state, prepared.dataset.train, 5)[0].params

    elbo = trained("elbo")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), elbo, trained("mine:beta_elbo", beta=1.0))
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), elbo, trained("mine:beta_elbo", beta=2.0))
    assert max(jax.tree.leaves(differences)) > 1e-3


def test_a_custom_objective_with_several_samples_is_a_bound(mine, tmp_path):
    overrides = {"objective.name": "mine:beta_elbo", "objective.num_samples": 3, "estimator.name": "vimco"}
    config = resolve(tiny_config(tmp_path, **overrides))
    assert (config.objective.stop_q, config.estimator.options.num_samples, config.eval.train_samples) == (False, 3, 3)
    with pytest.raises(ConfigError, match=r"'disarm'; accepted: .*vimco"):
        resolve(tiny_config(tmp_path, **overrides | {"estimator.name": "disarm"}))


SECTION = {"name": "adam", "learning_rate": 2.0, "b1": 0.9, "b2": 0.999, "eps": 1e-7, "schedule": "constant"}
SECTION |= {"warmup_steps": 0, "decay_steps": None, "clip": None, "options": {}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [2, 2, 2, 2]),
        ({"warmup_steps": 4}, [0, 1, 2, 2]),
        ({"schedule": "cosine", "decay_steps": 8}, [2, 2 * (1 + np.cos(np.pi / 4)) / 2, 1, 0]),
        ({"schedule": "cosine", "decay_steps": 8, "warmup_steps": 4}, [0, 1, 2, 0]),
    ],
)
def test_learning_rates_by_name(changes, expected):
    rate = schedule_of(SECTION | changes)
    found = [rate(step) if callable(rate) else rate for step in (0, 2, 4, 8)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_clipping_limits_the_norm_of_a_group():
    optimizer = make_optimizer(SECTION | {"name": "sgd", "clip": 1.0})
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}
    updates, _ = optimizer.update(grads, optimizer.init(grads), grads)
    np.testing.assert_allclose(jax.tree.leaves(updates)[0], [-1.2, 0.0], rtol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(updates)[1], -1.6, rtol=1e-6)


def test_a_constant_rate_keeps_the_state_of_older_runs(tmp_path):
    """Checkpoints made before there were schedules have the arrays of Adam alone."""
    opt_state = prepare(resolve(tiny_config(tmp_path))).experiment.init(jnp.uint32(0)).opt_state
    assert type(opt_state["encoder"][0]).__name__ == "ScaleByAdamState"
    assert [type(part).__name__ for part in opt_state["encoder"][1:]] == ["EmptyState"]


def test_weights_and_biases_where_it_is_installed(tmp_path, monkeypatch):
    config = tiny_config(tmp_path, steps=5, writers=("wandb",), seeds=(0, 7))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="writers has 'wandb', which needs a package that is not installed: wandb"):
        train(config, tmp_path / "without")
    logged, begun = [], []
    run = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append(0))
    fake = types.SimpleNamespace(init=lambda **options: begun.append(options) or run, Image=str)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(config, tmp_path / "run")
    assert begun[0]["config"] == json.loads(json.dumps(plain(resolve(config))))
    assert begun[0]["id"] == "run"
    assert logged[-1] == 0
    assert {name.split("/")[0] for _, values in logged[:-1] for name in values} == {"seed_0", "seed_7"}


def test_tensorboard_has_the_config_and_pictures(tmp_path, monkeypatch):
    from tensorboardX.proto import event_pb2

    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x07\x00\x00\x00\x05"
    monkeypatch.setattr(loop, "draw_samples", lambda run_dir, *unused: run_dir.samples.write_bytes(png))
    train(tiny_config(tmp_path, steps=5), tmp_path / "run")
    (file,) = (tmp_path / "run" / "tensorboard" / "seed_0").iterdir()
    content, values = file.read_bytes(), {}
    while content:
        size = int.from_bytes(content[:8], "little")
        event = event_pb2.Event.FromString(content[12 : 12 + size])
        values |= {value.tag: value for value in event.summary.value}
        content = content[16 + size :]
    assert b"| estimator.name | disarm |" in values["config/text_summary"].tensor.string_val[0]
    image = values["samples"].image
    assert (image.width, image.height, image.encoded_image_string) == (7, 5, png)
    assert {"objective", "reconstruction", "kl", "active_bits", "gradient_norm/encoder"} <= set(values)
