"""How JAX sees the machine."""

import os

import jax


def usable_cores() -> int:
    """How many cores this process may use, as far as the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_cpu_device_per_core(num_seeds: int) -> None:
    """Lets JAX see the cores as devices, as many as there are seeds to put on them; before its first use of a device.

    Models of this size are too small to gain from two threads; two seeds on two cores are almost twice as fast. Without
    effect where JAX uses an accelerator, or where the number of devices has been set already.
    """
    chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen and "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", min(num_seeds, usable_cores()))
