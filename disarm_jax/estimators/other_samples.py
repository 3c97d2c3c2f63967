"""DoubleCV, RODEO and a form of DisARM, each with a control variate made of ∇f at the other samples."""

from typing import Any

import jax
import jax.numpy as jnp

from disarm_jax import bernoulli, formulas
from disarm_jax.estimators import options
from disarm_jax.estimators.antithetic import stacked_pairs
from disarm_jax.estimators.estimator import SlopeEstimator, describe
from disarm_jax.estimators.reinforce import independent


def double_cv(*, num_samples: int = 2, init_scale: float = -0.5) -> SlopeEstimator:
    """DoubleCV (Titsias & Shi, 2022): corrects f at each sample by the slope of f at the other samples.

    It is REINFORCE-LOO on t_k = f_k + a ḡ_{−k}ᵀ(b_k − p), where ḡ_{−k} is the mean of ∇f over the other samples, minus
    a ḡ ⊙ p(1−p). It is unbiased for every a and takes K evaluations of f, which is differentiated at the same points.

    The scale a is learnt by descending `variance_loss`. The best a is −1 for a linear f, and close to 0 for an f whose
    slope at a sample says little about other samples; it starts halfway.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Titsias & Shi, Double control variates for gradient estimation in discrete latent variable models, 2022
    Advice: When f is differentiable and close to linear; one number to learn.

    Args:
      num_samples: K, the number of independent samples, at least 2.
      init_scale: the initial value of a.

    Returns:
      An estimator whose `params` is `{"scale": a}`.

    Example:
      >>> est = dj.make_estimator("double_cv", init_scale=-1.0)
      >>> params = est.init(jax.random.key(0), jnp.zeros(3))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros(3), lambda b: b @ jnp.array([4.0, 8.0, 12.0]))
      >>> print(out.grad)  # exact for a linear f
      [1. 2. 3.]
    """
    options.at_least("num_samples", num_samples, 2)
    options.finite("init_scale", init_scale)

    def init(key, logits):
        return {"scale": jnp.asarray(init_scale, bernoulli.wide_dtype(bernoulli.as_logits(logits)))}

    def gradient(params, logits, b, noise, f_b, slope):
        return formulas.double_cv(logits, b, f_b, slope, params["scale"])

    info = describe(double_cv, num_samples, needs_grad=True)
    sampler = independent(num_samples)
    return SlopeEstimator(init=init, sampler=sampler, formula=gradient, tunables=("scale",), info=info)


def rodeo(*, num_samples: int = 2, init_scale: float = 1.0, hidden: int = 100) -> SlopeEstimator:
    """RODEO (Shi et al., 2022): control variates from a discrete Stein operator and a learnt function of f and ∇f.

    The Stein operator (Ah)(b) = 1/D Σ_i q_i(¬b_i) [h(b^{¬i}) − h(b)] has mean zero for every h. The estimate 1/K Σ_k
    {[f_k − mean_{j≠k}(f_j + a Ah¹_{−j}(b_j))] ∂log q(b_k) + c A(h²_{−k} · (· − p))(b_k)} uses it twice, with h_{−k}(y)
    = mean_{j≠k} H(∇f(b_j)ᵀ(y − b_j), f(b_j)) for a small network H. It is unbiased for every a, c and H. It takes K
    evaluations of f, which is differentiated at the same points; the flips inside A need no more. Its own cost are the
    K (K−1) (D+1) evaluations of H per example.

    The tunables are learnt by descending `variance_loss`.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: Shi et al., Gradient estimation with discrete Stein operators, NeurIPS 2022
    Advice: When f is differentiable and costs far more than a small network at every bit, which learns alongside.

    Args:
      num_samples: K, the number of independent samples, at least 2.
      init_scale: the initial value of a and c. Because the operator divides by D, a value of 1 starts close to
        REINFORCE-LOO.
      hidden: the number of hidden units of H, which maps two numbers to two, with one hidden layer of LeakyReLU(0.3).

    Returns:
      An estimator whose `params` is `{"baseline_scale": a, "control_scale": c, "network": the weights of H}`.

    Example:
      >>> est = dj.make_estimator("rodeo", hidden=8)
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: (b**2).sum(-1))
      >>> out.value.shape, out.grad.shape
      ((5,), (5, 3))
    """
    options.at_least("num_samples", num_samples, 2)
    options.finite("init_scale", init_scale)
    options.at_least("hidden", hidden, 1)

    def init(key, logits):
        dtype = bernoulli.wide_dtype(bernoulli.as_logits(logits))
        scale = jnp.asarray(init_scale, dtype)
        return {"baseline_scale": scale, "control_scale": scale, "network": _init_network(key, hidden, dtype)}

    def gradient(params, logits, b, noise, f_b, slope):
        h, h_flipped = _stein_functions(params, b.astype(slope.dtype), f_b.astype(slope.dtype), slope)
        return formulas.rodeo(logits, b, f_b, h, h_flipped)

    info = describe(rodeo, num_samples, needs_grad=True)
    tunables = ("baseline_scale", "control_scale", "network")
    return SlopeEstimator(init=init, sampler=independent(num_samples), formula=gradient, tunables=tunables, info=info)


