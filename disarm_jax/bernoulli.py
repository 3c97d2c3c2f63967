"""Probabilities, noise, samples and couplings of the factorial Bernoulli distribution, computed from its logits.

Logits have the shape `[*batch, D]`, samples `[N, *batch, D]` with the sample axis first. A sample is b = 1[α + ε > 0]
with the logit α and logistic noise ε, so that its antithetic partner 1[α − ε > 0] is rounded in the same way.

Functions that are not in `__all__` are helpers of this package.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "antithetic_pairs",
    "conditional_logit",
    "copula_samples",
    "copula_weight",
    "interpolated_copula_log_prob",
    "interpolated_copula_samples",
    "interpolated_log_prob",
    "interpolated_pairs",
    "log_prob",
    "log_sigmoid",
    "logistic_noise",
    "sample",
    "score",
    "softplus",
    "variance",
]


def as_logits(logits: jax.Array, name: str = "logits", event_ndim: int = 1, *, may_be_empty: bool = True) -> jax.Array:
    """Converts logits to a JAX array.

    Args:
      logits: real floating-point numbers, `[*batch, D]` for bits or `[*batch, D, C]` for classes.
      name: the name of the argument in error messages.
      event_ndim: 1 for bits, 2 for classes.
      may_be_empty: whether there may be no variable at all, as in the tree of a single class. There must always be at
        least one class.

    Raises:
      TypeError: if the logits are not real floating-point numbers.
      ValueError: if they have fewer than `event_ndim` axes, or one of these axes is empty.
    """
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"{name} must be real floating-point numbers, got dtype {logits.dtype}")
    if logits.ndim < event_ndim:
        got = "a scalar of shape ()" if logits.ndim == 0 else f"shape {logits.shape}"
        raise ValueError(f"{name} must have the shape {('[*batch, D]', '[*batch, D, C]')[event_ndim - 1]}, got {got}")
    if (event_ndim == 2 and not logits.shape[-1]) or not (may_be_empty or all(logits.shape[-event_ndim:])):
        axes = ("variable", "variable and one class")[event_ndim - 1]
        raise ValueError(f"{name} must have at least one {axes}, got shape {logits.shape}")
    return logits


def check_number(name: str, number: int, least: int = 0) -> None:
    """Raises ValueError if a number of samples or pairs is less than `least`."""
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")


def wide_dtype(*arrays: jax.Array) -> jnp.dtype:
    """Returns the widest floating dtype of the arrays, but at least float32: noise and sums are computed in it."""
    floating = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return max([jnp.dtype(jnp.float32), *floating], key=lambda dtype: jnp.finfo(dtype).bits)


def wide(x: jax.Array) -> jax.Array:
    """Converts x to float32, unless it is wider."""
    return x.astype(wide_dtype(x))


def stop_and_widen(logits: jax.Array) -> jax.Array:
    """Prepares logits for sampling: float32 or wider, and no derivative passes through them."""
    return wide(lax.stop_gradient(logits))


def finite(logits: jax.Array) -> jax.Array:
    """Replaces logits of ±∞ by ±10,000, which are equally certain.

    A network that takes the logits as input would return NaN for infinite ones.
    """
    return jnp.where(jnp.isinf(logits), jnp.sign(logits) * 1e4, logits)


def lift(x: jax.Array, ndim: int) -> jax.Array:
    """Adds leading axes of size one up to `ndim` axes, so that logits `[*batch, D]` match samples `[N, *batch, D]`."""
    return jnp.expand_dims(x, tuple(range(ndim - x.ndim)))


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """Computes log(1 + exp x) in half the time of `jax.nn.softplus` on a CPU, because it omits its special cases.

    It takes about a tenth of the time of a training step there.

    >>> print(dj.bernoulli.softplus(jnp.array([0.0, 100.0])))
    [  0.6931472 100.       ]
    """
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@softplus.defjvp
def _softplus_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]


def log_sigmoid(x: jax.Array) -> jax.Array:
    """Computes log σ(x), accurately for large |x| of both signs.

    >>> print(dj.bernoulli.log_sigmoid(jnp.array([0.0, -100.0])))
    [  -0.6931472 -100.       ]
    """
    return -softplus(-x)


def log_prob(logits: jax.Array, b: jax.Array) -> jax.Array:
    """Computes log q(b), summed over the last axis; it is linear in b and so defined for relaxed b too.

    Args:
      logits: `[*batch, D]`, or anything that broadcasts against b.
      b: `[..., *batch, D]`, in {0, 1} or relaxed to [0, 1].

    Returns:
      `[..., *batch]`. Both log p and log(1 − p) are computed from the logit, never from a rounded probability. A logit
      of ±∞ means a certain bit: it contributes zero, or the most negative finite number if b contradicts it.

    >>> print(dj.bernoulli.log_prob(jnp.zeros(3), jnp.ones((2, 3))))
    [-2.0794415 -2.0794415]
    """
    largest = jnp.finfo(logits.dtype).max
    logits = jnp.clip(logits, -largest, largest)  # because 0 · ∞ is NaN
    one, zero = log_sigmoid(logits), log_sigmoid(-logits)
    if logits.ndim == 1:  # shared by all rows, so that the sums are matrix-vector products, in the derivative too
        product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        return product(b, one) + product(1 - b, zero)
    return jnp.sum(b * lift(one, b.ndim) + (1 - b) * lift(zero, b.ndim), axis=-1)


def score(logits: jax.Array, b: jax.Array) -> jax.Array:
    """Computes ∂ log q(b) / ∂ logits = b − p per coordinate, without the cancellation in 1 − p at large logits."""
    sign = 2 * b - 1
    return sign * jax.nn.sigmoid(-sign * lift(logits, b.ndim))


def variance(logits: jax.Array) -> jax.Array:
    """Computes p(1 − p) per coordinate, which is also ∂p / ∂ logits."""
    return jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)


def logistic_noise(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Draws standard logistic noise whose two tails are exactly symmetric.

    `jax.random.logistic` resolves only one tail: in float32 its largest value is 15.9 and its smallest −87, while
    antithetic sampling uses ε and −ε equally. Here one random bit is the sign, and the others are the tail probability
    of |ε|, which reaches 22.9 in float32 (probability 1e-10).

    Args:
      key: a JAX random key, which must not be used again.
      shape: the shape of the noise.
      dtype: float32 or float64.

    Raises:
      TypeError: if the dtype is narrower than float32, in which noise and logits should not be compared.
    """
    bits = jnp.finfo(dtype).bits
    if bits < 32:
        raise TypeError(f"noise is drawn in float32 or float64, got {dtype}")
    words = jax.random.bits(key, shape, f"uint{bits}")
    tail = ((words >> 1).astype(dtype) + 0.5) * 2.0 ** (1 - bits)  # P(|noise| > m), in (0, 1]
    magnitude = jnp.log((2 - tail) / tail)
    return jnp.where((words & 1).astype(bool), magnitude, -magnitude)


