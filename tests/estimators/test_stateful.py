"""An f that changes the state of a Flax NNX module cannot be differentiated by an estimator, and is told what to do."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import disarm_jax as dj
from disarm_jax.estimators.first_order import detached

pytestmark = pytest.mark.usefixtures("quick_compile")

LOGITS = jnp.zeros((5, 3))
DIFFERENTIATING = [name for name in dj.estimator_names() if dj.estimator_info(name).needs_grad]


class Decoder(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, b):
        return self.linear(self.dropout(b))[..., 0] ** 2


def grad(est, f):
    return est.apply(est.init(jax.random.key(0), LOGITS), jax.random.key(1), LOGITS, f).grad


@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_changes_of_state_are_refused_in_words(name):
    with pytest.raises(TypeError, match=r"f changes the state of a module .*RngCount.* nnx\.split .* module\.eval\(\)"):
        grad(dj.make_estimator(name), Decoder())


@pytest.mark.parametrize("name", ["disarm_midpoint", "disarm_quadratic", "double_cv", "relax"])
def test_what_the_message_advises_works(name):
    est, model = dj.make_estimator(name), Decoder()
    mask = 2.0 * jax.random.bernoulli(jax.random.key(2), 0.5, (3,)).astype(jnp.float32)
    masked = grad(est, lambda b: model.linear(b * dj.bernoulli.lift(mask, b.ndim))[..., 0] ** 2)
    definition, state = nnx.split(model)
    merged = grad(est, lambda b: nnx.merge(definition, state, copy=True)(b))
    model.eval()
    for found in (masked, merged, grad(est, model)):
        assert found.shape == (5, 3)
        assert jnp.all(jnp.isfinite(found))


def test_an_estimator_that_only_evaluates_f_takes_it():
    assert grad(dj.disarm(), Decoder()).shape == (5, 3)


def test_other_errors_pass():
    def broken(b):
        raise RuntimeError("of f itself")

    with pytest.raises(RuntimeError, match="of f itself"):
        grad(dj.make_estimator("double_cv"), broken)


def test_a_function_that_has_changed_is_traced_again():
    """JAX remembers functions by their identity, and with them what they had read from outside."""
    scale = [0.0]
    f = lambda x: scale[0] * x
    for scale[0] in (2.0, 3.0):
        call, x = detached(f, jnp.ones(()))
        assert call(x) == scale[0]
