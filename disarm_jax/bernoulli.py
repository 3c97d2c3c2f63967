"""The factorial Bernoulli distribution, from its logits: probabilities, noise, samples and couplings.

Logits have the shape `[*batch, D]`, samples `[N, *batch, D]` with the sample axis first. A sample is the sign of
its logit plus logistic noise, b = 1[α + ε > 0], so that an antithetic partner 1[α − ε > 0] sees the same rounding.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax


def as_logits(logits: jax.Array, name: str = "logits", event_ndim: int = 1) -> jax.Array:
    """The logits as a JAX array, refused unless they are real floating numbers with the axes of an event.

    An event, of which the probability is q(b), has one axis D of bits, or two, D variables of C classes.
    """
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"{name} must be real floating-point numbers, got dtype {logits.dtype}")
    if logits.ndim < event_ndim:
        got = "a scalar of shape ()" if logits.ndim == 0 else f"shape {logits.shape}"
        raise ValueError(f"{name} must have the shape {('[*batch, D]', '[*batch, D, C]')[event_ndim - 1]}, got {got}")
    return logits


def wide_dtype(*arrays: jax.Array) -> jnp.dtype:
    """The widest floating dtype among the arrays, float32 at the least: what noise and sums are computed in."""
    floating = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    return max([jnp.dtype(jnp.float32), *floating], key=lambda dtype: jnp.finfo(dtype).bits)


def wide(x: jax.Array) -> jax.Array:
    """x in float32 or wider."""
    return x.astype(wide_dtype(x))


def stop_and_widen(logits: jax.Array) -> jax.Array:
    """The logits of a distribution to sample from: float32 or wider, and nothing is differentiated through them."""
    return wide(lax.stop_gradient(logits))


def finite(logits: jax.Array) -> jax.Array:
    """Logits of ±∞ as ±10,000, which are as certain, for what computes with them: a network would return NaN."""
    return jnp.where(jnp.isinf(logits), jnp.sign(logits) * 1e4, logits)


def lift(x: jax.Array, ndim: int) -> jax.Array:
    """Adds leading axes of size one up to `ndim` axes: logits `[*batch, D]` beside samples `[N, *batch, D]`."""
    return jnp.expand_dims(x, tuple(range(ndim - x.ndim)))


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + exp x), as in `jax.nn`, without its guards: in half the time on a CPU, where it is a tenth of a step.

    >>> print(dj.bernoulli.softplus(jnp.array([0.0, 100.0])))
    [  0.6931472 100.       ]
    """
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@softplus.defjvp
def _softplus_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]


def log_sigmoid(x: jax.Array) -> jax.Array:
    """log σ(x), accurate on both sides."""
    return -softplus(-x)


def log_prob(logits: jax.Array, b: jax.Array) -> jax.Array:
    """log q(b), summed over the last axis; linear in b, so it is defined for relaxed b too.

    Args:
      logits: `[*batch, D]`, or anything that broadcasts against b.
      b: `[..., *batch, D]`, in {0, 1} or relaxed to [0, 1].

    Returns:
      `[..., *batch]`. Both logarithms are taken of the logit, never of a rounded probability. Logits of ±∞ are bits
      that are certain: they add nothing, or the most negative number if b contradicts them.

    >>> print(dj.bernoulli.log_prob(jnp.zeros(3), jnp.ones((2, 3))))
    [-2.0794415 -2.0794415]
    """
    largest = jnp.finfo(logits.dtype).max
    logits = jnp.clip(logits, -largest, largest)  # 0 · ∞ would be NaN
    one, zero = log_sigmoid(logits), log_sigmoid(-logits)
    if logits.ndim == 1:  # shared by all rows: products of matrices and vectors, in the derivative too
        product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        return product(b, one) + product(1 - b, zero)
    return jnp.sum(b * lift(one, b.ndim) + (1 - b) * lift(zero, b.ndim), axis=-1)


def score(logits: jax.Array, b: jax.Array) -> jax.Array:
    """∂ log q(b) / ∂ logits = b − p, per coordinate, without the cancellation of 1 − p at large logits."""
    sign = 2 * b - 1
    return sign * jax.nn.sigmoid(-sign * lift(logits, b.ndim))


def variance(logits: jax.Array) -> jax.Array:
    """p(1 − p), per coordinate, which is also ∂p / ∂ logits."""
    return jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)


