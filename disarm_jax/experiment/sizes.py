"""Refuses what is foreseen not to fit: into 32-bit indices, or into the memory of this machine.

The estimates are lower bounds: only what must be in memory at once is counted, so nothing is refused that would fit.
What they miss ends the run when the device refuses it.
"""

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import jax

from disarm_jax.experiment.build import EstimatorSpec, parse_estimator, registry_for
from disarm_jax.experiment.fields import Config, ConfigError, is_import_path
from disarm_jax.experiment.grid import members_of
from disarm_jax.untrusted import MAX_ROWS

MAX_NUMBERS = 2**31 - 1  # in one array, whose indices are int32
ROW_BYTES = 200  # of a row of metrics, at least
SAMPLES_AT_ONCE = 10  # of an evaluation, as in `objectives.sampled_bound`
FLOAT = 4  # bytes
SAMPLES = {"num_samples": 1, "num_pairs": 2, "repeats": 1, "group_size": 1}  # options of estimators
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
        sizes = {name: spec.options.get(name) for name in SAMPLES}
        known = {name: size for name, size in sizes.items() if isinstance(size, int)}
        largest = max(known, key=lambda name: known[name], default="")
        if largest:  # they are multiplied
            rows = math.prod(SAMPLES[name] * size for name, size in known.items()) * config.batch_size
            _check_samples(f"{place}: {largest}", known[largest], rows, pixels, widths)
        if largest and _sums_over_others(spec.name, config):
            size = FLOAT * (known.get("num_pairs") or known.get("num_samples", 1)) ** 2 * config.batch_size
            _refuse_bytes(f"{place}: {largest}", known[largest], size, "each sample's sum over the others")
        hidden = None if is_import_path(spec.name) else spec.options.get("hidden")
        if isinstance(hidden, int):
            numbers = len(members_of(config)) * hidden * max(widths)
            _refuse_numbers(f"{place}: hidden", hidden, numbers)
            _refuse_bytes(f"{place}: hidden", hidden, COPIES * FLOAT * numbers, "the tunables of all seeds and points")
    samples = config.objective.num_samples
    _check_samples("objective.num_samples", samples, samples * config.batch_size, pixels, widths)
    _check_samples("batch_size", config.batch_size, config.batch_size, pixels, widths)
    for split in ("train", "test"):
        field = f"eval.{split}_samples"
        check_evaluation(field, config.eval[f"{split}_samples"], config.eval.batch_size, pixels)


def check_rows(config: Config) -> None:
    """Refuses a run that would write more rows of metrics than can be read again.

    Raises:
      ConfigError: with how many there would be.
    """
    rows = config.steps // config.log_every * len(members_of(config))
    if rows > MAX_ROWS // ROW_BYTES:
        would = f"for which metrics.jsonl would have {rows:,} rows"
        raise ConfigError(f"log_every is {config.log_every}, {would}; accepted: up to {MAX_ROWS // ROW_BYTES:,}")


def _sums_over_others(name: str, config: Config) -> bool:
    """Whether an estimator has an array of all pairs of samples in memory; a GPU may compute it piece by piece."""
    registry = registry_for(config.model.latents)
    if name not in registry.names() or name == "naive_multisample_disarm" or jax.default_backend() != "cpu":
        return False
    return registry.info(name).objective == "bound"


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
