"""Expansions at the mean: no bias and the right variance by enumeration of samples and probes, through `apply`.

The bases draw all outcomes at once, one per example of a batch, so that means over them are exact expectations of what
the code returns. That the real bases draw with the right law is tested in test_samples.py.
"""

import dataclasses
import functools
import itertools

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from smooth import (
    HIDDEN,
    KINDS,
    LINEAR,
    LOGITS,
    OFFSET,
    WEIGHTS,
    Inner,
    calls_of,
    function,
    inner_curved,
    linear_decoder,
    softplus_sum,
)

import disarm_jax as dj
from disarm_jax.estimators.estimator import SampleEstimator

SCALES = [(0.6, -0.8), (0.0, 0.0)]  # the estimate is affine in each λ

pytestmark = pytest.mark.usefixtures("quick_compile", "x64")


STRUCTURED = ("averaged",)  # the diagonal is exact without probes


def expanded(kind, order=2):
    """f in numpy, and f(p), ∇f(p) and the (Gauss–Newton) Hessian by hand; of second order averaged, with moments."""
    if order == 1:
        kind = {"averaged": "affine", "averaged, probed": "affine", "roughly averaged": "linearised"}.get(kind, kind)
    p = expit(LOGITS)
    v = p * (1 - p)
    if kind not in ("linearised", "roughly averaged"):
        logits, linear, jacobian, slope_linear = p @ WEIGHTS + OFFSET, p @ LINEAR, WEIGHTS, LINEAR
        variance = v @ WEIGHTS**2
        f = lambda b: np.logaddexp(0, b @ WEIGHTS + OFFSET).sum(-1) + b @ LINEAR
    else:
        factor, shift, offset = (1.0, 0.0, OFFSET) if kind == "linearised" else (0.8, 0.1 * v, 0.0)
        hidden = np.tanh(p @ HIDDEN)
        into_hidden = factor * HIDDEN * (1 - hidden**2)
        hidden = factor * hidden + shift
        logits, linear, variance = hidden @ WEIGHTS + offset, hidden[0], v @ WEIGHTS**2
        jacobian, slope_linear = into_hidden @ WEIGHTS, into_hidden[:, 0]
        f = lambda b: np.logaddexp(0, np.tanh(b @ HIDDEN) @ WEIGHTS + OFFSET).sum(-1) + np.tanh(b @ HIDDEN)[..., 0]
    if "averaged" in kind:
        far = np.sqrt(3 * variance)
        low, high = logits - far, logits + far
        mean = lambda function: 2 / 3 * function(logits) + (function(low) + function(high)) / 6
        value, slope = mean(lambda a: np.logaddexp(0, a)), mean(expit)
        curvature = (expit(high) - expit(low)) / (2 * far)
        value = value - 0.5 * curvature * variance
    else:
        value, slope = np.logaddexp(0, logits), expit(logits)
        curvature = slope * (1 - slope)
    return f, value.sum() + linear, jacobian @ slope + slope_linear, jacobian @ np.diag(curvature) @ jacobian.T


def sample_base(num, formula, numpy_formula):
    b, probabilities = exact.sample_law(LOGITS, num)
    return b, probabilities, formula, numpy_formula


def pair_base():
    b, b_tilde, probabilities = exact.pair_law(LOGITS)
    return (
        np.stack([b, b_tilde]),
        probabilities,
        lambda logits, b, f_b: dj.formulas.disarm(logits, *b, *f_b),
        lambda logits, b, f_b: exact.disarm(logits, *b, *f_b),
    )


def copula_base():
    return *exact.copula_law(LOGITS, 3), dj.formulas.arms, exact.arms


BASES = {
    "arms": copula_base,
    "reinforce": lambda: sample_base(1, dj.formulas.reinforce, exact.reinforce),
    "reinforce_loo": lambda: sample_base(2, dj.formulas.reinforce_loo, exact.reinforce_loo),
    "disarm": pair_base,
}


