"""Formulas of the estimators that came after the paper, and of the biased ones; see `disarm_jax.formulas`.

`slope` is ∇f at a sample, or between two, the derivative with respect to the bits as if they were real numbers.
"""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import covariance, prepare, row_sums
from disarm_jax.formulas.paper import _centred, _replace_each, disarm, reinforce_loo


def arms(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """ARMS (Dimitriev & Zhou, 2021): 1/(n−1) Σ_k (f_k − f̄)(b_k − p) · p(1−p)/c, c = P(b_j = 1, b_k = 0) for j ≠ k.

    REINFORCE-LOO on coupled samples, reweighted for their disagreeing more often than independent ones. With two
    samples the weight is DisARM's σ(|α|).

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]` samples of `bernoulli.copula_samples`, n ≥ 2.
      f_b: `[n, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.arms(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([4.0, 2.0]))
    Array([ 0.5, -0.5], dtype=float32)
    """
    covariance, weight, dtype = _covariance_and_weight("arms", logits, b, f_b)
    return (covariance * weight).astype(dtype)


def arms_interpolated(logits: jax.Array, b: jax.Array, f_b: jax.Array, beta: jax.Array) -> jax.Array:
    """Between REINFORCE-LOO (β = 0) and ARMS (β = 1): as `arms`, with c = β c_ARMS + (1−β) p(1−p).

    Args:
      logits: `[*batch, D]`.
      b: `[n, *batch, D]` samples of `bernoulli.interpolated_copula_samples`, n ≥ 2.
      f_b: `[n, *batch]`, f at b.
      beta: a scalar or `[D]`.

    Returns:
      `[*batch, D]`; differentiable in β.

    >>> b = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    >>> dj.formulas.arms_interpolated(jnp.zeros(2), b, jnp.array([4.0, 2.0]), jnp.array(0.0))
    Array([1., 0.], dtype=float32)
    """
    covariance, weight, dtype = _covariance_and_weight("arms_interpolated", logits, b, f_b)
    beta = bernoulli.lift(jnp.asarray(beta, weight.dtype), weight.ndim)
    return (covariance * weight / (beta + (1 - beta) * weight)).astype(dtype)


def multisample_arms(logits: jax.Array, b: jax.Array, log_w: jax.Array) -> jax.Array:
    """ARMS applied locally to each of the K samples of the multi-sample bound, as `multisample_disarm` does with pairs.

    Each sample k is a group of n samples of the copula. F_ik is the bound of b_ik and companions b_lj, j ≠ k, averaged
    over l = 1 … n, and the estimate is the sum over k of ARMS on the group k with the values F_1k … F_nk.

    Args:
      logits: `[*batch, D]`.
      b: `[n, K, *batch, D]`, K independent groups of n samples of `bernoulli.copula_samples`, n ≥ 2.
      log_w: `[n, K, *batch]`, their log-weights. All of them serve every sample.

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> group = jnp.array([[[1.0]], [[0.0]]])
    >>> dj.formulas.multisample_arms(jnp.zeros(1), group, jnp.array([[4.0], [2.0]]))
    Array([0.5], dtype=float32)
    """
    alpha, (b,), (log_w,), dtype = prepare(logits, (b,), (log_w,))
    if b.shape[0] < 2:
        raise ValueError(f"multisample_arms needs at least 2 samples on the first axis of b, got b of shape {b.shape}")
    (centred,) = _centred(log_w.reshape(-1, *log_w.shape[2:]))
    log_w = centred.reshape(log_w.shape)

    def leave_one_out(log_w):
        return jax.nn.logsumexp(_replace_each(log_w, jnp.full_like(log_w, -jnp.inf)), axis=0)

    companions = jax.vmap(leave_one_out)(log_w)
    values = jnp.mean(jnp.logaddexp(companions[:, None], log_w[None]), axis=0)
    deviation = (values - jnp.mean(values, axis=0, keepdims=True))[..., None]
    covariance = jnp.sum(deviation * (b - jnp.mean(b, axis=0, keepdims=True)), axis=(0, 1)) / (b.shape[0] - 1)
    return (covariance * bernoulli.copula_weight(alpha[0, 0], b.shape[0])).astype(dtype)


def disarm_midpoint(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    slope: jax.Array,
    scale: jax.Array | float = 1.0,
) -> jax.Array:
    """DisARM less the noise of the other bits, ½ (f(b) − f(b̃) − λ Σ_{k≠i} g_k (b_k − b̃_k)) (b_i − b̃_i) σ(|α_i|).

    Given their midpoint, the signs of b − b̃ are fair coins: unbiased if g depends on the pair through b + b̃ alone.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      f_b, f_b_tilde: `[..., *batch]`, f at them.
      slope: `[..., *batch, D]`, g, best the slope of f at (b + b̃)/2.
      scale: λ.

    Returns:
      `[..., *batch, D]`, one estimate for each pair; differentiable in λ.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    >>> dj.formulas.disarm_midpoint(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0), slope=jnp.array([3.0, 1.0]))
    Array([0.75, 0.25], dtype=float32)
    """
    alpha, (b, b_tilde, slope), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde, slope), (f_b, f_b_tilde))
    sign = b - b_tilde
    linear = jnp.where(sign == 0, 0, slope * sign)  # where the bits agree f may have no finite slope
    others = jnp.asarray(scale, slope.dtype) * (row_sums(linear)[..., None] - linear)
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return (0.5 * ((f_b - f_b_tilde)[..., None] - others) * sign * weight).astype(dtype)


