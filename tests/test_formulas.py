"""The formulas against exact enumeration: mean, variance and the identities that tie them together."""

import functools
import re

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

LOGITS = {
    1: np.array([0.4]),
    2: np.array([-0.7, 5.6]),
    3: np.array([0.9, -6.2, 0.0]),
    4: np.array([-0.3, 1.2, -5.3, 7.1]),
}


def check_moments(logits, f, probabilities, ours, reference):
    """Our formula is the papers' at every outcome, and so in mean and variance; the mean is the exact gradient."""
    np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-12)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    mean, variance = exact.moments(probabilities, np.asarray(ours))
    np.testing.assert_allclose(mean, exact.gradient(logits, f), rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(probabilities, reference)[1], rtol=1e-10, atol=1e-12)
    return mean, variance


def repeat(logits, like):
    """Logits with a copy for each outcome, since the enumerated outcomes are a batch axis."""
    return jnp.broadcast_to(logits, like.shape[1:])


@pytest.mark.parametrize("dim", LOGITS)
def test_disarm(dim):
    logits, f = LOGITS[dim], exact.table_function(dim)
    b, b_tilde, probabilities = exact.pair_law(logits)
    pair = b, b_tilde, f(b), f(b_tilde)
    ours = dj.formulas.disarm(jnp.asarray(logits), *pair)
    _, variance = check_moments(logits, f, probabilities, ours, exact.disarm(logits, *pair))
    # The closed form (p(1−p))²/(2c) E[Δ² | b_i ≠ b̃_i] with c = min(p, 1−p), from the identity of all pair estimators.
    p, c = expit(logits), np.minimum(expit(logits), expit(-logits))
    for i in range(dim):
        differ = b[:, i] != b_tilde[:, i]
        given = probabilities * differ / (probabilities @ differ)
        second = (p[i] * (1 - p[i])) ** 2 / (2 * c[i]) * (given @ (f(b) - f(b_tilde)) ** 2)
        assert variance[i] == pytest.approx(second - exact.gradient(logits, f)[i] ** 2, rel=1e-9)


@pytest.mark.parametrize(("dim", "num_samples"), [(1, 2), (2, 2), (3, 2), (4, 2), (3, 3), (2, 4), (1, 7)])
def test_reinforce_loo(dim, num_samples):
    logits, f = LOGITS[dim], exact.table_function(dim)
    b, probabilities = exact.sample_law(logits, num_samples)
    ours = dj.formulas.reinforce_loo(repeat(logits, b), b, f(b))
    check_moments(logits, f, probabilities, ours, exact.reinforce_loo(logits, b, f(b)))


@pytest.mark.parametrize("num_samples", [1, 3])
def test_reinforce(num_samples):
    logits, f = LOGITS[3], exact.table_function(3)
    b, probabilities = exact.sample_law(logits, num_samples)
    ours = dj.formulas.reinforce(repeat(logits, b), b, f(b))
    check_moments(logits, f, probabilities, ours, exact.reinforce(logits, b, f(b)))


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8, 1.0, (0.2, 0.9, 0.5)])
def test_interpolated(beta):
    logits, f, beta = LOGITS[3], exact.table_function(3), np.array(beta)
    b, b_tilde, probabilities = exact.pair_law(logits, beta)
    pair = b, b_tilde, f(b), f(b_tilde)
    ours = np.asarray(dj.formulas.interpolated(jnp.asarray(logits), *pair, jnp.asarray(beta)))
    reference = exact.interpolated(logits, *pair, beta)
    possible = probabilities > 0  # the paper's posterior is 0/0 elsewhere
    check_moments(logits, f, probabilities[possible], ours[possible], reference[possible])


def test_interpolated_ends_are_loo_and_disarm():
    logits, f = jnp.asarray(LOGITS[3]), exact.table_function(3)
    b, b_tilde, _ = exact.pair_law(LOGITS[3], 0.5)
    pair = b, b_tilde, f(b), f(b_tilde)
    loo = dj.formulas.reinforce_loo(jnp.broadcast_to(logits, b.shape), np.stack(pair[:2]), np.stack(pair[2:]))
    np.testing.assert_allclose(dj.formulas.interpolated(logits, *pair, jnp.array(0.0)), loo, rtol=0, atol=1e-15)
    disarm = dj.formulas.disarm(logits, *pair)
    np.testing.assert_array_equal(dj.formulas.interpolated(logits, *pair, jnp.array(1.0)), disarm)


