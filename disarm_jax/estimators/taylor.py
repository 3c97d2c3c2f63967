"""Control variates from the expansion of f at the mean p, for any estimator that is linear in f.

Let h₁ and h₂ be the terms of first and second order, for which ∂E h_j/∂α is known. Then base(h_j) − ∂E h_j has mean
zero. It is computed from the same samples as base(f) and resembles the noise of base(f). So base(f − f(p)) − Σ_j λ_j
(base(h_j) − ∂E h_j) is unbiased for every λ if the base is. A multi-sample bound is not linear in f, but the noise of
an estimator that is linear in f, on the same samples, serves as its control variate, too.

Control variates from a Taylor expansion are due to Paisley, Blei & Jordan (ICML 2012); for Bernoulli variables the
first order is MuProp (Gu et al., 2016).
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from disarm_jax import bernoulli
from disarm_jax.estimators import options
from disarm_jax.estimators.controlled import AtSamples, Controlled, check_base
from disarm_jax.estimators.estimator import Estimator, SampleEstimator, describe
from disarm_jax.estimators.expansion import expand


def taylor(
    base: Estimator, *, order: int = 2, init_scale: tuple[float, float] = (1.0, 1.0), probes: int = 1
) -> Controlled:
    """Removes from an estimator the noise of the Taylor expansion of f at the mean.

    The base estimator is applied to f(b) − f(p) − λ₁ ∇f(p)ᵀ(b − p) − ½ λ₂ (b − p)ᵀH(b − p), and the gradient of what
    was subtracted is added in closed form. The result is unbiased for every λ if the base is. It takes the base's
    evaluations of f and one at the mean, where f is differentiated and so must be pure. The second order takes one
    product with the Hessian H per sample and per probe. For an f that is `Composed`, these are products with the
    Hessian of outer alone, and inner is computed once for f and its expansion. If inner knows its moments, slope and
    curvature of the second order are means over what inner(b) may be, and outer is differentiated once, at three
    points.

    The λ are learnt by descending `variance_loss`.

    Paper: Paisley, Blei & Jordan, Variational Bayesian inference with stochastic search, ICML 2012, for bits
    Advice: When f is smooth between 0 and 1, of few bits, or nearly linear or quadratic.

    Args:
      base: an estimator of samples for bits whose formula is linear in f, such as `disarm()`; or one of a multi-sample
        bound with f = log w. For a bound, the noise of the expansion of log w is subtracted, as it is in DisARM, ARMS
        or REINFORCE-LOO on the samples of the bound. The more samples the bound has, the less there is to gain.
      order: 1 or 2.
      init_scale: the initial values of λ₁ and λ₂; the second is not used for the first order.
      probes: the number of random signs z whose products z ⊙ Hz estimate the diagonal of H, where the weights of an
        `MLP` do not determine it; they are independent of b. With D probes or more, the D coordinates are taken
        instead, and the diagonal is exact.

    Returns:
      An estimator whose `params` is `{"base": the params of the base, "scale": (λ₁, λ₂)}`, with λ₁ alone for the first
      order.

    Raises:
      TypeError: if `base` is not an estimator.
      ValueError: if `base` cannot have this control variate, or the value of an option is not accepted.

    Example:
      >>> est = dj.taylor(dj.reinforce_loo(num_samples=3), order=1)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: 2 * b.sum(-1))
      >>> out.grad[0]  # exact for a linear f
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    base = check_base(base)
    info = base.info
    if order not in (1, 2) or not isinstance(order, int | np.integer) or isinstance(order, bool):
        raise ValueError(f"order must be 1 or 2, got {order!r}")
    control = _AtTheMean(int(order), options.at_least("probes", probes, 1))
    if not (isinstance(init_scale, tuple | list) and len(init_scale) == 2):
        raise ValueError(f"init_scale must be a pair of numbers, got {init_scale!r}")
    scales = tuple(options.finite("init_scale", scale) for scale in init_scale)[:order]
    if info is not None:
        evaluations = f"{info.evaluations} + 1" if isinstance(info.evaluations, str) else info.evaluations + 1
        found = describe(taylor, evaluations, objective=info.objective, unbiased=info.unbiased, needs_grad=True)
        info = found._replace(name=f"taylor({info.name})")
    return Controlled(base=base, control=control, init_scale=scales, info=info)


@dataclasses.dataclass(frozen=True)
class _AtTheMean:
    """The control variate from the expansion of f at the mean."""

    order: int
    probes: int

    @property
    def random(self) -> bool:
        """Whether probes are drawn."""
        return self.order == 2

    def check(self, base: SampleEstimator) -> None:
        """Raises ValueError if the base is for classes, or for a bound without a linear companion."""
        if base.event_ndim != 1:
            raise ValueError(f"base must be an estimator for bits, got one for classes: {base.name}")
        if base.of_bound and base.linear is None:
            raise ValueError(f"base must be linear in f, or for a bound have a linear companion; {base.name} has none")

    def point(self, logits: jax.Array, b: jax.Array) -> jax.Array:
        """Returns the mean."""
        return jax.nn.sigmoid(logits)

    def terms(
        self, est: Controlled, params: Any, key: jax.Array | None, at: AtSamples
    ) -> tuple[jax.Array | None, list[jax.Array]]:
        """Returns f at the mean if the base needs it, and base(h_j) − ∂E h_j."""
        f, logits, samples, parts, _, has_aux = at
        base, alpha = est.base, bernoulli.stop_and_widen(logits)
        expansion = expand(est.name, f, logits, self.order, self.probes, key, has_aux=has_aux)
        terms = []
        for h, known in zip(expansion.terms(parts), expansion.gradients, strict=True):
            wide = h.astype(bernoulli.wide_dtype(h, alpha))
            terms.append(base.linear_estimate(params, alpha, samples, wide).astype(alpha.dtype) - known)
        return None if base.of_bound or base.of_differences else expansion.f_p, terms
