"""One table drives every registered estimator through the same contract; being registered is enough to get it all.

What has to be computed is compiled once for each estimator, as one program, which runs at several keys and logits
(`Battery`); the tests look at its results. What a tracer can tell is only traced.
"""

import collections
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box
from cases import BLACK_BOX, CASES, DTYPES, REPRESENTATIVES
from jax.extend import core

import disarm_jax as dj
from disarm_jax.categorical.catalogue import CLASSES
from disarm_jax.estimators.registry import BITS

pytestmark = pytest.mark.usefixtures("quick_compile")

ELSEWHERE = (
    *(name for name in {case.name for case in CASES.values()} if name.endswith("_midpoint")),
    "arms_quadratic",
    "disarm_quadratic",
    "disarm_taylor",
    "multisample_disarm_quadratic",
    "muprop",
    "rebar",
    "relax",
)  # evaluate f at other points than bits too
RELAXED = ("rebar", "relax")  # have a control variate whose slope averages out to zero, but is not zero

every_estimator = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_black_box = pytest.mark.parametrize("case", BLACK_BOX.values(), ids=BLACK_BOX)
representatives = pytest.mark.parametrize("case", [CASES[key] for key in REPRESENTATIVES], ids=REPRESENTATIVES)

KEYS = 10
CHANGED = 2  # the example whose logits are others in `changed_logits`


class Battery:
    """Everything that is computed of an estimator in float32, by one compiled program.

    Its f depends on the logits, except on those that are not finite, and on a scale: f(b) = scale · case.f(b) + …
    """

    def __init__(self, case):
        self.case, self.traces = case, collections.Counter()
        self.est, self.params = case.make(case.logits())
        self._program = jax.jit(self._compute)

    def f_of(self, logits, scale):
        finite = jnp.where(jnp.isfinite(logits), logits, jnp.zeros_like(logits))
        own = jnp.sum(self.case.flat(jnp.tanh(finite)), axis=-1)

        def f(b):
            self.traces[b.shape] += 1
            return scale * self.case.f(b) + own[None] * self.case.flat(b)[..., 1]

        return f

    def _compute(self, params, key, logits, scale, tangents):
        est, f = self.est, self.f_of(logits, scale)
        with_aux = lambda b: (f(b), {"b": b, "twice": 2 * f(b)})

        def expected(logits, scale, params):
            return dj.expectation(est)(params, key, logits, self.f_of(logits, scale)).sum()

        apply = lambda key: est.apply(params, key, logits, f)
        keys = jax.random.split(key, KEYS)
        return {
            "plain": apply(key),
            "with_aux": est.apply(params, key, logits, with_aux, has_aux=True),
            "mean_aux": dj.expectation(est, has_aux=True)(params, key, logits, with_aux),
            "expectation": jax.value_and_grad(expected, argnums=(0, 1, 2))(logits, scale, params),
            "forward": jax.jvp(lambda *at: expected(*at, params), (logits, scale), tangents),
            "loss": jax.value_and_grad(dj.variance_loss(est))(params, key, logits, f),
            "squares": jax.grad(lambda params: jnp.sum(est.apply(params, key, logits, f).grad ** 2))(params),
            "mapped": jax.vmap(apply)(keys),
            "scanned": jax.lax.scan(lambda _, key: (None, apply(key)), None, keys)[1],
        }

    @functools.cached_property
    def tangents(self):
        logits = self.case.logits()
        return jnp.cos(jnp.arange(float(logits.size))).reshape(logits.shape), jnp.array(0.3)

    def run(self, key, logits, scale=1.7) -> dict[str, Any]:
        return self._program(self.params, key, logits, jnp.array(scale), self.tangents)

    @functools.cached_property
    def results(self):
        return self.run(jax.random.key(1), self.case.logits())

    def out_of(self, logits) -> list[dict[str, Any]]:
        """The results for up to five examples, filled up with ordinary ones, for several keys."""
        logits = jnp.concatenate([logits, self.case.logits()[len(logits) :]])
        return [self.run(jax.random.key(seed), logits) for seed in range(5)]


