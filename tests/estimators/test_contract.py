"""One table drives every registered estimator through the same contract; being registered is enough to get it all."""

import collections
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

NAMES = dj.estimator_names()
BLACK_BOX = tuple(name for name in NAMES if not dj.estimator_info(name).needs_grad)
ELSEWHERE = (
    "arms_quadratic",
    "disarm_quadratic",
    "disarm_taylor",
    "multisample_disarm_quadratic",
    "muprop",
    "rebar",
    "relax",
)  # evaluate f at other points than bits too
DTYPES = {"float32": False, "bfloat16": False, "float64": True}  # and whether 64 bits must be enabled

every_estimator = pytest.mark.parametrize("name", NAMES)
every_black_box = pytest.mark.parametrize("name", BLACK_BOX)


def f(b):
    """Nonlinear and not symmetric, in b's own dtype, for any number of bits."""
    weights = jnp.cos(1 + jnp.arange(b.shape[-1], dtype=b.dtype))
    total = jnp.sum(b * dj.bernoulli.lift(weights, b.ndim), axis=-1)
    return (total - 0.4) ** 2 + b[..., 0]


def make_logits(shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), dtype)


def make(name, logits):
    est = dj.make_estimator(name)
    return est, est.init(jax.random.key(0), logits)


@every_estimator
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_shapes_and_dtypes(name, dtype, batch):
    with jax.enable_x64(DTYPES[dtype]):
        logits = make_logits((*batch, 3), dtype)
        est, params = make(name, logits)
        stacks = []

        def spy(b):
            stacks.append(b)
            return f(b)

        out = jax.eval_shape(lambda key: est.apply(params, key, logits, spy), jax.random.key(1))
        assert (out.value.shape, out.value.dtype) == (batch, dtype)
        assert (out.grad.shape, out.grad.dtype) == ((*batch, 3), dtype)
        for stack in stacks:
            assert stack.shape[1:] == (*batch, 3)
            assert stack.dtype == dtype


@every_estimator
def test_shapes_of_params_depend_on_the_number_of_bits_only(name):
    shapes = [jax.tree.map(jnp.shape, make(name, make_logits((*batch, 3)))[1]) for batch in ((), (5,), (2, 5))]
    assert shapes[0] == shapes[1] == shapes[2]


@every_estimator
@pytest.mark.parametrize(
    ("returned", "dtype", "expected"),
    [
        ("int32", "bfloat16", "bfloat16"),
        ("bool", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "bfloat16", "float32"),
    ],
)
def test_dtype_of_value(name, returned, dtype, expected):
    """f's own float dtype; the logits' for integers and booleans."""
    logits = make_logits((5, 3), dtype)
    est, params = make(name, logits)

    def apply(key):
        return est.apply(params, key, logits, lambda b: f(b).astype(returned))

    if dj.estimator_info(name).needs_grad and returned in ("int32", "bool"):
        with pytest.raises(TypeError, match=f"differentiate f, which must return floats, got dtype {returned}"):
            jax.eval_shape(apply, jax.random.key(1))
        return
    out = jax.eval_shape(apply, jax.random.key(1))
    assert out.value.dtype == expected
    assert out.grad.dtype == dtype