@pytest.mark.parametrize("beta", [0.0, 0.35, 1.0])
def test_the_identity_of_coupled_pairs(beta):
    """½ Δ (b − b̃) p(1−p)/c, c = P(b = 1, b̃ = 0), is LOO, interpolated and DisARM: c comes from the enumerated law."""
    logits, f = LOGITS[3], exact.table_function(3)
    b, b_tilde, probabilities = exact.pair_law(logits, beta)
    c = probabilities @ ((b == 1) & (b_tilde == 0))
    identity = 0.5 * (f(b) - f(b_tilde))[:, None] * (b - b_tilde) * expit(logits) * expit(-logits) / c
    ours = dj.formulas.interpolated(jnp.asarray(logits), b, b_tilde, f(b), f(b_tilde), jnp.array(beta))
    np.testing.assert_allclose(ours, identity, rtol=0, atol=1e-12)
    np.testing.assert_allclose(exact.moments(probabilities, identity)[0], exact.gradient(logits, f), atol=1e-12)


@pytest.mark.parametrize("dim", LOGITS)
def test_arm_and_its_relation_to_disarm(dim):
    """DisARM = E[ARM | b, b̃], and Var(ARM) = Var(DisARM) + E Var(ARM | b, b̃)."""
    logits, f = LOGITS[dim], exact.table_function(dim)
    arm_mean, arm_variance = exact.arm_moments(logits, f)
    np.testing.assert_allclose(arm_mean, exact.gradient(logits, f), atol=1e-12)
    b, b_tilde, probabilities = exact.pair_law(logits)
    disarm = np.asarray(dj.formulas.disarm(jnp.asarray(logits), b, b_tilde, f(b), f(b_tilde)))
    # Given its pair, u_i is uniform: below m or above 1 − m if the bits differ, else between; m = min(p, 1 − p).
    m, rises = np.minimum(expit(logits), expit(-logits)), b > b_tilde
    low = np.where(b == b_tilde, m, np.where(rises, 1 - m, 0.0))
    high = np.where(b == b_tilde, 1 - m, np.where(rises, 1.0, m))
    given = dj.formulas.arm(jnp.asarray((low + high) / 2), f(b), f(b_tilde))  # ARM is linear in u
    possible = probabilities > 0
    np.testing.assert_allclose(given[possible], disarm[possible], rtol=0, atol=1e-12)
    conditional_variance = (f(b) - f(b_tilde))[:, None] ** 2 * (high - low) ** 2 / 12
    _, disarm_variance = exact.moments(probabilities, disarm)
    np.testing.assert_allclose(arm_variance, disarm_variance + probabilities @ conditional_variance, rtol=1e-10)
    assert np.all(disarm_variance <= arm_variance)


@pytest.mark.parametrize("baseline", ["arithmetic", "geometric"])
@pytest.mark.parametrize(("dim", "num_samples"), [(1, 2), (3, 2), (2, 3), (1, 5)])
def test_vimco(dim, num_samples, baseline):
    logits, log_w = LOGITS[dim], exact.table_function(dim, scale=2.0)
    b, probabilities = exact.sample_law(logits, num_samples)
    ours = dj.formulas.vimco(repeat(logits, b), b, log_w(b), baseline=baseline)
    check_bound_moments(logits, log_w, num_samples, probabilities, ours, exact.vimco(logits, b, log_w(b), baseline))


@pytest.mark.parametrize("name", ["multisample_disarm", "naive_multisample_disarm"])
@pytest.mark.parametrize(("dim", "num_pairs"), [(3, 1), (3, 2), (2, 3), (1, 4)])
def test_multisample_disarm(dim, num_pairs, name):
    logits, log_w = LOGITS[dim], exact.table_function(dim, scale=2.0)
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num_pairs)
    pairs = b, b_tilde, log_w(b), log_w(b_tilde)
    ours = getattr(dj.formulas, name)(repeat(logits, b), *pairs)
    reference = getattr(exact, name)(logits, *pairs)
    check_bound_moments(logits, log_w, num_pairs, probabilities, ours, reference)


