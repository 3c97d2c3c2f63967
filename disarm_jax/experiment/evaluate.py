"""How good a model is: its bounds over whole splits, batch by batch, inside one compiled program."""

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import data
from disarm_jax.console import say
from disarm_jax.data.types import SPLITS
from disarm_jax.experiment.devices import SeedAxis, one_cpu_device_per_core
from disarm_jax.experiment.fields import Config
from disarm_jax.experiment.grid import members_of
from disarm_jax.experiment.load import check_evaluation, load_images, load_members
from disarm_jax.experiment.step import State, run_keys
from disarm_jax.files import write_text
from disarm_jax.objectives import sampled_bound
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.run_directory.fingerprint import changed_settings, settings_now
from disarm_jax.run_directory.record import final_results


def bound_name(split: str, num_samples: int) -> str:
    """What the metric is called in files and tables.

    >>> bound_name("train", 1), bound_name("test", 100)
    ('train_elbo', 'test_100_sample_bound')
    """
    return f"{split}_elbo" if num_samples == 1 else f"{split}_{num_samples}_sample_bound"


def split_samples(config: Mapping[str, Any]) -> dict[str, int]:
    """How many samples the bound of each split has, from a resolved config."""
    test = config["eval"]["test_samples"]
    return {"train": config["eval"]["train_samples"], "validation": test, "test": test}


def mean_bound(
    model: Any,
    state: State,
    images: jax.Array,
    split_number: jax.Array,
    num_samples: int,
    binarization: str,
    batch_size: int,
    batches_at_once: int = 1,
) -> jax.Array:
    """The K-sample bound averaged over a split, freshly binarised and sampled: a function of (seed, step, split).

    Args:
      model: the VAE.
      state: of one seed.
      images: `[N, pixels]` uint8.
      split_number: tells the splits' random numbers apart.
      num_samples: K.
      binarization: how bits are made of pixels.
      batch_size: images that share a key; what is in memory is at most ten samples of each.
      batches_at_once: how many of these go through the model together, which does not change their random numbers.

    Returns:
      A number.
    """
    key = jax.random.fold_in(jax.random.fold_in(run_keys(state.seed).evaluation, state.step), split_number)
    total = images.shape[0]

    def sum_of_batch(start: jax.Array) -> jax.Array:
        number = start + jnp.arange(batch_size)
        binarize_key, sample_key = jax.random.split(jax.random.fold_in(key, start))
        x = data.binarize(binarize_key, images[jnp.minimum(number, total - 1)], binarization)
        bounds = sampled_bound(model, state.params, sample_key, x, num_samples)
        return jnp.sum(jnp.where(number < total, bounds, 0))

    def add_batches(total_bound: jax.Array, starts: jax.Array) -> tuple[jax.Array, None]:
        if batches_at_once == 1:
            return total_bound + sum_of_batch(starts[0]), None
        return total_bound + jnp.sum(jax.vmap(sum_of_batch)(starts)), None

    # The sums of batches are added in float32, which is exact to 1e-5 nats per image for 10,000 images.
    rounds = -(-total // (batch_size * batches_at_once))  # batches beyond the last image add nothing
    starts = batch_size * jnp.arange(rounds * batches_at_once).reshape(rounds, batches_at_once)
    total_bound, _ = lax.scan(add_batches, jnp.zeros(()), starts)
    return total_bound / total


def batches_at_once(platform: str) -> int:
    """How many batches suit a device: one fills the caches of a core, twenty begin to fill an accelerator."""
    return 1 if platform == "cpu" else 20


def bounds_of(model: Any, config: Config, axis: SeedAxis, num_samples: Mapping[str, int]) -> dict[str, Callable]:
    """The compiled bound of each split, a function of all members' state and the split's images.

    Args:
      model: the VAE.
      config: resolved.
      axis: that the members lie on.
      num_samples: K of each split; splits with the same one share a program.
    """
    settings = (config.dataset.binarization, config.eval.batch_size, batches_at_once(axis.devices[0].platform))

    def program(samples: int) -> Callable:
        return axis.map(lambda state, images, number: mean_bound(model, state, images, number, samples, *settings))

    programs = {samples: program(samples) for samples in set(num_samples.values())}

    def bound_of(split: str) -> Callable:
        number = axis.share(np.int32(SPLITS.index(split)))
        return lambda state, images: programs[num_samples[split]](state, images, number)

    return {split: bound_of(split) for split in num_samples}


def evaluate_run(
    workdir: str | os.PathLike, num_samples: int, *, allow_imports: bool = False
) -> tuple[pathlib.Path, dict[str, Any]]:
    """The bounds of a run's newest checkpoint on all splits, with any number of samples.

    Args:
      workdir: the run directory, finished or not.
      num_samples: K, for every split.
      allow_imports: as in `load_run`.

    Returns:
      The file in the run directory that was written, and its contents: step and results, as in `summary.json`.
    """
    members = members_of(RunDir(workdir).read_config())
    one_cpu_device_per_core(len(members))
    run = load_members(workdir, allow_imports=allow_imports)
    check_evaluation("--num_samples", num_samples, run.config.eval.batch_size, run.model.pixels)
    dataset = load_images(run)
    axis = SeedAxis(len(members), jax.devices())
    if changed := changed_settings(run.record, settings_now(axis.devices))[0]:
        say(f"since the checkpoint was saved {'; '.join(changed)}: the bounds have other random numbers than there")
    state = axis.put(run.state)
    rows = [{"step": run.step} | member.columns() for member in members]
    for split, bound in bounds_of(run.model, run.config, axis, dict.fromkeys(SPLITS, num_samples)).items():
        with jax.default_matmul_precision(run.config.matmul_precision):
            bounds = axis.take(bound(state, axis.share(getattr(dataset, split))))
        for row, value in zip(rows, bounds, strict=True):
            row |= {bound_name(split, num_samples): float(value)} if np.isfinite(value) else {}
    results = {"step": run.step} | final_results(rows, run.step, run.config)
    file = RunDir(workdir).path / f"evaluation_{num_samples}_samples.json"
    write_text(file, json.dumps(results, indent=2) + "\n")
    return file, results
