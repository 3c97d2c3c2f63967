"""What is seen to be affine, and what is not; a mistake here would bias the expansions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj
from disarm_jax.affine import is_affine

MATRIX = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)


@jax.custom_jvp
def scaled_slope(x):
    """The identity, with a derivative rule of its own."""
    return x


scaled_slope.defjvp(lambda primals, tangents: (primals[0], 0.1 * tangents[0]))

AFFINE = {
    "product": lambda b: b @ MATRIX + 1.0,
    "pieces": lambda b: {"sum": jnp.cumsum(2 * b - 1, axis=-1), "one": -b[..., 0] / 3, "kept": b[..., ::-1]},
    "constant": lambda b: jnp.ones((*b.shape[:-1], 2)),
    "under jit": jax.jit(lambda b: jnp.concatenate([b, b @ MATRIX], axis=-1)),
    "remat": jax.checkpoint(lambda b: b @ MATRIX),
    "choice": lambda b: jnp.where(MATRIX[0, :3] > 0, b, 2 * b),
    "mlp": dj.MLP([(MATRIX, jnp.ones(4))], scale=2, shift=-1),
}
OTHERS = {
    "tanh": lambda b: jnp.tanh(b @ MATRIX),
    "square": lambda b: b * (b + 1),
    "reciprocal": lambda b: 1 / (1 + b),
    "relu": lambda b: jax.nn.relu(b),
    "choice by b": lambda b: jnp.where(b > 0.5, b, 2 * b),
    "integers": lambda b: b.astype(int).astype(jnp.float32),
    "index": lambda b: MATRIX[0][b.astype(int)],
    "loop": lambda b: jax.lax.scan(lambda carry, x: (carry * b, None), b, jnp.arange(3))[0],
    "derivative rule": lambda b: scaled_slope(b @ MATRIX),
    "mlp": dj.MLP([(MATRIX, jnp.ones(4)), (MATRIX.T, jnp.ones(3))]),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine(name):
    with jax.numpy_rank_promotion("allow"):
        assert is_affine(AFFINE[name], jnp.zeros((2, 5, 3))) == (True, None)


@pytest.mark.parametrize("name", OTHERS)
def test_not_affine(name):
    with jax.numpy_rank_promotion("allow"):
        found, reason = is_affine(OTHERS[name], jnp.zeros((2, 5, 3)))
    assert not found
    assert reason.startswith("it applies '")


@pytest.mark.parametrize("inner", [lambda b: b.astype(jnp.bfloat16), lambda b: b.astype(jnp.bfloat16) @ MATRIX])
def test_rounding_is_not_affine(inner):
    with jax.numpy_dtype_promotion("standard"):
        assert is_affine(inner, jnp.zeros((2, 3))) == (False, None)
    assert is_affine(lambda b: 2 * b, jnp.zeros((2, 3), jnp.bfloat16)) == (False, None)


def test_a_function_that_changes_is_traced_again():
    class Inner:
        nonlinear = False

        def __call__(self, b):
            return jnp.tanh(b) if self.nonlinear else b

    inner = Inner()
    assert is_affine(inner, jnp.zeros(3)) == (True, None)
    inner.nonlinear = True
    assert is_affine(inner, jnp.zeros(3)) == (False, "it applies 'tanh' to what depends on b")


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        ([], TypeError, "non-empty sequence"),
        ({"kernel": MATRIX}, TypeError, "non-empty sequence of pairs"),
        ([{"kernel": MATRIX, "bias": MATRIX[0]}], TypeError, r"layers\[0\] must be a pair \(kernel, bias\), got dict"),
        ([(MATRIX, None)], ValueError, r"shapes \[D_in, D_out\] and \[D_out\], got \(\(3, 4\), \(\)\)"),
        ([(MATRIX, MATRIX[:, 0])], ValueError, r"got \(\(3, 4\), \(3,\)\)"),
    ],
)
def test_wrong_weights_are_named(layers, error, words):
    with pytest.raises(error, match=words):
        dj.MLP(layers)


def test_structures_can_be_jitted_and_compared():
    """They are themselves, not their arrays."""
    f = dj.Composed(lambda a, b: a.sum(-1), dj.MLP([(MATRIX, jnp.ones(4))]))
    assert jax.jit(f)(jnp.zeros((2, 3))).shape == (2,)
    assert f == f
    assert len({f, f.inner, dj.MLP([(MATRIX, jnp.ones(4))])}) == 3
