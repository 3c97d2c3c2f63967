"""At the sizes of real models, with the optimising compiler: what it can do wrong, memory, and many draws."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import disarm_jax as dj


@pytest.mark.parametrize("name", ["sample", "disarm_sb", "disarm_tree", "disarm_iw", "reinforce_loo"])
def test_memory_is_linear_in_the_classes(name):
    """Less than one byte for each pair of classes, the least that a mask of them all would need."""
    logits, classes = jnp.zeros((2, 3, 8000), jnp.float32), 8000
    if name == "sample":
        function = lambda key: dj.categorical.distribution.sample(key, logits, 2)
    else:
        est = dj.categorical.make_estimator(name)
        function = lambda key: est.apply((), key, logits, lambda z: z[..., 0].sum(-1))[:2]
    memory = jax.jit(function).lower(jax.random.key(0)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < classes**2


@pytest.mark.parametrize("name", ["disarm_iw", "disarm_sb", "disarm_tree", "reinforce_loo"])
def test_sizes_of_a_real_model_in_a_loop(name):
    """|grad| ≤ 2 max |f|: jaxlib 0.10.2 has compiled a sum over nodes with a last element of 1e29, at this size."""
    logits = 0.3 * jax.random.normal(jax.random.key(0), (50, 20, 10), jnp.float32)
    weights = jax.random.normal(jax.random.key(3), (200,), jnp.float32)
    f = lambda z: 100 * jnp.tanh(z.reshape(*z.shape[:-2], -1) @ weights)
    est = dj.categorical.make_estimator(name)
    loop = jax.jit(lambda keys: jax.lax.map(lambda key: est.apply((), key, logits, f).grad, keys))
    grads = np.asarray(loop(jax.random.split(jax.random.key(1), 20)))
    assert 10 < np.abs(grads).max() <= 200


@pytest.mark.parametrize("name", ["sample", "sticks", "balanced_tree", "ascending_sticks"])
def test_frequencies_of_many_classes(name):
    """Both samples of a pair have the distribution; 200,000 draws of 200 classes."""
    logits = jax.random.normal(jax.random.key(2), (1, 200), jnp.float32)
    if name == "sample":
        draw = lambda key: [dj.categorical.distribution.sample(key, logits, 100)]
    else:
        tree = getattr(dj.categorical, name)(logits if name == "ascending_sticks" else 200)
        draw = lambda key: dj.categorical.antithetic_pairs(key, logits, tree, 100)
    classes = jax.jit(lambda keys: jax.lax.map(lambda key: [jnp.argmax(z, axis=-1) for z in draw(key)], keys))
    chances = softmax(np.asarray(logits[0], np.float64))
    for drawn in classes(jax.random.split(jax.random.key(3), 2000)):
        assert exact.chi_square_of_outcomes(np.asarray(drawn).ravel(), chances) > 1e-4