def logistic_noise(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Standard logistic noise whose two tails are exactly alike; `key` is consumed.

    `jax.random.logistic` spends its bits on one tail: in float32 its largest value is 15.9 and its smallest −87,
    while antithetic sampling uses ε and −ε alike. Here one bit is the sign and the others are the tail probability
    of |ε|, which reaches 22.9 in float32 (probability 1e-10). Narrower dtypes than float32 are refused: no comparison
    should be made in them.
    """
    bits = jnp.finfo(dtype).bits
    if bits < 32:
        raise TypeError(f"noise is drawn in float32 or float64, got {dtype}")
    words = jax.random.bits(key, shape, f"uint{bits}")
    tail = ((words >> 1).astype(dtype) + 0.5) * 2.0 ** (1 - bits)  # P(|noise| > m), in (0, 1]
    magnitude = jnp.log((2 - tail) / tail)
    return jnp.where((words & 1).astype(bool), magnitude, -magnitude)


def open_uniform(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Uniform noise in the open interval (0, 1), both of whose logarithms are finite; `key` is consumed."""
    return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)


def threshold(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """b = 1[α + ε > 0], compared in the noise's dtype, in the logits' dtype. No derivative passes through."""
    return (lift(logits.astype(noise.dtype), noise.ndim) + noise > 0).astype(logits.dtype)


def sample(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Independent samples `[num_samples, *batch, D]` in the logits' dtype; `key` is consumed.

    >>> print(dj.bernoulli.sample(jax.random.key(0), jnp.array([-40.0, 40.0]), 2))
    [[0. 1.]
     [0. 1.]]
    """
    logits = as_logits(logits)
    return threshold(logits, logistic_noise(key, (num_samples, *logits.shape), wide_dtype(logits)))


def antithetic_pairs(key: jax.Array, logits: jax.Array, num_pairs: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pairs 1[α + ε > 0], 1[α − ε > 0]: each is a sample, and they differ as often as a pair of samples can.

    Args:
      key: consumed.
      logits: `[*batch, D]`.
      num_pairs: number of pairs, independent of each other.

    Returns:
      b, b_tilde and the noise ε, each `[num_pairs, *batch, D]`; the noise in float32 or wider.
    """
    logits = as_logits(logits)
    noise = logistic_noise(key, (num_pairs, *logits.shape), wide_dtype(logits))
    return threshold(logits, noise), threshold(logits, -noise), noise


def copula_samples(key: jax.Array, logits: jax.Array, num_samples: int) -> jax.Array:
    """Samples coupled by the Dirichlet copula (Dimitriev & Zhou, 2021): each has the law q, any two are antithetic.

    d ~ Dirichlet(1, …, 1), u_k = (1 − d_k)^{n−1} is uniform, and b_k is the rarer of the two bits where u_k < m, its
    probability σ(−|α|). With d from exponential noise e and r = m^{1/(n−1)} that is r e_k > (1 − r) Σ_{j≠k} e_j, of
    which both sides keep their digits for every logit and n. Two samples are an antithetic pair.

    Args:
      key: consumed.
      logits: `[*batch, D]`.
      num_samples: n, at least 2.

    Returns:
      `[n, *batch, D]` in the logits' dtype.
    """
    logits = as_logits(logits)
    dtype = wide_dtype(logits)
    exponential = jax.nn.softplus(logistic_noise(key, (num_samples, *logits.shape), dtype))
    none = jnp.zeros_like(exponential[:1])
    before = jnp.concatenate([none, jnp.cumsum(exponential[:-1], axis=0)])
    after = jnp.concatenate([jnp.cumsum(exponential[:0:-1], axis=0)[::-1], none])
    log_root = _copula_log_root(logits.astype(dtype), num_samples)[None]
    rare = jnp.exp(log_root) * exponential > -jnp.expm1(log_root) * (before + after)
    return jnp.where(logits[None] < 0, rare, ~rare).astype(logits.dtype)


def copula_weight(logits: jax.Array, num_samples: int) -> jax.Array:
    """p(1−p) / P(b_j = 1, b_k = 0) of two of the samples of `copula_samples`, `[*batch, D]`; σ(|α|) for two samples.

    With m and r as there, P(b_j = 1, b_k = 0) = m − max(2r − 1, 0)^{n−1} and m = r^{n−1}, so that the ratio is
    (1−m) / (1 − max(2 − 1/r, 0)^{n−1}), whose denominator is at least ½.
    """
    both = jnp.maximum(2 - jnp.exp(-_copula_log_root(logits, num_samples)), 0) ** (num_samples - 1)
    return jax.nn.sigmoid(jnp.abs(logits)) / (1 - both)


def _copula_log_root(logits: jax.Array, num_samples: int) -> jax.Array:
    """log r = log σ(−|α|) / (n−1)."""
    return jax.nn.log_sigmoid(-jnp.abs(logits)) / (num_samples - 1)


def interpolated_pairs(
    key: jax.Array, logits: jax.Array, beta: jax.Array, num_pairs: int
) -> tuple[jax.Array, jax.Array]:
    """Pairs that are antithetic with probability β and independent otherwise, decided per coordinate.

    Args:
      key: consumed.
      logits: `[*batch, D]`.
      beta: a scalar or `[D]`.
      num_pairs: number of pairs, independent of each other.

    Returns:
      b and b_tilde, each `[num_pairs, *batch, D]`.
    """
    logits = as_logits(logits)
    shape, dtype = (num_pairs, *logits.shape), wide_dtype(logits)
    first_key, second_key, choice_key = jax.random.split(key, 3)
    first = logistic_noise(first_key, shape, dtype)
    second = logistic_noise(second_key, shape, dtype)
    antithetic = jax.random.uniform(choice_key, shape, dtype) < lift(jnp.asarray(beta, dtype), len(shape))
    return threshold(logits, first), threshold(logits, jnp.where(antithetic, -first, second))


def interpolated_log_prob(logits: jax.Array, b: jax.Array, b_tilde: jax.Array, beta: jax.Array) -> jax.Array:
    """log P_β(b_i, b̃_i) of the interpolated coupling, per coordinate; differentiable in β.

    With m = σ(−|α|) the probability of the rarer bit and s = 1 − m:
    P = m (s + β m) if the bits differ, m² (1 − β) if both are the rarer bit, s² − β m² if both are the likelier one.
    Pairs that the coupling cannot produce (β = 1) have −∞, with a zero derivative instead of 0 · ∞.
    """
    logits, beta = lift(logits, b.ndim), lift(jnp.asarray(beta, logits.dtype), b.ndim)
    log_rare = log_sigmoid(-jnp.abs(logits))
    rare, likely = jnp.exp(log_rare), jax.nn.sigmoid(jnp.abs(logits))
    differ, both_likely = b != b_tilde, (b == 1) == (logits > 0)
    in_beta = jnp.where(differ, likely + beta * rare, jnp.where(both_likely, likely**2 - beta * rare**2, 1 - beta))
    constant = jnp.where(differ, log_rare, jnp.where(both_likely, jnp.zeros_like(log_rare), 2 * log_rare))
    possible = in_beta > 0
    return jnp.where(possible, constant + jnp.log(jnp.where(possible, in_beta, jnp.ones_like(in_beta))), -jnp.inf)


def interpolated_copula_samples(key: jax.Array, logits: jax.Array, beta: jax.Array, num_samples: int) -> jax.Array:
    """As `copula_samples` with probability β and independent otherwise, decided per coordinate for all n samples.

    Args:
      key: consumed.
      logits: `[*batch, D]`.
      beta: a scalar or `[D]`.
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
    """log P_β(b_1i, …, b_ni) of `interpolated_copula_samples`, per coordinate; differentiable in β.

    With m = σ(−|α|) the probability of the rarer bit and r the number of samples that have it, an independent group has
    the probability m^r (1−m)^{n−r}, and a coupled one Δ_r more. That k ≥ 1 given samples all have the rarer bit has
    m max(k − (k−1) m^{−1/(n−1)}, 0)^{n−1} instead of m^k, and Δ_r follows from these gaps by inclusion and exclusion.
    Groups that cannot be drawn have −∞, with a zero derivative.

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]`.
      beta: a scalar or `[D]`.

    Returns:
      `[*batch, D]`.
    """
    num_samples, beta = b.shape[0], lift(jnp.asarray(beta, logits.dtype), logits.ndim)
    log_rare = jax.nn.log_sigmoid(-jnp.abs(logits))
    rare, likely = jnp.exp(log_rare), jax.nn.sigmoid(jnp.abs(logits))
    count = jnp.sum((b == 1) == (logits[None] < 0), axis=0)
    inverse_root = jnp.exp(jnp.minimum(-_copula_log_root(logits, num_samples), math.log(2)))  # at 2 all k > 1 vanish
    # All is divided by m unless r is 0, so that nothing underflows before the logarithm.
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
    """z̃ ~ Logistic(α, 1) given 1[z̃ > 0] = b, differentiable in the logits, dependence of the truncation included.

    The textbook form α + logit(v′), v′ = v p + 1 − p or v (1 − p), overflows in float32 from |α| ≥ 8 on. With the
    sign s = 2b − 1 it simplifies to s (softplus(s α + log v) − log(1 − v)), finite everywhere.

    Args:
      logits: `[*batch, D]`.
      b: `[*batch, D]`, the bits to agree with.
      uniform: v, `[*batch, D]` in the open unit interval, independent of b.
    """
    sign = 2 * b - 1
    return sign * (softplus(sign * logits + jnp.log(uniform)) - jnp.log1p(-uniform))
