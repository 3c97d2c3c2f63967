"""Settings of the whole suite: JAX's laxness is an error here."""

import signal

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)  # seeds are spread over devices
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background, where what we start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Many runs have the same programs. One folder for each process of pytest: JAX does not write to it atomically."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def x64():
    """Runs the test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def quick_compile():
    """Compiles without most optimisations, for tests of small arrays that would only wait for the compiler."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