def test_bounds_are_summed_in_float32():
    """A bound of 64 bfloat16 weights would lose most of its digits if it were summed as such."""
    est, logits = dj.vimco(num_samples=64), make_logits((50, 3))
    stacks = []

    def narrow(b):
        stacks.append(f(b).astype(jnp.bfloat16))
        return stacks[-1]

    out = est.apply((), jax.random.key(1), logits, narrow)
    exact = dj.formulas.bound(stacks[0].astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(out.value.astype(jnp.float32), exact.astype(jnp.float32))


@every_estimator
def test_jit_vmap_and_scan_agree(name):
    """The same keys give the same estimates whether jitted alone, vmapped or scanned; all compiled once."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)
    keys = jax.random.split(jax.random.key(1), 10)
    traces = collections.Counter()

    def apply(key):
        def counting_f(b):
            traces[b.shape] += 1
            return f(b)

        return est.apply(params, key, logits, counting_f)

    one = jax.jit(apply)
    one(keys[0])
    first = traces.copy()
    alone = jax.tree.map(lambda *a: jnp.stack(a), *(one(key) for key in keys))
    assert traces == first  # ten steps, one compilation
    mapped = jax.jit(jax.vmap(apply))(keys)
    scanned = jax.jit(lambda keys: jax.lax.scan(lambda _, key: (None, apply(key)), None, keys)[1])(keys)
    for other in (mapped, scanned):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), alone, other)
    assert len(np.unique(np.asarray(alone.grad).reshape(10, -1), axis=0)) > 5  # different keys, different samples


@every_estimator
def test_examples_of_a_batch_are_independent(name):
    """Changing one example's logits leaves the estimates of the others alone."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)
    apply = jax.jit(lambda logits: est.apply(params, jax.random.key(1), logits, f))
    before, after = apply(logits), apply(logits.at[2].add(1.0))
    keep = np.array([0, 1, 3, 4])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[keep], b[keep]), before, after)
    assert not np.array_equal(before.grad[2], after.grad[2])


