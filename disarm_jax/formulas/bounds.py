"""Formulas for the multi-sample bound of Burda et al. (2016): VIMCO, and DisARM and ARMS applied to each sample.

Every formula uses the log-weights of all samples for each of the samples.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.formulas.arrays import check_samples, covariance, prepare

BASELINES = ("arithmetic", "geometric")
LARGEST_ALL = 12  # the largest number of pairs for configurations="all"


def bound(log_w: jax.Array) -> jax.Array:
    """Computes the multi-sample bound log 1/K Σ_k w_k of Burda et al. (2016).

    Args:
      log_w: `[K, ...]`, the log-weights of K samples.

    Returns:
      `[...]`.

    >>> dj.formulas.bound(jnp.log(jnp.array([1.0, 3.0])))
    Array(0.6931472, dtype=float32)
    """
    return jax.nn.logsumexp(log_w, axis=0) - jnp.log(jnp.asarray(log_w.shape[0], log_w.dtype))


def vimco(logits: jax.Array, b: jax.Array, log_w: jax.Array, *, baseline: str = "arithmetic") -> jax.Array:
    """VIMCO (Mnih & Rezende, 2016): Σ_k (L̂ − L̂^{−k}) ∂log q(b^k), L̂ = log 1/K Σ_j w_j.

    The baseline L̂^{−k} does not depend on sample k. The arithmetic baseline, that of the DisARM paper's text, is
    log 1/(K−1) Σ_{j≠k} w_j. The geometric baseline, that of its released code, is the bound in which w_k is replaced by
    the geometric mean of the other weights.

    Args:
      logits: `[*batch, D]`.
      b: `[K, *batch, D]`, independent samples, K ≥ 2.
      log_w: `[K, *batch]`, log-weights of the samples.
      baseline: "arithmetic" or "geometric".

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> dj.formulas.vimco(jnp.zeros(1), jnp.array([[1.0], [0.0]]), jnp.array([2.0, 2.0]))
    Array([0.], dtype=float32)
    """
    check_baseline(baseline)
    alpha, (b,), (log_w,), dtype = prepare(logits, (b,), (log_w,))
    check_samples("vimco", b)
    signal = vimco_signal(log_w, baseline)
    return jnp.sum(signal[..., None] * bernoulli.score(alpha, b), axis=0).astype(dtype)


def vimco_signal(log_w: jax.Array, baseline: str) -> jax.Array:
    """Computes L̂ − L̂^{−k} of `vimco` for every sample, `[K, *batch]`."""
    (log_w,), num_others = _centred(log_w), log_w.shape[0] - 1
    if baseline == "arithmetic":
        baselines = leave_one_out(log_w) - jnp.log(jnp.asarray(num_others, log_w.dtype))
    else:
        geometric_mean = jnp.sum(_replace_each(log_w, jnp.zeros_like(log_w)), axis=0) / num_others
        baselines = bound(_replace_each(log_w, geometric_mean))
    return bound(log_w)[None] - baselines


def check_baseline(baseline: str) -> None:
    """Raises ValueError if `baseline` is not one of `BASELINES`."""
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

    The estimate is Σ_k ½ mean_c [f_c(b^k) − f_c(b̃^k)] (b^k − b̃^k) σ(|α|), where f_c(d) is the bound of the sample d and
    K − 1 companions c, one of each other pair. Every way to choose the companions gives K − 1 independent samples that
    do not depend on pair k, so the mean over any set of such choices is unbiased.

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[K, *batch, D]`, K antithetic pairs.
      log_w, log_w_tilde: `[K, *batch]`, their log-weights.
      configurations: the choices of companions. "paper" uses two: all b, and all b̃. "cyclic" uses 2(K−1) and "all"
        uses all 2^{K−1} ways to choose b or b̃ of every other pair.

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> pairs = jnp.array([[1.0]]), jnp.array([[0.0]])
    >>> dj.formulas.multisample_disarm(jnp.zeros(1), *pairs, jnp.array([4.0]), jnp.array([2.0]))
    Array([0.5], dtype=float32)
    """
    signal = functools.partial(pair_signal, configurations=configurations)
    return _disarm_of_signal(signal, logits, b, b_tilde, log_w, log_w_tilde)