@pytest.fixture(scope="module", params=CASES)
def battery(request, quick_compile):
    return Battery(CASES[request.param])


def test_jit_vmap_and_scan_agree(battery):
    """The same keys give the same estimates whether jitted alone, vmapped or scanned; all compiled once."""
    found, logits = battery.results, battery.case.logits()
    traced = battery.traces.copy()
    keys = jax.random.split(jax.random.key(1), KEYS)
    alone = jax.tree.map(lambda *a: np.stack(a), *(battery.run(key, logits)["plain"] for key in keys))
    assert battery.traces == traced  # ten steps, one compilation
    for other in (found["mapped"], found["scanned"]):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), alone, other)
    assert len(np.unique(alone.grad.reshape(KEYS, -1), axis=0)) > 5  # different keys, different samples


def test_examples_of_a_batch_are_independent(battery):
    """Changing one example's logits leaves the estimates of the others alone, but for scales taken from the batch."""
    if battery.case.name.endswith("_midpoint"):
        pytest.skip("its scale comes from the other examples; test_midpoint_bases.py shows that no bias comes with it")
    changed = battery.run(jax.random.key(1), battery.case.logits().at[CHANGED].multiply(-3.0))["plain"]
    before, others = battery.results["plain"], np.arange(5) != CHANGED
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[others], b[others]), before, changed)
    assert not np.array_equal(before.grad[CHANGED], changed.grad[CHANGED])


def test_expectation_is_value_and_whole_gradient(battery):
    """In reverse and forward mode: grad plus f's own dependence on the logits; the ordinary derivative in the rest."""
    case, logits, scale = battery.case, battery.case.logits(), jnp.array(1.7)
    out, aux = battery.results["with_aux"]
    value_of = dj.formulas.bound if case.name == "vimco" else lambda f_b: f_b.mean(axis=0)

    def value(logits, scale):  # written out from the samples, without the estimator
        return value_of(battery.f_of(logits, scale)(aux["b"])).sum()

    pathwise = jax.grad(value, argnums=(0, 1))(logits, scale)
    total, (in_logits, in_scale, in_params) = battery.results["expectation"]
    np.testing.assert_allclose(total, out.value.sum(), rtol=1e-5)
    np.testing.assert_allclose(in_logits, out.grad + pathwise[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(in_scale, pathwise[1], rtol=1e-4)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(in_params))
    tangents = battery.tangents
    forward_value, forward = battery.results["forward"]
    np.testing.assert_allclose(forward_value, total, rtol=1e-5)
    np.testing.assert_allclose(forward, jnp.sum(in_logits * tangents[0]) + in_scale * tangents[1], rtol=1e-4, atol=1e-5)


def test_only_variance_loss_reaches_params(battery):
    """That `expectation` does not is tested above."""
    _, learnt = battery.results["loss"]
    for gradients in (learnt, battery.results["squares"]):
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(gradients))


