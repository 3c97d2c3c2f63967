"""Estimators for a chain of stochastic layers, b_t ~ Bernoulli(σ(layer_t(b_{t−1}))), b_0 the inputs, by name."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from disarm_jax.estimators import branching, contract, hierarchical_relax, hierarchical_taylor
from disarm_jax.estimators.estimator import Estimator

_FACTORIES = {
    "arm": branching.arm,
    "arms": branching.arms,
    "disarm": branching.disarm,
    "disarm_midpoint": hierarchical_taylor.disarm_midpoint,
    "disarm_quadratic": hierarchical_taylor.disarm_quadratic,
    "disarm_taylor": hierarchical_taylor.disarm_taylor,
    "reinforce_loo": branching.reinforce_loo,
    "relax": hierarchical_relax.relax,
}


def hierarchical(name: str, **options: Any) -> Estimator:
    """The estimator for a chain of stochastic layers, by the name of its one-layer form.

    Algorithm 1 of the paper for "reinforce_loo" (two samples), "arm" and "disarm" (one pair): unbiased, T + 1
    evaluations of f, f is not differentiated. For "arms" (n samples) the same with n − 1 branches per layer:
    T (n − 1) + 1 evaluations. For "relax": one evaluation at the trunk and two relaxed ones per layer, where f is
    differentiated; unbiased with the later layers relaxed too, whereas the variant of the authors' code, which draws
    hard samples there (`later_layers="hard"`), is biased. For "disarm_taylor", "disarm_quadratic" and
    "disarm_midpoint": DisARM with an expansion of f in each layer, at its mean or between b_t and its partner;
    unbiased, T + 1 evaluations and one per layer where f is differentiated, and an f that is `Chained` says what of it
    to expand. An f that is a `LayerSum` is evaluated only where samples differ.

    The estimator's functions take the inputs and the layers instead of logits: `init(key, inputs, layers)`,
    `apply(params, key, inputs, layers, f)`, `variance_loss(params, key, inputs, layers, f)`. `layers` is a sequence of
    functions, b_{t−1} to logits_t; the first gets `inputs` untouched and returns `[*batch, D_1]`, the others get
    samples with one more leading axis. f takes the tuple (b_1, …, b_T), each `[N, *batch, D_t]`, and returns
    `[N, *batch]`.

    Args:
      name: one of `hierarchical_names()`.
      **options: those of the one-layer form, as far as one trunk allows; for "relax" also `later_layers`
        and `shared_tunables`.

    Returns:
      An `Estimator` whose `apply` returns a `HierarchicalEstimate`.

    Example:
      >>> layers = [lambda x: x @ jnp.ones((4, 3)), lambda b: b @ jnp.ones((3, 2))]
      >>> est, x = dj.hierarchical("disarm"), jnp.zeros((5, 4))
      >>> out = est.apply((), jax.random.key(0), x, layers, lambda b: b[0].sum(-1) * b[1].sum(-1))
      >>> out.value.shape, [g.shape for g in out.grads]
      ((5,), [(5, 3), (5, 2)])
    """
    if name not in _FACTORIES:
        raise ValueError(f"no hierarchical form of {name!r}; known: {', '.join(hierarchical_names())}")
    return _FACTORIES[name](**options)


def hierarchical_names() -> tuple[str, ...]:
    """The names that `hierarchical` takes, sorted.

    >>> dj.hierarchical_names()
    ('arm', 'arms', 'disarm', 'disarm_midpoint', 'disarm_quadratic', 'disarm_taylor', 'reinforce_loo', 'relax')
    """
    return tuple(sorted(_FACTORIES))


def hierarchical_expectation(est: Estimator, *, has_aux: bool = False) -> Callable:
    """The expectation of f over a chain of layers as a function that JAX can differentiate.

    Args:
      est: an estimator from `hierarchical`.
      has_aux: whether f returns a pair `(f_b, aux)`; the result is then a pair as well, aux averaged over the samples.

    Returns:
      A function `(params, key, inputs, layers, f) -> [*batch]`. Its derivative with respect to what the layers close
      over is the estimated one through sampling, and with respect to what f closes over the ordinary one.

    Example:
      >>> def objective(w, key):
      ...     layers = [lambda x: x + w, lambda b: b @ jnp.ones((3, 2))]
      ...     f = lambda b: b[0].sum(-1) * b[1].sum(-1)
      ...     return dj.hierarchical_expectation(dj.hierarchical("disarm"))((), key, jnp.zeros(3), layers, f)
      >>> jax.grad(objective)(jnp.zeros(3), jax.random.key(0)).shape
      (3,)
    """

    def estimate(params: Any, key: jax.Array, inputs: Any, layers: Sequence[Callable], f: Callable):
        out, aux = contract.apply_with_aux(est, has_aux, lax.stop_gradient(params), key, inputs, layers, f)
        value = contract.attach(out.value, zip(out.grads, out.logits, strict=True))
        return (value, contract.mean_aux(aux)) if has_aux else value

    return estimate
