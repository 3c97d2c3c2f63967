"""Every registered estimator, for bits and for classes, as a case of one table of tests."""

import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import disarm_jax as dj

DTYPES = {"float32": False, "bfloat16": False, "float64": True}  # and whether 64 bits must be enabled


class Case(NamedTuple):
    """An estimator by its name, and what its family of estimators takes.

    Attributes:
      name: as registered.
      module: where the family's functions are.
      event: the shape of the logits of one example.
      saturated: logits of four examples, some near ±1e4; no bit or class of the last example can change.
    """

    name: str
    module: types.ModuleType
    event: tuple[int, ...]
    saturated: list

    @property
    def info(self):
        return self.module.estimator_info(self.name)

    def logits(self, batch=(5,), dtype="float32"):
        return jnp.asarray(np.random.default_rng(1).normal(size=(*batch, *self.event)), dtype)

    def make(self, logits):
        """The estimator and its initial params."""
        est = self.module.make_estimator(self.name)
        return est, est.init(jax.random.key(0), logits)

    def flat(self, b):
        """b with one axis in the place of the event's."""
        return b.reshape(*b.shape[: b.ndim - len(self.event)], -1)

    def f(self, b):
        """Nonlinear and not symmetric, in b's own dtype."""
        b = self.flat(b)
        weights = jnp.cos(1 + jnp.arange(b.shape[-1], dtype=b.dtype))
        total = jnp.sum(b * dj.bernoulli.lift(weights, b.ndim), axis=-1)
        return (total - 0.4) ** 2 + b[..., 0]


SATURATED_BITS = [[1e4, -1e4, -0.0], [30.0, -30.0, 0.5], [-0.0, 1e4, 1e4], [1e4, 1e4, -1e4]]
SATURATED_CLASSES = [
    [[1e4, -1e4, -0.0], [30.0, -30.0, 0.5]],
    [[-0.0, 1e4, 1e4], [0.0, -0.0, 0.0]],
    [[-1e4, -1e4, -1e4], [1e4, 0.0, 1e4]],
    [[1e4, -1e4, -0.0], [-1e4, -1e4, 1e4]],
]
CASES = {name: Case(name, dj, (3,), SATURATED_BITS) for name in dj.estimator_names()} | {
    f"categorical.{name}": Case(name, dj.categorical, (2, 3), SATURATED_CLASSES)
    for name in dj.categorical.estimator_names()
}
BLACK_BOX = {key: case for key, case in CASES.items() if not case.info.needs_grad}
# One estimator of each way in which they are built: what is the same code for all is tested with these.
REPRESENTATIVES = (
    "arms_interpolated",
    "bitflip",
    "disarm",
    "disarm_midpoint",
    "disarm_quadratic",
    "multisample_disarm",
    "reinmax",
    "relax",
    "rodeo",
    "vimco",
    "categorical.disarm_tree",
    "categorical.reinmax",
)
