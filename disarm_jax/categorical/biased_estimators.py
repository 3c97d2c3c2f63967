"""Straight-through, Gumbel-softmax and ReinMax for classes: biased estimators from ∇f at one sample, for comparison."""

import jax

from disarm_jax.categorical import distribution, formulas
from disarm_jax.categorical.coupled import independent
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SlopeEstimator, describe
from disarm_jax.estimators.straight_through import check_relaxation


def straight_through() -> SlopeEstimator:
    """Biased: straight-through (Bengio et al., 2013), ∇f(z) · ∂softmax, as if z were its own mean.

    It is exact only for an f that is linear in each variable. It takes one evaluation of f, at a sample, where f is
    differentiated.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013
    Advice: Biased: exact for an f that is linear in each variable, and only there.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> f = lambda z: z[..., 0, :] @ jnp.array([4.0, 8.0])
      >>> print(dj.categorical.straight_through().apply((), jax.random.key(0), jnp.zeros((1, 2)), f).grad)
      [[-1.  1.]]
    """

    def gradient(params, logits, z, noise, f_z, slope):
        return formulas.straight_through(logits, slope[0])

    info = describe(straight_through, 1, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=independent(1), formula=gradient, event_ndim=2, info=info)


def reinmax(*, temperature: float = 1.0) -> SlopeEstimator:
    """Biased: ReinMax (Liu et al., 2023), which is straight-through corrected to second order.

    It is exact only for an f that is at most quadratic in each variable. It takes one evaluation of f, at a sample,
    where f is differentiated.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Liu et al., Bridging discrete and backpropagation: Straight-through and beyond, NeurIPS 2023
    Advice: Biased: instead of straight-through, which it corrects to second order at the same price.

    Args:
      temperature: positive; 1 for the exactness above. The authors tune it from there upwards.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> f = lambda z: z[..., 0, :] @ jnp.array([4.0, 8.0])
      >>> print(dj.categorical.reinmax().apply((), jax.random.key(0), jnp.zeros((1, 2)), f).grad)
      [[-1.  1.]]
    """
    options.positive("temperature", temperature)

    def gradient(params, logits, z, noise, f_z, slope):
        return formulas.reinmax(logits, z[0], slope[0], temperature)

    info = describe(reinmax, 1, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=independent(1), formula=gradient, event_ndim=2, info=info)


def gumbel_softmax(*, temperature: float = 1.0, hard: bool = True) -> SlopeEstimator:
    """Biased: Gumbel-softmax or Concrete (Jang et al.; Maddison et al., 2017), ∇f · ∂softmax(x/τ), x = logits + noise.

    With `hard`, f is evaluated once, at the sample, which is the class of the largest x, and differentiated there.
    Without it, f is differentiated at the relaxed sample softmax(x/τ), and evaluated at the sample in a call of its
    own, because `value` is a mean of f over samples. The bias of the relaxed form vanishes only as τ → 0, while its
    variance grows; the hard form always keeps some bias.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017
    Advice: Biased: to compare with nets trained this way; a small temperature has less bias and more variance.

    Args:
      temperature: τ, positive.
      hard: whether ∇f is taken at the sample or at the relaxed sample.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.categorical.gumbel_softmax(temperature=0.5, hard=False)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3, 10)), lambda z: z[..., 0].sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3, 10))
    """
    check_relaxation(temperature, hard)

    def gradient(params, logits, z, noise, f_z, slope):
        return formulas.gumbel_softmax(distribution.perturb(logits, noise), slope[0], temperature)

    def relax(logits, noise):
        return jax.nn.softmax(distribution.perturb(logits, noise) / temperature, axis=-1)[None]

    def draw(params, key, logits):
        noise = distribution.gumbel_noise(key, logits.shape, logits.dtype)
        return distribution.argmax(distribution.perturb(logits, noise), logits.dtype)[None], noise

    info = describe(gumbel_softmax, 1 if hard else 2, unbiased=False, needs_grad=True)
    return SlopeEstimator(sampler=draw, formula=gradient, relax=None if hard else relax, event_ndim=2, info=info)
