"""An estimator that uses ∇f once must not differentiate it again, whatever is asked of `expectation`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj
from disarm_jax.estimators import first_order

pytestmark = pytest.mark.usefixtures("quick_compile")

LOGITS = jnp.array([[0.3, -0.7, 1.1], [0.9, 0.2, -1.4]])
WEIGHTS = jnp.cos(jnp.arange(12.0)).reshape(3, 4)
# They use the Hessian of a plain f.
TWICE = ("arms_quadratic", "disarm_quadratic", "multisample_disarm_midpoint", "multisample_disarm_quadratic")
ONCE = [name for name in dj.estimator_names() if dj.estimator_info(name).needs_grad and name not in TWICE]


def softplus_sum(a):
    return jnp.sum(jax.nn.softplus(a), axis=-1)


def on_host(function, a, *more):
    """A function that JAX cannot look into, and so cannot differentiate."""
    shape = jax.ShapeDtypeStruct(a.shape if more else a.shape[:-1], a.dtype)
    return jax.pure_callback(lambda *args: np.asarray(function(*args)), shape, a, *more, vmap_method="expand_dims")


@jax.custom_vjp
def opaque(a):
    """`softplus_sum` with an opaque backward pass, as of a fused kernel."""
    return on_host(lambda a: np.logaddexp(a, 0).sum(axis=-1), a)


opaque.defvjp(lambda a: (opaque(a), a), lambda a, g: (on_host(lambda a, g: g[..., None] / (1 + np.exp(-a)), a, g),))


def loss(est, outer, make_f, has_aux=False):
    params = est.init(jax.random.key(0), LOGITS)

    def of_all(weights, logits, key):
        f = make_f(outer, weights)
        if has_aux:
            value, aux = dj.expectation(est, has_aux=True)(params, key, logits, lambda b: (f(b), b))
            return jnp.sum(value) + jnp.sum(aux) * jnp.sum(weights)
        return jnp.sum(dj.expectation(est)(params, key, logits, f))

    return of_all


def plain(outer, weights):
    return lambda b: outer(b @ weights) + jnp.sum(b, axis=-1) * jnp.sum(weights) ** 2


def composed(outer, weights):
    return dj.Composed(lambda a, b: outer(a), dj.MLP([(weights, jnp.zeros(4))]))


def curved(outer, weights):
    layers = [(weights, jnp.zeros(4)), (jnp.eye(4), jnp.zeros(4))]
    return dj.Composed(lambda a, b: outer(a), dj.MLP(layers, jnp.tanh))


@pytest.mark.parametrize("name", ONCE)
def test_plain_functions(name):
    check(dj.make_estimator(name), plain, has_aux=True)


@pytest.mark.parametrize("make_f", [composed, curved])
@pytest.mark.parametrize("name", ["disarm_midpoint", *TWICE])
def test_composed_functions(name, make_f):
    check(dj.make_estimator(name), make_f)


def check(est, make_f, has_aux=False):
    """The derivatives of the opaque f are those of the transparent one."""
    exact, found = (jax.grad(loss(est, outer, make_f, has_aux), argnums=(0, 1)) for outer in (softplus_sum, opaque))
    assert_close(*jax.jit(lambda *args: (found(*args), exact(*args)))(WEIGHTS, LOGITS, jax.random.key(1)))


def assert_close(found, exact):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, exact)


@pytest.mark.parametrize("name", ["double_cv", "disarm_midpoint", "rebar"])
def test_under_other_transformations(name):
    """f closes over tracers of grad alone, of vmap and of scan."""
    est, keys = dj.make_estimator(name), jax.random.split(jax.random.key(1), 2)
    exact, found = (jax.grad(loss(est, outer, plain), argnums=(0, 1)) for outer in (softplus_sum, opaque))
    expected = jax.jit(exact)(WEIGHTS, LOGITS, keys[0])
    assert_close(found(WEIGHTS, LOGITS, keys[0]), expected)  # not compiled as a whole, as the others are
    mapped = jax.jit(jax.vmap(found, in_axes=(None, None, 0)))(WEIGHTS, LOGITS, keys)
    scan = lambda keys: jax.lax.scan(lambda _, key: (None, found(WEIGHTS, LOGITS, key)), None, keys)[1]
    for ours in (mapped, jax.jit(scan)(keys)):
        assert_close(jax.tree.map(lambda leaf: leaf[0], ours), expected)


@pytest.mark.parametrize("name", ["relax", "rebar"])
def test_the_temperature_is_still_learnt(name):
    """Its derivative passes through ∇f, twice; that of f's weights does not."""
    est = dj.make_estimator(name)
    params = est.init(jax.random.key(0), LOGITS)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        args = jax.random.key(1), LOGITS.astype(jnp.float64), plain(softplus_sum, WEIGHTS.astype(jnp.float64))
        at = lambda shift: dj.variance_loss(est)(params | {"log_temperature": shift - 2.0}, *args)
        slope, high, low = jax.jit(lambda h: (jax.grad(at)(0.0), at(h), at(-h)))(1e-5)
        np.testing.assert_allclose(slope, (high - low) / 2e-5, rtol=1e-6)


def test_second_derivatives_are_not_asked_for_in_the_closure():
    """Of the points and the closure only the points stay differentiable, in pytrees as well."""
    function = lambda w: lambda x, y: {"sum": jnp.sum(w * x["a"] ** 2 * y)}

    def slope(w):
        call, x, y = first_order.detached(function(w), {"a": jnp.arange(3.0)}, jnp.ones(3))
        return jax.grad(lambda x, y: call(x, y)["sum"], argnums=(0, 1))(x, y)

    found, tangent = jax.jvp(slope, (jnp.full(3, 2.0),), (jnp.ones(3),))
    np.testing.assert_allclose(found[0]["a"], 4 * jnp.arange(3.0))
    np.testing.assert_allclose(found[1], 2 * jnp.arange(3.0) ** 2)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), tangent)


def test_the_pullback_of_a_value():
    """The value is differentiable in what f closes over, its pullback is not, and f is called once."""
    calls = []

    def both(w):
        def f(x):
            calls.append(x)
            return jnp.sin(w * x), x

        out, pull, aux = first_order.vjp(f, jnp.arange(3.0), has_aux=True)
        return out, pull(jnp.ones(3))[0], aux

    (_, slope, aux), tangents = jax.jvp(both, (2.0,), (1.0,))
    np.testing.assert_allclose(slope, 2 * jnp.cos(2 * jnp.arange(3.0)), rtol=1e-6)
    np.testing.assert_allclose(tangents[0], jnp.arange(3.0) * jnp.cos(2 * jnp.arange(3.0)), rtol=1e-6)
    np.testing.assert_array_equal(tangents[1], 0)
    np.testing.assert_array_equal(aux, jnp.arange(3.0))
    assert len(calls) == 1


@pytest.mark.parametrize(("name", "products"), [("straight_through", 3), ("double_cv", 3), ("disarm_midpoint", 5)])
def test_the_forward_pass_is_shared(name, products):
    """Products of matrices in a derivative: b W once per kind of point, its transpose, and that for the weights."""
    jax.config.update("jax_disable_most_optimizations", False)
    derivative = jax.jit(jax.grad(loss(dj.make_estimator(name), softplus_sum, lambda outer, w: lambda b: outer(b @ w))))
    text = derivative.lower(WEIGHTS, LOGITS, jax.random.key(1)).compile().as_text()
    jax.config.update("jax_disable_most_optimizations", True)
    assert len(re.findall(r" dot\(", text)) <= products