@every_estimator
def test_expectation_is_value_and_whole_gradient(name):
    """In reverse and forward mode: grad plus f's own dependence on the logits; the ordinary derivative in the rest."""
    logits, scale, key = make_logits((5, 3)), jnp.array(1.7), jax.random.key(1)
    est, params = make(name, logits)

    def depends_on_both(logits, scale):
        return lambda b: scale * f(b) + jnp.sum(jax.nn.softplus(logits), axis=-1)[None] * b[..., 1]

    def objective(logits, scale):
        return dj.expectation(est)(params, key, logits, depends_on_both(logits, scale)).sum()

    def with_samples(b):
        return depends_on_both(logits, scale)(b), b

    out, samples = jax.jit(lambda: est.apply(params, key, logits, with_samples, has_aux=True))()
    value_of = dj.formulas.bound if name == "vimco" else lambda f_b: f_b.mean(axis=0)

    def value(logits, scale):  # written out from the samples, without the estimator
        return value_of(depends_on_both(logits, scale)(samples)).sum()

    pathwise = jax.jit(jax.grad(value, argnums=(0, 1)))(logits, scale)
    total, (in_logits, in_scale) = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))(logits, scale)
    np.testing.assert_allclose(total, out.value.sum(), rtol=1e-5)
    np.testing.assert_allclose(in_logits, out.grad + pathwise[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(in_scale, pathwise[1], rtol=1e-4)
    tangents = jnp.cos(jnp.arange(15.0)).reshape(5, 3), jnp.array(0.3)
    _, forward = jax.jit(lambda *t: jax.jvp(objective, (logits, scale), t))(*tangents)
    np.testing.assert_allclose(forward, jnp.sum(in_logits * tangents[0]) + in_scale * tangents[1], rtol=1e-4, atol=1e-5)


@every_estimator
def test_only_variance_loss_reaches_params(name):
    logits, key = make_logits((5, 3)), jax.random.key(1)
    est, params = make(name, logits)
    stopped = jax.jit(jax.grad(lambda params: dj.expectation(est)(params, key, logits, f).sum()))(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(stopped))
    learnt = jax.jit(jax.grad(lambda params: dj.variance_loss(est)(params, key, logits, f)))(params)
    through_grad = jax.jit(jax.grad(lambda params: jnp.sum(est.apply(params, key, logits, f).grad ** 2)))(params)
    for gradients in (learnt, through_grad):
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(gradients))


@every_estimator
@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_logits(name, dtype):
    """No NaN at ±1e4 and −0.0, in any derivative; and bits that cannot flip have no gradient."""
    with jax.enable_x64(DTYPES[dtype]):
        logits = jnp.asarray([[1e4, -1e4, -0.0], [30.0, -30.0, 0.5], [-0.0, 1e4, 1e4], [1e4, 1e4, -1e4]], dtype)
        est, params = make(name, logits)

        @jax.jit
        def everything(key):
            out = est.apply(params, key, logits, f)
            through = jax.grad(lambda logits: dj.expectation(est)(params, key, logits, f).sum())(logits)
            return out, through, jax.grad(lambda params: dj.variance_loss(est)(params, key, logits, f))(params)

        for seed in range(5):
            out, through, learnt = everything(jax.random.key(seed))
            for leaf in jax.tree.leaves((out, through, learnt)):
                assert np.all(np.isfinite(leaf.astype(jnp.float32)))
            if name not in ("rebar", "relax"):  # what their control variate says of it averages out, but is not zero
                assert not np.any(out.grad[3].astype(jnp.float32))


@every_estimator
def test_nan_logits_are_not_hidden(name):
    """A comparison turns NaN into 0, so a broken network upstream would train on as if nothing had happened."""
    logits = jnp.array([[0.5, jnp.nan, -0.5], [0.5, 0.5, 0.5]])
    est, params = make(name, logits)
    grad = jax.jit(lambda key: est.apply(params, key, logits, f).grad)(jax.random.key(1))
    assert np.isnan(grad[0, 1])
    assert np.all(np.isfinite(grad[1]))


def test_sharded_batches():
    """Four devices, the batch split over them: by shard_map, automatic and explicit; the numbers are those of one."""
    code = """
import jax, jax.numpy as jnp, numpy as np, disarm_jax as dj
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jax.config.update("jax_disable_most_optimizations", True)
f = lambda b: (b.sum(-1) - 1.2) ** 2 + b[..., 0]
logits, key = jnp.linspace(-2.0, 2.0, 24).reshape(8, 3), jax.random.key(1)
for name in dj.estimator_names():
    est = dj.make_estimator(name)
    params = est.init(jax.random.key(0), logits)
    apply = lambda logits: est.apply(params, key, logits, f)
    alone = jax.jit(apply)(logits)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4,), ("batch",), axis_types=(kind,))
        with jax.set_mesh(mesh):
            split = jax.device_put(logits, NamedSharding(mesh, P("batch")))
            together = jax.jit(apply)(split)
            assert together.grad.sharding.is_equivalent_to(split.sharding, 2), name
            for one, other in zip(alone, together):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)
            mapped = jax.shard_map(apply, in_specs=P("batch"), out_specs=P("batch"))
            assert jax.jit(mapped)(split).grad.shape == (8, 3), name
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@every_estimator
def test_evaluations_are_as_documented(name):
    """Rows that f receives per example, in one call for each kind of point."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)
    rows = []

    def counting_f(b):
        rows.append(b.shape[0])
        return f(b)

    jax.eval_shape(lambda key: est.apply(params, key, logits, counting_f), jax.random.key(1))
    info = dj.estimator_info(name)
    assert sum(rows) == {"D + 1": 4}.get(info.evaluations, info.evaluations)
    assert len(rows) == (2 if name in ELSEWHERE else 1)


@every_estimator
def test_keys_are_used_once(name):
    logits = make_logits((5, 3))
    est = dj.make_estimator(name)
    with jax.debug_key_reuse(True):
        params = est.init(jax.random.key(0), logits)
        jax.jit(lambda key: est.apply(params, key, logits, f))(jax.random.key(1))
        jax.jit(lambda key: dj.variance_loss(est)(params, key, logits, f))(jax.random.key(2))
        jax.jit(lambda key: dj.gradient_variance(est)(params, key, logits, f, 3))(jax.random.key(3))


@every_estimator
def test_sub_keys_differ(name):
    """Every draw of random bits inside one estimate comes from a key of its own."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)
    drawn = []

    def record(draw):
        def recorded(key, *args, **kwargs):
            drawn.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
            return draw(key, *args, **kwargs)

        return recorded

    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(jax.random, "bits", record(jax.random.bits))
        patch.setattr(jax.random, "uniform", record(jax.random.uniform))
        est.apply(params, jax.random.key(1), logits, f)
    assert len(drawn) >= 1
    assert len(set(drawn)) == len(drawn)


@every_black_box
def test_f_is_not_differentiated(name):
    """Also not by jax.grad or jvp of the expectation, in the logits and in parameters of f."""
    logits, scale = make_logits((5, 3)), jnp.array(2.0)
    est, params = make(name, logits)

    def objective(logits, scale, params):
        return dj.expectation(est)(params, jax.random.key(1), logits, lambda b: scale * black_box(f)(b)).sum()

    jax.jit(jax.grad(objective, argnums=(0, 1, 2)))(logits, scale, params)
    jax.jit(lambda *args: jax.jvp(objective, args, jax.tree.map(jnp.ones_like, args)))(logits, scale, params)
    jax.jit(jax.grad(lambda params: dj.variance_loss(est)(params, jax.random.key(1), logits, black_box(f))))(params)


@every_black_box
def test_f_may_live_outside_of_jax(name):
    """A simulator behind `pure_callback`, and integer logic, under jit and grad."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)

    def simulator(b):
        shape = jax.ShapeDtypeStruct(b.shape[:-1], jnp.float32)
        return jax.pure_callback(lambda b: np.asarray(f(jnp.asarray(b)), np.float32), shape, b)

    def branches(b):
        bits = b.astype(jnp.int32)
        return jnp.where(bits[..., 0] == 1, bits[..., 1] << 3, 7 - bits[..., 2])

    for outside in (simulator, branches):

        @jax.jit
        def both(logits, outside=outside):
            def objective(logits):
                return dj.expectation(est)(params, jax.random.key(1), logits, outside).sum()

            return jax.grad(objective)(logits), est.apply(params, jax.random.key(1), logits, outside).grad

        through, grad = both(logits)
        np.testing.assert_array_equal(through, grad)
        assert np.any(grad)


@every_estimator
def test_auxiliary_outputs(name):
    """They come back one row per draw from q, and averaged from `expectation`; the samples themselves among them."""
    logits = make_logits((5, 3))
    est, params = make(name, logits)

    def with_aux(b):
        return f(b), {"b": b, "kl": f(b) * 2}

    key = jax.random.key(1)
    out, aux = jax.jit(lambda: est.apply(params, key, logits, with_aux, has_aux=True))()
    value, mean = jax.jit(lambda: dj.expectation(est, has_aux=True)(params, key, logits, with_aux))()
    plain = jax.jit(lambda: est.apply(params, key, logits, f))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), out, plain)
    np.testing.assert_allclose(value, plain.value, rtol=1e-5)
    assert set(np.unique(aux["b"])) == {0.0, 1.0}
    assert aux["b"].shape[1:] == (5, 3)
    np.testing.assert_allclose(aux["kl"], 2 * f(aux["b"]), rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.mean(axis=0), b, rtol=1e-5), aux, mean)
    if dj.estimator_info(name).objective == "expectation":
        np.testing.assert_allclose(mean["kl"], 2 * plain.value, rtol=1e-5)


