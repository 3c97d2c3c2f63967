"""Where compiled programs are kept."""

import os
import subprocess
import sys

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
