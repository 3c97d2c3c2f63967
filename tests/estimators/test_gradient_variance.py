"""`gradient_variance`: the moments of all draws, from running sums, compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

LOGITS = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def f(b):
    return (b.sum(-1) - 1.2) ** 2 + b[..., 0]


@pytest.mark.parametrize("batch_size", [None, 7, 400])
def test_moments_of_all_draws(batch_size):
    """The sums are those of the draws; a standard error is that of the squared deviations, up to a few percent."""
    est, key, num = dj.disarm(), jax.random.key(0), 400
    found = dj.gradient_variance(est)((), key, LOGITS, f, num, batch_size)
    draws = jax.jit(jax.vmap(lambda key: est.apply((), key, LOGITS, f).grad))(jax.random.split(key, num))
    draws = np.asarray(draws, np.float64)
    squares = (draws - draws.mean(axis=0)) ** 2
    np.testing.assert_allclose(found.mean, draws.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.mean_stderr, draws.std(axis=0, ddof=1) / np.sqrt(num), rtol=1e-4)
    np.testing.assert_allclose(found.variance, draws.var(axis=0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(found.total, draws.var(axis=0, ddof=1).sum(), rtol=1e-4)
    np.testing.assert_allclose(found.variance_stderr, squares.std(axis=0) / np.sqrt(num), rtol=0.1)
    np.testing.assert_allclose(found.total_stderr, squares.sum(axis=(1, 2)).std() / np.sqrt(num), rtol=0.1)


def test_the_memory_does_not_grow_with_the_draws():
    measure = dj.gradient_variance(dj.disarm())

    def temporaries(num):
        compiled = jax.jit(lambda key: measure((), key, LOGITS, f, num)).lower(jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes - 16 * num  # the keys

    assert temporaries(100_000) < temporaries(100) + 1_000


def test_nothing_is_compiled_again():
    """A second call with the same estimator and f does not even trace them."""
    calls = []

    def noted(b):
        calls.append(b.shape)
        return f(b)

    measure = dj.gradient_variance(dj.disarm())
    one = measure((), jax.random.key(0), LOGITS, noted, 10)
    before = len(calls)
    other = measure((), jax.random.key(1), LOGITS + 1, noted, 10)
    assert len(calls) == before
    assert np.abs(one.mean - other.mean).max() > 0


def test_wrong_numbers_of_draws_are_named():
    measure = dj.gradient_variance(dj.disarm())
    with pytest.raises(ValueError, match="num_draws must be at least 2, got 1"):
        measure((), jax.random.key(0), LOGITS, f, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        measure((), jax.random.key(0), LOGITS, f, 10, 0)
