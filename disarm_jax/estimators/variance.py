"""The variance of an estimator's gradient: a loss that lowers it, and a measurement of it."""

import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import Estimator, Function, VarianceLoss
from disarm_jax.estimators.first_order import stateless_f, vary_like

_ARRAYS = (jax.Array, np.ndarray, np.generic, float, int)


def variance_loss(est: Estimator) -> VarianceLoss:
    """Makes a loss for the tunables of an estimator, whose descent lowers the variance of its gradient.

    The derivative of the loss with respect to `params` is an unbiased estimate of the derivative of the variance,
    summed over batch, coordinates and layers. Because the mean of `grad` does not depend on the tunables, the variance
    falls with E grad², and a single draw estimates the derivative of that. The draw may be the one that also trains the
    model, as long as the new tunables are used only from the next step on. Tunables that change the distribution of the
    samples, such as the β of `interpolated`, are differentiated through their log-probability, too.

    Args:
      est: an estimator.

    Returns:
      A function `(params, key, logits, f) -> scalar`, to be differentiated with respect to `params`.

    Raises:
      TypeError: if `est` is not an estimator.

    Example:
      >>> est = dj.make_estimator("interpolated")
      >>> logits, f = jnp.ones((5, 3)), lambda b: b.sum(-1) ** 2
      >>> params = est.init(jax.random.key(0), logits)
      >>> jax.grad(dj.variance_loss(est))(params, jax.random.key(1), logits, f)["beta"].shape
      ()
    """
    options.check_estimator("variance_loss", est)
    if est.variance_loss is not None:
        return est.variance_loss

    def loss(params: Any, key: jax.Array, logits: Any, f: Function) -> jax.Array:
        out = est.outcome(params, key, logits, f)
        squares = [bernoulli.wide(grad) ** 2 for grad in jax.tree.leaves(out.estimate.grad)]
        total = jnp.asarray(sum(map(jnp.sum, squares)))
        for square, log_prob in zip(squares, jax.tree.leaves(out.log_prob), strict=False):
            # The derivative of E g² in what the probability depends on is that of g² + stop(g²) log P.
            by_example = jnp.sum(square, axis=tuple(range(log_prob.ndim, square.ndim)))
            total = total + jnp.sum(lax.stop_gradient(by_example) * log_prob.astype(square.dtype))
        return total

    return loss


class GradientVariance(NamedTuple):
    """Moments of an estimator's gradient over independent draws, with standard errors.

    For a chain, whose gradient is a tuple with one array for each layer, so are the first four fields.

    Attributes:
      mean: `[*batch, D]`, the mean over the draws.
      mean_stderr: `[*batch, D]`, its standard error.
      variance: `[*batch, D]`, the unbiased variance of one draw.
      variance_stderr: `[*batch, D]`, its standard error.
      total: the variance summed over batch, coordinates and layers: one number to compare estimators by.
      total_stderr: its standard error.
    """

    mean: Any
    mean_stderr: Any
    variance: Any
    variance_stderr: Any
    total: jax.Array
    total_stderr: jax.Array


class Measure(Protocol):
    """Measures the moments of an estimator's gradient for an f."""

    def __call__(
        self, params: Any, key: jax.Array, logits: Any, f: Function, num_draws: int, batch_size: int | None = None
    ) -> GradientVariance:
        """Draws gradients and returns their moments; see `gradient_variance`."""
        ...


