"""Refuses what is foreseen not to fit: into 32-bit indices, or into the memory of this machine.

The estimates are lower bounds: only what must be in memory at once is counted, so nothing is refused that would fit.
What they miss ends the run when the device refuses it.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

from disarm_jax.experiment.build import EstimatorSpec, parse_estimator
from disarm_jax.experiment.fields import Config, ConfigError, is_import_path
from disarm_jax.experiment.grid import members_of

MAX_NUMBERS = 2**31 - 1  # in one array, whose indices are int32
SAMPLES_AT_ONCE = 10  # of an evaluation, as in `objectives.sampled_bound`
FLOAT = 4  # bytes
COPIES = 3  # of the parameters in a state: themselves, and two moments of Adam or of the gradient


def check_sizes(config: Config, pixels: int) -> None:
    """Refuses a resolved config whose arrays cannot be held; no array is made.

    Args:
      config: resolved.
      pixels: of an image.

    Raises:
      ConfigError: for the first field that is too large, with the size and the limit.
    """
    model = config.model
    widths = [layer if isinstance(layer, int) else layer[0] * layer[1] for layer in model.latents]
    field = "model.hidden" if max(model.hidden, default=0) > max(widths) else "model.latents"
    if not is_import_path(model.name):
        numbers = [len(members_of(config)) * size for size in _weights([pixels, *widths], model.hidden)]
        _refuse_numbers(field, model[field.split(".")[1]], max(numbers))
        size = COPIES * FLOAT * 2 * sum(numbers)
        _refuse_bytes(field, model[field.split(".")[1]], size, "the parameters of all seeds and points")
    specs = [("estimator.options", EstimatorSpec(config.estimator.name, config.estimator.options))]
    specs += [("variance.estimators", parse_estimator(text)) for text in config.variance.estimators]
    for place, spec in specs:
        for name, factor in (("num_samples", 1), ("num_pairs", 2)):
            size = spec.options.get(name)
            if isinstance(size, int):
                _check_samples(f"{place}: {name}", size, factor * size * config.batch_size, pixels, widths)
    samples = config.objective.num_samples
    _check_samples("objective.num_samples", samples, samples * config.batch_size, pixels, widths)
    _check_samples("batch_size", config.batch_size, config.batch_size, pixels, widths)
    for split in ("train", "test"):
        field = f"eval.{split}_samples"
        check_evaluation(field, config.eval[f"{split}_samples"], config.eval.batch_size, pixels)


def check_evaluation(field: str, num_samples: int, batch_size: int, pixels: int) -> None:
    """Refuses evaluations with more samples, or more images at once, than can be numbered or held.

    Args:
      field: that says the number of samples.
      num_samples: of the bound.
      batch_size: images at once.
      pixels: of an image.

    Raises:
      ConfigError: with the size and the limit.
    """
    if num_samples > MAX_NUMBERS // 256:  # the keys of their draws are an array, too
        raise ConfigError(f"{field} is {num_samples}; accepted: up to {MAX_NUMBERS // 256}")
    rows = batch_size * min(SAMPLES_AT_ONCE, num_samples)
    _check_samples("eval.batch_size", batch_size, rows, pixels, [])


def _check_samples(field: str, value: int, rows: int, pixels: int, widths: Sequence[int]) -> None:
    """Refuses so many rows at once, each with a number for every pixel and every latent variable."""
    most = max(pixels, *widths) if widths else pixels
    _refuse_numbers(field, value, rows * most)
    _refuse_bytes(field, value, FLOAT * rows * (pixels + sum(widths)), "what goes through the decoder at once")


def _weights(widths: Sequence[int], hidden: Sequence[int]) -> list[int]:
    """The sizes of the matrices of an encoder; the decoder has as many."""
    sizes = []
    for below, above in itertools.pairwise(widths):
        chain = [below, *hidden, above]
        sizes += [one * other for one, other in itertools.pairwise(chain)]
    return sizes


def _refuse_numbers(field: str, value: Any, numbers: int) -> None:
    if numbers > MAX_NUMBERS:
        has = f"for which an array would have {numbers:,} numbers"
        raise ConfigError(f"{field} is {value}, {has}; accepted: up to {MAX_NUMBERS:,}")


def _refuse_bytes(field: str, value: Any, size: int, what: str) -> None:
    memory = machine_memory()
    if size > memory:
        has = f"{memory / 1e9:,.0f} GB, the memory of this machine"
        raise ConfigError(f"{field} is {value}: {what} would take {size / 1e9:,.0f} GB; accepted: up to {has}")


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