@every_estimator
def test_a_wrong_f_is_named(name):
    logits = make_logits((5, 3))
    est, params = make(name, logits)
    wrong = [
        (lambda b: b, ValueError, r"shape \(\d, 5\), got shape \(\d, 5, 3\)"),
        (lambda b: f(b).mean(), ValueError, r"shape \(\d, 5\), got shape \(\)"),
        (lambda b: (f(b), b), TypeError, "has_aux=True.*tuple"),
        (lambda b: None, TypeError, "NoneType"),
        (lambda b: f(b).astype(jnp.complex64), TypeError, "complex64"),
    ]
    for bad_f, error, words in wrong:
        with pytest.raises(error, match=words):
            jax.eval_shape(lambda key, bad_f=bad_f: est.apply(params, key, logits, bad_f), jax.random.key(1))
    with pytest.raises(TypeError, match="pair"):
        est.apply(params, jax.random.key(1), logits, f, has_aux=True)
    with pytest.raises(ValueError, match=r"sample axis.*\(5,\)"):
        est.apply(params, jax.random.key(1), logits, lambda b: (f(b), jnp.zeros(5)), has_aux=True)


@every_estimator
@pytest.mark.parametrize(
    ("logits", "error", "words"),
    [
        (np.zeros((5, 3), np.int32), TypeError, "int32"),
        (np.zeros((5, 3), np.complex64), TypeError, "complex64"),
        (np.zeros((5, 3), bool), TypeError, "bool"),
        (np.float32(0.5), ValueError, "scalar"),
    ],
)
def test_wrong_logits_are_named(name, logits, error, words):
    est, params = make(name, make_logits((5, 3)))
    calls = (
        lambda: est.init(jax.random.key(0), logits),
        lambda: est.apply(params, jax.random.key(0), logits, f),
        lambda: dj.expectation(est)(params, jax.random.key(0), logits, f),
        lambda: dj.variance_loss(est)(params, jax.random.key(0), logits, f),
    )
    for call in calls:
        with pytest.raises(error, match=words):
            call()


