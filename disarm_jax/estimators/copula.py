"""ARMS: an estimator from any number of mutually antithetic samples, which does not differentiate f."""

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import SampleEstimator, describe
from disarm_jax.estimators.pairing import Pairing, each_with_each, weighted


def arms(*, num_samples: int = 4) -> SampleEstimator:
    """ARMS (Dimitriev & Zhou, 2021): REINFORCE-LOO on n samples of a Dirichlet copula, with a correcting weight.

    The estimate is 1/(n−1) Σ_k (f_k − f̄)(b_k − p) · p(1−p)/c, where c = P(b_j = 1, b_k = 0) for two of the samples. It
    is unbiased, takes n evaluations of f, and does not differentiate f. With two samples it is DisARM; with more it
    mostly has less variance than DisARM with as many evaluations.

    Paper: Dimitriev & Zhou, ARMS: Antithetic-REINFORCE-Multi-Sample gradient for binary variables, ICML 2021
    Advice: With more than two evaluations: any f, nothing to tune, mostly less variance than as many DisARM pairs.

    Args:
      num_samples: n, the number of coupled samples, at least 2.

    Returns:
      An estimator without tunables: its `init` returns `()`.

    Example:
      >>> est = dj.arms(num_samples=3)
      >>> out = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), lambda b: b.sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    options.at_least("num_samples", num_samples, 2)

    def draw(params, key, logits):
        return bernoulli.copula_samples(key, logits, num_samples), None

    def gradient(params, logits, b, noise, f_b):
        return formulas.arms(logits, b, f_b)

    weight = weighted(lambda params, logits: bernoulli.copula_weight(logits, num_samples))
    pairs, info = Pairing(each_with_each, weight), describe(arms, num_samples)
    return SampleEstimator(sampler=draw, formula=gradient, of_differences=True, pairs=pairs, info=info)