def enumerated(base, kind, order, scale, probes=1, monkeypatch=None):
    """Grads of all outcomes (and all probes) `[M, D]` by the code and by hand, and the probabilities `[M]`."""
    stack, probabilities, formula, numpy_formula = BASES[base]()
    signs = np.ones((1, 3))
    if monkeypatch is not None:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    repeats = len(signs)
    stack = np.repeat(stack, repeats, axis=1)  # samples vary slowly, probes fast
    probabilities = np.repeat(probabilities, repeats) / repeats
    signs = np.tile(signs, (stack.shape[1] // repeats, 1))
    if monkeypatch is not None:
        monkeypatch.setattr(jax.random, "rademacher", lambda key, shape, dtype: jnp.asarray(signs, dtype)[None])

    def draw(params, key, logits):
        return jnp.asarray(stack), None

    every_outcome = SampleEstimator(
        sampler=draw,
        formula=lambda params, logits, b, noise, f_b: formula(logits, b, f_b),
        of_differences=base != "reinforce",
    )
    est = dj.taylor(every_outcome, order=order, init_scale=scale, probes=probes)
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), stack.shape[1:])
    params, f = est.init(jax.random.key(0), logits), function(kind)
    out = jax.jit(lambda params, key, logits: est.apply(params, key, logits, f))(params, jax.random.key(1), logits)
    f, f_p, slope, hessian = expanded(kind, order)
    scale = (scale[0], scale[1] if order == 2 else 0.0)
    by_hand = numpy_formula(LOGITS, stack, f(stack) - exact.expansion(LOGITS, stack, f_p, slope, hessian, scale))
    diagonal = signs * (signs @ hessian) if monkeypatch is not None else np.diag(hessian)
    p = expit(LOGITS)
    by_hand = by_hand + (scale[0] * slope + 0.5 * scale[1] * diagonal * (1 - 2 * p)) * p * (1 - p)
    np.testing.assert_allclose(out.value, f(stack).mean(axis=0), rtol=0, atol=1e-12)
    return np.asarray(out.grad), by_hand, probabilities


def check(found, by_hand, probabilities, f):
    mean, variance = exact.moments(probabilities, found)
    np.testing.assert_allclose(mean, exact.gradient(LOGITS, f), rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(probabilities, by_hand)[1], rtol=1e-8, atol=1e-13)
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("base", "kind", "order", "scale"),
    [
        (base, kind, order, scale)
        for base, kind, order, scale in itertools.product(BASES, KINDS, (1, 2), SCALES)
        if base != "arms" or (order == 2 and scale == SCALES[0])
    ],
)
def test_unbiased_with_the_right_variance(base, kind, order, scale):
    """For every λ, on every base; the diagonal is exact: from the structure, or with as many probes as bits."""
    check(*enumerated(base, kind, order, scale, probes=1 if kind in STRUCTURED else 3), expanded(kind)[0])


@pytest.mark.parametrize("kind", ["plain", "affine", "linearised", "averaged, probed", "roughly averaged"])
@pytest.mark.parametrize("base", BASES)
def test_unbiased_with_probes(base, kind, monkeypatch):
    """All eight probes are enumerated along with the samples."""
    check(*enumerated(base, kind, 2, (0.6, -0.8), monkeypatch=monkeypatch), expanded(kind)[0])


@pytest.mark.parametrize("base", BASES)
def test_less_variance_the_higher_the_order(base):
    """At λ = 1, for a smooth f and all bases."""
    f = expanded("plain")[0]
    stack, probabilities, _, formula = BASES[base]()
    plain = exact.moments(probabilities, formula(LOGITS, stack, f(stack)))[1].sum()
    first, second = (
        exact.moments(probabilities, enumerated(base, "affine", order, (1.0, 1.0), probes=3)[0])[1].sum()
        for order in (1, 2)
    )
    assert second < 0.2 * first < 0.2 * plain
    averaged = exact.moments(probabilities, enumerated(base, "averaged", 2, (1.0, 1.0))[0])[1].sum()
    assert averaged < 0.5 * second