def test_the_registry():
    assert list(NAMES) == sorted(NAMES)
    paper = (
        "arm disarm interpolated multisample_disarm naive_multisample_disarm rebar reinforce reinforce_loo relax vimco"
    )
    assert set(paper.split()) <= set(NAMES)
    for name in NAMES:
        info = dj.estimator_info(name)
        assert info.name == name
        assert info.objective in ("expectation", "bound")
        assert info.paper
        assert info.advice.endswith(".")
        assert "\n" not in info.advice
    assert dj.estimator_info("vimco", num_samples=5, repeats=2).evaluations == 10


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("disram", {}, ValueError, "'disram'; known: arm, arms, .*disarm, .*interpolated"),
        ("disarm", {"pairs": 2}, TypeError, "disarm has no option 'pairs'; accepted: num_pairs"),
        ("disarm", {"num_pairs": 0}, ValueError, "num_pairs must be at least 1, got 0"),
        ("arm", {"num_pairs": -1}, ValueError, "num_pairs must be at least 1, got -1"),
        ("arm", {"num_pairs": 1.5}, ValueError, "num_pairs must be an integer of at least 1, got 1.5"),
        ("arm", {"num_pairs": True}, ValueError, "num_pairs must be an integer of at least 1, got True"),
        ("reinforce", {"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        ("reinforce_loo", {"num_samples": 1}, ValueError, "num_samples must be at least 2, got 1"),
        ("interpolated", {"init_beta": 1.1}, ValueError, r"init_beta must be in \[0, 1\], got 1.1"),
        ("interpolated", {"init_beta": -0.1}, ValueError, r"init_beta must be in \[0, 1\], got -0.1"),
        ("interpolated", {"num_pairs": 0}, ValueError, "num_pairs must be at least 1, got 0"),
        ("vimco", {"num_samples": 1}, ValueError, "num_samples must be at least 2, got 1"),
        ("vimco", {"baseline": "median"}, ValueError, "'median'; accepted: arithmetic, geometric"),
        ("vimco", {"repeats": 0}, ValueError, "repeats must be at least 1, got 0"),
        ("multisample_disarm", {"num_pairs": 0}, ValueError, "num_pairs must be at least 1, got 0"),
        ("multisample_disarm", {"configurations": "some"}, ValueError, "'some'; accepted: paper, cyclic, all"),
        ("multisample_disarm", {"num_pairs": 13, "configurations": "all"}, ValueError, "at most 12, got 13"),
        ("interpolated", {"init_beta": "half"}, ValueError, r"init_beta must be in \[0, 1\], got 'half'"),
        ("interpolated", {"per_dimension": "no"}, ValueError, "per_dimension must be True or False, got 'no'"),
        ("rebar", {"init_temperature": -1.0}, ValueError, "init_temperature must be positive and finite, got -1.0"),
        ("rebar", {"init_scale": float("nan")}, ValueError, "init_scale must be finite, got nan"),
    ],
)
def test_wrong_options_are_named(name, options, error, words):
    for call in (dj.make_estimator, dj.estimator_info):
        with pytest.raises(error, match=words):
            call(name, **options)
    if name in NAMES:
        with pytest.raises(error, match=words):
            getattr(dj, name)(**options)


