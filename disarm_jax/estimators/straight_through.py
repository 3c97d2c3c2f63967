"""Straight-through, Gumbel-sigmoid and ReinMax: biased estimators from ∇f at one sample, meant for comparison."""

from typing import Any

import jax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SlopeEstimator, describe


def straight_through() -> SlopeEstimator:
    """Biased: straight-through (Bengio et al., 2013), p(1−p) ∇f(b), as if b were its own mean.

    It is exact only for an f that is linear in each bit. It takes one evaluation of f, at a sample, where f is
    differentiated.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013
    Advice: Biased: exact for an f that is linear in each bit, and only there.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> f = lambda b: b @ jnp.array([4.0, 8.0])
      >>> out = dj.make_estimator("straight_through").apply((), jax.random.key(0), jnp.zeros(2), f)
      >>> print(out.grad)
      [1. 2.]
    """

    def gradient(params, logits, b, noise, f_b, slope):
        return formulas.straight_through(logits, slope[0])

    info = describe(straight_through, 1, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=_one_sample, formula=gradient, info=info)


def reinmax(*, temperature: float = 1.0) -> SlopeEstimator:
    """Biased: ReinMax (Liu et al., 2023) for bits, ½ (1 − q(b_i)) ∂_i f(b), which is straight-through to second order.

    It is exact only for an f that is at most quadratic in each bit. It takes one evaluation of f, at a sample, where f
    is differentiated.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023
    Advice: Biased: instead of straight-through, which it corrects to second order at the same price.

    Args:
      temperature: positive; 1 for the exactness above. The authors tune it from there upwards.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> f = lambda b: b @ jnp.array([4.0, 8.0])
      >>> out = dj.make_estimator("reinmax").apply((), jax.random.key(0), jnp.zeros(2), f)
      >>> print(out.grad)
      [1. 2.]
    """
    options.positive("temperature", temperature)

    def gradient(params, logits, b, noise, f_b, slope):
        return formulas.reinmax(logits, b[0], slope[0], temperature)

    info = describe(reinmax, 1, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=_one_sample, formula=gradient, info=info)


def gumbel_sigmoid(*, temperature: float = 1.0, hard: bool = True) -> SlopeEstimator:
    """Biased: Gumbel-sigmoid, also Concrete (Jang et al.; Maddison et al., 2017), ∇f · ∂σ(z/τ)/∂z with z = α + noise.

    With `hard`, f is evaluated once, at the sample b = 1[z > 0], and differentiated there. Without it, f is
    differentiated at the relaxed sample σ(z/τ), and evaluated at b in a call of its own, because `value` is a mean of f
    over bits. The bias of the relaxed form vanishes only as τ → 0, while its variance grows: even for f(b) = b at α = 1
    the mean is 0.151 at τ = 1, where 0.197 is correct. The limit of the hard form has the slopes at 0 and 1 in equal
    parts, which is exact only for an f that is at most quadratic in each bit.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017
    Advice: Biased: to compare with nets trained this way; a small temperature has less bias and more variance.

    Args:
      temperature: τ, positive.
      hard: whether ∇f is taken at b or at the relaxed sample.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.make_estimator("gumbel_sigmoid", temperature=0.5, hard=False)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    check_relaxation(temperature, hard)

    def gradient(params, logits, b, noise, f_b, slope):
        return formulas.gumbel_sigmoid(logits + noise, slope[0], temperature)

    def relax(logits, noise):
        return jax.nn.sigmoid((logits + noise) / temperature)[None]

    info = describe(gumbel_sigmoid, 1 if hard else 2, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=_one_sample, formula=gradient, relax=None if hard else relax, info=info)


def check_relaxation(temperature: float, hard: bool) -> None:
    """Raises ValueError if the temperature is not positive and finite, or `hard` is not a boolean."""
    options.positive("temperature", temperature)
    options.flag("hard", hard)


def _one_sample(params: Any, key: jax.Array, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws b `[1, *batch, D]`, and also returns the logistic noise `[*batch, D]` that it was computed from."""
    noise = bernoulli.logistic_noise(key, logits.shape, logits.dtype)
    return bernoulli.threshold(logits, noise)[None], noise