@pytest.mark.parametrize(
    "base",
    [
        dj.make_estimator("reinforce"),
        dj.reinforce_loo(),
        dj.disarm(num_pairs=2),
        dj.arm(),
        dj.arms(),
        dj.make_estimator("interpolated"),
    ],
)
def test_polynomials_have_no_variance(base):
    """At λ = 1: linear functions to first order, quadratic ones to second with an exact diagonal."""
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (50, 3))
    quadratic = lambda b: (b @ jnp.asarray(LINEAR)) ** 2 + 5 * b[..., 1] * b[..., 2] - 3
    composed = dj.Composed(
        lambda a, b: a[..., 0] ** 2 + a[..., 1] * a[..., 2] + a[..., 3] * b[..., 0],
        lambda b: b @ jnp.asarray(WEIGHTS),
        affine=True,
    )
    averaged = dj.Composed(lambda a, b: jnp.sum(a**2, axis=-1) - 3 * b @ jnp.asarray(LINEAR), linear_decoder())
    for order, f in ((1, lambda b: b @ jnp.asarray(LINEAR) + 1e3), (2, quadratic), (2, composed), (2, averaged)):
        est = dj.taylor(base, order=order, probes=3)
        params = est.init(jax.random.key(0), logits)
        apply = jax.jit(lambda key, est=est, params=params, f=f: est.apply(params, key, logits, f))
        grad = apply(jax.random.key(1)).grad
        exact_grad = exact.gradient(LOGITS, lambda b, f=f: np.asarray(f(jnp.asarray(b))))
        np.testing.assert_allclose(grad, np.broadcast_to(exact_grad, grad.shape), rtol=0, atol=1e-11)


def test_constants_are_left_out_where_they_change_nothing():
    """An estimator that says it sees differences of f alone does; for the others f(p) is subtracted."""
    logits, f = jnp.asarray(LOGITS), function("plain")
    marked = set()
    for name in dj.estimator_names():
        est = dj.make_estimator(name)
        params, key = est.init(jax.random.key(0), logits), jax.random.key(1)
        if getattr(est, "of_differences", False):
            marked.add(name)

            @jax.jit
            def both(params, key, logits, est=est):
                return [est.apply(params, key, logits, lambda b, c=c: f(b) + c).grad for c in (0, 64)]

            found, shifted = both(params, key, logits)
            np.testing.assert_allclose(shifted, found, rtol=0, atol=1e-12)
    assert marked == {"arm", "arms", "arms_interpolated", "disarm", "interpolated", "reinforce_loo"}


@pytest.mark.parametrize("est", [dj.taylor(dj.disarm()), dj.disarm_midpoint()])
def test_a_false_affine_is_an_error(est):
    """Taken at its word it would bias the gradient."""
    f = dj.Composed(softplus_sum, inner_curved, affine=True)
    logits = jnp.asarray(LOGITS)
    with pytest.raises(ValueError, match="affine=True, but inner cannot be seen to be affine: it applies 'tanh'"):
        est.apply(est.init(jax.random.key(0), logits), jax.random.key(1), logits, f)


@pytest.mark.parametrize("est", [dj.taylor(dj.disarm()), dj.disarm_midpoint()])
def test_a_hidden_structure_is_warned_of(est):
    """A lambda around it gives the same gradient without it, of more variance."""
    f, logits = function("averaged"), jnp.asarray(LOGITS)
    params = est.init(jax.random.key(0), logits)
    with pytest.warns(UserWarning, match="a Composed was called inside another function"):
        est.apply(params, jax.random.key(1), logits, lambda b: (f(b), b), has_aux=True)
    dj.disarm().apply((), jax.random.key(1), logits, lambda b: f(b))  # nothing is lost here, and nothing said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2])
def test_calls(kind, order):
    """f is called at the samples once and at the mean once, or at three points around it, also under jax.grad."""
    around = 3 if "averaged" in kind and order == 2 else 1
    assert calls_of(dj.taylor(dj.disarm(num_pairs=2), order=order), kind) == sorted([around, 4])


@pytest.mark.parametrize(
    "name",
    [
        "muprop",
        "disarm_taylor",
        "disarm_taylor_cross",
        "disarm_midpoint",
        "disarm_quadratic",
        "arms_quadratic",
        "multisample_disarm_quadratic",
    ],
)
def test_nothing_is_differentiated_through_grad(name):
    """`grad` depends on logits and on what f closes over, but its derivative in them is zero; that of value is f's."""
    est = dj.make_estimator(name)
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (5, 3))
    params, weights = est.init(jax.random.key(0), logits), jnp.asarray(WEIGHTS)

    def composed(logits, weights):
        shift = jnp.sum(logits, axis=-1)[None]
        outer = lambda a, b: jnp.sum(jax.nn.softplus(a) * weights[0, 0], axis=-1) + shift
        return dj.Composed(outer, lambda b: b @ weights)

    def apply(logits, weights):
        f = composed(logits, weights)
        return est.apply(params, jax.random.key(1), logits, lambda b: f.outer(f.inner(b), b))

    def apply_composed(logits, weights):
        return est.apply(params, jax.random.key(1), logits, composed(logits, weights))

    @jax.jit
    def derivatives(*args):
        """Of grad and of value, for each of the two."""
        return [
            jax.grad(lambda *args, each=each, part=part: getattr(each(*args), part).sum(), argnums=(0, 1))(*args)
            for part in ("grad", "value")
            for each in (apply, apply_composed)
        ]

    *zeros, one, other = derivatives(logits, weights)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(zeros))
    values = one, other
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), *values)
    np.testing.assert_allclose(values[0][0], np.ones((5, 3)), rtol=1e-12)
    assert np.all(values[0][1] != 0)


