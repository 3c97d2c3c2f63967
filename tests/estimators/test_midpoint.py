"""Slopes between the samples of a pair: no bias and the right variance by enumeration of all pairs, through `apply`.

All pairs are drawn at once, one per example of a batch, so that means over them are exact expectations of what the code
returns. That pairs are drawn with the right law is tested in test_samples.py.
"""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from smooth import HIDDEN, KINDS, LINEAR, LOGITS, OFFSET, WEIGHTS, calls_of, function

import disarm_jax as dj
from disarm_jax.estimators.midpoint import around_midpoints
from disarm_jax.structure import parts_at

pytestmark = pytest.mark.usefixtures("quick_compile", "x64")


def by_hand(kind, b, b_tilde):
    """f in numpy, and its slope between b and b̃ `[M, D]`, with the Jacobian of every midpoint written out."""
    c, v = 0.5 * (b + b_tilde), 0.25 * (b != b_tilde)
    variance = v @ WEIGHTS**2
    if kind not in ("linearised", "roughly averaged"):
        f = lambda b: np.logaddexp(0, b @ WEIGHTS + OFFSET).sum(-1) + b @ LINEAR
        logits, jacobian, of_linear = c @ WEIGHTS + OFFSET, np.broadcast_to(WEIGHTS, (len(b), 3, 4)), LINEAR
    else:
        f = lambda b: np.logaddexp(0, np.tanh(b @ HIDDEN) @ WEIGHTS + OFFSET).sum(-1) + np.tanh(b @ HIDDEN)[..., 0]
        factor, shift, offset = (1.0, 0.0, OFFSET) if kind == "linearised" else (0.8, 0.1 * v, 0.0)
        hidden = np.tanh(c @ HIDDEN)
        into_hidden = factor * HIDDEN * (1 - hidden**2)[:, None]
        logits = (factor * hidden + shift) @ WEIGHTS + offset
        jacobian, of_linear = into_hidden @ WEIGHTS, into_hidden[..., 0]
    std = np.sqrt(variance) if "averaged" in kind else 0
    slope = 0.5 * (expit(logits + std) + expit(logits - std))
    return f, np.einsum("mij,mj->mi", jacobian, slope) + of_linear