def double_cv(logits: jax.Array, b: jax.Array, f_b: jax.Array, slope: jax.Array, scale: jax.Array) -> jax.Array:
    """DoubleCV (Titsias & Shi, 2022): REINFORCE-LOO on t_k = f_k + a ḡ_{−k}ᵀ(b_k − p), less a ḡ ⊙ p(1−p).

    ḡ is the mean of ∇f over the samples and ḡ_{−k} that over the others than k. At a = −1 a linear f leaves no
    variance.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]` independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.
      slope: `[K, *batch, D]`, ∇f at b.
      scale: a, a scalar.

    Returns:
      `[*batch, D]`; differentiable in a.

    >>> b, slope = jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.full((2, 2), 3.0)  # f is 3 Σ b
    >>> dj.formulas.double_cv(jnp.zeros(2), b, jnp.array([3.0, 0.0]), slope, jnp.array(-1.0))
    Array([0.75, 0.75], dtype=float32)
    """
    alpha, (b, slope), (f_b,), dtype = prepare(logits, (b, slope), (f_b,))
    scale, num_samples = jnp.asarray(scale, alpha.dtype), b.shape[0]
    if num_samples < 2:
        raise ValueError(f"double_cv needs at least 2 samples on the first axis of b, got b of shape {b.shape}")
    total = jnp.sum(slope, axis=0)
    others = (total[None] - slope) / (num_samples - 1)
    t = f_b + scale * jnp.sum(others * bernoulli.score(alpha, b), axis=-1)
    grad = reinforce_loo(alpha[0], b, t) - scale * total / num_samples * bernoulli.variance(alpha[0])
    return grad.astype(dtype)


def rodeo(logits: jax.Array, b: jax.Array, f_b: jax.Array, h: jax.Array, h_flipped: jax.Array) -> jax.Array:
    """RODEO (Shi et al., 2022): REINFORCE-LOO with two control variates of mean zero from a Stein operator A.

    With (Ah)(b) = 1/D Σ_i q_i(¬b_i) [h(b^{¬i}) − h(b)], where b^{¬i} is b with bit i flipped, it is
    1/K Σ_k {[f_k − mean_{j≠k}(f_j + Ah¹_j(b_j))] s_k + A(h²_k · (· − p))(b_k)}, s_k = ∂log q(b_k). Because q_i(¬b_i) is
    |s_i|, the last term is s_k (Ah²_k − h²_k(b^{¬i})/D), coordinate by coordinate.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]` independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.
      h: `[2, K, *batch]`, h¹_k and h²_k at b_k: functions that may depend on the samples other than k, but not on k.
      h_flipped: `[2, K, *batch, D]`, the same with one bit flipped.

    Returns:
      `[*batch, D]`; differentiable in h and h_flipped.

    >>> b, h = jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.zeros((2, 2))
    >>> dj.formulas.rodeo(jnp.zeros(2), b, jnp.array([4.0, 3.0]), h, jnp.zeros((2, 2, 2)))  # REINFORCE-LOO
    Array([0.5, 0. ], dtype=float32)
    """
    alpha, (b, *h_flipped), (f_b, *h), dtype = prepare(logits, (b, *h_flipped), (f_b, *h))
    num_samples, dim = b.shape[0], b.shape[-1]
    if num_samples < 2:
        raise ValueError(f"rodeo needs at least 2 samples on the first axis of b, got b of shape {b.shape}")
    score = bernoulli.score(alpha, b)
    first, second = (jnp.mean(jnp.abs(score) * (g - c[..., None]), axis=-1) for g, c in zip(h_flipped, h, strict=True))
    others = (jnp.sum(first, axis=0, keepdims=True) - first) / (num_samples - 1)
    controls = jnp.mean(score * ((second - others)[..., None] - h_flipped[1] / dim), axis=0)
    return (reinforce_loo(alpha[0], b, f_b) + controls).astype(dtype)


def leg(logits: jax.Array, b: jax.Array, f_b: jax.Array, f_flipped: jax.Array) -> jax.Array:
    """Local expectation gradients (Titsias & Lázaro-Gredilla, 2015): p(1−p) (f(b_{i→1}) − f(b_{i→0})) for every bit i.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]` samples.
      f_b: `[..., *batch]`, f at b.
      f_flipped: `[..., *batch, D]`, f at b with bit i flipped.

    Returns:
      `[..., *batch, D]`, one estimate for each sample.

    >>> dj.formulas.leg(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array(4.0), jnp.array([2.0, 3.0]))
    Array([ 0.5 , -0.25], dtype=float32)
    """
    alpha, (b, f_flipped), (f_b,), dtype = prepare(logits, (b, f_flipped), (f_b,))
    return (bernoulli.variance(alpha) * (2 * b - 1) * (f_b[..., None] - f_flipped)).astype(dtype)


