"""How JAX sees the machine, and how the runs of one program lie on its devices."""

import functools
import hashlib
import importlib.util
import mmap
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from disarm_jax.experiment.fields import ConfigError
from disarm_jax.files import user_cache

Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]  # JAX defines it as a variable

# Without one of them, what a GPU computes depends on the order of its threads. The second also forbids XLA to try out
# which products of matrices are the fastest, so the first is preferred, which older versions do not know.
_DETERMINISTIC = ("xla_gpu_exclude_nondeterministic_ops", "xla_gpu_deterministic_ops")
_BY_SEED, _SHARED = PartitionSpec("seeds"), PartitionSpec()


def usable_cores() -> int:
    """How many cores this process may use, as far as the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """The bytes of memory of this machine, or of its part that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(file, encoding="ascii") as stream:
                found.append(int(stream.read()))
        except (OSError, ValueError):  # there is no such limit
            continue
    return min(found)


def check_jax_settings() -> None:
    """Refuses settings of JAX with which no run can be trained or read, and devices that are not there.

    Raises:
      ConfigError: which names the setting.
    """
    refused = {"jax_enable_x64": "the state of a run is float32", "jax_disable_jit": "steps are compiled"}
    for name, why in refused.items():
        if jax.config.values[name]:
            raise ConfigError(f"{name.upper()} is set, but {why}; unset it")
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # the first without a message
        chosen, text = jax.config.values["jax_platforms"], " ".join(str(error).split())
        reason = f"; {text[:300]}" if text else ""
        raise ConfigError(f"JAX_PLATFORMS is {chosen!r}, but JAX finds no such device{reason}") from error


def number_of_cpu_devices_is_set() -> bool:
    """Whether the environment says how many devices the CPU is to be."""
    chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return chosen or "JAX_NUM_CPU_DEVICES" in os.environ


def one_cpu_device_per_core(num_members: int) -> None:
    """Lets JAX see the cores as devices, as many as there are runs to put on them; before its first use of a device.

    Models of this size are too small to gain from two threads; two seeds on two cores are almost twice as fast. Without
    effect where JAX uses an accelerator, or where the number of devices has been set already.
    """
    if not number_of_cpu_devices_is_set():
        jax.config.update("jax_num_cpu_devices", min(num_members, usable_cores()))


@functools.cache
def default_platform() -> str:
    """The platform that JAX chooses by default, such as "cpu"; empty if it finds none.

    Another process is asked, since JAX would take an accelerator's memory in this one, and the number of CPU devices
    could not be set any more.
    """
    platforms = jax.config.values["jax_platforms"]
    chosen = {"JAX_PLATFORMS": platforms} if platforms else {}
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | chosen
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()


@functools.cache
def deterministic_gpu_flag() -> str:
    """The flag for XLA_FLAGS with which a compiled program gives the same bits on a GPU every time."""
    preferred, older = _DETERMINISTIC
    places = [spec for name in ("jaxlib", "jax_plugins") if (spec := importlib.util.find_spec(name))]
    folders = [folder for spec in places for folder in spec.submodule_search_locations or ()]
    return f"--{preferred if _knows_flag(folders, preferred, older) else older}=true"


def _knows_flag(folders: Iterable[str], flag: str, older: str) -> bool:
    """Whether every library in some folders that has an older flag of XLA also has this one.

    XLA ends the process at a flag that it does not know, so it is not asked: its libraries are searched for the names.
    """
    libraries = [file for folder in folders for file in pathlib.Path(folder).rglob("*.so") if file.stat().st_size]
    found = []
    for file in libraries:
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(older.encode()) >= 0:
                found.append(content.find(flag.encode()) >= 0)
    return bool(found) and all(found)


def keep_compiled_programs() -> None:
    """Lets a program that has been compiled once on this kind of machine start without compiling it again.

    In the user's cache, or where JAX_COMPILATION_CACHE_DIR says; JAX_ENABLE_COMPILATION_CACHE=0 switches it off. The
    folder is named after the processor's instructions, since home directories are shared by machines that differ.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = user_cache() / "compiled" / _instruction_set()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def processor_name() -> str:
    """The CPU by name, where the system tells it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _instruction_set() -> str:
    flags = _cpuinfo("flags") or _cpuinfo("Features") or ""
    return f"{platform.machine()}_{hashlib.sha256(flags.encode()).hexdigest()[:12]}"


def _cpuinfo(field: str) -> str | None:
    file = pathlib.Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), None)


def for_each(platform: str) -> Callable:
    """How one device works on several runs: batched by `vmap`, but on a CPU one after the other.

    A core gains nothing from larger products, those that XLA batches are slower than single ones, and one run's
    parameters stay in the cache.
    """
    if platform == "cpu":
        return lambda function: lambda own: lax.map(function, own)
    return jax.vmap


class SeedAxis:
    """How the S runs of a program, one for each seed, or seed and point of a grid, lie on the devices.

    Equally many on each, the last places filled up with copies of the first.

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

    def map(self, function: Callable, *, num_own: int = 1, donate: bool = False) -> Callable:
        """Compiles a function of one seed for all of them.

        Args:
          function: `(*own, *shared) -> out`, `own` and `out` pytrees without the seed axis.
          num_own: how many arguments are the seed's own.
          donate: whether the buffers of the first may be reused for the result.

        Returns:
          The same for `own` and `out` with the seed axis, from `put`, and shared arguments from `share`.
        """

        def on_device(*arguments: Any) -> Any:
            own, shared = arguments[:num_own], arguments[num_own:]
            return for_each(self.devices[0].platform)(lambda one: function(*one, *shared))(own)

        def on_all_devices(*arguments: Any) -> Any:
            specs = (*[_BY_SEED] * num_own, *[_SHARED] * (len(arguments) - num_own))
            spread = jax.shard_map(on_device, mesh=self._mesh, in_specs=specs, out_specs=_BY_SEED, check_vma=False)
            return spread(*arguments)

        return jax.jit(on_all_devices, donate_argnums=(0,) if donate else ())
