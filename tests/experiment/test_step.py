"""One step written out by hand, and a split's bound as a plain loop: what the compiled programs must equal."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import tiny_config

from disarm_jax import data
from disarm_jax.experiment import step
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.evaluate import mean_bound
from disarm_jax.experiment.load import prepare
from disarm_jax.experiment.step import draw_gradients, project, run_keys
from disarm_jax.objectives import sampled_bound

pytestmark = pytest.mark.usefixtures("quick_compile")

RATES = {"encoder": 1e-2, "decoder": 3e-3, "prior": 0.5, "tunables": 7e-2}


def close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, expected)


def compiled_chunk(prepared, start, num_steps):
    """A program that takes that many steps from a state."""
    images = jnp.asarray(prepared.dataset.train)
    return jax.jit(lambda state: prepared.experiment.run_chunk(state, images, num_steps)).lower(start).compile()


@pytest.mark.parametrize("num_steps", [6, 7])
def test_a_long_chunk_is_planned_in_blocks(tmp_path, monkeypatch, num_steps):
    """The same numbers as without blocks, whether the last block is full or not."""
    prepared = prepare(resolve(tiny_config(tmp_path)))
    start = jax.jit(prepared.experiment.init)(jnp.uint32(3))
    whole = compiled_chunk(prepared, start, num_steps)(start)
    monkeypatch.setattr(step, "BLOCK", 3)
    close(compiled_chunk(prepared, start, num_steps)(start), whole)


def test_the_memory_does_not_grow_with_the_steps_of_a_chunk(tmp_path, monkeypatch):
    """By more than their objectives."""
    monkeypatch.setattr(step, "BLOCK", 100)
    prepared = prepare(resolve(tiny_config(tmp_path)))
    start = jax.eval_shape(prepared.experiment.init, jnp.uint32(3))
    memory = lambda num_steps: compiled_chunk(prepared, start, num_steps).memory_analysis().temp_size_in_bytes
    assert memory(2000) - memory(200) < 2000 * 8


@pytest.mark.parametrize("prior_reduction", ["mean", "sum"])
def test_two_steps_by_hand(tmp_path, prior_reduction):
    """Every group with its own optimiser, rate and reduction, the tunables with theirs, and the moments."""
    overrides = {f"optimizer.{group}.learning_rate": rate for group, rate in RATES.items()}
    overrides |= {"optimizer.encoder.eps": 1e-2, "optimizer.decoder.eps": 1e-3, "optimizer.decoder.b1": 0.5}
    overrides |= {"estimator.name": "rebar", "optimizer.prior.reduction": prior_reduction, "variance.decay": 0.9}
    prepared = prepare(resolve(tiny_config(tmp_path, **overrides)))
    experiment, images = prepared.experiment, jnp.asarray(prepared.dataset.train)
    state = experiment.init(jnp.uint32(3))
    optimizers = {
        "encoder": optax.adam(1e-2, eps=1e-2),
        "decoder": optax.adam(3e-3, b1=0.5, eps=1e-3),
        "prior": optax.sgd(0.5),
        "tunables": optax.adam(7e-2, b1=0.999, eps=1e-7),
    }
    factors = {"encoder": 5, "decoder": 1, "prior": 5 if prior_reduction == "sum" else 1}  # batches of five images
    params, tunables, est = state.params, state.measured[0].tunables, experiment.builders[0](None)
    opt_state = {group: optimizers[group].init(params[group]) for group in factors}
    opt_state["tunables"] = optimizers["tunables"].init(tunables)
    mean = square = jax.tree.map(jnp.zeros_like, params["encoder"])
    values = []
    draw = jax.jit(lambda tunables, params, key, x: draw_gradients(experiment.objective, est, tunables, params, key, x))
    for number in range(2):
        keys = run_keys(jnp.uint32(3))
        binarize_key, draw_key = jax.random.split(jax.random.fold_in(keys.steps, number))
        x = data.binarize(binarize_key, images[data.batch_indices(keys.batches, number, 5, 60)])
        drawn = draw(tunables, params, draw_key, x)
        values.append(drawn.value)
        with jax.numpy_dtype_promotion("standard"):
            for group, factor in factors.items():
                descent = jax.tree.map(lambda g, factor=factor: -factor * g, drawn.params[group])
                updates, opt_state[group] = optimizers[group].update(descent, opt_state[group])
                params = params | {group: optax.apply_updates(params[group], updates)}
            updates, opt_state["tunables"] = optimizers["tunables"].update(drawn.tunables, opt_state["tunables"])
            tunables = optax.apply_updates(tunables, updates)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, drawn.params["encoder"])
        square = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g**2, square, drawn.params["encoder"])
    found, metrics = jax.jit(experiment.run_chunk, static_argnums=2)(state, images, 2)
    close(found.params, params)
    close(found.measured[0].tunables, tunables)
    close((found.measured[0].mean, found.measured[0].square), (mean, square))
    np.testing.assert_allclose(metrics.objective, np.mean(values), rtol=1e-6)
    weight = 1 - 0.9**2
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    variance = np.mean(flat(square) / weight - (flat(mean) / weight) ** 2)
    np.testing.assert_allclose(metrics.gradient_variance[0], variance, rtol=1e-3)
    assert (int(found.step), int(metrics.first_bad)) == (2, 0)


@pytest.mark.parametrize("binarization", ["dynamic", "threshold"])
@pytest.mark.parametrize("num_samples", [1, 4])
def test_the_bound_of_a_split_is_that_of_a_loop(tmp_path, binarization, num_samples):
    """Seventeen images in batches of five: the last batch has two, and they count as much as the others."""
    prepared = prepare(resolve(tiny_config(tmp_path, **{"dataset.binarization": binarization})))
    model, images = prepared.model, prepared.dataset.test
    state = prepared.experiment.init(jnp.uint32(1))._replace(step=jnp.int32(20))
    found = jax.jit(lambda s, i: mean_bound(model, s, i, 2, num_samples, binarization, 5))(state, jnp.asarray(images))
    three = lambda s, i: mean_bound(model, s, i, 2, num_samples, binarization, 5, batches_at_once=3)
    np.testing.assert_allclose(jax.jit(three)(state, jnp.asarray(images)), found, rtol=1e-6)
    key = jax.random.fold_in(jax.random.fold_in(run_keys(jnp.uint32(1)).evaluation, 20), 2)
    bounds = []
    for start in range(0, 17, 5):
        binarize_key, sample_key = jax.random.split(jax.random.fold_in(key, start))
        batch = images[np.minimum(np.arange(start, start + 5), 16)]
        x = data.binarize(binarize_key, jnp.asarray(batch), binarization)
        bounds.append(np.asarray(sampled_bound(model, state.params, sample_key, x, num_samples)))
    np.testing.assert_allclose(found, np.concatenate(bounds)[:17].mean(), rtol=1e-5)


def test_the_mean_of_what_the_model_sees(tmp_path):
    for binarization in ("dynamic", "static", "threshold"):
        prepared = prepare(resolve(tiny_config(tmp_path, **{"dataset.binarization": binarization})))
        seen = prepared.dataset.train >= 128 if binarization == "threshold" else prepared.dataset.train / 255
        np.testing.assert_allclose(prepared.train_mean, seen.mean(axis=0))
        assert prepared.model.input_mean is prepared.train_mean


def test_only_probabilities_are_clipped():
    """β has to stay in [0, 1]; any scale of a control variate leaves the gradient unbiased."""
    scales = {"base": (), "scale": (jnp.float32(5), jnp.float32(-3))}
    assert project(scales) == scales
    beta = {"beta": jnp.array([-0.1, 0.4, 1.2])}
    for tunables in (beta, {"base": beta, "scale": (jnp.float32(5),)}):
        np.testing.assert_array_equal(jax.tree.leaves(project(tunables))[0], jnp.array([0, 0.4, 1.0]))
