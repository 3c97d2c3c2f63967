"""How the samples of an estimator form exchangeable pairs, which `midpoint` has to know."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Pairing(NamedTuple):
    """States that an estimator is a mean over exchangeable pairs (b, b̃) with independent variables,

        grad = mean over pairs of ½ (f(b) − f(b̃)) h(b, b̃),

    where the h of a variable depends only on its b and b̃ and changes its sign if they are swapped. For a bound with f
    = log w, the difference is that of the bounds log(e^A + w) that b and b̃ have among companions with the summed
    weights e^A, averaged over sets of companions that do not depend on the pair.

    Attributes:
      split: maps samples, or arrays that belong to them, `[N, …]`, to the first and the second members of all pairs,
        two arrays `[P, …]`.
      factor: `(params, logits, b, b_tilde) -> h`, of the shape of b.
      companions: for a bound, maps log w of all samples `[N, *batch]` to A `[sets, P, *batch]`.
    """

    split: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    factor: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]
    companions: Callable[[jax.Array], jax.Array] | None = None

    def count(self, num_samples: int) -> int:
        """Returns the number of pairs that the samples form."""
        first, _ = jax.eval_shape(self.split, jax.ShapeDtypeStruct((num_samples,), jnp.float32))
        return first.shape[0]


def halves(samples: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits `[b_1, …, b_P, b̃_1, …, b̃_P]` into b and b̃."""
    first, second = jnp.split(samples, 2)
    return first, second


def mean_over_pairs(formula: Callable) -> Callable:
    """Makes the formula of an estimator whose samples are stacked as `halves` takes them.

    Args:
      formula: `(logits, b, b_tilde, f_b, f_b_tilde) -> [P, *batch, D]`, one estimate for each pair.
    """

    def gradient(params, logits, b, noise, f_b):
        return jnp.mean(formula(logits, *halves(b), *halves(f_b)), axis=0)

    return gradient


def each_with_each(samples: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns all pairs of different samples, `[n (n − 1)/2, …]`."""
    num = len(samples)
    first = [jnp.broadcast_to(samples[j][None], (num - 1 - j, *samples.shape[1:])) for j in range(num - 1)]
    return jnp.concatenate(first), jnp.concatenate([samples[j + 1 :] for j in range(num - 1)])


def weighted(weight: Callable[[Any, jax.Array], jax.Array]) -> Callable:
    """Returns the factor (b − b̃) w, given a function `(params, logits) -> w`, `[*batch, D]`."""
    return lambda params, logits, b, b_tilde: (b - b_tilde) * weight(params, logits)[None]
