"""Control variates from the expansion of f at the mean p, for any estimator that is linear in f.

h₁ and h₂ are the terms of first and second order, and ∂E h_j/∂α is known. So base(h_j) − ∂E h_j is noise of mean zero,
made of the samples that base(f) is made of and much like its noise, and base(f − f(p)) − Σ_j λ_j (base(h_j) − ∂E h_j)
is unbiased for every λ if the base is. A multi-sample bound is not linear in f, but the noise of what is linear in the
same samples serves as its control variate, too.

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
    """Subtracts from an estimator the noise of the Taylor expansion of f at the mean.

    The base is applied to f(b) − f(p) − λ₁ ∇f(p)ᵀ(b − p) − ½ λ₂ (b − p)ᵀH(b − p), and the gradient of what was
    subtracted is added in closed form. Unbiased for every λ if the base is; the base's evaluations of f and one at the
    mean, where f is differentiated and so must be pure. The second order costs one product with the Hessian H per
    sample and per probe; for an f that is `Composed` they are products with outer's alone, and inner is computed once
    for f and expansion. If inner knows its moments, slope and curvature of the second order are means over what
    inner(b) may be, and outer is differentiated once, at three points.

    `params` is `{"base": the base's, "scale": (λ₁, λ₂)}`, λ₁ alone for the first order; learnt by descending
    `variance_loss`.

    Paper: Paisley, Blei & Jordan, Variational Bayesian inference with stochastic search, ICML 2012, for bits
    Advice: When f is smooth between 0 and 1, of few bits, or nearly linear or quadratic.

    Args:
      base: a `SampleEstimator` of bits whose formula is linear in f, such as `disarm()`; or one of a multi-sample bound
        with f = log w: what is subtracted is then the noise of the expansion of log w in DisARM, ARMS or REINFORCE-LOO
        on the bound's own samples. The more samples the bound has, the less there is to gain.
      order: 1 or 2.
      init_scale: λ₁ and λ₂ at the start; the second is not used for the first order.
      probes: number of random signs z whose z ⊙ Hz estimate the diagonal of H, where the weights of an `MLP` do not
        give it; independent of b. From D of them on, the D coordinates are taken instead, and the diagonal is exact.

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
    """The noise of an expansion at the mean."""

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
        """Returns f at the mean if the base needs it, and the base on h_j less ∂E h_j."""
        f, logits, samples, parts, _, has_aux = at
        base, alpha = est.base, bernoulli.stop_and_widen(logits)
        expansion = expand(est.name, f, logits, self.order, self.probes, key, has_aux=has_aux)
        terms = []
        for h, known in zip(expansion.terms(parts), expansion.gradients, strict=True):
            wide = h.astype(bernoulli.wide_dtype(h, alpha))
            terms.append(base.linear_estimate(params, alpha, samples, wide).astype(alpha.dtype) - known)
        return None if base.of_bound or base.of_differences else expansion.f_p, terms
