"""Companions for the samples of local DisARM: which of the K pairs' b or b̃ fill up the bound of sample k.

Any choice among the other pairs is a draw of K − 1 independent samples that knows nothing of pair k, so that every
average over such choices is unbiased. The 2K weights serve all of them. A signal is ½ mean over choices c of
f_c(b^k) − f_c(b̃^k), `[K, *batch]`, where f_c(d) is the bound of the companions c and d.
"""

import jax
import jax.numpy as jnp
from jax import lax

CONFIGURATIONS = ("paper", "cyclic", "all")
LARGEST_ALL = 12  # pairs


def check_configurations(configurations: str, num_pairs: int) -> None:
    """Refuses configurations that are not among `CONFIGURATIONS`, or too many for this number of pairs."""
    if configurations not in CONFIGURATIONS:
        raise ValueError(f"unknown configurations {configurations!r}; accepted: {', '.join(CONFIGURATIONS)}")
    if configurations == "all" and num_pairs > LARGEST_ALL:
        raise ValueError(
            f'configurations="all" needs 2^K bounds: num_pairs must be at most {LARGEST_ALL}, got {num_pairs}; '
            'accepted for more: "paper", "cyclic"'
        )


def cyclic_signal(log_w: jax.Array, log_w_tilde: jax.Array) -> jax.Array:
    """2(K−1) choices: of the pairs after k, in a circle, the first s from one side and the rest from the other.

    Those of the paper are s = 0. Memory grows as K², as for the paper's choices.
    """
    num_pairs = log_w.shape[0]
    if num_pairs == 1:
        return 0.5 * (log_w - log_w_tilde)

    def after(array):
        """`[K−1, K, *batch]`: row i, column k is the array at pair k + 1 + i."""
        return jnp.stack([jnp.roll(array, -shift, axis=0) for shift in range(1, num_pairs)])

    def first(array):
        """Row s sums the rows before s."""
        nothing = jnp.full_like(array[:1], -jnp.inf)
        return jnp.concatenate([nothing, lax.cumlogsumexp(array[:-1], axis=0)])

    def rest(array):
        return lax.cumlogsumexp(array, axis=0, reverse=True)

    ahead, ahead_tilde = after(log_w), after(log_w_tilde)
    companions = jnp.concatenate(
        [jnp.logaddexp(first(ahead_tilde), rest(ahead)), jnp.logaddexp(first(ahead), rest(ahead_tilde))]
    )
    difference = jnp.logaddexp(companions, log_w[None]) - jnp.logaddexp(companions, log_w_tilde[None])
    return 0.5 * jnp.mean(difference, axis=0)


def all_signal(log_w: jax.Array, log_w_tilde: jax.Array) -> jax.Array:
    """All 2^{K−1} choices, from the 2^K bounds of one sample of every pair.

    The average of the paper's estimate over all ways to exchange b and b̃ within pairs: never more variance.
    """
    num_pairs, batch = log_w.shape[0], log_w.shape[1:]
    bounds = jnp.full_like(log_w[:1], -jnp.inf)
    for k in range(num_pairs):
        bounds = jnp.concatenate([jnp.logaddexp(bounds, log_w[k][None]), jnp.logaddexp(bounds, log_w_tilde[k][None])])
    bounds = bounds.reshape((2,) * num_pairs + batch)  # the last pair first
    by_choice = [jnp.moveaxis(bounds, num_pairs - 1 - k, 0).reshape(2, -1, *batch) for k in range(num_pairs)]
    return 0.5 * jnp.stack([jnp.mean(choice[0] - choice[1], axis=0) for choice in by_choice])