def bitflip(logits: jax.Array, b: jax.Array, b_flipped: jax.Array, f_b: jax.Array, f_b_flipped: jax.Array) -> jax.Array:
    """BitFlip-1 (Kunes et al., 2023): D p(1−p) (f(b_{i→1}) − f(b_{i→0})) of one bit i drawn at random, else 0.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]` samples.
      b_flipped: `[..., *batch, D]`, the same with one bit flipped, each of the D equally often.
      f_b, f_b_flipped: `[..., *batch]`, f at them.

    Returns:
      `[..., *batch, D]`, one estimate for each sample.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0])
    >>> dj.formulas.bitflip(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0))
    Array([1., 0.], dtype=float32)
    """
    alpha, (b, b_flipped), (f_b, f_b_flipped), dtype = prepare(logits, (b, b_flipped), (f_b, f_b_flipped))
    return (b.shape[-1] * bernoulli.variance(alpha) * (b - b_flipped) * (f_b - f_b_flipped)[..., None]).astype(dtype)


def ugc(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    b_flipped: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    f_b_flipped: jax.Array,
) -> jax.Array:
    """Unbiased gradient variance clipping (Kunes et al., 2023): BitFlip-1 where min(p, 1−p) < 1/(2D), else DisARM.

    There BitFlip-1 has less variance than DisARM can have. One b serves both, which changes no coordinate's law.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      b_flipped: `[..., *batch, D]`, b with one bit flipped, each of the D equally often.
      f_b, f_b_tilde, f_b_flipped: `[..., *batch]`, f at them.

    Returns:
      `[..., *batch, D]`, one estimate for each pair.

    >>> b = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), jnp.array([1.0, 1.0])
    >>> dj.formulas.ugc(jnp.zeros(2), *b, jnp.array(4.0), jnp.array(2.0), jnp.array(3.0))  # p = ½: DisARM
    Array([ 0.5, -0.5], dtype=float32)
    """
    often = disarm(logits, b, b_tilde, f_b, f_b_tilde)
    rarely = bitflip(logits, b, b_flipped, f_b, f_b_flipped)
    rare = jax.nn.sigmoid(-jnp.abs(bernoulli.wide(bernoulli.lift(bernoulli.as_logits(logits), often.ndim))))
    return jnp.where(rare < 0.5 / often.shape[-1], rarely, often)


def straight_through(logits: jax.Array, slope: jax.Array) -> jax.Array:
    """Straight-through (Bengio et al., 2013), p(1−p) ∇f(b): biased unless f is linear in each bit.

    Args:
      logits: `[*batch, D]`.
      slope: `[..., *batch, D]`, ∇f at a sample.

    Returns:
      `[..., *batch, D]`.

    >>> dj.formulas.straight_through(jnp.zeros(2), jnp.array([4.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    alpha, (slope,), _, dtype = prepare(logits, (slope,), ())
    return (bernoulli.variance(alpha) * slope).astype(dtype)


def gumbel_sigmoid(z: jax.Array, slope: jax.Array, temperature: float) -> jax.Array:
    """Gumbel-sigmoid (Jang et al.; Maddison et al., 2017), ∇f · ∂σ(z/τ)/∂z: biased, the less the smaller τ is.

    Args:
      z: `[..., D]`, logits plus logistic noise.
      slope: `[..., D]`, ∇f at the sample 1[z > 0], or at σ(z/τ).
      temperature: τ.

    Returns:
      `[..., D]`.

    >>> dj.formulas.gumbel_sigmoid(jnp.zeros(2), jnp.array([4.0, 2.0]), 0.5)
    Array([2., 1.], dtype=float32)
    """
    z, (slope,), _, dtype = prepare(z, (slope,), (), name="z")
    return (bernoulli.variance(z / temperature) / temperature * slope).astype(dtype)


def reinmax(logits: jax.Array, b: jax.Array, slope: jax.Array) -> jax.Array:
    """ReinMax (Liu et al., 2023) of a bit, ½ (1 − q(b_i)) ∂_i f(b): biased unless f is at most quadratic in each bit.

    Args:
      logits: `[*batch, D]`.
      b: `[..., *batch, D]` samples.
      slope: `[..., *batch, D]`, ∇f at b.

    Returns:
      `[..., *batch, D]`.

    >>> dj.formulas.reinmax(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array([4.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    alpha, (b, slope), _, dtype = prepare(logits, (b, slope), ())
    return (0.5 * jnp.abs(bernoulli.score(alpha, b)) * slope).astype(dtype)


def _covariance_and_weight(name: str, logits: jax.Array, b: jax.Array, f_b: jax.Array) -> tuple:
    """REINFORCE-LOO of the samples, p(1−p)/c of the copula, and the dtype of the result."""
    alpha, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return covariance(name, b, f_b), bernoulli.copula_weight(alpha[0], b.shape[0]), dtype
