"""Estimators inside `jax.shard_map`: each device has its own samples, and no derivative is summed over devices."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, REPRESENTATIVES
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import disarm_jax as dj
from disarm_jax.estimators import first_order

pytestmark = pytest.mark.usefixtures("quick_compile")

KEYS = jax.random.split(jax.random.key(1), 4)
DATA = jnp.linspace(0.5, 2.0, 4)


@functools.cache
def mesh():
    return jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,))


def by_device(function, *specs):
    """function of the parts that the devices have of its arguments, results stacked."""

    def on_device(*args):
        own = [arg[0] if spec else arg for arg, spec in zip(args, specs, strict=True)]
        return jax.tree.map(lambda leaf: leaf[None], function(*own))

    in_specs = tuple(P("devices") if spec else P() for spec in specs)
    return jax.jit(jax.shard_map(on_device, mesh=mesh(), in_specs=in_specs, out_specs=P("devices")))


def assert_close(found, exact):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, exact)


@pytest.mark.parametrize("key", REPRESENTATIVES)
def test_replicated_logits(key):
    """Samples of each device's own, then f of its own as well: the numbers are those of a loop over devices."""
    case, logits = CASES[key], CASES[key].logits((2,))
    est, params = case.make(logits)

    def both(logits, params, key, x):
        return est.apply(params, key, logits, case.f), est.apply(params, key, logits, lambda b: x * case.f(b))

    together = by_device(both, False, False, True, True)(logits, params, KEYS, DATA)
    alone = jax.jit(both)
    for device in range(4):
        one = alone(logits, params, KEYS[device], DATA[device])
        assert_close(jax.tree.map(operator.itemgetter(device), together), one)


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.info.needs_grad])
def test_replicated_samples(key):
    """The same samples on all devices, for different f."""
    case, logits = CASES[key], CASES[key].logits((2,))
    est, params = case.make(logits)
    apply = lambda logits, x: est.apply(params, KEYS[0], logits, lambda b: x * case.f(b))
    together = by_device(apply, False, True)(logits, DATA)
    alone = jax.jit(apply)
    for device in range(4):
        one = alone(logits, DATA[device])
        assert_close(jax.tree.map(operator.itemgetter(device), together), one)


@pytest.mark.parametrize("name", ["straight_through", "disarm_midpoint", "disarm_quadratic", "relax"])
def test_an_f_that_is_split_over_devices(name):
    """Weights split by columns: f sums over devices, is the same on all of them, and so is its derivative."""
    est, logits = dj.make_estimator(name), jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    params, weights = est.init(jax.random.key(0), logits), jnp.cos(jnp.arange(24.0)).reshape(3, 8)
    softplus_sum = lambda b, weights: jnp.sum(jax.nn.softplus(b @ weights), axis=-1)

    def on_device(logits, weights):
        return est.apply(params, KEYS[0], logits, lambda b: jax.lax.psum(softplus_sum(b, weights), "devices"))

    split = jax.shard_map(on_device, mesh=mesh(), in_specs=(P(), P(None, "devices")), out_specs=P())
    together = jax.jit(split)(logits, weights)
    alone = jax.jit(lambda: est.apply(params, KEYS[0], logits, lambda b: softplus_sum(b, weights)))()
    assert_close(together, alone)


def test_the_gradient_variance():
    case = CASES["relax"]
    logits = case.logits((2,))
    est, params = case.make(logits)
    measure = lambda logits, params, key: dj.gradient_variance(est)(params, key, logits, case.f, 5)
    together = by_device(measure, False, False, True)(logits, params, KEYS)
    alone = jax.jit(measure)
    for device in range(4):
        one = alone(logits, params, KEYS[device])
        assert_close(jax.tree.map(operator.itemgetter(device), together), one)


def test_nothing_is_marked_elsewhere():
    x = {"a": jnp.ones(3)}
    assert first_order.vary_like(x, jnp.zeros(2)) is x
    jax.jit(lambda y: first_order.vary_like(x, y) is x or pytest.fail("changed under jit"))(jnp.zeros(2))