def enumerated(kind, scale, monkeypatch, num_pairs=1, logits=LOGITS):
    """Grads of all pairs `[M, D]` by the code, the pairs, and their probabilities."""
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num_pairs)
    pairs = lambda key, alpha, num: (jnp.asarray(b), jnp.asarray(b_tilde), None)
    monkeypatch.setattr(dj.bernoulli, "antithetic_pairs", pairs)
    est = dj.disarm_midpoint(num_pairs=num_pairs, init_scale=scale)
    every = jnp.broadcast_to(jnp.asarray(logits), b.shape[1:])
    f = function(kind) if isinstance(kind, str) else kind
    out = est.apply(est.init(jax.random.key(0), every), jax.random.key(1), every, f)
    stack = jnp.concatenate([jnp.asarray(b), jnp.asarray(b_tilde)])
    np.testing.assert_allclose(out.value, f(stack).mean(axis=0), rtol=0, atol=1e-12)
    return np.asarray(out.grad), (b, b_tilde), probabilities


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, -0.8])  # the estimate is affine in λ
def test_unbiased_with_the_right_variance(kind, scale, monkeypatch):
    """DisARM of f − λ g·(b − c), and what that has as mean given the midpoint c, added: for every λ."""
    found, ((b,), (b_tilde,)), probabilities = enumerated(kind, scale, monkeypatch)
    f, slope = by_hand(kind, b, b_tilde)
    c = 0.5 * (b + b_tilde)
    residual = lambda b: f(b) - scale * np.sum(slope * (b - c), axis=-1)
    expected = exact.disarm(LOGITS, b, b_tilde, residual(b), residual(b_tilde))
    expected = expected + 0.5 * scale * slope * (b != b_tilde) * expit(np.abs(LOGITS))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    mean, variance = exact.moments(probabilities, found)
    np.testing.assert_allclose(mean, exact.gradient(LOGITS, f), rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(probabilities, expected)[1], rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("kind", ["plain", "averaged", "roughly averaged"])
def test_every_pair_has_its_own_midpoint(kind, monkeypatch):
    """Two pairs: the mean of what each of them gives alone."""
    one, two = (enumerated(kind, 0.7, monkeypatch, num_pairs=num)[0] for num in (1, 2))
    np.testing.assert_allclose(two, (0.5 * (one[:, None] + one[None])).reshape(two.shape), rtol=0, atol=1e-12)


def test_less_variance_than_disarm(monkeypatch):
    """Of a smooth f; and with moments less again."""
    _, ((b,), (b_tilde,)), probabilities = enumerated("plain", 1.0, monkeypatch)
    f, _ = by_hand("plain", b, b_tilde)
    total = lambda grads: exact.moments(probabilities, grads)[1].sum()
    disarm = total(exact.disarm(LOGITS, b, b_tilde, f(b), f(b_tilde)))
    plain, averaged = (total(enumerated(kind, 1.0, monkeypatch)[0]) for kind in ("plain", "averaged"))
    assert plain < 0.25 * disarm
    assert averaged < plain


def test_exact_where_theory_says_so(monkeypatch):
    """At p = ½ all bits differ and the midpoint is known: a quadratic f has no variance, whatever its curvature."""
    quadratic = lambda b: (b @ jnp.asarray(LINEAR)) ** 2 + 5 * b[..., 1] * b[..., 2] - 3
    found, _, probabilities = enumerated(quadratic, 1.0, monkeypatch, logits=np.zeros(3))
    truth = exact.gradient(np.zeros(3), lambda b: np.asarray(quadratic(jnp.asarray(b))))
    np.testing.assert_allclose(found[probabilities > 0], np.broadcast_to(truth, (8, 3)), rtol=0, atol=1e-12)


def test_terms_of_even_order_change_nothing(monkeypatch):
    """What they add to f at b and b̃ is the same, for any p, and their slope at the midpoint is zero."""
    b, b_tilde, _ = exact.pair_law(LOGITS)
    centre = jnp.asarray(0.5 * (b + b_tilde))[None]
    even = lambda b: jnp.sum((b - centre) ** 2, axis=-1) ** 2
    found = enumerated(lambda x: function("plain")(x) + 7 * even(x), 1.0, monkeypatch)[0]
    np.testing.assert_allclose(found, enumerated("plain", 1.0, monkeypatch)[0], rtol=0, atol=1e-12)


def test_without_a_scale_it_is_disarm():
    logits, key, f = jnp.broadcast_to(jnp.asarray(LOGITS), (5, 3)), jax.random.key(1), function("averaged")
    est = dj.disarm_midpoint(num_pairs=2, init_scale=0.0)
    out, disarm = est.apply(est.init(key, logits), key, logits, f), dj.disarm(num_pairs=2).apply((), key, logits, f)
    np.testing.assert_allclose(out.grad, disarm.grad, rtol=1e-12)
    np.testing.assert_array_equal(out.value, disarm.value)


@pytest.mark.parametrize("kind", KINDS)
def test_calls(kind):
    """f is called at the samples once, and once between them or on either side; also under jax.grad."""
    between = 4 if "averaged" in kind else 2
    assert calls_of(dj.disarm_midpoint(num_pairs=2), kind) == sorted([between, 4])


@pytest.mark.parametrize("f", [lambda b: jnp.linalg.norm(b, axis=-1), lambda b: jnp.sqrt(b).sum(-1)])
def test_slopes_that_are_not_finite_where_bits_agree_do_no_harm(f):
    """At 0 the square root has none; bits that agree are not asked for it."""
    logits = jnp.full((200, 3), -1.0)
    est = dj.disarm_midpoint()
    out = est.apply(est.init(jax.random.key(0), logits), jax.random.key(1), logits, f)
    assert np.all(np.isfinite(out.grad))


def test_rounded_values_at_the_samples_do_not_give_their_signs_away():
    """In bfloat16 an affine inner is computed at the midpoint: the same slope for all pairs around it."""
    signs = jnp.asarray(2 * exact.outcomes(8) - 1, jnp.bfloat16)
    b, b_tilde = 0.5 + 0.5 * signs, 0.5 - 0.5 * signs
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(8, 5)), jnp.bfloat16)
    f = dj.Composed(lambda a, b: jnp.cos(a).sum(-1), lambda b: b @ weights + jnp.bfloat16(20))
    first, second = (parts_at(f, samples[None]) for samples in (b, b_tilde))
    slope = around_midpoints("midpoint", f, first, second, 1, 1).odd / (b - b_tilde)[None].astype(jnp.float32)
    np.testing.assert_array_equal(slope, jnp.broadcast_to(slope[:, :1], slope.shape))


@pytest.mark.parametrize(("scale", "words"), [((1.0, 1.0), "must be a finite number"), (float("nan"), "got nan")])
def test_wrong_scales_are_named(scale, words):
    for make in (dj.disarm_midpoint, lambda **options: dj.hierarchical("disarm_midpoint", **options)):
        with pytest.raises(ValueError, match=words):
            make(init_scale=scale)


def test_formula_by_hand():
    """At all pairs and any slope: the sum over the other bits is written out as a loop."""
    b, b_tilde, _ = exact.pair_law(LOGITS)
    rng, scale = np.random.default_rng(0), 0.7
    slope, f_b, f_b_tilde = rng.normal(size=b.shape), *rng.normal(size=(2, len(b)))
    expected = np.zeros_like(b)
    for i in range(3):
        others = sum(slope[:, k] * (b - b_tilde)[:, k] for k in range(3) if k != i)
        expected[:, i] = exact.disarm(LOGITS, b, b_tilde, f_b - scale * others, f_b_tilde)[:, i]
    found = dj.formulas.disarm_midpoint(jnp.asarray(LOGITS), b, b_tilde, f_b, f_b_tilde, slope, scale)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_formula_needs_a_slope_for_every_bit():
    b = jnp.ones((4, 3))
    with pytest.raises(ValueError, match="samples must have one shape"):
        dj.formulas.disarm_midpoint(jnp.zeros(3), b, b, jnp.ones(4), jnp.ones(4), jnp.ones(3))
