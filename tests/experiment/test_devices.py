"""Where compiled programs are kept, and what is found out about JAX without starting it."""

import os
import subprocess
import sys
from unittest import mock

import pytest

from disarm_jax.experiment import devices

CODE = """
import jax
from disarm_jax.experiment.devices import keep_compiled_programs
keep_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: jax.numpy.linalg.svd(x))(jax.numpy.eye(4))
"""


def folder_in_use(**environment: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name} | environment
    return subprocess.check_output([sys.executable, "-c", CODE], text=True, env=environment).strip()


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path):
    folder = folder_in_use(XDG_CACHE_HOME=str(tmp_path))
    assert folder.startswith(f"{tmp_path}/disarm_jax/compiled/")
    assert os.listdir(folder)


def test_a_folder_that_was_chosen_is_left_alone(tmp_path):
    assert folder_in_use(JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == str(tmp_path)


OLD, NEW = b"...xla_gpu_deterministic_ops...", b"...xla_gpu_exclude_nondeterministic_ops..."


@pytest.mark.parametrize(
    ("libraries", "flag"),
    [
        ({"jaxlib/_jax.so": OLD + NEW}, "xla_gpu_exclude_nondeterministic_ops"),
        ({"jaxlib/_jax.so": OLD}, "xla_gpu_deterministic_ops"),
        ({"jaxlib/a/b.so": NEW + OLD, "jax_plugins/cuda/c.so": OLD + NEW}, "xla_gpu_exclude_nondeterministic_ops"),
        ({"jaxlib/_jax.so": OLD + NEW, "jax_plugins/cuda/c.so": OLD}, "xla_gpu_deterministic_ops"),
        ({"jaxlib/_jax.so": OLD + NEW, "jaxlib/d.so": b"no flags", "jaxlib/e.so": b""}, NEW.strip(b".").decode()),
        ({"jaxlib/_jax.dll": OLD + NEW}, "xla_gpu_deterministic_ops"),
    ],
)
def test_the_flag_for_the_same_bits_on_a_gpu(tmp_path, monkeypatch, libraries, flag):
    """The newer one, if jaxlib and every plugin know it."""
    for name, content in libraries.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def found(name):
        folder = tmp_path / name
        return mock.Mock(submodule_search_locations=[str(folder)]) if folder.exists() else None

    monkeypatch.setattr(devices.importlib.util, "find_spec", found)
    assert devices.deterministic_gpu_flag.__wrapped__() == f"--{flag}=true"


def test_xla_accepts_the_flag():
    """An unknown one would end the process."""
    environment = os.environ | {"XLA_FLAGS": devices.deterministic_gpu_flag(), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=environment, check=True)


def test_the_default_platform_is_asked_for_in_another_process(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert devices.default_platform.__wrapped__() == "cpu"