@pytest.mark.parametrize("configurations", dj.formulas.bounds.CONFIGURATIONS)
@pytest.mark.parametrize(("dim", "num_pairs"), [(3, 1), (3, 2), (2, 3), (1, 4), (1, 5)])
def test_further_configurations(dim, num_pairs, configurations):
    logits, log_w = LOGITS[dim], exact.table_function(dim, scale=2.0)
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num_pairs)
    pairs = b, b_tilde, log_w(b), log_w(b_tilde)
    ours = dj.formulas.multisample_disarm(repeat(logits, b), *pairs, configurations=configurations)
    reference = exact.configured_multisample_disarm(logits, *pairs, configurations)
    check_bound_moments(logits, log_w, num_pairs, probabilities, ours, reference)


def test_further_configurations_have_less_variance():
    """All of them never have more than the paper's two; with three pairs the cyclic ones are all there are."""
    for dim, num_pairs in ((2, 3), (1, 5)):
        logits, log_w = LOGITS[dim], exact.table_function(dim, scale=2.0)
        b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num_pairs)
        pairs = b, b_tilde, log_w(b), log_w(b_tilde)
        grads = [
            dj.formulas.multisample_disarm(repeat(logits, b), *pairs, configurations=c)
            for c in ("all", "cyclic", "paper")
        ]
        variances = [exact.moments(probabilities, np.asarray(g))[1].sum() for g in grads]
        assert variances[0] < variances[2]
        assert variances[1] < variances[2]
        if num_pairs == 3:
            np.testing.assert_allclose(grads[0], grads[1], rtol=0, atol=1e-13)


def check_bound_moments(logits, log_w, num_samples, probabilities, ours, reference):
    """As `check_moments`: the bound is the expectation of one long vector of K·D bits, whose gradients are added up."""
    np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-12)
    dim = len(logits)

    def joint(b):
        return exact.bound(np.moveaxis(log_w(b.reshape(*b.shape[:-1], num_samples, dim)), -1, 0))

    gradient = exact.gradient(np.tile(logits, num_samples), joint).reshape(num_samples, dim).sum(axis=0)
    mean, variance = exact.moments(probabilities, np.asarray(ours))
    np.testing.assert_allclose(mean, gradient, rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(probabilities, reference)[1], rtol=1e-10, atol=1e-12)


def test_local_disarm_has_less_variance_than_the_naive_form():
    logits, log_w = LOGITS[2], exact.table_function(2, scale=2.0)
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), 3)
    pairs = b, b_tilde, log_w(b), log_w(b_tilde)
    local, naive = (
        exact.moments(probabilities, np.asarray(formula(repeat(logits, b), *pairs)))[1].sum()
        for formula in (dj.formulas.multisample_disarm, dj.formulas.naive_multisample_disarm)
    )
    assert local < 0.5 * naive


def test_vimco_with_equal_weights_is_zero():
    b = np.random.default_rng(0).integers(0, 2, (5, 7, 3)).astype(float)
    for baseline in dj.formulas.bounds.BASELINES:
        grad = dj.formulas.vimco(jnp.ones((7, 3)), b, np.full((5, 7), -104.3), baseline=baseline)
        np.testing.assert_allclose(grad, 0, atol=1e-13)


def test_a_weight_of_zero_is_no_trouble():
    """log w = −∞ for one sample of three, in every estimator of the bound."""
    b = np.array([[[1.0, 0.0]], [[0.0, 0.0]], [[1.0, 1.0]]])
    log_w = np.array([[-np.inf], [0.0], [0.4]])
    for baseline in dj.formulas.bounds.BASELINES:
        with np.errstate(all="ignore"):
            reference = exact.vimco(np.zeros(2), b, log_w, baseline)
        ours = dj.formulas.vimco(jnp.zeros((1, 2)), b, log_w, baseline=baseline)
        np.testing.assert_allclose(ours, reference, atol=1e-12)
    pairs = b, 1 - b, log_w, log_w[::-1]
    for configurations in dj.formulas.bounds.CONFIGURATIONS:
        ours = dj.formulas.multisample_disarm(jnp.zeros((1, 2)), *pairs, configurations=configurations)
        reference = exact.configured_multisample_disarm(np.zeros(2), *pairs, configurations)
        np.testing.assert_allclose(ours, reference, atol=1e-12)


