"""What an `MLP` knows of itself, against enumeration and closed forms."""

import itertools

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64")

P = np.array([0.2, 0.5, 0.9])


def make(sizes=(3, 4), **options):
    rng = np.random.default_rng(0)
    layers = [
        (jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.normal(size=size[1])))
        for size in itertools.pairwise(sizes)
    ]
    return dj.MLP(layers, **options)


@pytest.mark.parametrize("signs", [{}, {"scale": 2, "shift": -1}])
def test_a_single_layer_is_known_exactly(signs):
    """Its mean and variance by enumeration of all bits, and the diagonal of Aᵀ diag(κ) A by its Jacobian."""
    decode, bits = make(**signs), exact.outcomes(3)
    probabilities = np.prod(np.where(bits == 1, P, 1 - P), axis=-1)
    found = decode.moments(jnp.asarray(P)[None], jnp.asarray(P * (1 - P))[None])
    for part, expected in zip(found, exact.moments(probabilities, np.asarray(decode(jnp.asarray(bits)))), strict=True):
        np.testing.assert_allclose(part[0], expected, rtol=0, atol=1e-12)
    jacobian, curvature = jax.jacobian(decode)(jnp.asarray(P)), jnp.array([0.3, -1.0, 2.0, 0.7])
    np.testing.assert_allclose(decode.squared(curvature), np.diag(jacobian.T @ np.diag(curvature) @ jacobian))


def test_quadrature_is_exact_for_the_square_of_a_normal_number():
    """For x of mean m and variance s², x² has the mean m² + s² and the variance 4 m² s² + 2 s⁴."""
    decode, (m, s2) = make((3, 4, 2), activation=jnp.square), make().moments(jnp.asarray(P)[None], jnp.ones((1, 3)))
    mean, variance = decode.moments(jnp.asarray(P)[None], jnp.ones((1, 3)))
    kernel, bias = decode.layers[1]
    np.testing.assert_allclose(mean[0], ((m**2 + s2) @ kernel)[0] + bias, rtol=1e-12)
    np.testing.assert_allclose(variance[0], ((4 * m**2 * s2 + 2 * s2**2) @ kernel**2)[0], rtol=1e-12)