def check_saturated(case, results):
    """No NaN in any derivative, and bits that cannot flip have no gradient."""
    for found in results:
        assert all(np.all(np.isfinite(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(found))
        assert case.name in RELAXED or not np.any(found["plain"].grad[3].astype(jnp.float32))


def test_saturated_logits(battery):
    """Near ±1e4 and at −0.0."""
    check_saturated(battery.case, battery.out_of(jnp.asarray(battery.case.saturated, "float32")))


@representatives
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_saturated_logits_of_other_dtypes(case, dtype):
    with jax.enable_x64(DTYPES[dtype]):
        logits = jnp.asarray(case.saturated, dtype)
        est, params = case.make(logits)

        @jax.jit
        def everything(key):
            return {
                "plain": est.apply(params, key, logits, case.f),
                "through": jax.grad(lambda logits: dj.expectation(est)(params, key, logits, case.f).sum())(logits),
                "learnt": jax.grad(lambda params: dj.variance_loss(est)(params, key, logits, case.f))(params),
            }

        check_saturated(case, [everything(jax.random.key(seed)) for seed in range(5)])


def test_infinite_logits(battery):
    """Bits that are certain and classes that are masked: value and derivatives are finite, theirs are zero."""
    certain = (0,) * (1 + len(battery.case.event))
    value = -jnp.inf if len(battery.case.event) == 2 else jnp.inf
    for found in battery.out_of(battery.case.logits().at[certain].set(value)):
        value, (in_logits, _, _) = found["expectation"]
        assert np.isfinite(value)
        assert np.all(np.isfinite(in_logits))
        assert in_logits[certain] == 0


def test_nan_logits_are_not_hidden(battery):
    """A comparison turns NaN into 0, so a broken network upstream would train on as if nothing had happened."""
    broken = (0,) * len(battery.case.event) + (1,)
    for found in battery.out_of(battery.case.logits().at[broken].set(jnp.nan)):
        assert np.isnan(found["plain"].grad[broken])
        assert np.all(np.isfinite(found["plain"].grad[1:]))


def test_auxiliary_outputs(battery):
    """They come back one row per draw from q, and averaged from `expectation`; the samples themselves among them."""
    plain, (out, aux), (value, mean) = (battery.results[name] for name in ("plain", "with_aux", "mean_aux"))
    f = battery.f_of(battery.case.logits(), jnp.array(1.7))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), out, plain)
    np.testing.assert_allclose(value, plain.value, rtol=1e-5)
    assert set(np.unique(aux["b"])) == {0.0, 1.0}
    assert aux["b"].shape[1:] == (5, *battery.case.event)
    np.testing.assert_allclose(aux["twice"], 2 * f(aux["b"]), rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.mean(axis=0), b, rtol=1e-5, atol=1e-6), aux, mean)
    if battery.case.info.objective == "expectation":
        np.testing.assert_allclose(mean["twice"], 2 * plain.value, rtol=1e-5, atol=1e-6)


@every_estimator
@pytest.mark.parametrize(("dtype", "batch"), [("float32", ()), ("bfloat16", (2, 5))])
def test_shapes_and_dtypes(case, dtype, batch):
    check_shapes_and_dtypes(case, dtype, batch)


@representatives
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_all_shapes_and_dtypes(case, dtype, batch):
    check_shapes_and_dtypes(case, dtype, batch)


def check_shapes_and_dtypes(case, dtype, batch):
    """Of the estimate, and of what f receives, in one call for each kind of point and as often as documented."""
    with jax.enable_x64(DTYPES[dtype]):
        logits = case.logits(batch, dtype)
        est, params = case.make(logits)
        stacks = []

        def spy(b):
            stacks.append(b)
            return case.f(b)

        out = jax.eval_shape(lambda key: est.apply(params, key, logits, spy), jax.random.key(1))
        assert (out.value.shape, out.value.dtype) == (batch, dtype)
        assert (out.grad.shape, out.grad.dtype) == ((*batch, *case.event), dtype)
        for stack in stacks:
            assert stack.shape[1:] == (*batch, *case.event)
            assert stack.dtype == dtype
        evaluations = {"D + 1": 4}.get(case.info.evaluations, case.info.evaluations)
        another_pair = case.name.endswith("_midpoint") and batch == ()  # which a single row predicts
        pairs = est.base.pairs.count(est.base.info.evaluations) if another_pair else 0
        assert sum(len(stack) for stack in stacks) == evaluations + 2 * pairs
        assert len(stacks) == (2 if case.name in ELSEWHERE else 1) + another_pair


@every_estimator
def test_shapes_of_params_depend_on_the_number_of_bits_only(case):
    init = lambda batch: jax.eval_shape(case.module.make_estimator(case.name).init, jax.random.key(0), batch)
    shapes = [jax.tree.map(jnp.shape, init(case.logits(batch))) for batch in ((), (5,), (2, 5))]
    assert shapes[0] == shapes[1] == shapes[2]


