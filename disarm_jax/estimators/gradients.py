"""What one does with an estimator: differentiate an expectation, learn the tunables, measure the variance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import contract
from disarm_jax.estimators.estimator import Estimator


def expectation(est: Estimator, *, has_aux: bool = False) -> Callable:
    """E f(b) as a function that JAX can differentiate, in reverse and in forward mode.

    Args:
      est: an estimator.
      has_aux: whether f returns a pair `(f_b, aux)`. The result is then a pair as well, with every leaf of aux averaged
        over the samples; use it with `jax.grad(…, has_aux=True)` after reducing the batch.

    Returns:
      A function `(params, key, logits, f) -> [*batch]`. Its value is `Estimate.value`. Its derivative with respect to
      the logits is `Estimate.grad` plus that of f's own dependence on them, and with respect to anything else that f
      closes over the ordinary one. First derivatives only: those of the gradient with respect to logits are zero. No
      gradient reaches `params`: see `variance_loss`.

    Example:
      >>> def objective(logits, weights, key):
      ...     f = lambda b: (b @ weights) ** 2
      ...     return dj.expectation(dj.disarm())((), key, logits, f).mean()
      >>> grads = jax.grad(objective, argnums=(0, 1))(jnp.zeros((5, 3)), jnp.ones(3), jax.random.key(0))
      >>> [g.shape for g in grads]
      [(5, 3), (3,)]
    """

    def estimate(params: Any, key: jax.Array, logits: jax.Array, f: Callable):
        logits = bernoulli.as_logits(logits)
        out, aux = contract.apply_with_aux(est, has_aux, lax.stop_gradient(params), key, logits, f)
        value = contract.attach(out.value, [(out.grad, logits)])
        return (value, contract.mean_aux(aux)) if has_aux else value

    return estimate


def variance_loss(est: Estimator) -> Callable:
    """A loss whose gradient with respect to `params` estimates that of the gradient's variance, without bias.

    The variance is summed over batch and coordinates. Because grad is unbiased whatever the tunables are, its variance
    falls with E grad², and a single draw estimates the derivative of that. The draw may be the one that also trains the
    model, as long as the new tunables only act from the next step on.

    Args:
      est: an estimator, hierarchical or not.

    Returns:
      A function `(params, key, logits, f) -> scalar`, to be differentiated with respect to `params`; with
      `inputs, layers` in the place of `logits` for a hierarchical estimator.

    Example:
      >>> est = dj.interpolated()
      >>> logits, f = jnp.ones((5, 3)), lambda b: b.sum(-1) ** 2
      >>> params = est.init(jax.random.key(0), logits)
      >>> jax.grad(dj.variance_loss(est))(params, jax.random.key(1), logits, f)["beta"].shape
      ()
    """
    if est.variance_loss is not None:
        return est.variance_loss

    def loss(params: Any, key: jax.Array, logits: jax.Array, f: Callable) -> jax.Array:
        return contract.sum_of_squares(est.apply(params, key, logits, f).grad)

    return loss


class GradientVariance(NamedTuple):
    """Moments of an estimator's grad over independent draws, with standard errors.

    Attributes:
      mean: `[*batch, D]`, mean over the draws.
      mean_stderr: `[*batch, D]`, its standard error.
      variance: `[*batch, D]`, unbiased variance of one draw.
      variance_stderr: `[*batch, D]`, its standard error.
      total: the variance summed over batch and coordinates: one number to compare estimators by.
      total_stderr: its standard error.
    """

    mean: jax.Array
    mean_stderr: jax.Array
    variance: jax.Array
    variance_stderr: jax.Array
    total: jax.Array
    total_stderr: jax.Array


def gradient_variance(est: Estimator) -> Callable:
    """How noisy is this estimator on my f? Mean and variance of `grad` at fixed logits, with standard errors.

    The standard errors come from the draws: they say little where the gradient is almost always the same number.

    Args:
      est: an estimator.

    Returns:
      A function `(params, key, logits, f, num_draws, batch_size=None) -> GradientVariance`. Draws are made one after
      the other, or `batch_size` at a time (f is then vmapped); `num_draws` gradients are held in memory.

    Example:
      >>> logits, f = jnp.linspace(-1, 1, 4), lambda b: (b.sum(-1) - 1.2) ** 2
      >>> def total(est):
      ...     return dj.gradient_variance(est)((), jax.random.key(0), logits, f, 1000).total
      >>> bool(total(dj.disarm()) < total(dj.reinforce_loo()))
      True
    """

    def measure(
        params: Any, key: jax.Array, logits: jax.Array, f: Callable, num_draws: int, batch_size: int | None = None
    ) -> GradientVariance:
        contract.at_least("num_draws", num_draws, 2)

        def one_draw(key):
            return bernoulli.wide(est.apply(params, key, logits, f).grad)

        grads = lax.map(one_draw, jax.random.split(key, num_draws), batch_size=batch_size)
        mean = jnp.mean(grads, axis=0)
        squares = (grads - mean[None]) ** 2
        variance, variance_stderr = _mean_of_squares(squares)
        total, total_stderr = _mean_of_squares(jnp.sum(squares.reshape(num_draws, -1), axis=1))
        return GradientVariance(mean, jnp.sqrt(variance / num_draws), variance, variance_stderr, total, total_stderr)

    return measure


def _mean_of_squares(squares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The unbiased variance from squared deviations over the first axis, and its standard error."""
    num_draws = squares.shape[0]
    stderr = jnp.std(squares, axis=0) / jnp.sqrt(jnp.asarray(num_draws, squares.dtype))
    return jnp.sum(squares, axis=0) / (num_draws - 1), stderr