def test_the_scales_are_learnt_without_bias():
    """The derivative of grad in λ is exact: it is linear in λ."""
    est = dj.make_estimator("disarm_quadratic")
    logits, f = jnp.broadcast_to(jnp.asarray(LOGITS), (5, 3)), function("averaged")

    @jax.jit
    def grad(first, second):
        params = {"base": (), "scale": (first, second)}
        return est.apply(params, jax.random.key(1), logits, f).grad

    for argument in (0, 1):
        low, high = ([1.3, -0.4] for _ in range(2))
        low[argument], high[argument] = 0.0, 1.0
        slope = jax.jacobian(grad, argnums=argument)(1.3, -0.4)
        np.testing.assert_allclose(slope, grad(*high) - grad(*low), rtol=0, atol=1e-12)
        assert np.any(slope)


def test_a_base_with_tunables_keeps_them_and_its_own_variance_loss():
    """The interpolated base: β and λ by `variance_loss` against enumeration, 400,000 draws, 4.5 standard errors."""
    est = dj.taylor(dj.make_estimator("interpolated", init_beta=0.4), init_scale=(0.5, 0.7))
    f, draws = function("averaged"), 400_000
    logits = jnp.asarray(LOGITS)
    params = est.init(jax.random.key(0), logits)
    numpy_f, _, slope, hessian = expanded("averaged")
    b, b_tilde, _ = exact.pair_law(LOGITS, 0.4)
    terms = [
        [exact.expansion(LOGITS, s, 0.0, slope, hessian, unit) for s in (b, b_tilde)] for unit in ((1.0, 0), (0, 1.0))
    ]
    p = expit(LOGITS)
    known = slope * p * (1 - p), 0.5 * np.diag(hessian) * p * (1 - p) * (1 - 2 * p)

    def second_moment(params):
        beta, scale = params["base"]["beta"], params["scale"]
        values = [
            jnp.asarray(numpy_f(s)) - scale[0] * terms[0][k] - scale[1] * terms[1][k]
            for k, s in enumerate((b, b_tilde))
        ]
        g = dj.formulas.interpolated(logits, jnp.asarray(b), jnp.asarray(b_tilde), *values, beta)
        g = g + (scale[0] * known[0] + scale[1] * known[1])[None]
        log_prob = dj.bernoulli.interpolated_log_prob(logits, jnp.asarray(b), jnp.asarray(b_tilde), beta)
        return jnp.sum(jnp.exp(log_prob.sum(-1)) * jnp.sum(g**2, axis=-1))

    truth = jax.grad(second_moment)(params)
    one = jax.grad(lambda params, key: dj.variance_loss(est)(params, key, logits, f))
    grads = jax.jit(jax.vmap(one, (None, 0)))(params, jax.random.split(jax.random.key(1), draws))
    for found, expected in zip(jax.tree.leaves(grads), jax.tree.leaves(truth), strict=True):
        stderr = found.std() / np.sqrt(draws)
        assert stderr < 0.03 * abs(expected)
        assert abs(found.mean() - expected) < 4.5 * stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["affine", "linearised", "roughly averaged"])
