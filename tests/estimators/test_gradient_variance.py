"""`gradient_variance`: the moments of all draws, in memory that does not grow with them, compiled once."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

LOGITS = np.linspace(-1.0, 1.0, 6).reshape(2, 3)
NAMES = ("mean", "mean_stderr", "variance", "variance_stderr", "total", "total_stderr")


def f(b):
    return (b.sum(-1) - 1.2) ** 2 + b[..., 0]


def two_passes(draws):
    """The definitions, by numpy: draws `[num, *batch, D]`."""
    num, squares = len(draws), (draws - draws.mean(axis=0)) ** 2
    variance, totals = squares.sum(axis=0) / (num - 1), squares.reshape(num, -1).sum(axis=1)
    stderr = lambda rows: rows.std(axis=0) / np.sqrt(num)
    mean_stderr = np.sqrt(variance / num)
    return draws.mean(axis=0), mean_stderr, variance, stderr(squares), variance.sum(), stderr(totals)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch_size", [None, 1, 4, 100])
@pytest.mark.parametrize("num", [2, 3, 11])
def test_the_moments_are_those_of_two_passes(num, batch_size):
    est, key, logits = dj.disarm(), jax.random.key(0), jnp.asarray(LOGITS)
    shifted = lambda b: f(b) + 1e3 * b[..., 1]  # means that are large beside the deviations
    found = jax.jit(lambda key: dj.gradient_variance(est)((), key, logits, shifted, num, batch_size))(key)
    apply = jax.jit(lambda key: est.apply((), key, logits, shifted).grad)
    draws = np.stack([apply(k) for k in jax.random.split(key, num)])
    for name, ours, exact in zip(NAMES, found, two_passes(draws), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-9, err_msg=name)


def test_float32_follows_many_draws_far_from_zero():
    """Sums of powers would lose all digits of a variance of 1 beside a mean of 1e3; no moment here does."""
    noise = lambda params, key, logits, f: dj.Estimate(f(logits[None])[0], 1e3 + jax.random.normal(key, (3,)))
    est, key = dj.Estimator(lambda key, logits: (), noise), jax.random.key(0)
    found = dj.gradient_variance(est)((), key, jnp.zeros(3), f, 4000, 100)
    draws = np.stack(jax.vmap(lambda k: 1e3 + jax.random.normal(k, (3,)))(jax.random.split(key, 4000)))
    for name, ours, exact in zip(NAMES, found, two_passes(draws.astype(np.float64)), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, err_msg=name)


def layered(params, key, logits, f):
    """The gradients of two layers, in a tuple."""
    first, second = jax.random.split(key)
    return dj.Estimate(f(logits[None])[0], (jax.random.normal(first, (2, 3)), jax.random.uniform(second, (2, 4))))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_tuples_of_gradients(batch_size):
    est, key = dj.Estimator(lambda key, logits: (), layered), jax.random.key(5)
    found = dj.gradient_variance(est)((), key, jnp.asarray(LOGITS, jnp.float32), f, 7, batch_size)
    draws = [layered((), k, jnp.asarray(LOGITS, jnp.float32), f).grad for k in jax.random.split(key, 7)]
    layers = [np.stack(layer).astype(np.float64) for layer in zip(*draws, strict=True)]
    for t, layer in enumerate(layers):
        for name, exact in list(zip(NAMES, two_passes(layer), strict=True))[:4]:
            np.testing.assert_allclose(getattr(found, name)[t], exact, rtol=1e-4, atol=1e-6, err_msg=name)
    flat = np.concatenate([layer.reshape(7, -1) for layer in layers], axis=1)
    np.testing.assert_allclose(found[4:], two_passes(flat)[4:], rtol=1e-4)


def test_logits_that_are_no_arrays():
    """What stands in their place, a chain of layers, may hold functions."""

    class Chain:
        layer = staticmethod(lambda: jnp.asarray(LOGITS, jnp.float32))

    base, key = dj.disarm(), jax.random.key(5)
    est = dj.Estimator(base.init, lambda params, key, chain, f: base.apply(params, key, chain.layer(), f))
    found = dj.gradient_variance(est)((), key, Chain(), f, 5)
    same = dj.gradient_variance(base)((), key, Chain.layer(), f, 5)
    jax.tree.map(np.testing.assert_array_equal, found, same)


def test_the_memory_does_not_grow_with_the_draws():
    measure, logits = dj.gradient_variance(dj.disarm()), jnp.zeros((5, 200))

    def temporaries(num):
        compiled = jax.jit(lambda key: measure((), key, logits, f, num)).lower(jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    keys = 2 * 8 * 10_000
    assert temporaries(10_000) < temporaries(100) + 2 * keys < 5 * 200 * 4 * 10_000 / 50


class Counted:
    """The calls of a function, made by `make`."""

    def __init__(self):
        self.calls = 0

    def make(self):
        def counted(b):
            self.calls += 1
            return f(b)

        return counted


@pytest.mark.parametrize("batch_size", [None, 4])
def test_nothing_is_traced_again(batch_size):
    counter, measure, logits = Counted(), dj.gradient_variance(dj.disarm()), jnp.asarray(LOGITS, jnp.float32)
    counted = counter.make()
    one = measure((), jax.random.key(0), logits, counted, 10, batch_size)
    before = counter.calls
    same = dj.gradient_variance(dj.disarm())  # another estimator may share nothing
    other = measure((), jax.random.key(1), logits + 1, counted, 10, batch_size)
    assert counter.calls == before > 0
    assert np.abs(one.mean - other.mean).max() > 0
    same((), jax.random.key(0), logits[0], counted, 10, batch_size)  # other shapes
    assert counter.calls > before


def test_nothing_is_kept_alive():
    counted, est = Counted().make(), dj.disarm()
    dj.gradient_variance(est)((), jax.random.key(0), jnp.zeros(3), counted, 3)
    watched = weakref.ref(counted), weakref.ref(est)
    del counted, est
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


def test_functions_that_close_over_tracers_and_objects_that_change():
    measure, key, logits = dj.gradient_variance(dj.disarm()), jax.random.key(0), jnp.zeros(3)
    total = lambda weight: measure((), key, logits, lambda b: weight * f(b), 10).total
    jitted = jax.jit(total)
    with jax.checking_leaks():
        np.testing.assert_allclose(jitted(2.0), 4 * jitted(1.0), rtol=1e-5)
        np.testing.assert_allclose(jax.vmap(total)(jnp.array([1.0, 2.0])), [total(1.0), total(2.0)], rtol=1e-5)
        np.testing.assert_allclose(jax.value_and_grad(total)(3.0)[0], 9 * total(1.0), rtol=1e-5)

    class Weighted:
        __hash__, weight = None, 1.0

        def __call__(self, b):
            return self.weight * f(b)

    weighted = Weighted()
    once = measure((), key, logits, weighted, 10).total
    weighted.weight = 2.0
    np.testing.assert_allclose(measure((), key, logits, weighted, 10).total, 4 * once, rtol=1e-5)


def test_estimators_that_cannot_be_hashed():
    class Unhashable(dj.Estimator):
        __hash__ = None

    base = dj.disarm()
    found = dj.gradient_variance(Unhashable(base.init, base.apply))((), jax.random.key(0), jnp.zeros(3), f, 10)
    assert found.total == dj.gradient_variance(base)((), jax.random.key(0), jnp.zeros(3), f, 10).total


def test_wrong_sizes_are_named():
    measure = dj.gradient_variance(dj.disarm())
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        measure((), jax.random.key(0), jnp.zeros(3), f, 10, 0)
