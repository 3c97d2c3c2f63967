"""A smooth f of three bits with every structure that `Composed` can have, for the tests of control variates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import disarm_jax as dj

LOGITS = np.array([0.8, -1.3, 0.4])
RNG = np.random.default_rng(5)
WEIGHTS, OFFSET, LINEAR = RNG.normal(size=(3, 4)), RNG.normal(size=4), RNG.normal(size=3)
HIDDEN = RNG.normal(size=(3, 3))


def softplus_sum(a, b):
    return jnp.sum(jax.nn.softplus(a[0]), axis=-1) + a[1]


def inner_affine(b):
    return b @ jnp.asarray(WEIGHTS) + dj.bernoulli.lift(jnp.asarray(OFFSET), b.ndim), b @ jnp.asarray(LINEAR)


def inner_curved(b):
    hidden = jnp.tanh(b @ jnp.asarray(HIDDEN))
    return hidden @ jnp.asarray(WEIGHTS) + dj.bernoulli.lift(jnp.asarray(OFFSET), b.ndim), hidden[..., 0]


@dataclasses.dataclass(frozen=True)
class Inner:
    """A custom inner function that knows its moments."""

    function: object
    moments: object

    def __call__(self, b):
        return self.function(b)


def wrong_mean(p, v):
    """The mean of an affine function is known, whatever is said of it."""
    mean = jax.tree.map(lambda leaf: leaf + 3, inner_affine(p))
    return mean, (v @ jnp.asarray(WEIGHTS**2), v @ jnp.asarray(LINEAR**2))


def rough_moments(p, v):
    """A guess at those of `inner_curved`, which no mean of it is."""
    hidden = 0.8 * jnp.tanh(p @ jnp.asarray(HIDDEN)) + 0.1 * v
    return (hidden @ jnp.asarray(WEIGHTS), hidden[..., 0]), (v @ jnp.asarray(WEIGHTS**2), v[..., 0])


def linear_decoder():
    """Made on each call, because the arrays have the dtype that is enabled then."""
    return dj.MLP([(jnp.asarray(WEIGHTS), jnp.asarray(OFFSET))])


def softplus_and_bits(a, b):
    return jnp.sum(jax.nn.softplus(a), axis=-1) + b @ jnp.asarray(LINEAR)


KINDS = ("plain", "affine", "linearised", "averaged", "averaged, probed", "roughly averaged")


def function(kind):
    """The f of that kind; all but the two of `inner_curved` are the same function."""
    return {
        "plain": lambda b: softplus_sum(inner_affine(b), b),
        "affine": dj.Composed(softplus_sum, inner_affine),
        "linearised": dj.Composed(softplus_sum, inner_curved),
        "averaged": dj.Composed(softplus_and_bits, linear_decoder()),
        "averaged, probed": dj.Composed(softplus_sum, Inner(inner_affine, wrong_mean)),
        "roughly averaged": dj.Composed(softplus_sum, Inner(inner_curved, rough_moments)),
    }[kind]


def calls_of(est, kind):
    """The rows of all calls of f, or of outer, in a derivative of `expectation`, sorted."""
    f, calls = function(kind), []

    def counted(function):
        def call(*args):
            calls.append(args[-1].shape[0])
            return function(*args)

        return call

    structured = isinstance(f, dj.Composed)
    counting = dataclasses.replace(f, outer=counted(f.outer)) if structured else counted(f)
    logits = jnp.zeros((5, 3))
    params = est.init(jax.random.key(0), logits)
    total = lambda logits: dj.expectation(est)(params, jax.random.key(1), logits, counting).sum()
    jax.eval_shape(jax.grad(total), logits)
    return sorted(calls)
