"""REINFORCE, alone and with a leave-one-out baseline: independent samples, f as a black box."""

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimator, SampleEstimator


@contract.factory
def reinforce(*, num_samples: int = 1) -> Estimator:
    """REINFORCE (Williams, 1992): f(b) ∂log q(b), averaged over independent samples, without a baseline.

    Eq. 2 of the paper. Unbiased; `num_samples` evaluations of f; f is not differentiated. Of high variance, because an
    offset of f multiplies the noise: it is here as the reference that everything else improves on.

    Args:
      num_samples: number of independent samples.

    Example:
      >>> est = dj.reinforce()
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    contract.at_least("num_samples", num_samples, 1)

    def draw(params, key, logits):
        return bernoulli.sample(key, logits, num_samples), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.reinforce(logits, b, f_b)

    return SampleEstimator(sampler=draw, formula=gradient)


@contract.factory
def reinforce_loo(*, num_samples: int = 2) -> Estimator:
    """REINFORCE with a leave-one-out baseline (Kool et al., 2019): 1/(K−1) Σ_k (f_k − f̄) ∂log q(b_k).

    The paper's strong baseline, with K = 2. Unbiased; K evaluations of f; f is not differentiated.

    Args:
      num_samples: K, number of independent samples, at least 2.

    Example:
      >>> est = dj.reinforce_loo(num_samples=4)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    contract.at_least("num_samples", num_samples, 2)

    def draw(params, key, logits):
        return bernoulli.sample(key, logits, num_samples), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.reinforce_loo(logits, b, f_b)

    return SampleEstimator(sampler=draw, formula=gradient, of_differences=True)