def test_composed_functions_in_every_dtype(kind, dtype):
    """And at saturated logits; the mean of many float32 draws is the gradient, and bfloat16 comes close."""

    def cast(function):
        """Computed in float64, returned in the dtype of the test."""

        def call(*args):
            found = function(*jax.tree.map(lambda leaf: leaf.astype(jnp.float64), args))
            return jax.tree.map(lambda leaf: leaf.astype(dtype), found)

        return call

    f = function(kind)
    known = getattr(f.inner, "moments", None)
    f = dataclasses.replace(f, inner=Inner(cast(f.inner), cast(known)) if known else cast(f.inner))
    est = dj.make_estimator("disarm_quadratic", probes=3)
    # Not more: jaxlib 0.10.2 sums wrongly over 16,384 rows of float64 on a CPU (jax-ml/jax#39103).
    logits = jnp.broadcast_to(jnp.asarray(LOGITS, dtype), (8_000, 3))
    params = est.init(jax.random.key(0), logits)
    out = jax.jit(lambda key: est.apply(params, key, logits, f))(jax.random.key(1))
    assert out.grad.dtype == out.value.dtype == dtype
    truth = exact.gradient(np.asarray(logits[0], np.float64), expanded(kind)[0])
    grad = np.asarray(out.grad, np.float64)
    stderr = grad.std(axis=0) / np.sqrt(len(grad))
    rounding = 0.01 if dtype == "bfloat16" else 1e-6
    assert np.all(np.abs(grad.mean(axis=0) - truth) < 4.5 * stderr + rounding)
    assert np.linalg.norm(stderr) < (0.02 if kind == "roughly averaged" else 0.01) * np.linalg.norm(truth)
    saturated = jnp.asarray([[1e4, -1e4, 1e4], [1e4, -0.0, -1e4]], dtype)
    saturated_grad = jax.jit(lambda key: est.apply(params, key, saturated, f).grad)(jax.random.key(1))
    grad = saturated_grad.astype(jnp.float32)
    assert np.all(np.isfinite(grad))
    assert not np.any(grad[0])


def test_an_inner_without_spread_is_finite():
    """Where all bits are certain, the three points of the average are one and the secant has no length."""
    est, logits = dj.make_estimator("disarm_quadratic"), jnp.array([[1e4, -1e4, 1e4]])
    params = est.init(jax.random.key(0), logits)
    apply = jax.jit(lambda key, logits: est.apply(params, key, logits, function("averaged")))
    grad = apply(jax.random.key(1), logits).grad
    np.testing.assert_array_equal(grad, np.zeros((1, 3)))


def test_dtypes_may_be_mixed():
    """Logits in float32, one leaf of inner in float64 and one in bfloat16, f in float64."""
    f = dj.Composed(
        lambda a, b: jnp.sum(a[0] ** 2, axis=-1) + a[1].astype(jnp.float64),
        lambda b: (b.astype(jnp.float64) @ jnp.asarray(WEIGHTS), b[..., 0].astype(jnp.bfloat16)),
    )
    logits = jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (5, 3))
    est = dj.make_estimator("disarm_quadratic", probes=3)
    params = est.init(jax.random.key(0), logits)
    out = jax.jit(lambda key: est.apply(params, key, logits, f))(jax.random.key(1))
    assert (out.value.dtype, out.grad.dtype) == (jnp.float64, jnp.float32)
    truth = exact.gradient(LOGITS, lambda b: ((b @ WEIGHTS) ** 2).sum(-1) + b[:, 0])
    np.testing.assert_allclose(out.grad, np.broadcast_to(truth, (5, 3)), rtol=0, atol=2e-2)  # bfloat16 has two digits


@pytest.mark.parametrize("inner", [lambda b: 2 * b, Inner(lambda b: 2 * b, lambda p, v: (2 * p, 4 * v))])
def test_auxiliary_outputs_of_a_composed_f(inner):
    f = dj.Composed(lambda a, b: (a.sum(-1) ** 2, {"a": a}), inner)
    est = dj.make_estimator("disarm_quadratic")
    logits = jnp.zeros((5, 3))
    params = est.init(jax.random.key(0), logits)
    compiled = lambda call: jax.jit(lambda key: call(params, key, logits, f))
    out, aux = compiled(functools.partial(est.apply, has_aux=True))(jax.random.key(1))
    np.testing.assert_array_equal(out.value, (aux["a"].sum(-1) ** 2).mean(axis=0))
    value, mean = compiled(dj.expectation(est, has_aux=True))(jax.random.key(1))
    np.testing.assert_array_equal(value, out.value)
    np.testing.assert_array_equal(mean["a"], aux["a"].mean(axis=0))


