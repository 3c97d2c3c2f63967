"""Settings of the whole suite: JAX's laxness is an error here."""

import functools
import gc
import signal
import threading

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir

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


@pytest.fixture(scope="session", autouse=True)
def contexts_of_many_programs():
    """JAX makes an MLIR context for each program, which takes longer than the rest of the lowering of a small one."""
    make, own = mlir.make_ir_context, threading.local()

    def for_a_hundred():  # what a program has written into its context stays there
        own.left = getattr(own, "left", 0) - 1
        if own.left < 0:
            own.context, own.left = make(), 99
        return own.context

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir, "make_ir_context", for_a_hundred)
        yield


@pytest.fixture
def x64():
    """Runs the test in float64."""
    with jax.enable_x64(True):
        yield


def pytest_collection_modifyitems(items):
    """What mostly waits for Slurm begins at once, beside the others."""
    items.sort(key=lambda item: item.path.name != "test_slurm.py")


def pytest_collection_finish(session):
    """What was imported stays: the collector of garbage need not look at it again, nor as often as by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="module")
def quick_compile():
    """Compiles in half the time, for tests of small arrays that would only wait for the compiler.

    JAX's setting leaves out most optimisations, and where it is in force XLA's older emitters are used too, in one
    piece. No setting of XLA chooses those for a part of a process, and tests of what users run are to be compiled as
    users do.
    """
    usual = compiler.get_compile_options

    @functools.wraps(usual)
    def older_emitters(*args, env_options_overrides=None, **options):
        overrides = dict(env_options_overrides or {})
        if jax.config.read("jax_disable_most_optimizations"):
            overrides.setdefault("xla_cpu_use_fusion_emitters", False)
            overrides.setdefault("xla_cpu_parallel_codegen_split_count", 1)
        return usual(*args, env_options_overrides=overrides, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", older_emitters)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