@every_estimator
def test_dtype_of_value(case):
    """f's own float dtype; the logits' for integers and booleans, which cannot be differentiated."""
    cases = [
        ("int32", "bfloat16", "bfloat16"),
        ("bool", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "bfloat16", "float32"),
    ]
    for returned, dtype, expected in cases:
        logits = case.logits(dtype=dtype)
        est, params = case.make(logits)

        def apply(key, est=est, params=params, logits=logits, returned=returned):
            return est.apply(params, key, logits, lambda b: case.f(b).astype(returned))

        if case.info.needs_grad and returned in ("int32", "bool"):
            with pytest.raises(TypeError, match=f"differentiates f, which must return floats, got dtype {returned}"):
                jax.eval_shape(apply, jax.random.key(1))
            continue
        out = jax.eval_shape(apply, jax.random.key(1))
        assert out.value.dtype == expected
        assert out.grad.dtype == dtype


def consumed_keys(function, key):
    """Every key that a function draws bits from or splits, by its value `[M, words]`.

    The jaxpr is evaluated again, with these keys as its results: what does not lead to a key is not even compiled.
    """
    closed = jax.make_jaxpr(function)(key)

    def evaluate(jaxpr, consts, args, found):
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        for eqn in jaxpr.eqns:
            inputs = [v.val if isinstance(v, core.Literal) else values[v] for v in eqn.invars]
            if eqn.primitive.name in ("random_bits", "random_split"):
                words = jax.random.key_data(inputs[0])
                found.append(words.reshape(-1, words.shape[-1]))
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            if inner is None or eqn.primitive.name in ("scan", "while", "cond"):
                assert "random_bits" not in str(eqn.params), f"draws inside of {eqn.primitive} are not looked at"
                outputs = eqn.primitive.bind(*inputs, **eqn.params)
            else:
                outputs = evaluate(inner.jaxpr, inner.consts, inputs, found)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [v.val if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars]

    def keys_alone(key):
        found = []
        evaluate(closed.jaxpr, closed.consts, [key], found)
        return jnp.concatenate(found)

    return np.asarray(jax.jit(keys_alone)(key))


@every_estimator
def test_keys_are_used_once(case):
    """Every draw of random bits inside one call comes from a key of its own, and JAX finds none that is used again."""
    logits = case.logits()
    est, params = case.make(logits)
    calls = {
        "init": lambda key: est.init(key, logits),
        "apply": lambda key: est.apply(params, key, logits, case.f),
        "variance_loss": lambda key: dj.variance_loss(est)(params, key, logits, case.f),
        "gradient_variance": lambda key: dj.gradient_variance(est)(params, key, logits, case.f, 3),
    }
    with jax.debug_key_reuse(True):
        for call in calls.values():
            jax.jit(call).trace(jax.random.key(1))
    for name in ("apply", "variance_loss"):
        keys = consumed_keys(calls[name], jax.random.key(1))
        assert len(keys) >= 1
        assert len(np.unique(keys, axis=0)) == len(keys), name


@every_black_box
def test_f_is_not_differentiated(case):
    """Also not by jax.grad or jvp of the expectation, in the logits and in parameters of f; tracing would raise."""
    logits, scale = case.logits(), jnp.array(2.0)
    est, params = case.make(logits)

    def objective(logits, scale, params):
        return dj.expectation(est)(params, jax.random.key(1), logits, lambda b: scale * black_box(case.f)(b)).sum()

    def loss(params):
        return dj.variance_loss(est)(params, jax.random.key(1), logits, black_box(case.f))

    args = logits, scale, params
    jax.eval_shape(jax.grad(objective, argnums=(0, 1, 2)), *args)
    jax.eval_shape(lambda *args: jax.jvp(objective, args, jax.tree.map(jnp.ones_like, args)), *args)
    jax.eval_shape(jax.grad(loss), params)


@every_estimator
def test_grad_carries_no_derivative_of_logits_or_f(case):
    """It is differentiable in the tunables alone, so that f needs no second derivative."""
    logits, scale = case.logits(), jnp.array(1.7)
    est, params = case.make(logits)

    def total(logits, scale):
        shift = jnp.sum(case.flat(logits), axis=-1)[None]
        return est.apply(params, jax.random.key(1), logits, lambda b: scale * case.f(b) * (1 + shift)).grad.sum()

    zeros = jax.jit(jax.grad(total, argnums=(0, 1)))(logits, scale)
    assert not any(np.any(leaf) for leaf in zeros)