def test_a_composed_f_is_any_f():
    """To an estimator that knows nothing of it, and to one that does; a name of each kind."""
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (5, 3))
    for name in ("disarm", "double_cv", "leg", "muprop", "relax", "vimco"):
        est = dj.make_estimator(name)
        params = est.init(jax.random.key(0), logits)

        @jax.jit
        def both(key, est=est, params=params):
            return [est.apply(params, key, logits, function(kind)) for kind in ("plain", "affine")]

        one, other = both(jax.random.key(1))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), one, other)


def pairs_of_pairs():
    b, b_tilde, probabilities = exact.copies(exact.pair_law(LOGITS), 2)
    return np.concatenate([b, b_tilde]), probabilities


def two_groups():
    """Of three samples of one bit each; row 2l + k is sample l of group k."""
    b, law = exact.copula_law(LOGITS[:1], 3)
    groups, probabilities = exact.copies((np.moveaxis(b, 0, 1), law), 2)
    return np.moveaxis(groups, 2, 0).reshape(6, -1, 1), probabilities


@pytest.mark.parametrize(
    ("base", "law"),
    [
        (dj.vimco(num_samples=3), lambda: exact.sample_law(LOGITS, 3)),
        (dj.multisample_disarm(num_pairs=2), pairs_of_pairs),
        (dj.make_estimator("naive_multisample_disarm", num_pairs=2), pairs_of_pairs),
        (dj.make_estimator("multisample_arms", num_samples=1, group_size=3), lambda: exact.copula_law(LOGITS, 3)),
        (dj.make_estimator("multisample_arms", num_samples=2, group_size=3), two_groups),
    ],
)
def test_the_control_variate_of_a_bound_has_mean_zero(base, law):
    """What is linear in the bound's own samples is unbiased, for a function without structure, by enumeration."""
    b, probabilities = law()
    logits, h = LOGITS[: b.shape[-1]], exact.table_function(b.shape[-1])
    found = base.linear((), jnp.asarray(logits), jnp.asarray(b), None, jnp.asarray(h(b)))
    np.testing.assert_allclose(
        exact.moments(probabilities, np.asarray(found))[0], exact.gradient(logits, h), atol=1e-12
    )


def by_group(array):
    """Rows of two groups of three as `[3, 2, ...]`."""
    return array.reshape(3, 2, *array.shape[1:])