def open_uniform(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Draws uniform noise v in the open interval (0, 1), so that log v and log(1 − v) are finite.

    Args:
      key: a JAX random key, which must not be used again.
      shape: the shape of the noise.
      dtype: the dtype of the noise.
    """
    return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)


def threshold(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Computes b = 1[α + ε > 0] in the logits' dtype; the comparison is made in the noise's dtype.

    No derivative passes through it.
    """
    return (lift(logits.astype(noise.dtype), noise.ndim) + noise > 0).astype(logits.dtype)


def sample(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Draws independent samples from the Bernoulli distribution.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D]`.
      num_samples: the number of samples.

    Returns:
      Bits `[num_samples, *batch, D]` in the dtype of the logits.

    >>> print(dj.bernoulli.sample(jax.random.key(0), jnp.array([-40.0, 40.0]), 2))
    [[0. 1.]
     [0. 1.]]
    """
    logits = as_logits(logits)
    check_number("num_samples", num_samples)
    return threshold(logits, logistic_noise(key, (num_samples, *logits.shape), wide_dtype(logits)))


def antithetic_pairs(key: jax.Array, logits: jax.Array, num_pairs: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws antithetic pairs 1[α + ε > 0] and 1[α − ε > 0].

    Each of the two is a sample from q, and they differ as often as any coupling allows.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D]`.
      num_pairs: the number of pairs, which are independent of each other.

    Returns:
      b, b_tilde and the noise ε, each `[num_pairs, *batch, D]`. b and b_tilde have the dtype of the logits; the noise
      is
      float32 or wider.

    >>> b, b_tilde, _ = dj.bernoulli.antithetic_pairs(jax.random.key(0), jnp.zeros(4), 3)
    >>> print(b + b_tilde)  # where both bits are equally likely, the two always differ
    [[1. 1. 1. 1.]
     [1. 1. 1. 1.]
     [1. 1. 1. 1.]]
    """
    logits = as_logits(logits)
    check_number("num_pairs", num_pairs)
    noise = logistic_noise(key, (num_pairs, *logits.shape), wide_dtype(logits))
    return threshold(logits, noise), threshold(logits, -noise), noise


def copula_samples(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Draws samples coupled by the Dirichlet copula (Dimitriev & Zhou, 2021).

    Each sample has the distribution q, and any two are negatively correlated; for n = 2 they are an antithetic pair.
    With d ~ Dirichlet(1, …, 1), u_k = (1 − d_k)^{n−1} is uniform, and b_k is the rarer of the two bits if u_k < m,
    where m = σ(−|α|) is its probability. With d computed from exponential noise e, and r = m^{1/(n−1)}, this condition
    is r e_k > (1 − r) Σ_{j≠k} e_j, and both sides are accurate for every logit and n.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D]`.
      num_samples: n, at least 2, because the copula of a single sample is not a distribution.

    Returns:
      `[n, *batch, D]` in the dtype of the logits.

    Raises:
      ValueError: if `num_samples` is less than 2.

    >>> print(dj.bernoulli.copula_samples(jax.random.key(0), jnp.zeros(3), 2).sum(0))  # an antithetic pair
    [1. 1. 1.]
    """
    logits = as_logits(logits)
    check_number("num_samples", num_samples, 2)
    dtype = wide_dtype(logits)
    exponential = jax.nn.softplus(logistic_noise(key, (num_samples, *logits.shape), dtype))
    none = jnp.zeros_like(exponential[:1])
    before = jnp.concatenate([none, jnp.cumsum(exponential[:-1], axis=0)])
    after = jnp.concatenate([jnp.cumsum(exponential[:0:-1], axis=0)[::-1], none])
    log_root = _copula_log_root(logits.astype(dtype), num_samples)[None]
    rare = jnp.exp(log_root) * exponential > -jnp.expm1(log_root) * (before + after)
    return jnp.where(logits[None] < 0, rare, ~rare).astype(logits.dtype)


def copula_weight(logits: jax.Array, num_samples: int) -> jax.Array:
    """Computes p(1−p) / P(b_j = 1, b_k = 0) for any two of the n samples of `copula_samples`, `[*batch, D]`.

    With m and r as there, P(b_j = 1, b_k = 0) = m − max(2r − 1, 0)^{n−1} and m = r^{n−1}, so that the ratio is
    (1−m) / (1 − max(2 − 1/r, 0)^{n−1}), whose denominator is at least ½. For n = 2 it is σ(|α|).
    """
    both = jnp.maximum(2 - jnp.exp(-_copula_log_root(logits, num_samples)), 0) ** (num_samples - 1)
    return jax.nn.sigmoid(jnp.abs(logits)) / (1 - both)


def _copula_log_root(logits: jax.Array, num_samples: int) -> jax.Array:
    """Computes log r = log σ(−|α|) / (n−1)."""
    return jax.nn.log_sigmoid(-jnp.abs(logits)) / (num_samples - 1)


def mixing_weight(beta: jax.Array, dtype: jnp.dtype, ndim: int) -> jax.Array:
    """Converts the β of a mixture to a dtype and `ndim` axes.

    A β outside of [0, 1] becomes the nearest end; its derivative passes as if it had not been clipped.
    """
    beta = lift(jnp.asarray(beta, dtype), ndim)
    return lax.stop_gradient(jnp.clip(beta, 0, 1)) + (beta - lax.stop_gradient(beta))


def interpolated_pairs(
    key: jax.Array, logits: jax.Array, beta: jax.Array, num_pairs: int
) -> tuple[jax.Array, jax.Array]:
    """Draws pairs of which each coordinate is antithetic with probability β, and independent otherwise.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D]`.
      beta: β, a scalar or `[D]`; outside of [0, 1] it acts as the nearest end.
      num_pairs: the number of pairs, which are independent of each other.

    Returns:
      b and b_tilde, each `[num_pairs, *batch, D]`.

    >>> b, b_tilde = dj.bernoulli.interpolated_pairs(jax.random.key(0), jnp.zeros(3), 0.5, 4)
    >>> b.shape, b_tilde.shape
    ((4, 3), (4, 3))
    """
    logits = as_logits(logits)
    check_number("num_pairs", num_pairs)
    shape, dtype = (num_pairs, *logits.shape), wide_dtype(logits)
    first_key, second_key, choice_key = jax.random.split(key, 3)
    first = logistic_noise(first_key, shape, dtype)
    second = logistic_noise(second_key, shape, dtype)
    antithetic = jax.random.uniform(choice_key, shape, dtype) < lift(jnp.asarray(beta, dtype), len(shape))
    return threshold(logits, first), threshold(logits, jnp.where(antithetic, -first, second))


def interpolated_log_prob(logits: jax.Array, b: jax.Array, b_tilde: jax.Array, beta: jax.Array) -> jax.Array:
    """Computes log P_β(b_i, b̃_i) of `interpolated_pairs` per coordinate; differentiable in β.

    With m = σ(−|α|) the probability of the rarer bit and s = 1 − m:
    P = m (s + β m) if the bits differ, m² (1 − β) if both are the rarer bit, s² − β m² if both are the likelier one.
    Pairs of probability zero, which occur for β = 1, give −∞ with a derivative of zero instead of NaN.
    """
    logits, beta = lift(logits, b.ndim), mixing_weight(beta, logits.dtype, b.ndim)
    log_rare = log_sigmoid(-jnp.abs(logits))
    rare, likely = jnp.exp(log_rare), jax.nn.sigmoid(jnp.abs(logits))
    differ, both_likely = b != b_tilde, (b == 1) == (logits > 0)
    in_beta = jnp.where(differ, likely + beta * rare, jnp.where(both_likely, likely**2 - beta * rare**2, 1 - beta))
    constant = jnp.where(differ, log_rare, jnp.where(both_likely, jnp.zeros_like(log_rare), 2 * log_rare))
    possible = in_beta > 0
    return jnp.where(possible, constant + jnp.log(jnp.where(possible, in_beta, jnp.ones_like(in_beta))), -jnp.inf)


def interpolated_copula_samples(key: jax.Array, logits: jax.Array, beta: jax.Array, num_samples: int) -> jax.Array:
    """Draws samples as `copula_samples` with probability β, else independently, decided per coordinate for all n.

    Args:
      key: a JAX random key, which must not be used again.
      logits: `[*batch, D]`.
      beta: β, a scalar or `[D]`; outside of [0, 1] it acts as the nearest end.
      num_samples: n, at least 2.

    Returns:
      `[n, *batch, D]`.
    """
    logits = as_logits(logits)
    dtype = wide_dtype(logits)
    copula_key, sample_key, choice_key = jax.random.split(key, 3)
    coupled = copula_samples(copula_key, logits, num_samples)
    independent = sample(sample_key, logits, num_samples)
    choice = jax.random.uniform(choice_key, logits.shape, dtype) < lift(jnp.asarray(beta, dtype), logits.ndim)
    return independent + choice[None].astype(logits.dtype) * (coupled - independent)


def interpolated_copula_log_prob(logits: jax.Array, b: jax.Array, beta: jax.Array) -> jax.Array:
    """Computes log P_β(b_1i, …, b_ni) of `interpolated_copula_samples` per coordinate; differentiable in β.

    Let m = σ(−|α|) be the probability of the rarer bit and r the number of samples that have it. Independent samples
    have the probability m^r (1−m)^{n−r}, and coupled ones this plus Δ_r. The probability that k ≥ 1 given samples all
    have the rarer bit is m max(k − (k−1) m^{−1/(n−1)}, 0)^{n−1} if they are coupled, and m^k if they are independent.
    Δ_r follows from the differences of these two by inclusion and exclusion. Groups of probability zero give −∞, with
    a derivative of zero.

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]`.
      beta: a scalar or `[D]`; outside of [0, 1] it acts as the nearest end.

    Returns:
      `[*batch, D]`.
    """
    num_samples, beta = b.shape[0], mixing_weight(beta, logits.dtype, logits.ndim)
    log_rare = jax.nn.log_sigmoid(-jnp.abs(logits))
    rare, likely = jnp.exp(log_rare), jax.nn.sigmoid(jnp.abs(logits))
    count = jnp.sum((b == 1) == (logits[None] < 0), axis=0)
    inverse_root = jnp.exp(
        jnp.minimum(-_copula_log_root(logits, num_samples), math.log(2))
    )  # from 2 on, the terms of all k > 1 are zero
    # Unless r is 0, all probabilities are divided by m, so that nothing underflows before the logarithm.
    gaps = [
        jnp.maximum(k - (k - 1) * inverse_root, 0) ** (num_samples - 1) - rare ** (k - 1)
        for k in range(2, num_samples + 1)
    ]
    gaps = [jnp.zeros_like(logits)] * 2 + gaps
    in_beta = jnp.zeros_like(logits)
    for r in range(num_samples + 1):
        terms = [(-1) ** j * math.comb(num_samples - r, j) * gaps[r + j] for j in range(num_samples - r + 1)]
        more = sum(terms) if r else rare * sum(terms)
        independent = rare ** max(r - 1, 0) * likely ** (num_samples - r)
        in_beta = in_beta + (count == r).astype(logits.dtype) * (independent + beta * more)
    possible = in_beta > 0
    log_prob = jnp.log(jnp.where(possible, in_beta, jnp.ones_like(in_beta))) + jnp.where(count > 0, log_rare, 0)
    return jnp.where(possible, log_prob, -jnp.inf)


def conditional_logit(logits: jax.Array, b: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws z̃ ~ Logistic(α, 1) given 1[z̃ > 0] = b, as in REBAR (Tucker et al., 2017); differentiable in the logits.

    The derivative includes the dependence of the truncation on the logits. The usual form α + logit(v′), with
    v′ = v p + 1 − p or v (1 − p), overflows in float32 from |α| = 8 on. With the sign s = 2b − 1 it simplifies to
    s (softplus(s α + log v) − log(1 − v)), which is finite for every logit.

    Args:
      logits: `[*batch, D]`.
      b: `[*batch, D]`, the bits to condition on.
      uniform: v, `[*batch, D]` in the open unit interval, independent of b.

    Returns:
      z̃, `[*batch, D]`.
    """
    sign = 2 * b - 1
    return sign * (softplus(sign * logits + jnp.log(uniform)) - jnp.log1p(-uniform))
