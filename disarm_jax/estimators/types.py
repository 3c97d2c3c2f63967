"""What an estimator is: a few pure functions, and the value and gradient they return."""

from collections.abc import Callable
from typing import NamedTuple

import jax


class Estimate(NamedTuple):
    """One estimate of E f(b) and of its derivative through the sampling distribution.

    Attributes:
      value: `[*batch]`, the mean of f over the samples drawn from q, or the multi-sample bound. Its ordinary
        derivative is that of f with respect to whatever f closes over, logits included.
      grad: `[*batch, D]`, the derivative with respect to the logits that comes from sampling alone.
    """

    value: jax.Array
    grad: jax.Array


class Estimator(NamedTuple):
    """A gradient estimator: pure functions, to be jitted, vmapped and scanned by the caller.

    Attributes:
      init: `(key, logits) -> params`, the tunables (control variates, β, …); an empty pytree when there are none.
        Shapes depend on D only.
      apply: `(params, key, logits, f) -> Estimate`. f maps `[N, *batch, D]` to `[N, *batch]`, each row on its own. The
        estimators of this package also take `has_aux=True`: f then returns a pair `(f_b, aux)` and apply the pair
        `(Estimate, aux)`, where aux belongs to the samples drawn from q, one row each, sample axis first. So
        `lambda b: (f(b), b)` hands out the samples themselves.
      variance_loss: `(params, key, logits, f) -> scalar`, see `disarm_jax.variance_loss`; None means the sum of grad².
    """

    init: Callable
    apply: Callable
    variance_loss: Callable | None = None


class HierarchicalEstimate(NamedTuple):
    """One estimate of E f(b_1, …, b_T) and of its derivatives through the sampling of each layer.

    Attributes:
      value: `[*batch]`, the mean of f over the chains drawn from q; its ordinary derivative is that of f.
      grads: one `[*batch, D_t]` per layer, the derivative with respect to logits_t that comes from sampling layer t.
      logits: one `[*batch, D_t]` per layer, the trunk's, differentiable in whatever the layers close over.
    """

    value: jax.Array
    grads: tuple[jax.Array, ...]
    logits: tuple[jax.Array, ...]