def of_pairs(b, h):
    pairs = zip(b[:3], b[3:], h[:3], h[3:], strict=True)
    return np.mean([exact.disarm(LOGITS, *pair) for pair in pairs], axis=0)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (dj.vimco(num_samples=3, repeats=2), lambda b, h: exact.reinforce_loo(LOGITS, b, h)),
        (dj.multisample_disarm(num_pairs=3), of_pairs),
        (
            dj.make_estimator("multisample_arms", num_samples=2, group_size=3),
            lambda b, h: np.mean([exact.arms(LOGITS, by_group(b)[:, k], by_group(h)[:, k]) for k in range(2)], axis=0),
        ),
    ],
)
def test_the_linear_companion_of_a_bound_uses_all_samples(base, expected):
    rng = np.random.default_rng(0)
    b, h = rng.integers(2, size=(6, 1, 3)).astype(float), rng.normal(size=(6, 1))
    found = base.linear((), jnp.asarray(LOGITS)[None], jnp.asarray(b), None, jnp.asarray(h))
    np.testing.assert_allclose(found, expected(b, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_a_bound_of_one_pair_is_disarm_quadratic(kind):
    """Value, gradient and their derivatives; what the bound itself adds to the value of several is its base's."""
    logits, f = jnp.broadcast_to(jnp.asarray(LOGITS), (5, 3)), function(kind)
    one, other = (
        dj.make_estimator("multisample_disarm_quadratic", init_scale=(0.6, -0.8)),
        dj.make_estimator("disarm_quadratic", init_scale=(0.6, -0.8)),
    )
    params = one.init(jax.random.key(0), logits)
    both = jax.jit(lambda params, key: [est.apply(params, key, logits, f) for est in (one, other)])
    found, expected = both(params, jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
    pairs, base = dj.make_estimator("multisample_disarm_quadratic", num_pairs=3), dj.multisample_disarm(num_pairs=3)
    weights = lambda scale: dataclasses.replace(f, outer=lambda a, b: scale * f.outer(a, b))

    def value(scale, est, params, key):
        return est.apply(params, key, logits, weights(scale)).value.sum()

    base_key, _ = jax.random.split(jax.random.key(1))
    value_and_slope = jax.jit(jax.value_and_grad(value), static_argnums=1)
    found = value_and_slope(1.3, pairs, params, jax.random.key(1))
    expected = value_and_slope(1.3, base, (), base_key)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


OWN_BOUND = SampleEstimator(
    sampler=lambda params, key, logits: (dj.bernoulli.sample(key, logits, 2), None),
    formula=lambda params, logits, b, noise, f_b: dj.formulas.vimco(logits, b, f_b),
    value=dj.formulas.bound,
)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: dj.taylor(dj.relax()), ValueError, "must not differentiate f"),
        (lambda: dj.taylor(dj.make_estimator("muprop")), ValueError, "must not differentiate f"),
        (lambda: dj.taylor(dj.make_estimator("disarm_taylor_cross")), ValueError, "must not differentiate f"),
        (lambda: dj.taylor(OWN_BOUND), ValueError, "for a bound have a linear companion"),
        (
            lambda: dj.taylor("disarm"),
            TypeError,
            r"takes an estimator, got 'disarm'; make one of the name: dj.make_estimator",
        ),
        (lambda: dj.taylor(dj.disarm(), order=3), ValueError, "order must be 1 or 2, got 3"),
        (lambda: dj.taylor(dj.disarm(), order=1.0), ValueError, "order must be 1 or 2, got 1.0"),
        (lambda: dj.taylor(dj.disarm(), order=True), ValueError, "order must be 1 or 2, got True"),
        (lambda: dj.taylor(dj.disarm(), probes=0), ValueError, "probes must be at least 1, got 0"),
        (lambda: dj.taylor(dj.disarm(), init_scale=0.5), ValueError, "must be a pair of numbers, got 0.5"),
        (
            lambda: dj.make_estimator("muprop", init_scale=(1.0,)),
            ValueError,
            r"must be a pair of numbers, got \(1.0,\)",
        ),
        (
            lambda: dj.make_estimator("disarm_quadratic", init_scale=(1.0, float("nan"))),
            ValueError,
            "init_scale must be a finite number, got nan",
        ),
        (
            lambda: dj.make_estimator("disarm_taylor_cross", num_pairs=1),
            ValueError,
            "num_pairs must be at least 2, got 1",
        ),
        (lambda: dj.taylor(dj.disarm), TypeError, r"disarm is a function that makes one: call it, disarm\(\)"),
        (lambda: dj.taylor(dj.categorical.disarm_iw()), ValueError, "for bits, got one for classes: disarm_iw"),
        (lambda: dj.midpoint(dj.arm()), ValueError, "must be made of exchangeable pairs, got arm; accepted: disarm, "),
        (lambda: dj.Composed(1, abs), TypeError, "outer must be a function, got 1"),
        (lambda: dj.Composed(abs, abs, affine="yes"), ValueError, "affine must be True, False or None, got 'yes'"),
    ],
)
def test_wrong_compositions_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (dj.Composed(lambda a, b: a.sum(-1), lambda b: b.sum(axis=0)), r"inner must return .*\(2, 5\)"),
        (dj.Composed(lambda a, b: a.sum(-1), lambda b: b.astype(int)), "inner must return floats.*int"),
        *(
            (dj.Composed(lambda a, b: a[0].sum(-1), Inner(lambda b: (b, b[..., 0]), moments)), words)
            for moments, words in (
                (lambda p, v: p, r"moments must return a pair, mean and variance, got .* shapes \(1, 5, 3\)"),
                (
                    lambda p, v: (p, v),
                    r"a mean of the shapes that inner returns, \(\(1, 5, 3\), \(1, 5\)\), got \(1, 5, 3\)",
                ),
                (
                    lambda p, v: ((p, p[..., 0]), (v[..., :1], v[..., 0])),
                    r"a variance of the shapes.*got \(\(1, 5, 1\)",
                ),
                (lambda p, v: ((p, p[..., 0]), (v.astype(int), v[..., 0])), "moments must return floats.*got int"),
            )
        ),
    ],
)
def test_wrong_structure_is_named(f, words):
    est = dj.make_estimator("disarm_quadratic")
    logits = jnp.zeros((5, 3))
    with pytest.raises(ValueError, match=words):
        est.apply(est.init(jax.random.key(0), logits), jax.random.key(1), logits, f)
