"""Formulas of the estimators that the paper proposes or compares with; see `disarm_jax.formulas`."""

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import covariance, prepare
from disarm_jax.formulas.configurations import all_signal, check_configurations, cyclic_signal

BASELINES = ("arithmetic", "geometric")


def reinforce(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """REINFORCE, the mean over samples of f(b) ∂log q(b) (eq. 2 of the paper), without a baseline.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]` independent samples.
      f_b: `[K, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.reinforce(jnp.zeros(2), jnp.array([[1.0, 0.0]]), jnp.array([4.0]))
    Array([ 2., -2.], dtype=float32)
    """
    alpha, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return jnp.mean(f_b[..., None] * bernoulli.score(alpha, b), axis=0).astype(dtype)


def reinforce_loo(logits: jax.Array, b: jax.Array, f_b: jax.Array) -> jax.Array:
    """REINFORCE with a leave-one-out baseline: 1/(K−1) Σ_k (f_k − f̄) ∂log q(b_k).

    Because the f_k − f̄ add up to zero, ∂log q(b_k) = b_k − p may be replaced by b_k − b̄: the estimator is the
    sample covariance of f and b, and exactly zero where all samples agree, however saturated the logit.

    Args:
      logits: `[*batch, D]`; only their dtype matters.
      b: `[K, *batch, D]` independent samples, K ≥ 2.
      f_b: `[K, *batch]`, f at b.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.reinforce_loo(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.array([4.0, 3.0]))
    Array([0.5, 0. ], dtype=float32)
    """
    _, (b,), (f_b,), dtype = prepare(logits, (b,), (f_b,))
    return covariance("reinforce_loo", b, f_b).astype(dtype)


def arm(u: jax.Array, f_b: jax.Array, f_b_tilde: jax.Array) -> jax.Array:
    """ARM, ½ (f(b) − f(b̃)) (2u − 1) with b = 1[1 − u < p] and b̃ = 1[u < p] (eq. 4 of the paper).

    Args:
      u: `[..., D]`, the uniform noise that made the pair.
      f_b: `[...]`, f at b.
      f_b_tilde: `[...]`, f at b̃.

    Returns:
      `[..., D]`, one estimate for each pair.

    >>> dj.formulas.arm(jnp.array([0.75, 0.5]), jnp.array(4.0), jnp.array(2.0))
    Array([0.5, 0. ], dtype=float32)
    """
    u, _, (f_b, f_b_tilde), dtype = prepare(u, (u,), (f_b, f_b_tilde), name="u")
    return (0.5 * (f_b - f_b_tilde)[..., None] * (2 * u - 1)).astype(dtype)


def disarm(logits: jax.Array, b: jax.Array, b_tilde: jax.Array, f_b: jax.Array, f_b_tilde: jax.Array) -> jax.Array:
    """DisARM, ½ (f(b) − f(b̃)) (−1)^b̃ 1[b ≠ b̃] σ(|α|) of an antithetic pair (eq. 7 of the paper).

    It is the conditional expectation of ARM given the pair, so its variance is never larger.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, antithetic pairs.
      f_b, f_b_tilde: `[..., *batch]`, f at them.

    Returns:
      `[..., *batch, D]`, one estimate for each pair.

    >>> dj.formulas.disarm(jnp.zeros(2), jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), jnp.array(4.0), jnp.array(2.0))
    Array([ 0.5, -0.5], dtype=float32)
    """
    alpha, (b, b_tilde), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde), (f_b, f_b_tilde))
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return (0.5 * (f_b - f_b_tilde)[..., None] * (b - b_tilde) * weight).astype(dtype)


