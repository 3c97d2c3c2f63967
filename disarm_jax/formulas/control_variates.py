"""Formulas of REINFORCE with control variates whose expectation is known: DoubleCV, RODEO, REBAR and RELAX."""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import check_samples, prepare
from disarm_jax.formulas.score_function import reinforce_loo


def double_cv(logits: jax.Array, b: jax.Array, f_b: jax.Array, slope: jax.Array, scale: jax.Array) -> jax.Array:
    """DoubleCV (Titsias & Shi, 2022): REINFORCE-LOO on t_k = f_k + a ḡ_{−k}ᵀ(b_k − p), minus a ḡ ⊙ p(1−p).

    ḡ is the mean of ∇f over all samples, and ḡ_{−k} its mean over all samples except k. For a linear f and a = −1 the
    variance is zero.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]`, independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.
      slope: `[K, *batch, D]`, ∇f at b, the gradient of f with respect to the bits as if they were real numbers.
      scale: a, a scalar.

    Returns:
      `[*batch, D]`; differentiable in a.

    >>> b, slope = jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.full((2, 2), 3.0)  # f is 3 Σ b
    >>> dj.formulas.double_cv(jnp.zeros(2), b, jnp.array([3.0, 0.0]), slope, jnp.array(-1.0))
    Array([0.75, 0.75], dtype=float32)
    """
    alpha, (b, slope), (f_b,), dtype = prepare(logits, (b, slope), (f_b,))
    check_samples("double_cv", b)
    scale, num_samples = jnp.asarray(scale, alpha.dtype), b.shape[0]
    total = jnp.sum(slope, axis=0)
    others = (total[None] - slope) / (num_samples - 1)
    t = f_b + scale * jnp.sum(others * bernoulli.score(alpha, b), axis=-1)
    grad = reinforce_loo(alpha[0], b, t) - scale * total / num_samples * bernoulli.variance(alpha[0])
    return grad.astype(dtype)


def rodeo(logits: jax.Array, b: jax.Array, f_b: jax.Array, h: jax.Array, h_flipped: jax.Array) -> jax.Array:
    """RODEO (Shi et al., 2022): REINFORCE-LOO with two control variates of mean zero from a Stein operator A.

    With (Ah)(b) = 1/D Σ_i q_i(¬b_i) [h(b^{¬i}) − h(b)], where b^{¬i} is b with bit i flipped, the estimate is
    1/K Σ_k {[f_k − mean_{j≠k}(f_j + Ah¹_j(b_j))] s_k + A(h²_k · (· − p))(b_k)}, s_k = ∂log q(b_k). Because q_i(¬b_i) is
    |s_i|, the last term is s_k (Ah²_k − h²_k(b^{¬i})/D) in coordinate i.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]`, independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.
      h: `[2, K, *batch]`, h¹_k and h²_k at b_k. These functions may depend on all samples except k.
      h_flipped: `[2, K, *batch, D]`, the same functions at b_k with one bit flipped.

    Returns:
      `[*batch, D]`; differentiable in h and h_flipped.

    >>> b, h = jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.zeros((2, 2))
    >>> dj.formulas.rodeo(jnp.zeros(2), b, jnp.array([4.0, 3.0]), h, jnp.zeros((2, 2, 2)))  # REINFORCE-LOO
    Array([0.5, 0. ], dtype=float32)
    """
    alpha, (b, *flipped), (f_b, *own), dtype = prepare(logits, (b, *h_flipped), (f_b, *h))
    check_samples("rodeo", b)
    score = bernoulli.score(alpha, b)
    first, second = (jnp.mean(jnp.abs(score) * (g - c[..., None]), axis=-1) for g, c in zip(flipped, own, strict=True))
    others = (jnp.sum(first, axis=0, keepdims=True) - first) / (b.shape[0] - 1)
    controls = jnp.mean(score * ((second - others)[..., None] - flipped[1] / b.shape[-1]), axis=0)
    return (reinforce_loo(alpha[0], b, f_b) + controls).astype(dtype)


def relax(logits: jax.Array, b: jax.Array, f_b: jax.Array, control_tilde: jax.Array, slope: jax.Array) -> jax.Array:
    """REBAR (Tucker et al., 2017) and RELAX (Grathwohl et al., 2018), [f(b) − c(z̃)] ∂log q(b) + ∂c(z) − ∂c(z̃).

    Args:
      logits: `[*batch, D]`.
      b: `[*batch, D]`, a sample.
      f_b: `[*batch]`, f at b.
      control_tilde: `[*batch]`, the control variate c at z̃, the relaxed sample drawn given b.
      slope: `[*batch, D]`, ∂c(z) − ∂c(z̃), the derivative with respect to the logits at fixed noise.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.relax(jnp.zeros(1), jnp.ones(1), jnp.array(3.0), jnp.array(1.0), jnp.array([0.25]))
    Array([1.25], dtype=float32)
    """
    alpha, (b, slope), (f_b, control_tilde), dtype = prepare(logits, (b, slope), (f_b, control_tilde))
    return ((f_b - control_tilde)[..., None] * bernoulli.score(alpha, b) + slope).astype(dtype)
