"""An estimator is made of visible parts: asking and telling, replacing a part, wrapping."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BLACK_BOX, CASES

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("case", BLACK_BOX.values(), ids=BLACK_BOX)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ask_and_tell_is_apply(case, dtype):
    """f may be evaluated anywhere: here by NumPy, on the samples as they come out of `draw`."""
    logits, key = case.logits(dtype=dtype), jax.random.key(3)
    est, params = case.make(logits)
    samples = est.draw(params, key, logits)
    assert samples.b.dtype == logits.dtype
    assert samples.b.shape[1:] == logits.shape
    outside = np.asarray(case.f(samples.b))
    told, applied = est.tell(params, logits, samples, outside), est.apply(params, key, logits, case.f)
    jax.tree.map(np.testing.assert_array_equal, told, applied)
    with pytest.raises(ValueError, match=r"f must return one number per sample, shape \(\d+, 5\), got shape \(5,\)"):
        est.tell(params, logits, samples, outside[0])


@pytest.mark.parametrize("case", [CASES[key] for key in CASES if key not in BLACK_BOX], ids=lambda case: case.name)
def test_estimators_that_differentiate_f_cannot_be_asked(case):
    est, params = case.make(case.logits())
    with pytest.raises(TypeError, match="calls f itself, so that it cannot be asked for samples"):
        est.draw(params, jax.random.key(0), case.logits())
    with pytest.raises(TypeError, match="calls f itself, so that it cannot be told the values of f"):
        est.tell(params, case.logits(), None, None)


def test_a_part_is_replaced_everywhere():
    """What is derived from the parts follows them, and what is derived cannot be replaced."""
    est, logits, key = dj.disarm(), CASES["disarm"].logits(), jax.random.key(0)
    doubled = dataclasses.replace(est, formula=lambda *args: 2 * est.formula(*args))
    one, two = (e.apply((), key, logits, CASES["disarm"].f).grad for e in (est, doubled))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)
    # Without an expansion the control variate's base is all that is left.
    expanded = [dj.taylor(e, init_scale=(0.0, 0.0)) for e in (est, doubled)]
    one, two = (e.apply(e.init(key, logits), key, logits, CASES["disarm"].f).grad for e in expanded)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)
    with pytest.raises((TypeError, ValueError), match="apply"):
        dataclasses.replace(est, apply=est.apply)


@pytest.mark.parametrize("base", [dj.disarm(), dj.multisample_disarm(num_pairs=3)])
def test_a_wrapped_estimator_is_refused_where_its_parts_are_needed(base):
    """A logger around `apply` hides what the estimator is made of; that must not give other numbers without a word."""
    wrapped = dj.Estimator(base.init, lambda *args, **options: base.apply(*args, **options))
    logits, key, f = CASES["disarm"].logits(), jax.random.key(0), CASES["disarm"].f
    jax.tree.map(np.testing.assert_array_equal, wrapped.apply((), key, logits, f), base.apply((), key, logits, f))
    assert jnp.all(jnp.isfinite(dj.expectation(wrapped)((), key, logits, f)))
    with pytest.raises(ValueError, match=r"accepted are estimators of samples, such as dj\.disarm"):
        dj.taylor(wrapped)
