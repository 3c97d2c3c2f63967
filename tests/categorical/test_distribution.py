"""The distribution of classes from its logits."""

import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import disarm_jax as dj
from disarm_jax.categorical import distribution


@pytest.mark.usefixtures("x64")
def test_log_prob_and_score():
    logits = np.random.default_rng(0).normal(size=(2, 3), scale=2)
    z = exact_classes.outcomes(2, 3)
    log_q = dj.categorical.log_prob(jnp.asarray(logits), z)
    np.testing.assert_allclose(np.exp(log_q), exact_classes.probability(logits, z), rtol=1e-12)
    np.testing.assert_allclose(distribution.score(jnp.asarray(logits), z), z - softmax(logits, axis=-1), atol=1e-15)
    derivative = jax.jacobian(lambda x: dj.categorical.log_prob(x, z))(jnp.asarray(logits))
    np.testing.assert_allclose(derivative, z - softmax(logits, axis=-1), atol=1e-12)


def test_log_prob_of_masked_and_saturated_classes():
    logits = jnp.array([[0.0, -jnp.inf, 0.0], [1e4, -1e4, 0.0]])
    drawn = jax.nn.one_hot(jnp.array([0, 0]), 3)
    np.testing.assert_allclose(dj.categorical.log_prob(logits, drawn), -np.log(2), rtol=1e-6)
    gradient = jax.grad(dj.categorical.log_prob)(logits, drawn)
    np.testing.assert_allclose(gradient, [[0.5, 0, -0.5], [0, 0, 0]], atol=1e-6)
    assert dj.categorical.log_prob(logits, jax.nn.one_hot(jnp.array([1, 0]), 3)) == -np.inf
    rare = distribution.score(jnp.array([[20.0, 0.0]]), jnp.array([[1.0, 0.0]]))
    np.testing.assert_allclose(rare, [[2.0611537e-09, -2.0611537e-09]], rtol=1e-5)  # 1 − p would be 0 in float32


def largest_of_noisy(key, logits):
    """Samples of Gumbel-softmax."""
    est = dj.categorical.make_estimator("gumbel_softmax")
    return est.apply((), key, logits, lambda z: (z[..., 0, 0], z), has_aux=True)[1]


@pytest.mark.parametrize(
    "draw", [lambda key, logits: dj.categorical.distribution.sample(key, logits, 1), largest_of_noisy]
)
def test_equal_large_logits_are_equally_likely(draw):
    """Noise is added to logits less the largest, beside which it would be rounded to steps of 0.06."""
    z = draw(jax.random.key(0), jnp.full((200_000, 1, 2), 1e6))
    assert abs(z[..., 0].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(200_000)