def interpolated(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    f_b: jax.Array,
    f_b_tilde: jax.Array,
    beta: jax.Array,
) -> jax.Array:
    """The estimator between REINFORCE-LOO (β = 0) and DisARM (β = 1) of the paper's appendix B.

    ½ (f(b) − f(b̃)) (b − b̃) p(1−p)/c with c = P(b = 1, b̃ = 0) = β min(p, 1−p) + (1−β) p(1−p), which equals the
    paper's posterior-weighted sum; the ratio is σ(|α|) / (β + (1−β) σ(|α|)), with nothing to guard.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[..., *batch, D]`, pairs of the β-coupling, decided per coordinate.
      f_b, f_b_tilde: `[..., *batch]`, f at them.
      beta: a scalar or `[D]`.

    Returns:
      `[..., *batch, D]`, one estimate for each pair; differentiable in β.

    >>> pair = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0])
    >>> dj.formulas.interpolated(jnp.zeros(2), *pair, jnp.array(4.0), jnp.array(2.0), jnp.array(0.0))
    Array([1., 0.], dtype=float32)
    """
    alpha, (b, b_tilde), (f_b, f_b_tilde), dtype = prepare(logits, (b, b_tilde), (f_b, f_b_tilde))
    beta = bernoulli.lift(jnp.asarray(beta, alpha.dtype), b.ndim)
    likely = jax.nn.sigmoid(jnp.abs(alpha))
    weight = likely / (beta + (1 - beta) * likely)
    return (0.5 * (f_b - f_b_tilde)[..., None] * (b - b_tilde) * weight).astype(dtype)


def relax(logits: jax.Array, b: jax.Array, f_b: jax.Array, control_tilde: jax.Array, slope: jax.Array) -> jax.Array:
    """REBAR and RELAX, [f(b) − c(z̃)] ∂log q(b) + ∂c(z) − ∂c(z̃), with the last two terms given as `slope`.

    Args:
      logits: `[*batch, D]`.
      b: `[*batch, D]`.
      f_b: `[*batch]`, f at b.
      control_tilde: `[*batch]`, the control variate at z̃, the relaxed sample drawn given b.
      slope: `[*batch, D]`, derivative of c(z) − c(z̃) with respect to the logits, at fixed noise.

    Returns:
      `[*batch, D]`.

    >>> dj.formulas.relax(jnp.zeros(1), jnp.ones(1), jnp.array(3.0), jnp.array(1.0), jnp.array([0.25]))
    Array([1.25], dtype=float32)
    """
    alpha, (b, slope), (f_b, control_tilde), dtype = prepare(logits, (b, slope), (f_b, control_tilde))
    return ((f_b - control_tilde)[..., None] * bernoulli.score(alpha, b) + slope).astype(dtype)


def bound(log_w: jax.Array) -> jax.Array:
    """The multi-sample bound log 1/K Σ_k w_k of Burda et al. (2016), over the first axis.

    >>> dj.formulas.bound(jnp.log(jnp.array([1.0, 3.0])))
    Array(0.6931472, dtype=float32)
    """
    return jax.nn.logsumexp(log_w, axis=0) - jnp.log(jnp.asarray(log_w.shape[0], log_w.dtype))


def vimco(logits: jax.Array, b: jax.Array, log_w: jax.Array, *, baseline: str = "arithmetic") -> jax.Array:
    """VIMCO (Mnih & Rezende, 2016): Σ_k (L̂ − L̂^{−k}) ∂log q(b^k), L̂ = log 1/K Σ_j w_j.

    The baseline L̂^{−k} does not see sample k. Arithmetic (the paper's text): log 1/(K−1) Σ_{j≠k} w_j. Geometric (the
    released code): w_k is replaced by the geometric mean of the others.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]` independent samples, K ≥ 2.
      log_w: `[K, *batch]`, log-weights of the samples.
      baseline: "arithmetic" or "geometric".

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> dj.formulas.vimco(jnp.zeros(1), jnp.array([[1.0], [0.0]]), jnp.array([2.0, 2.0]))
    Array([0.], dtype=float32)
    """
    check_baseline(baseline)
    alpha, (b,), (log_w,), dtype = prepare(logits, (b,), (log_w,))
    num_samples = b.shape[0]
    if num_samples < 2:
        raise ValueError(f"vimco needs at least 2 samples on the first axis of b, got b of shape {b.shape}")
    (log_w,) = _centred(log_w)
    if baseline == "arithmetic":
        others = jax.nn.logsumexp(_replace_each(log_w, jnp.full_like(log_w, -jnp.inf)), axis=0)
        baselines = others - jnp.log(jnp.asarray(num_samples - 1, log_w.dtype))
    else:
        geometric_mean = jnp.sum(_replace_each(log_w, jnp.zeros_like(log_w)), axis=0) / (num_samples - 1)
        baselines = bound(_replace_each(log_w, geometric_mean))
    signal = bound(log_w)[None] - baselines
    return jnp.sum(signal[..., None] * bernoulli.score(alpha, b), axis=0).astype(dtype)


