"""Straight-through, Gumbel-sigmoid and ReinMax: one sample, ∇f at it, and a bias. Here for comparison."""

from typing import Any

import jax

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SlopeEstimator, describe


def straight_through() -> SlopeEstimator:
    """Biased: straight-through (Bengio et al., 2013), p(1−p) ∇f(b), as if b were its own mean.

    Exact only for an f that is linear in each bit. One evaluation of f at a sample, where it is differentiated.

    f must be pure, since it is differentiated: draw the dropout masks of a Flax NNX module outside of it.

    Paper: Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013
    Advice: Biased: exact for an f that is linear in each bit, and only there.

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
    """Biased: ReinMax (Liu et al., 2023) for bits, ½ (1 − q(b_i)) ∂_i f(b): straight-through, correct to second order.

    Exact only for an f that is at most quadratic in each bit. One evaluation of f at a sample, where it is
    differentiated.

    f must be pure, since it is differentiated: draw the dropout masks of a Flax NNX module outside of it.

    Paper: Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023
    Advice: Biased: instead of straight-through, which it corrects to second order at the same price.

    Args:
      temperature: 1 for the exactness above; the authors tune it from there upwards.

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
    """Biased: Gumbel-sigmoid, also Concrete (Jang et al.; Maddison et al., 2017), ∇f · ∂σ(z/τ)/∂z, z = α + noise.

    With `hard`, f is evaluated and differentiated at the sample b = 1[z > 0], once. Without, it is differentiated at
    the relaxed sample σ(z/τ), and evaluated at b in a call of its own, because `value` is a mean of f over bits. The
    bias of the latter vanishes only as τ → 0, while the variance grows: even for f(b) = b at α = 1 the mean is 0.151 at
    τ = 1, where 0.197 is right. With `hard`, the limit has the slopes at 0 and 1 in equal parts, which is exact
    only for an f that is at most quadratic in each bit.

    f must be pure, since it is differentiated: draw the dropout masks of a Flax NNX module outside of it.

    Paper: Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017
    Advice: Biased: to compare with nets trained this way; a small temperature has less bias and more variance.

    Args:
      temperature: τ, positive.
      hard: whether ∇f is taken at b or at the relaxed sample.

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
    """Raises ValueError if the options of a relaxed sample are not a positive number and a choice."""
    options.positive("temperature", temperature)
    options.flag("hard", hard)


def _one_sample(params: Any, key: jax.Array, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws b `[1, *batch, D]`, and returns the logistic noise `[*batch, D]` that made it as well."""
    noise = bernoulli.logistic_noise(key, logits.shape, logits.dtype)
    return bernoulli.threshold(logits, noise)[None], noise
