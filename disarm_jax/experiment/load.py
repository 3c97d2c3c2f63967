"""A config with its data and model, ready to train; and a trained run, ready to use."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax import data
from disarm_jax.data.bar import Bar
from disarm_jax.experiment.build import (
    EstimatorSpec,
    estimator_builder,
    load_dataset,
    make_model,
    make_objective,
    make_optimizer,
    parse_estimator,
)
from disarm_jax.experiment.checkpoint import read_latest, read_step
from disarm_jax.experiment.fields import Config, ConfigError, is_import_path
from disarm_jax.experiment.grid import at_point, members_of, point_text, points_of, with_fields
from disarm_jax.experiment.rundir import RunDir, RunDirError
from disarm_jax.experiment.step import GROUPS, Experiment, State, distribution, layers_and_f


class Prepared(NamedTuple):
    """What training needs.

    Attributes:
      config: resolved.
      dataset: the images.
      train_mean: `[pixels]`, mean of the training images, in [0, 1].
      model: the VAE.
      experiment: the config as functions of one seed.
    """

    config: Config
    dataset: data.Dataset
    train_mean: np.ndarray
    model: Any
    experiment: Experiment


def prepare(config: Config) -> Prepared:
    """Loads the data and makes the model of a resolved config.

    Raises:
      ConfigError: if the data does not fit the config.
      DataError: if there is no data.
    """
    with Bar() as progress:
        dataset = load_dataset(config.dataset, progress)
    if config.batch_size > len(dataset.train):
        accepted = f"at most the number of training images of {config.dataset.name}, {len(dataset.train)}"
        raise ConfigError(f"batch_size is {config.batch_size}; accepted: {accepted}")
    try:
        data.batch_indices(jax.random.key(0), 0, config.batch_size, len(dataset.train))
    except ValueError as error:
        raise ConfigError(f"batch_size is {config.batch_size}: {error}") from error
    if config.dataset.binarization == "threshold":  # the mean of what the model sees
        train_mean = (dataset.train >= 128).mean(axis=0, dtype=np.float64)
    else:
        train_mean = dataset.train.mean(axis=0, dtype=np.float64) / 255
    model = _make_model(config.model, train_mean)
    experiment = make_experiment(config, model)
    _check_custom_parts(experiment)
    return Prepared(config, dataset, train_mean, model, experiment)


def make_experiment(config: Config, model: Any) -> Experiment:
    """The experiment that a resolved config states, with a model made by `build.make_model`."""
    specs = [EstimatorSpec(config.estimator.name, config.estimator.options)]
    specs += [parse_estimator(text) for text in config.variance.estimators]
    builders = tuple(estimator_builder(spec, model.latents, config.estimator.relax_form) for spec in specs)
    optimizers = {name: make_optimizer(section) for name, section in config.optimizer.items()}
    return Experiment(config, make_objective(config.objective, model), tuple(map(str, specs)), builders, optimizers)


def _check_custom_parts(experiment: Experiment) -> None:
    """Raises ConfigError if a custom model or estimator returns what does not fit; nothing is computed."""
    config, model = experiment.config, experiment.objective.model
    if is_import_path(config.model.name):
        params = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, model.pixels), np.float32))["params"]
        if set(params) != set(GROUPS):
            has = f"{config.model.name!r}, which has the groups of parameters {', '.join(sorted(params))}"
            raise ConfigError(f"model.name is {has}; accepted: {', '.join(GROUPS)}")
    for label, build in zip(experiment.labels, experiment.builders, strict=True):
        if is_import_path(label.partition("(")[0]):
            value, grad, logits = jax.eval_shape(functools.partial(_estimate, experiment, build), np.uint32(0))
            found, expected = (value.shape, grad.shape), ((config.batch_size,), logits.shape)
            if found != expected:  # it would broadcast, and train on a wrong gradient
                shapes = f"value and grad of shapes {found} for logits of {logits.shape}"
                raise ConfigError(f"the estimator {label} returned {shapes}; accepted: {expected}")


def _estimate(experiment: Experiment, build: Callable, seed: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value and gradient of a custom estimator on black images, and the logits."""
    x = jnp.zeros((experiment.config.batch_size, experiment.objective.model.pixels))
    layers, f = layers_and_f(experiment.objective, experiment.init(seed).params, x)
    logits, est = distribution(x, layers), build(x)
    out = est.apply(est.init(jax.random.key(0), logits), jax.random.key(1), logits, f)
    return out.value, out.grad, logits