def test_numbers_of_numpy_are_numbers():
    est = dj.interpolated(num_pairs=np.int64(2), init_beta=np.float32(0.5))
    out = jax.eval_shape(lambda key: est.apply({"beta": 0.5}, key, make_logits((5, 3)), f), jax.random.key(0))
    assert out.grad.shape == (5, 3)


@every_estimator
def test_logits_may_be_numpy_arrays_and_params_plain_numbers(name):
    est = dj.make_estimator(name)
    params = est.init(jax.random.key(0), np.zeros((5, 3)))
    plain = jax.tree.map(lambda p: float(p) if p.ndim == 0 else p, params)
    for call in (est.apply, dj.expectation(est), dj.variance_loss(est)):
        jax.eval_shape(lambda key, call=call: call(plain, key, np.zeros((5, 3)), f), jax.random.key(1))


@every_estimator
def test_options_are_keyword_only(name):
    with pytest.raises(TypeError, match=rf"{name} takes keyword options only, got \(2,\); accepted: "):
        getattr(dj, name)(2)


def test_gradient_variance_needs_two_draws():
    with pytest.raises(ValueError, match="num_draws must be at least 2, got 1"):
        dj.gradient_variance(dj.disarm())((), jax.random.key(0), jnp.zeros(3), f, 1)


def test_an_estimator_of_the_users_own():
    """Three pure functions are enough for expectation, variance_loss and gradient_variance."""

    def apply(params, key, logits, f):
        b = jax.random.bernoulli(key, jax.nn.sigmoid(logits))[None].astype(logits.dtype)
        f_b = f(b)
        return dj.Estimate(f_b[0], jax.lax.stop_gradient(f_b)[0, ..., None] * (b[0] - jax.nn.sigmoid(logits)))

    est = dj.Estimator(lambda key, logits: (), apply)
    logits = make_logits((5, 3))
    assert jax.grad(lambda logits: dj.expectation(est)((), jax.random.key(0), logits, f).sum())(logits).shape == (5, 3)
    assert dj.gradient_variance(est)((), jax.random.key(0), logits, f, 4).variance.shape == (5, 3)


def test_the_package_needs_jax_alone():
    """Importing it loads no other library of the experiments, and no module of it calls jit."""
    code = "import sys, disarm_jax; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "jax" in loaded
    assert not {"flax", "optax", "chex", "ml_collections", "absl", "tensorflow", "orbax", "matplotlib"} & set(loaded)
    package = pathlib.Path(dj.__file__).parent
    for path in [*package.glob("*.py"), *package.glob("estimators/*.py")]:
        assert not re.search(r"\bjit\b(?!ted)", re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)), path
    assert (package / "py.typed").exists()


def test_making_estimators_does_not_start_jax():
    """A program checks its config first, and says how many devices it wants after that."""
    code = """
import jax, disarm_jax as dj
for name in dj.estimator_names():
    dj.make_estimator(name), dj.estimator_info(name)
for name in dj.hierarchical_names():
    dj.hierarchical(name)
jax.config.update("jax_num_cpu_devices", 3)
assert len(jax.devices()) == 3
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_public_names_are_sorted_and_exist():
    assert list(dj.__all__) == sorted(dj.__all__)
    assert all(hasattr(dj, name) for name in dj.__all__)
    assert all(hasattr(dj, name) for name in NAMES)