def test_one_pair_multisample_disarm_is_disarm():
    logits, log_w = jnp.asarray(LOGITS[3]), exact.table_function(3)
    b, b_tilde, _ = exact.pair_law(LOGITS[3])
    disarm = dj.formulas.disarm(logits, b, b_tilde, log_w(b), log_w(b_tilde))
    for formula in (dj.formulas.multisample_disarm, dj.formulas.naive_multisample_disarm):
        ours = formula(repeat(LOGITS[3], b[None]), b[None], b_tilde[None], log_w(b)[None], log_w(b_tilde)[None])
        np.testing.assert_allclose(ours, disarm, rtol=0, atol=1e-14)


def test_bounds_keep_their_digits_in_float32():
    """Log-weights near −100 with one dominant weight: log(Σ w − w_k) and uncentred sums would lose everything."""
    rng = np.random.default_rng(0)
    b, b_tilde = rng.integers(0, 2, (2, 6, 50, 3)).astype(float)
    log_w, log_w_tilde = (rng.normal(size=(2, 6, 50)) - 100).astype(np.float32).astype(float)
    log_w[0] += 30
    logits = rng.normal(size=(50, 3)).astype(np.float32)
    wide, narrow = jnp.asarray(logits, jnp.float64), jnp.asarray(logits)
    single = [jnp.asarray(a, jnp.float32) for a in (b, b_tilde, log_w, log_w_tilde)]
    for baseline in dj.formulas.bounds.BASELINES:
        ours = dj.formulas.vimco(narrow, single[0], single[2], baseline=baseline)
        np.testing.assert_allclose(ours, exact.vimco(logits.astype(float), b, log_w, baseline), rtol=0, atol=1e-5)
    for configurations in dj.formulas.bounds.CONFIGURATIONS:
        ours = dj.formulas.multisample_disarm(narrow, *single, configurations=configurations)
        expected = dj.formulas.multisample_disarm(wide, b, b_tilde, log_w, log_w_tilde, configurations=configurations)
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        assert ours.dtype == jnp.float32


def test_leading_axes():
    """Pairs with batch and sample axes in front give what each gives alone."""
    rng = np.random.default_rng(0)
    logits, (b, b_tilde) = rng.normal(size=(4, 3)), rng.integers(0, 2, (2, 5, 4, 3)).astype(float)
    f = exact.table_function(3)
    together = dj.formulas.disarm(jnp.asarray(logits), b, b_tilde, f(b), f(b_tilde))
    for k in range(5):
        for n in range(4):
            pair = b[k, n], b_tilde[k, n], f(b[k, n]), f(b_tilde[k, n])
            np.testing.assert_array_equal(together[k, n], dj.formulas.disarm(jnp.asarray(logits[n]), *pair))


def test_saturated_scores_keep_their_digits():
    """b − p would be 0 in float32 at logit 30; REINFORCE and VIMCO see σ(−30)."""
    logits = jnp.array([30.0, -30.0], jnp.float32)
    score = dj.bernoulli.score(logits, jnp.array([1.0, 0.0], jnp.float32))
    np.testing.assert_allclose(score, [expit(-30.0), -expit(-30.0)], rtol=1e-5)