def _make_model(config: Mapping[str, Any], train_mean: np.ndarray) -> Any:
    try:
        model = make_model(config, len(train_mean), train_mean)
    except TypeError as error:
        raise ConfigError(f"model.name is {config['name']!r} with the options {config['options']}: {error}") from error
    for path in ("init", "apply", "encode", "decode", "decoders", "log_joint", "sample", "law.log_prob", "law.sample"):
        if not callable(functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), model)):
            accepted = "a Flax module with the methods of BernoulliVAE"
            raise ConfigError(f"model.name is {config['name']!r}, which has no {path}; accepted: {accepted}")
    return model


def with_numbers(experiment: Experiment, numbers: Mapping[str, Any]) -> Experiment:
    """An experiment with other numbers in its config, which may be traced: see `grid.numbers_of`."""
    return make_experiment(with_fields(experiment.config, numbers), experiment.objective.model)


class Run(NamedTuple):
    """A run, or one point of its grid, as its newest checkpoint has it.

    Attributes:
      model: the VAE, a Flax module.
      params: its parameters, one pytree per seed of the config: `model.apply({"params": params[0]}, …)`.
      config: resolved.
      step: of the checkpoint.
      state: all that was saved, every leaf with the seeds as its first axis.
      experiment: the config as functions of one seed.
    """

    model: Any
    params: tuple[dict, ...]
    config: Config
    step: int
    state: State
    experiment: Experiment


def load_run(workdir: str | os.PathLike, step: int | None = None, point: int | None = None) -> Run:
    """A run from its directory, finished or not; its data set is not needed, and nothing is written.

    Args:
      workdir: the run directory.
      step: of the checkpoint; None for the newest that can be read.
      point: of a run with a grid, the number of a point; this is returned as if it had been trained alone.

    Raises:
      CheckpointError: if the checkpoint is not there or cannot be read.
      RunDirError: if this is no run directory, has no checkpoint yet, or no such point.
    """
    config = RunDir(workdir).read_config()
    points, listed = points_of(config), "; ".join(f"{n}: {point_text(p)}" for n, p in enumerate(points_of(config)))
    if not config.grid and point is not None:
        raise RunDirError(f"point is {point}, but the run in {workdir} has no grid; accepted: None")
    if config.grid and (point is None or not 0 <= point < len(points)):
        raise RunDirError(f"point is {point}, but the run in {workdir} has a grid; accepted: {listed}")
    run, first = load_members(workdir, step), (point or 0) * len(config.seeds)
    config, members = at_point(config, points[point or 0]), slice(first, first + len(config.seeds))
    state = jax.tree.map(lambda leaf: leaf[members], run.state)
    return run._replace(
        config=config, params=run.params[members], state=state, experiment=make_experiment(config, run.model)
    )


def load_members(workdir: str | os.PathLike, step: int | None = None) -> Run:
    """All members of a run, see `grid.members_of`, instead of the seeds of one point."""
    run_dir = RunDir(workdir)
    config = run_dir.read_config()
    try:
        train_mean = np.load(run_dir.train_mean_file)
    except (OSError, ValueError) as error:
        raise RunDirError(
            f"{run_dir.path} has not begun: {run_dir.train_mean_file.name} cannot be read ({error})"
        ) from error
    model = _make_model(config.model, train_mean)
    experiment = make_experiment(config, model)
    seeds = np.array([member.seed for member in members_of(config)], np.uint32)
    like = jax.eval_shape(jax.vmap(experiment.init), seeds)
    state = read_latest(run_dir.checkpoints, like) if step is None else read_step(run_dir.checkpoints, step, like)
    if state is None:
        raise RunDirError(f"{run_dir.path} has no checkpoint yet")
    params = tuple(jax.tree.map(lambda leaf, n=number: leaf[n], state.params) for number in range(len(seeds)))
    return Run(model, params, config, int(state.step[0]), state, experiment)
