"""Names, options and imports of the package, and what holds for all of its estimators at once."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, REPRESENTATIVES
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")

NAMES = dj.estimator_names()
f, make_logits = CASES["disarm"].f, CASES["disarm"].logits


def test_bounds_are_summed_in_float32():
    """A bound of 64 bfloat16 weights would lose most of its digits if it were summed as such."""
    est, logits = dj.vimco(num_samples=64), make_logits((50,))
    stacks = []

    def narrow(b):
        stacks.append(f(b).astype(jnp.bfloat16))
        return stacks[-1]

    out = est.apply((), jax.random.key(1), logits, narrow)
    exact = dj.formulas.bound(stacks[0].astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(out.value.astype(jnp.float32), exact.astype(jnp.float32))


def of_bits(b):
    return (b.sum(-1) - 1.2) ** 2 + b[..., 0]


def of_classes(z):
    return of_bits(z[..., 0]) + z[..., 0, 1]


@pytest.mark.parametrize("key", CASES)
def test_sharded_batches(key):
    """Four devices, the batch split over them: by shard_map, automatic and explicit; the numbers are those of one.

    That explicit shardings fit together, tracing tells; they are run for one estimator of each way of being built.
    """
    assert len(jax.devices()) == 4, "the suite makes four CPU devices"
    bits, classes = jnp.linspace(-2.0, 2.0, 24).reshape(8, 3), jnp.cos(jnp.arange(48.0)).reshape(8, 2, 3)
    case = CASES[key]
    logits, f = (bits, of_bits) if case.module is dj else (classes, of_classes)
    est, params = case.make(logits)
    apply = lambda logits: est.apply(params, jax.random.key(1), logits, f)
    alone = jax.jit(apply)(logits)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4,), ("batch",), axis_types=(kind,))
        with jax.set_mesh(mesh):
            split = jax.device_put(logits, NamedSharding(mesh, P("batch")))
            if kind == AxisType.Explicit and key not in REPRESENTATIVES:
                assert jax.eval_shape(jax.jit(apply), split).grad.sharding.spec[0] == "batch"
            else:
                together = jax.jit(apply)(split)
                assert together.grad.sharding.is_equivalent_to(split.sharding, logits.ndim)
                for one, other in zip(alone, together, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            mapped = jax.shard_map(apply, in_specs=P("batch"), out_specs=P("batch"))
            assert jax.jit(mapped).lower(split).out_info.grad.shape == logits.shape  # test_shard_map.py runs them


def test_the_registry():
    assert list(NAMES) == sorted(NAMES)
    paper = (
        "arm disarm interpolated multisample_disarm naive_multisample_disarm rebar reinforce reinforce_loo relax vimco"
    )
    assert set(paper.split()) <= set(NAMES)
    for case in CASES.values():
        info = case.info
        assert info.name == case.name
        assert info.objective in ("expectation", "bound")
        assert info.paper
        assert info.advice.endswith(".")
        assert "\n" not in info.advice
        assert info.unbiased != info.advice.startswith("Biased: ")
    bounds = """
        multisample_arms multisample_disarm multisample_disarm_midpoint multisample_disarm_quadratic
        naive_multisample_disarm vimco
    """
    assert {name for name in NAMES if dj.estimator_info(name).objective == "bound"} == set(bounds.split())
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
        ("rebar", {"init_scale": float("nan")}, ValueError, "init_scale must be a finite number, got nan"),
    ],
)
def test_wrong_options_are_named(name, options, error, words):
    for call in (dj.make_estimator, dj.estimator_info):
        with pytest.raises(error, match=words):
            call(name, **options)
    if name in dj.__all__ and error is ValueError:
        with pytest.raises(error, match=words):
            getattr(dj, name)(**options)


def test_numbers_of_numpy_are_numbers():
    est = dj.make_estimator("interpolated", num_pairs=np.int64(2), init_beta=np.float32(0.5))
    out = jax.eval_shape(lambda key: est.apply({"beta": 0.5}, key, make_logits(), f), jax.random.key(0))
    assert out.grad.shape == (5, 3)


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
    logits = make_logits()
    with pytest.raises(TypeError, match="this custom estimator takes no has_aux"):
        dj.expectation(est, has_aux=True)((), jax.random.key(0), logits, lambda b: (f(b), b))
    assert jax.grad(lambda logits: dj.expectation(est)((), jax.random.key(0), logits, f).sum())(logits).shape == (5, 3)
    assert dj.gradient_variance(est)((), jax.random.key(0), logits, f, 4).variance.shape == (5, 3)


def test_no_derivative_of_an_expectation_reaches_the_tunables():
    """Also where the value of a custom estimator depends on them."""

    def apply(params, key, logits, f):
        return dj.Estimate(params["offset"] + jnp.zeros(5), jnp.zeros_like(logits))

    est, logits = dj.Estimator(lambda key, logits: {"offset": jnp.ones(())}, apply), make_logits()
    value = lambda params: dj.expectation(est)(params, jax.random.key(0), logits, f).sum()
    assert jax.value_and_grad(value)(est.init(jax.random.key(0), logits)) == (5, {"offset": 0})


def test_the_package_needs_jax_alone():
    """Importing it loads no other library of the experiments, and no module of it calls jit."""
    code = "import sys, disarm_jax; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "jax" in loaded
    assert not {"flax", "optax", "chex", "ml_collections", "absl", "tensorflow", "orbax", "matplotlib"} & set(loaded)
    package = pathlib.Path(dj.__file__).parent
    for path in [*package.glob("*.py"), *package.glob("estimators/*.py"), *package.glob("categorical/*.py")]:
        assert not re.search(
            r"\bjax\.jit\b|\bjit\(|import jit\b", re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        ), path
    assert (package / "py.typed").exists()


def test_making_estimators_does_not_start_jax():
    """A program checks its config first, and says how many devices it wants after that."""
    code = """
