"""Seeds as an axis: every run of the same config in one program, spread over the devices.

Runs share the images and nothing else, so a device works on its own seeds without a word to the others.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from disarm_jax.experiment.devices import Device

_BY_SEED, _SHARED = PartitionSpec("seeds"), PartitionSpec()


def for_each(platform: str) -> Callable:
    """How one device works on several seeds: batched by `vmap`, but on a CPU one after the other.

    A core gains nothing from larger products, those that XLA batches are slower than single ones, and one seed's
    parameters stay in the cache.
    """
    if platform == "cpu":
        return lambda function: lambda own: lax.map(function, own)
    return jax.vmap


class SeedAxis:
    """How S seeds lie on the devices: equally many on each, the last places filled up with copies of seed 0.

    >>> axis = SeedAxis(3, jax.devices()[:1])
    >>> axis.take(axis.map(lambda seed, offset: seed + offset)(axis.put(np.arange(3)), axis.share(np.ones((), int))))
    array([1, 2, 3], dtype=int32)
    """

    def __init__(self, num_seeds: int, devices: list[Device]):
        """Places `num_seeds` on as many of the devices as it takes for none to hold more than necessary."""
        self.num_seeds = num_seeds
        self.per_device = -(-num_seeds // len(devices))
        self.devices = devices[: -(-num_seeds // self.per_device)]
        mesh = jax.make_mesh((len(self.devices),), ("seeds",), devices=self.devices, axis_types=(AxisType.Auto,))
        self._mesh, self._by_seed, self._shared = mesh, NamedSharding(mesh, _BY_SEED), NamedSharding(mesh, _SHARED)

    def put(self, tree: Any) -> Any:
        """Arrays `[S, ...]` of the host, on the devices."""
        padding = self.per_device * len(self.devices) - self.num_seeds

        def place(leaf: np.ndarray) -> jax.Array:
            leaf = np.asarray(leaf)
            return jax.device_put(np.concatenate([leaf, *[leaf[:1]] * padding]), self._by_seed)

        return jax.tree.map(place, tree)

    def share(self, tree: Any) -> Any:
        """Arrays that all seeds see, on every device."""
        return jax.device_put(tree, self._shared)

    def take(self, tree: Any) -> Any:
        """Arrays `[S, ...]` on the host, without the padding; copies, so the devices' own may be donated."""
        return jax.tree.map(lambda leaf: np.array(leaf)[: self.num_seeds], jax.device_get(tree))

    def map(self, function: Callable, *, donate: bool = False) -> Callable:
        """Compiles a function of one seed for all of them.

        Args:
          function: `(own, *shared) -> out`, `own` and `out` pytrees without the seed axis.
          donate: whether the buffers of `own` may be reused for the result.

        Returns:
          The same for `own` and `out` with the seed axis, from `put`, and shared arguments from `share`.
        """

        def on_device(own: Any, *shared: Any) -> Any:
            return for_each(self.devices[0].platform)(lambda one: function(one, *shared))(own)

        def on_all_devices(own: Any, *shared: Any) -> Any:
            specs = (_BY_SEED, *[_SHARED] * len(shared))
            spread = jax.shard_map(on_device, mesh=self._mesh, in_specs=specs, out_specs=_BY_SEED, check_vma=False)
            return spread(own, *shared)

        return jax.jit(on_all_devices, donate_argnums=(0,) if donate else ())