def disarm_taylor_cross(*, num_pairs: int = 2, init_scale: float = 1.0) -> SlopeEstimator:
    """DisARM on f minus a linear function, which for each pair has the mean slope of f at the other pairs.

    Pair k is applied to f(b) − λ sᵀ(b − p), where s is the mean of ∇f over the other pairs, and λ s ⊙ p(1 − p) is
    added. The estimator is unbiased for every λ, because a pair does not see its own slope. Each pair takes two
    evaluations of f, which is differentiated at the same points and never evaluated between 0 and 1.

    λ is learnt by descending `variance_loss`.

    f must be pure because it is differentiated: draw the dropout masks of a Flax NNX module outside of f.

    Paper: disarm_jax; DisARM with the leave-one-out slopes of Titsias & Shi, Double control variates, 2022
    Advice: When f can be differentiated at bits but means nothing between them.

    Args:
      num_pairs: the number of antithetic pairs, at least 2; the pairs are independent of each other.
      init_scale: the initial value of λ.

    Returns:
      An estimator whose `params` is `{"scale": (λ,)}`.

    Example:
      >>> est = dj.make_estimator("disarm_taylor_cross")
      >>> params = est.init(jax.random.key(0), jnp.zeros((5, 3)))
      >>> out = est.apply(params, jax.random.key(1), jnp.zeros((5, 3)), lambda b: 2 * b.sum(-1))
      >>> out.grad[0]  # exact for a linear f
      Array([0.5, 0.5, 0.5], dtype=float32)
    """
    options.at_least("num_pairs", num_pairs, 2)
    options.finite("init_scale", init_scale)

    def init(key, logits):
        return {"scale": (jnp.asarray(init_scale, bernoulli.wide_dtype(bernoulli.as_logits(logits))),)}

    def gradient(params, logits, b, noise, f_b, slope):
        slopes = sum(jnp.split(0.5 * slope, 2))  # of each pair
        others = (jnp.sum(slopes, axis=0, keepdims=True) - slopes) / (num_pairs - 1)
        linear = jnp.sum(jnp.concatenate([others, others]) * bernoulli.score(logits, b), axis=-1)

        def disarm(values):
            return jnp.mean(formulas.disarm(logits, *jnp.split(b, 2), *jnp.split(values, 2)), axis=0)

        scale = jnp.asarray(params["scale"][0], logits.dtype)
        return disarm(f_b) - scale * (disarm(linear) - jnp.mean(slopes, axis=0) * bernoulli.variance(logits))

    info = describe(disarm_taylor_cross, 2 * num_pairs, needs_grad=True)
    return SlopeEstimator(
        init=init,
        sampler=stacked_pairs(num_pairs),
        formula=gradient,
        tunables=("scale",),
        tuned_by_logits=True,
        info=info,
    )


def _stein_functions(params: Any, b: jax.Array, f_b: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns a h¹_{−k} and c h²_{−k} at b_k, `[2, K, *batch]`, and with each bit flipped, `[2, K, *batch, D]`.

    A flip of bit i changes ∇fᵀ(y − b_j) by ∂_i f(b_j) (1 − 2 b_i).
    """
    num_samples = b.shape[0]
    scales = jnp.stack([jnp.asarray(params[name], b.dtype) for name in ("baseline_scale", "control_scale")])
    h = h_flipped = 0.0
    for shift in range(1, num_samples):  # sample k beside j = k + shift
        other_b, other_f, other_slope = (jnp.roll(array, -shift, axis=0) for array in (b, f_b, slope))
        step = jnp.sum(other_slope * (b - other_b), axis=-1)
        h = h + _apply_network(params["network"], step, other_f)
        flipped_step = step[..., None] + other_slope * (1 - 2 * b)
        h_flipped = h_flipped + _apply_network(params["network"], flipped_step, other_f[..., None])

    def scaled(array: Any) -> jax.Array:
        return jnp.moveaxis(array * bernoulli.lift(scales / (num_samples - 1), array.ndim), -1, 0)

    return scaled(h), scaled(h_flipped)


def _init_network(key: jax.Array, hidden: int, dtype: jnp.dtype) -> dict:
    """Returns the weights of H, drawn from the Glorot uniform distribution, and its biases, which are zero."""
    glorot, keys = jax.nn.initializers.glorot_uniform(), jax.random.split(key)
    return {
        "hidden": {"kernel": glorot(keys[0], (2, hidden), dtype), "bias": jnp.zeros(hidden, dtype)},
        "output": {"kernel": glorot(keys[1], (hidden, 2), dtype), "bias": jnp.zeros(2, dtype)},
    }


def _apply_network(params: Any, step: jax.Array, f_b: jax.Array) -> jax.Array:
    """Returns H(∇fᵀ(y − b), f(b)), `[..., 2]`; f_b is broadcast against the steps."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, step.dtype), params)
    from_step, from_f = (bernoulli.lift(kernel, step.ndim + 1) for kernel in params["hidden"]["kernel"])
    bias = bernoulli.lift(params["hidden"]["bias"], step.ndim + 1)
    hidden = step[..., None] * from_step + (f_b[..., None] * from_f + bias)
    activation = jax.nn.leaky_relu(hidden, negative_slope=0.3)
    return activation @ params["output"]["kernel"] + bernoulli.lift(params["output"]["bias"], step.ndim + 1)