def naive_multisample_disarm(
    logits: jax.Array, b: jax.Array, b_tilde: jax.Array, log_w: jax.Array, log_w_tilde: jax.Array
) -> jax.Array:
    """DisARM applied to all K samples at once, as if they were one long vector of bits: a negative result of the paper.

    The estimate is Σ_k ½ [L̂(b) − L̂(b̃)] (b^k − b̃^k) σ(|α|).

    Args:
      logits: `[*batch, D]`.
      b, b_tilde: `[K, *batch, D]`, K antithetic pairs.
      log_w, log_w_tilde: `[K, *batch]`, their log-weights.

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> pairs = jnp.array([[1.0]]), jnp.array([[0.0]])
    >>> dj.formulas.naive_multisample_disarm(jnp.zeros(1), *pairs, jnp.array([4.0]), jnp.array([2.0]))
    Array([0.5], dtype=float32)
    """

    def signal(log_w, log_w_tilde):
        log_w, log_w_tilde = _centred(log_w, log_w_tilde)
        return 0.5 * (bound(log_w) - bound(log_w_tilde))[None]

    return _disarm_of_signal(signal, logits, b, b_tilde, log_w, log_w_tilde)


def multisample_arms(logits: jax.Array, b: jax.Array, log_w: jax.Array) -> jax.Array:
    """ARMS applied locally to each of the K samples of the multi-sample bound, as `multisample_disarm` does with pairs.

    Sample k is a group of n coupled samples. F_ik is the bound of b_ik and the companions b_lj, j ≠ k, averaged over
    l = 1 … n. The estimate is the sum over k of ARMS on group k with the values F_1k … F_nk.

    Args:
      logits: `[*batch, D]`.
      b: `[n, K, *batch, D]`, K independent groups of n samples of `bernoulli.copula_samples`, n ≥ 2.
      log_w: `[n, K, *batch]`, their log-weights.

    Returns:
      `[*batch, D]`, for the K-sample bound, without the pathwise term.

    >>> group = jnp.array([[[1.0]], [[0.0]]])
    >>> dj.formulas.multisample_arms(jnp.zeros(1), group, jnp.array([[4.0], [2.0]]))
    Array([0.5], dtype=float32)
    """
    alpha, (b,), (log_w,), dtype = prepare(logits, (b,), (log_w,))
    check_samples("multisample_arms", b)
    log_w = jnp.stack(_centred(*log_w))
    companions = jax.vmap(leave_one_out)(log_w)
    values = jnp.mean(jnp.logaddexp(companions[:, None], log_w[None]), axis=0)
    weight = bernoulli.copula_weight(alpha[0, 0], b.shape[0])
    return (covariance("multisample_arms", b, values, axis=(0, 1)) * weight).astype(dtype)


def check_configurations(configurations: str, num_pairs: int) -> None:
    """Raises ValueError if `configurations` is not one of `CONFIGURATIONS`, or has too many choices for the pairs."""
    if configurations not in CONFIGURATIONS:
        raise ValueError(f"unknown configurations {configurations!r}; accepted: {', '.join(CONFIGURATIONS)}")
    if configurations == "all" and num_pairs > LARGEST_ALL:
        raise ValueError(
            f'configurations="all" needs 2^K bounds: num_pairs must be at most {LARGEST_ALL}, got {num_pairs}; '
            'accepted for more: "paper", "cyclic"'
        )


def _disarm_of_signal(signal: Callable, logits, b, b_tilde, log_w, log_w_tilde) -> jax.Array:
    """Computes Σ_k s_k (b^k − b̃^k) σ(|α|); `signal` maps the log-weights to s, `[K, *batch]` or `[1, *batch]`."""
    alpha, (b, b_tilde), (log_w, log_w_tilde), dtype = prepare(logits, (b, b_tilde), (log_w, log_w_tilde))
    s = signal(log_w, log_w_tilde)
    weight = jax.nn.sigmoid(jnp.abs(alpha))
    return jnp.sum(s[..., None] * (b - b_tilde) * weight, axis=0).astype(dtype)


def pair_signal(log_w: jax.Array, log_w_tilde: jax.Array, configurations: str) -> jax.Array:
    """Computes ½ mean_c [f_c(b^k) − f_c(b̃^k)] of `multisample_disarm` for every pair, `[K, *batch]`."""
    log_w, log_w_tilde = _centred(log_w, log_w_tilde)
    others = companions(log_w, log_w_tilde, configurations)
    return 0.5 * jnp.mean(jnp.logaddexp(others, log_w[None]) - jnp.logaddexp(others, log_w_tilde[None]), axis=0)


