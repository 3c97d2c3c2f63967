"""Estimators that flip single bits of a sample; they do not differentiate f.

f is evaluated at the samples with flipped bits, but these are not drawn from q: `value` and auxiliary outputs are those
of the samples alone.
"""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators.estimator import SampleEstimator, describe


def leg() -> SampleEstimator:
    """Local expectation gradients (Titsias & Lázaro-Gredilla, 2015): flips every bit of one sample.

    The estimate is p(1−p) (f(b_{i→1}) − f(b_{i→0})) for each i: the sum over b_i is exact, and the rest of b is
    sampled. It is unbiased and does not differentiate f. It takes D + 1 evaluations of f in one call, on an array of (D
    + 1) · D bits per example. With few bits it is the reference for low variance.

    Paper: Titsias & Lázaro-Gredilla, Local expectation gradients for black box variational inference, NIPS 2015
    Advice: The reference of low variance, for few bits: an evaluation for each of them.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> f = lambda b: b @ jnp.array([4.0, 8.0, 12.0])
      >>> out = dj.make_estimator("leg").apply((), jax.random.key(0), jnp.zeros(3), f)
      >>> print(out.grad)  # exact for a linear f
      [1. 2. 3.]
    """

    def draw(params, key, logits):
        b = bernoulli.sample(key, logits, 1)
        each = jnp.eye(b.shape[-1], dtype=b.dtype).reshape(-1, *(1,) * (b.ndim - 2), b.shape[-1])
        return jnp.concatenate([b, jnp.abs(b - each)]), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.leg(logits, b[0], f_b[0], jnp.moveaxis(f_b[1:], 0, -1))

    info = describe(leg, "D + 1")
    return SampleEstimator(sampler=draw, formula=gradient, num_draws=1, info=info)


def bitflip() -> SampleEstimator:
    """BitFlip-1 (Kunes et al., 2023): flips one bit of one sample, drawn uniformly for every example.

    The estimate is D p(1−p) (f(b_{i→1}) − f(b_{i→0})) for this bit i, and zero for all others. It is unbiased, takes
    two evaluations of f, and does not differentiate f. Its variance grows with D: it is for bits that are nearly
    certain, as in `ugc`.

    Paper: Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023
    Advice: For few bits that are nearly certain; its variance grows with the number of bits.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> out = dj.make_estimator("bitflip").apply((), jax.random.key(0), jnp.zeros(3), lambda b: b.sum(-1))
      >>> int((out.grad != 0).sum())
      1
    """

    def draw(params, key, logits):
        sample_key, bit_key = jax.random.split(key)
        b = bernoulli.sample(sample_key, logits, 1)
        return jnp.concatenate([b, jnp.abs(b - _one_bit(bit_key, logits)[None])]), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.bitflip(logits, *b, *f_b)

    info = describe(bitflip, 2)
    return SampleEstimator(sampler=draw, formula=gradient, num_draws=1, info=info)


def ugc() -> SampleEstimator:
    """Unbiased gradient variance clipping (Kunes et al., 2023): BitFlip-1 for nearly certain bits, DisARM for the rest.

    The bits with min(p, 1−p) < 1/(2D) are those where BitFlip-1 has less variance than DisARM can have. The estimator
    is unbiased and does not differentiate f. It takes three evaluations of f: at an antithetic pair b and b̃, and at b
    with one bit flipped.

    Paper: Kunes et al., Gradient estimation for binary latent variables via gradient variance clipping, AAAI 2023
    Advice: When many bits are nearly certain, where DisARM would rarely see them flip.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> out = dj.make_estimator("ugc").apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """

    def draw(params, key, logits):
        pair_key, bit_key = jax.random.split(key)
        b, b_tilde, _ = bernoulli.antithetic_pairs(pair_key, logits, 1)
        return jnp.concatenate([b, b_tilde, jnp.abs(b - _one_bit(bit_key, logits)[None])]), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.ugc(logits, *b, *f_b)

    info = describe(ugc, 3)
    return SampleEstimator(sampler=draw, formula=gradient, num_draws=2, info=info)


def _one_bit(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Returns a one-hot `[*batch, D]` of a coordinate drawn uniformly for each example."""
    index = jax.random.randint(key, logits.shape[:-1], 0, logits.shape[-1])
    return jax.nn.one_hot(index, logits.shape[-1], dtype=logits.dtype)