def gradient_variance(est: Estimator) -> Measure:
    """Measures how noisy an estimator is for an f: mean and variance of `grad` at fixed logits, with standard errors.

    Use it to compare estimators by `total`. The standard errors are computed from the draws, so they are of little use
    where the gradient is almost always the same number.

    Every draw is made twice from the same key, once for the mean and once for the squared deviations from it. So no
    gradient is kept, and the memory does not grow with the number of draws.

    JAX traces and compiles f at the first call with an estimator, an f and shapes, and not again as long as the two
    objects exist. As with `jax.jit`, f must therefore be pure: values that it reads from outside stay as they were at
    the first call. Make a new function where they change.

    Args:
      est: an estimator.

    Returns:
      A function `(params, key, logits, f, num_draws, batch_size=None) -> GradientVariance`. Draws are made one after
      the
      other, or `batch_size` at a time; f is then vmapped.

    Raises:
      TypeError: if `est` is not an estimator.

    Example:
      >>> logits, f = jnp.linspace(-1, 1, 4), lambda b: (b.sum(-1) - 1.2) ** 2
      >>> def total(est):
      ...     return dj.gradient_variance(est)((), jax.random.key(0), logits, f, 1000).total
      >>> bool(total(dj.disarm()) < total(dj.reinforce_loo()))
      True
    """
    options.check_estimator("gradient_variance", est)

    def measure(
        params: Any, key: jax.Array, logits: Any, f: Function, num_draws: int, batch_size: int | None = None
    ) -> GradientVariance:
        options.at_least("num_draws", num_draws, 2)
        size = 1 if batch_size is None else min(options.at_least("batch_size", batch_size, 1), num_draws)
        keys, whole = jax.random.split(key, num_draws), num_draws // size * size
        batches = [keys[:whole].reshape(-1, size)] + ([keys[None, whole:]] if whole < num_draws else [])
        draw, accumulate, inputs = *_steps(est, f)[batch_size is not None], (params, logits)
        if not all(isinstance(leaf, _ARRAYS) for leaf in jax.tree.leaves(inputs)):
            # Layers of a chain are functions, which cannot be inputs of a program. They belong to this call alone.
            given = Estimator(est.init, lambda _params, key, _logits, f: est.apply(params, key, logits, f))
            draw, accumulate, inputs = *_make_steps(lambda: given, lambda: f)[batch_size is not None], ((), ())

        def moments(centre: Any, of_keys: Callable = lambda keys: keys) -> _Moments:
            start = (centre, centre, _total(centre))  # of which only the shapes and types matter
            zeros = jax.tree.map(jnp.zeros_like, start)
            carry = (*inputs, centre), _Moments(jnp.zeros((), jnp.int32), zeros, zeros)
            for batch in batches:
                carry, _ = lax.scan(accumulate, carry, of_keys(batch))
            return carry[1]

        with stateless_f():
            shapes = jax.eval_shape(draw, *inputs, jax.random.clone(keys)[0])  # indexing counts as a use of keys
            zeros = jax.tree.map(lambda leaf: vary_like(jnp.zeros(leaf.shape, leaf.dtype), leaf), shapes)
            first = moments(zeros)
            mean, variance = first.mean[0], jax.tree.map(lambda leaf: leaf / (num_draws - 1), first.squares[0])
            second = moments(mean, jax.random.clone)
        stderr = lambda squares: jax.tree.map(lambda leaf: jnp.sqrt(leaf) / num_draws, squares)
        return GradientVariance(
            mean,
            jax.tree.map(lambda leaf: jnp.sqrt(leaf / num_draws), variance),
            variance,
            stderr(second.squares[1]),
            _total(variance),
            stderr(second.squares[2]),
        )

    return measure


class _Moments(NamedTuple):
    """Moments of the draws so far: their number, their mean, and the sum of their squared deviations."""

    count: jax.Array
    mean: Any
    squares: Any

    def merge(self, rows: Any) -> "_Moments":
        """Returns the moments after more draws, one for each row (Chan, Golub & LeVeque, 1983)."""
        added = len(jax.tree.leaves(rows)[0])
        count = self.count + added
        means = jax.tree.map(lambda rows: jnp.mean(rows, axis=0), rows)

        def of_squares(squares, mean, new, rows):
            between = (new - mean) ** 2 * (self.count.astype(mean.dtype) * added / count.astype(mean.dtype))
            return squares + jnp.sum((rows - new[None]) ** 2, axis=0) + between

        squares = jax.tree.map(of_squares, self.squares, self.mean, means, rows)
        mean = jax.tree.map(
            lambda mean, new: mean + (new - mean) * (added / count.astype(mean.dtype)), self.mean, means
        )
        return _Moments(count, mean, squares)


def _total(tree: Any) -> jax.Array:
    """Returns the sum of all numbers of all arrays."""
    dtype = bernoulli.wide_dtype(*jax.tree.leaves(tree))
    return jnp.asarray(sum(jnp.sum(leaf.astype(dtype)) for leaf in jax.tree.leaves(tree)))


# The functions that JAX is given, for each f and estimator: it knows programs by the function that they come from. They
# hold f and the estimator weakly, as the keys are held, so that nothing outlives its use.
_STEPS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _steps(est: Estimator, f: Function) -> tuple:
    """Returns `(draw, accumulate)`, for single draws and for batches; the same objects for the same estimator and f.

    Objects that can be called may change their state between two calls, so only functions are remembered.
    """
    if not isinstance(f, types.FunctionType):
        return _make_steps(lambda: est, lambda: f)
    of_f = _STEPS.setdefault(f, weakref.WeakKeyDictionary())
    try:
        if est not in of_f:
            of_f[est] = _make_steps(weakref.ref(est), weakref.ref(f))
        return of_f[est]
    except TypeError:  # an estimator that cannot be hashed
        return _make_steps(lambda: est, lambda: f)


def _make_steps(est: Callable[[], Any], f: Callable[[], Any]) -> tuple:
    """Makes the functions of `_steps` from references to the estimator and f, which may be weak."""

    def draw(params: Any, logits: Any, key: jax.Array) -> Any:
        return jax.tree.map(bernoulli.wide, est().apply(params, key, logits, f()).grad)

    def statistics(params: Any, logits: Any, centre: Any, key: jax.Array) -> tuple:
        grad = draw(params, logits, key)
        squares = jax.tree.map(lambda leaf, centre: (leaf - centre) ** 2, grad, centre)
        return grad, squares, _total(squares)

    def one_by_one(carry: tuple, keys: jax.Array) -> tuple:
        inputs, moments = carry
        row = jax.tree.map(lambda leaf: leaf[None], statistics(*inputs, key=keys[0]))
        return (inputs, moments.merge(row)), None

    def in_batches(carry: tuple, keys: jax.Array) -> tuple:
        inputs, moments = carry
        return (inputs, moments.merge(jax.vmap(lambda key: statistics(*inputs, key=key))(keys))), None

    return (draw, one_by_one), (draw, in_batches)