@every_black_box
def test_f_may_live_outside_of_jax(case):
    """A simulator behind `pure_callback`, and integer logic, under jit and grad."""
    logits, key = case.logits(), jax.random.key(1)
    est, params = case.make(logits)

    def simulator(b):
        shape = jax.ShapeDtypeStruct(case.flat(b).shape[:-1], jnp.float32)
        outside = lambda b: np.asarray(b).reshape(*shape.shape, -1) @ np.cos(np.arange(1, 1 + math.prod(case.event)))
        return jax.pure_callback(lambda b: (outside(b) ** 2).astype(np.float32), shape, b)

    def branches(b):
        bits = case.flat(b).astype(jnp.int32)
        return jnp.where(bits[..., 0] == 1, bits[..., 1] << 3, 7 - bits[..., 2])

    @jax.jit
    def both(logits):
        objective = lambda logits, f: dj.expectation(est)(params, key, logits, f).sum()
        return [(jax.grad(objective)(logits, f), est.apply(params, key, logits, f).grad) for f in (simulator, branches)]

    for through, grad in both(logits):
        np.testing.assert_array_equal(through, grad)
        assert np.any(grad)


@every_estimator
def test_a_wrong_f_is_named(case):
    logits = case.logits()
    est, params = case.make(logits)
    wrong = [
        (lambda b: b, False, ValueError, r"shape \(\d, 5\), got shape \(\d, 5, [\d, ]+\)"),
        (lambda b: case.f(b).mean(), False, ValueError, r"shape \(\d, 5\), got shape \(\)"),
        (lambda b: (case.f(b), b), False, TypeError, "has_aux=True.*tuple"),
        (lambda b: None, False, TypeError, "NoneType"),
        (lambda b: case.f(b).astype(jnp.complex64), False, TypeError, "complex64"),
        (case.f, True, TypeError, "pair"),
        (lambda b: (case.f(b), jnp.zeros(5)), True, ValueError, r"sample axis.*\(5,\)"),
    ]
    for f, has_aux, error, words in wrong:
        options = {"has_aux": True} if has_aux else {}
        with pytest.raises(error, match=words):
            jax.eval_shape(lambda key, f=f, o=options: est.apply(params, key, logits, f, **o), jax.random.key(1))


@every_estimator
@pytest.mark.parametrize(
    ("dtype", "error", "words"),
    [
        ("int32", TypeError, "int32"),
        ("complex64", TypeError, "complex64"),
        ("bool", TypeError, "bool"),
        ("float32", ValueError, "scalar"),
    ],
)
def test_wrong_logits_are_named(case, dtype, error, words):
    logits = np.zeros(() if words == "scalar" else (5, *case.event), dtype)
    est, params = case.make(case.logits())
    calls = (
        lambda: est.init(jax.random.key(0), logits),
        lambda: est.apply(params, jax.random.key(0), logits, case.f),
        lambda: dj.expectation(est)(params, jax.random.key(0), logits, case.f),
        lambda: dj.variance_loss(est)(params, jax.random.key(0), logits, case.f),
    )
    for call in calls:
        with pytest.raises(error, match=words):
            call()


@every_estimator
def test_logits_may_be_numpy_arrays_and_params_plain_numbers(case):
    est = case.module.make_estimator(case.name)
    params = est.init(jax.random.key(0), np.zeros((5, *case.event)))
    plain = jax.tree.map(lambda p: float(p) if p.ndim == 0 else p, params)
    for call in (est.apply, dj.expectation(est), dj.variance_loss(est)):
        jax.eval_shape(lambda key, call=call: call(plain, key, np.zeros((5, *case.event)), case.f), jax.random.key(1))


@every_estimator
def test_options_are_keyword_only(case):
    with pytest.raises(TypeError, match=rf"{case.name}\(\) takes 0 positional arguments but 1 was given"):
        (BITS if case.module is dj else CLASSES).factory(case.name)(2)