def check_baseline(baseline: str) -> None:
    """Refuses a baseline of VIMCO that is not one of `BASELINES`."""
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; accepted: {', '.join(BASELINES)}")


def multisample_disarm(
    logits: jax.Array,
    b: jax.Array,
    b_tilde: jax.Array,
    log_w: jax.Array,
    log_w_tilde: jax.Array,
    *,
    configurations: str = "paper",
) -> jax.Array:
    """DisARM applied locally to each sample of the multi-sample bound (section 3.2 of the paper, symmetrised).

    Σ_k ¼ [f_{b^−k}(b^k) − f_{b^−k}(b̃^k) + f_{b̃^−k}(b^k) − f_{b̃^−k}(b̃^k)] (b^k − b̃^k) σ(|α|), where f_{c}(d) is the
    bound of the samples c and d. The 2K weights serve all of it.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[K, *batch, D]`, K antithetic pairs.
      log_w, log_w_tilde: `[K, *batch]`, their log-weights.
      configurations: which companions each sample is judged among. "paper": all b's and all b̃'s, as above. "cyclic" and
        "all": 2(K−1), and all 2^{K−1}, ways to choose between b and b̃ of every other pair.

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> pairs = jnp.array([[1.0]]), jnp.array([[0.0]])
    >>> dj.formulas.multisample_disarm(jnp.zeros(1), *pairs, jnp.array([4.0]), jnp.array([2.0]))
    Array([0.5], dtype=float32)
    """
    alpha, (b, b_tilde), (log_w, log_w_tilde), dtype = prepare(logits, (b, b_tilde), (log_w, log_w_tilde))
    check_configurations(configurations, b.shape[0])
    log_w, log_w_tilde = _centred(log_w, log_w_tilde)
    if configurations == "paper":
        swapped = bound(_replace_each(log_w, log_w_tilde))  # f_{b^-k}(b̃^k)
        swapped_tilde = bound(_replace_each(log_w_tilde, log_w))  # f_{b̃^-k}(b^k)
        signal = 0.25 * ((bound(log_w) - bound(log_w_tilde))[None] - swapped + swapped_tilde)
    else:
        signal = (cyclic_signal if configurations == "cyclic" else all_signal)(log_w, log_w_tilde)
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return jnp.sum(signal[..., None] * (b - b_tilde) * weight, axis=0).astype(dtype)


def naive_multisample_disarm(
    logits: jax.Array, b: jax.Array, b_tilde: jax.Array, log_w: jax.Array, log_w_tilde: jax.Array
) -> jax.Array:
    """DisARM applied to all K samples at once, as if they were one long vector of bits: the paper's negative result.

    Σ_k ½ [L̂(b) − L̂(b̃)] (b^k − b̃^k) σ(|α|); arguments and result as in `multisample_disarm`.

    >>> pairs = jnp.array([[1.0]]), jnp.array([[0.0]])
    >>> dj.formulas.naive_multisample_disarm(jnp.zeros(1), *pairs, jnp.array([4.0]), jnp.array([2.0]))
    Array([0.5], dtype=float32)
    """
    alpha, (b, b_tilde), (log_w, log_w_tilde), dtype = prepare(logits, (b, b_tilde), (log_w, log_w_tilde))
    log_w, log_w_tilde = _centred(log_w, log_w_tilde)
    signal = 0.5 * (bound(log_w) - bound(log_w_tilde))
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return jnp.sum(signal[None, ..., None] * (b - b_tilde) * weight, axis=0).astype(dtype)


def _centred(*log_w: jax.Array) -> tuple[jax.Array, ...]:
    """Log-weights less their largest: differences of bounds do not change, and lose no digits to a large offset."""
    largest = jnp.max(jnp.concatenate(log_w), axis=0, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
    return tuple(array - largest for array in log_w)


def _replace_each(log_w: jax.Array, replacement: jax.Array) -> jax.Array:
    """`[K, K, *batch]`: column k holds all the log-weights, the k-th replaced; sums run over the first axis.

    Leaving one out by such a mask, never by log(Σ w − w_k), which cancels when w_k dominates.
    """
    diagonal = jnp.eye(log_w.shape[0], dtype=bool).reshape((log_w.shape[0],) * 2 + (1,) * (log_w.ndim - 1))
    return jnp.where(diagonal, replacement[None], log_w[:, None])
