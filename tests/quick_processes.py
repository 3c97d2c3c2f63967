"""Settings with which other processes compile as little as tests with the fixture `quick_compile` do."""

from collections.abc import Mapping

QUICK_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def quick_environment(environment: Mapping[str, str]) -> dict[str, str]:
    flags = f"{QUICK_FLAGS} {environment.get('XLA_FLAGS', '')}".strip()
    return {**environment, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags}
