"""What is known of `scripts.toy` in closed form, for one bit with logit φ and f(b) = (b − p0)²."""

import numpy as np


def sigmoid(phi: np.ndarray) -> np.ndarray:
    """σ(φ), without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(phi, np.float64)))


def exact_gradient(p0: float, phi: np.ndarray) -> np.ndarray:
    """(1 − 2 p0) σ(φ)(1 − σ(φ))."""
    return (1 - 2 * p0) * sigmoid(phi) * sigmoid(-phi)


def exact_ascent(p0: float, learning_rate: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """σ(φ) and the gradient at each step of the ascent that follows the exact gradient."""
    phi = np.zeros(steps)
    for step in range(1, steps):
        phi[step] = phi[step - 1] + learning_rate * exact_gradient(p0, phi[step - 1])
    return sigmoid(phi), exact_gradient(p0, phi)


def exact_variance(name: str, p0: float, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Variance of one gradient estimate and standard deviation of its squared error; None if not in closed form.

    With Δ = f(1) − f(0) = 1 − 2 p0 and m = min(p, 1−p), LOO is Δ/2 if its samples differ (probability 2p(1−p)), DisARM
    Δ(1−m)/2 if its pair does (2m), and 0 otherwise. ARM is Δw/2 with w uniform on (1−2m, 1) if its pair differs.
    """
    phi = np.asarray(phi, np.float64)
    slope, p, q, rare = 1 - 2 * p0, sigmoid(phi), sigmoid(-phi), sigmoid(-np.abs(phi))
    gap = np.tanh(np.abs(phi) / 2)  # 1 − 2m, without cancellation
    if name == "arm":
        # E wᵏ is the mean of gap⁰, …, gapᵏ
        raw = [2 * rare * (slope / 2) ** k * sum(gap**j for j in range(k + 1)) / (k + 1) for k in range(5)]
        variance = raw[2] - raw[1] ** 2
        fourth = raw[4] - 4 * raw[1] * raw[3] + 6 * raw[1] ** 2 * raw[2] - 3 * raw[1] ** 4
        return variance, np.sqrt(np.maximum(fourth - variance**2, 0))
    two_values = {  # their probabilities and their distance; REINFORCE takes (1−p) f(1) and −p f(0)
        "reinforce": (p, q, q * (1 - p0) ** 2 + p * p0**2),
        "reinforce_loo": (2 * p * q, p**2 + q**2, slope / 2),
        "disarm": (2 * rare, gap, slope * (1 - rare) / 2),
    }
    if name not in two_values:
        return None
    chance, other, distance = two_values[name]
    return chance * other * distance**2, np.sqrt(chance * other) * np.abs(other - chance) * distance**2