import jax, disarm_jax as dj
for name in dj.estimator_names():
    dj.make_estimator(name), dj.estimator_info(name)
for name in dj.categorical.estimator_names():
    dj.categorical.make_estimator(name), dj.categorical.estimator_info(name)
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
    for module in (dj, dj.categorical):
        assert all(hasattr(module, name) for name in module.__all__)
    assert len(dj.__all__) <= 30
    assert [name for name in dir(dj) if not name.startswith("_")] == sorted(dj.__all__)  # what an editor completes
    paper = {"arm", "disarm", "multisample_disarm", "reinforce_loo", "relax", "vimco"}
    assert paper | {"arms", "disarm_midpoint"} <= set(dj.__all__)


def test_names_that_have_moved_say_where():
    """An estimator that is not in the first tier is found with a warning, what is gone with an error."""
    with pytest.warns(DeprecationWarning, match=r"disarm_jax\.make_estimator\('bitflip'"):
        assert dj.bitflip().name == "bitflip"
    with pytest.raises(AttributeError, match=r"gone: write dj\.expectation\(est\)\(params, key, dj\.Chain"):
        _ = dj.hierarchical_expectation
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = dj.nothing


LIKELY_MISTAKES = [
    (lambda verb: verb(dj.disarm), r"disarm is a function that makes one: call it, disarm\(\)"),
    (lambda verb: verb("disarm"), r"make one of the name: dj\.make_estimator\('disarm'\)"),
    (lambda verb: verb(3), "takes an estimator, got 3"),
]


@pytest.mark.parametrize(("call", "words"), LIKELY_MISTAKES)
@pytest.mark.parametrize("verb", [dj.expectation, dj.variance_loss, dj.gradient_variance, dj.hierarchical, dj.taylor])
def test_what_is_no_estimator_is_named(verb, call, words):
    if verb is dj.hierarchical and "make one of the name" in words:
        return  # it takes names
    with pytest.raises(TypeError, match=words):
        call(verb)


@pytest.mark.parametrize("name", [name for name in NAMES if dj.make_estimator(name).tunables])
def test_missing_tunables_are_named(name):
    est = dj.make_estimator(name)
    with pytest.raises(TypeError, match=rf"{name} has tunables \(.*\): params must come from its init"):
        est.apply((), jax.random.key(0), make_logits(), f)


def test_classes_and_images_given_to_an_estimator_for_bits():
    """Every axis but the last is a batch axis."""
    with pytest.raises(ValueError, match=r"got shape \(2, 5\).*flatten the bits of one example.*dj\.categorical"):
        dj.disarm().apply((), jax.random.key(0), jnp.zeros((5, 3, 4)), lambda b: b.sum((-2, -1)))