def companions(log_w: jax.Array, log_w_tilde: jax.Array, configurations: str) -> jax.Array:
    """Computes log Σ_{j≠k} w of each set of companions of each pair, `[sets, K, *batch]`; −∞ where K = 1.

    Args:
      log_w, log_w_tilde: `[K, *batch]`.
      configurations: as in `multisample_disarm`.
    """
    check_configurations(configurations, log_w.shape[0])
    if log_w.shape[0] == 1:
        return jnp.full_like(log_w[None], -jnp.inf)
    return _COMPANIONS[configurations](log_w, log_w_tilde)


def _paper_companions(log_w: jax.Array, log_w_tilde: jax.Array) -> jax.Array:
    """Returns the sums for two sets: all b, and all b̃."""
    return jnp.stack([leave_one_out(log_w), leave_one_out(log_w_tilde)])


def _cyclic_companions(log_w: jax.Array, log_w_tilde: jax.Array) -> jax.Array:
    """Returns the sums for 2(K−1) sets.

    Of the pairs after k, cyclically, the first s give b̃ and the rest b, or vice versa. The two sets of the paper are
    those with s = 0. Memory grows as K², as it does for them.
    """

    def after(array):
        """Returns `[K−1, K, *batch]`, which holds the entry of pair k + 1 + i in row i and column k."""
        pairs = np.arange(len(array))  # one gather, whatever K is: a roll for each row takes long to compile
        return array[(pairs[1:, None] + pairs) % len(array)]

    def first(array):
        """Sums the rows before s into row s."""
        nothing = jnp.full_like(array[:1], -jnp.inf)
        return jnp.concatenate([nothing, lax.cumlogsumexp(array[:-1], axis=0)])

    def rest(array):
        """Sums the rows from s on into row s."""
        return lax.cumlogsumexp(array, axis=0, reverse=True)

    ahead, ahead_tilde = after(log_w), after(log_w_tilde)
    return jnp.concatenate(
        [jnp.logaddexp(first(ahead_tilde), rest(ahead)), jnp.logaddexp(first(ahead), rest(ahead_tilde))]
    )


def _all_companions(log_w: jax.Array, log_w_tilde: jax.Array) -> jax.Array:
    """Returns the sums for all 2^{K−1} sets.

    The estimate is then the mean of the paper's over all ways to swap b and b̃ within pairs, so its variance is not
    larger.
    """

    def of_pair(k):
        sums = jnp.full_like(log_w[:1], -jnp.inf)
        for j in range(len(log_w)):
            if j != k:
                choices = [jnp.logaddexp(sums, array[j][None]) for array in (log_w, log_w_tilde)]
                sums = jnp.concatenate(choices)
        return sums

    return jnp.stack([of_pair(k) for k in range(len(log_w))], axis=1)


_COMPANIONS = {"paper": _paper_companions, "cyclic": _cyclic_companions, "all": _all_companions}
CONFIGURATIONS = tuple(_COMPANIONS)


def _centred(*log_w: jax.Array) -> tuple[jax.Array, ...]:
    """Subtracts the largest log-weight.

    Differences of bounds do not change, and lose no digits to a large common offset.
    """
    largest = jnp.max(jnp.concatenate(log_w), axis=0, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
    return tuple(array - largest for array in log_w)


def _replace_each(log_w: jax.Array, replacement: jax.Array) -> jax.Array:
    """Returns `[K, K, *batch]`, whose column k holds all log-weights with the k-th one replaced."""
    diagonal = jnp.eye(log_w.shape[0], dtype=bool).reshape((log_w.shape[0],) * 2 + (1,) * (log_w.ndim - 1))
    return jnp.where(diagonal, replacement[None], log_w[:, None])


def leave_one_out(log_w: jax.Array) -> jax.Array:
    """Computes log Σ_{j≠k} w_j for every k; log(Σ_j w_j − w_k) would cancel where w_k dominates."""
    return jax.nn.logsumexp(_replace_each(log_w, jnp.full_like(log_w, -jnp.inf)), axis=0)
