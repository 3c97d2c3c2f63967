"""A smooth f of three bits with every structure that `Composed` can tell, for the tests of control variates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import disarm_jax as dj

LOGITS = np.array([0.8, -1.3, 0.4])
RNG = np.random.default_rng(5)
WEIGHTS, OFFSET, LINEAR = RNG.normal(size=(3, 4)), RNG.normal(size=4), RNG.normal(size=3)
HIDDEN = RNG.normal(size=(3, 3))


def softplus_sum(a):
    return jnp.sum(jax.nn.softplus(a[0]), axis=-1) + a[1]


def inner_affine(b):
    return b @ jnp.asarray(WEIGHTS) + dj.bernoulli.lift(jnp.asarray(OFFSET), b.ndim), b @ jnp.asarray(LINEAR)


def inner_curved(b):
    hidden = jnp.tanh(b @ jnp.asarray(HIDDEN))
    return hidden @ jnp.asarray(WEIGHTS) + dj.bernoulli.lift(jnp.asarray(OFFSET), b.ndim), hidden[..., 0]


def squared(curvature):
    return curvature[0] @ jnp.asarray(WEIGHTS.T**2)


def moments(p, v):
    """Of `inner_affine`."""
    return inner_affine(p), (v @ jnp.asarray(WEIGHTS**2), v @ jnp.asarray(LINEAR**2))


def wrong_mean(p, v):
    """The mean of an affine function is known, whatever is said of it."""
    return jax.tree.map(lambda leaf: leaf + 3, inner_affine(p)), moments(p, v)[1]


def rough_moments(p, v):
    """A guess at those of `inner_curved`, which no mean of it is."""
    hidden = 0.8 * jnp.tanh(p @ jnp.asarray(HIDDEN)) + 0.1 * v
    return (hidden @ jnp.asarray(WEIGHTS), hidden[..., 0]), (v @ jnp.asarray(WEIGHTS**2), v[..., 0])


FUNCTIONS = {
    "plain": lambda b: softplus_sum(inner_affine(b)),
    "affine": dj.Composed(softplus_sum, inner_affine, affine=True),
    "squared": dj.Composed(softplus_sum, inner_affine, affine=True, squared=squared),
    "linearised": dj.Composed(softplus_sum, inner_curved),
    "averaged": dj.Composed(softplus_sum, inner_affine, affine=True, squared=squared, moments=moments),
    "averaged, probed": dj.Composed(softplus_sum, inner_affine, affine=True, moments=wrong_mean),
    "roughly averaged": dj.Composed(softplus_sum, inner_curved, moments=rough_moments),
}


def calls_of(est, kind):
    """Which functions of f are called for how many rows in a derivative of `expectation`, sorted."""
    f, calls = FUNCTIONS[kind], []

    def counted(name, function):
        def call(x, *more):
            calls.append((name, jax.tree.leaves(x)[0].shape[0]))
            return function(x, *more)

        return call

    if isinstance(f, dj.Composed):
        parts = {name: getattr(f, name) for name in ("outer", "inner", "moments")}
        counting = dataclasses.replace(f, **{name: counted(name, part) for name, part in parts.items() if part})
    else:
        counting = counted("f", f)
    logits = jnp.zeros((5, 3))
    params = est.init(jax.random.key(0), logits)
    jax.grad(lambda logits: dj.expectation(est)(params, jax.random.key(1), logits, counting).sum())(logits)
    return sorted(calls)