PAIR = np.ones((2, 5, 2))  # b and b̃ of five pairs of two bits
WRONG_USE = [
    ("disarm", (jnp.zeros(2), *PAIR, *np.ones((2, 4))), ValueError, "(5,), got (4,)"),
    ("disarm", (jnp.zeros(3), *PAIR, *np.ones((2, 5))), ValueError, "(5, 2) do not fit logits of shape (3,)"),
    ("disarm", (jnp.zeros((1, 5, 2)), *PAIR, *np.ones((2, 5))), ValueError, "logits of shape (1, 5, 2)"),
    ("disarm", (jnp.zeros(2), PAIR[0], PAIR[1, :4], *np.ones((2, 5))), ValueError, "(5, 2) and (4, 2)"),
    ("reinforce", (jnp.zeros(2, int), np.ones((1, 2)), np.ones(1)), TypeError, "got dtype int"),
    ("reinforce_loo", (jnp.zeros(2), np.ones((1, 2)), np.ones(1)), ValueError, "at least 2 samples"),
    ("vimco", (jnp.zeros(2), np.ones((1, 2)), np.ones(1)), ValueError, "at least 2 samples"),
]


@pytest.mark.parametrize(("name", "args", "error", "words"), WRONG_USE)
def test_wrong_use(name, args, error, words):
    with pytest.raises(error, match=re.escape(words)):
        getattr(dj.formulas, name)(*args)


def test_unknown_baseline():
    with pytest.raises(ValueError, match="'median'; accepted: arithmetic, geometric"):
        dj.formulas.vimco(jnp.zeros(2), np.ones((2, 2)), np.ones(2), baseline="median")


def test_formulas_take_what_jax_takes():
    """Integer and boolean f, bits of any dtype; float32 or wider inside, the logits' dtype outside."""
    b, b_tilde = np.array([[1, 0]]), np.array([[0, 0]])
    grad = dj.formulas.disarm(jnp.zeros((1, 2), jnp.bfloat16), b, b_tilde, np.array([3]), np.array([True]))
    assert grad.dtype == jnp.bfloat16
    np.testing.assert_array_equal(grad.astype(jnp.float32), [[0.5, 0]])
    assert jax.eval_shape(dj.formulas.bound, jnp.zeros((4, 3))).shape == (3,)


def test_narrow_numbers_are_summed_in_float32():
    """The same as from the same numbers in float32, rounded once: REINFORCE and a covariance of 300 samples."""
    rng = np.random.default_rng(0)
    logits, f_b = (jnp.asarray(x, jnp.bfloat16) for x in (rng.normal(size=3), rng.normal(size=300)))
    b = jnp.asarray(rng.integers(2, size=(300, 3)), jnp.bfloat16)
    for formula in (dj.formulas.reinforce, dj.formulas.reinforce_loo):
        wide = formula(*(x.astype(jnp.float32) for x in (logits, b, f_b))).astype(jnp.bfloat16)
        np.testing.assert_array_equal(formula(logits, b, f_b).astype(jnp.float32), wide.astype(jnp.float32))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(-8, 8), min_size=1, max_size=3),
    betas=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_any_coupling_of_any_logits_is_unbiased(logits, betas, seed):
    logits = np.array(logits)
    betas, f = np.array(betas[: len(logits)]), exact.table_function(len(logits), seed)
    b, b_tilde, probabilities = exact.pair_law(logits, betas)
    ours = dj.formulas.interpolated(jnp.asarray(logits), b, b_tilde, f(b), f(b_tilde), jnp.asarray(betas))
    mean, _ = exact.moments(probabilities, np.asarray(ours))
    np.testing.assert_allclose(mean, exact.gradient(logits, f), rtol=0, atol=1e-10)


def test_public_names():
    """Every public formula has an example; the checks that estimators use are not public."""
    for name in dj.formulas.__all__:
        assert ">>>" in getattr(dj.formulas, name).__doc__, name
    assert not [name for name in dj.formulas.__all__ if name.startswith("check") or name.isupper()]


def test_a_program_of_cyclic_companions_does_not_grow_with_the_pairs():
    """With one roll for each of 500 pairs it compiled for 47 seconds."""
    sizes = []
    for number in (17, 33):
        log_w = jnp.zeros((number, 2))
        signal = functools.partial(dj.formulas.bounds.companions, configurations="cyclic")
        sizes.append(len(str(jax.make_jaxpr(signal)(log_w, log_w)).splitlines()))
    assert sizes[1] < 1.5 * sizes[0], sizes
