"""Makes an expectation differentiable by means of an estimator."""

from typing import Any, Literal, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax.estimators import calling, options
from disarm_jax.estimators.estimator import Estimator, Function

Result = TypeVar("Result", covariant=True)


class Expectation(Protocol[Result]):
    """E f(b) as a function that JAX can differentiate."""

    def __call__(self, params: Any, key: jax.Array, logits: Any, f: Function) -> Result:
        """Estimates E f(b); see `expectation`."""
        ...


@overload
def expectation(est: Estimator, *, has_aux: Literal[False] = False) -> Expectation[jax.Array]: ...
@overload
def expectation(est: Estimator, *, has_aux: Literal[True]) -> Expectation[tuple[jax.Array, Any]]: ...
@overload
def expectation(est: Estimator, *, has_aux: bool) -> Expectation[Any]: ...
def expectation(est: Estimator, *, has_aux: bool = False) -> Expectation[Any]:
    """Makes E f(b) a function that JAX can differentiate, in reverse and in forward mode.

    Use it in a training loss: `jax.grad` then returns the estimator's gradient for the logits, and the ordinary
    gradient for everything else that f depends on.

    Args:
      est: an estimator.
      has_aux: whether f returns a pair `(f_b, aux)`. The result is then a pair as well, with every leaf of aux averaged
        over the samples; use it with `jax.grad(…, has_aux=True)` after reducing the batch.

    Returns:
      A function `(params, key, logits, f) -> [*batch]`, whose value is `Estimate.value`. Its derivative with respect to
      the
      logits is `Estimate.grad` plus the derivative of f's own dependence on them; with respect to anything else that f
      closes over, it is the ordinary derivative. Only first derivatives are supported: those of the gradient with
      respect
      to the logits are zero. No gradient reaches `params`: see `variance_loss`. For an estimator made by
      `hierarchical`,
      a `Chain` takes the place of the logits, and the derivative reaches whatever its layers close over.

    Raises:
      TypeError: if `est` is not an estimator.

    Example:
      >>> def objective(logits, weights, key):
      ...     f = lambda b: (b @ weights) ** 2
      ...     return dj.expectation(dj.disarm())((), key, logits, f).mean()
      >>> grads = jax.grad(objective, argnums=(0, 1))(jnp.zeros((5, 3)), jnp.ones(3), jax.random.key(0))
      >>> [g.shape for g in grads]
      [(5, 3), (3,)]
    """
    options.check_estimator("expectation", est)

    def estimate(params: Any, key: jax.Array, logits: Any, f: Function) -> Any:
        out = est.outcome(lax.stop_gradient(params), key, logits, f, has_aux)
        value = calling.attach(out.estimate.value, out.estimate.grad, out.logits)
        return (value, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), out.aux)) if has_aux else value

    return estimate
