"""What passes for an affine function of b, and what does not."""

import jax
import jax.numpy as jnp
import pytest

from disarm_jax.affine import why_not_affine

WEIGHTS = jnp.ones((3, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda b: b @ WEIGHTS - 1,
        lambda b: {"sum": b.sum(-1) / 3, "parts": (jnp.cumsum(b, axis=-1), jnp.flip(b, -1).reshape(-1))},
        lambda b: jax.jit(lambda b: 2 * b)(b) + jnp.concatenate([b[..., :1], -b[..., 1:]], axis=-1),
        lambda b: jnp.where(jnp.array([[True, False, True]]), b, 0),
        lambda b: jnp.ones_like(b) * jnp.zeros(()),
    ],
)
def test_affine(function):
    assert why_not_affine(function, jnp.zeros((1, 3))) is None


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda b: b * b, "mul"),
        (lambda b: b[..., :1] * (1 - b), "mul"),
        (lambda b: b @ b.T, "dot_general"),
        (lambda b: 1 / (1 + b), "div"),
        (lambda b: jnp.where(b > 0, b, 1), "gt"),
        (lambda b: jax.jit(jnp.tanh)(b @ WEIGHTS), "tanh"),
        (lambda b: b.astype(jnp.int32), "convert_element_type"),
    ],
)
def test_not_affine(function, primitive):
    assert why_not_affine(function, jnp.zeros((1, 3))) == f"it applies '{primitive}' to what depends on b"
