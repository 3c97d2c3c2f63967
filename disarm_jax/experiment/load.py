"""A config with its data and model, ready to train; a trained run, ready to use; and what cannot fit into memory."""

import functools
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax import data
from disarm_jax.data.bar import Bar
from disarm_jax.data.types import SPLITS, sha256_of_arrays
from disarm_jax.experiment.build import (
    EstimatorSpec,
    estimator_builder,
    load_dataset,
    make_model,
    make_objective,
    make_optimizer,
    parse_estimator,
    registry_for,
)
from disarm_jax.experiment.config import check_to_read, refuse_imports
from disarm_jax.experiment.devices import check_jax_settings, machine_memory
from disarm_jax.experiment.fields import Config, ConfigError, is_import_path
from disarm_jax.experiment.grid import at_point, members_of, point_text, points_of, with_fields
from disarm_jax.experiment.step import GROUPS, Experiment, State
from disarm_jax.objectives import distribution
from disarm_jax.run_directory.checkpoint import Saved, read_latest, read_step
from disarm_jax.run_directory.directory import RunDir, RunDirError
from disarm_jax.run_directory.fingerprint import Record, array_sum, check_run, read_record
from disarm_jax.untrusted import MAX_ROWS

MAX_NUMBERS = 2**31 - 1  # in one array, whose indices are int32
ROW_BYTES = 200  # of a row of metrics, at least
SAMPLES_AT_ONCE = 10  # of an evaluation, as in `objectives.sampled_bound`
FLOAT = 4  # bytes
SAMPLES = {"num_samples": 1, "num_pairs": 2, "repeats": 1, "group_size": 1}  # options of estimators
COPIES = 3  # of the parameters in a state: themselves, and two moments of Adam or of the gradient


class Prepared(NamedTuple):
    """What training needs.

    Attributes:
      config: resolved.
      dataset: the images.
      image_sums: the sha256 of each split, computed when it was loaded.
      train_mean: `[pixels]`, mean of the training images, in [0, 1].
      model: the VAE.
      experiment: the config as functions of one seed.
    """

    config: Config
    dataset: data.Dataset
    image_sums: dict[str, str]
    train_mean: np.ndarray
    model: Any
    experiment: Experiment

    def data_record(self) -> dict[str, Any]:
        """Where the images are from, and the sha256 of each split, for the files of a run."""
        return self.dataset.provenance._asdict() | {"sha256": self.image_sums}


def prepare(config: Config) -> Prepared:
    """Loads the data and makes the model of a resolved config; makes no files.

    Raises:
      ConfigError: if the data does not fit the config, the run does not fit into memory, or JAX has a setting with
        which nothing can be trained.
      DataError: if there is no data.
    """
    check_jax_settings()
    with Bar() as progress:
        dataset = load_dataset(config.dataset, progress)
    check_sizes(config, dataset.train.shape[1])
    check_rows(config)
    if config.batch_size > len(dataset.train):
        accepted = f"at most the number of training images of {config.dataset.name}, {len(dataset.train)}"
        raise ConfigError(f"batch_size is {config.batch_size}; accepted: {accepted}")
    try:
        data.batch_indices(jax.random.key(0), 0, config.batch_size, len(dataset.train))
    except ValueError as error:
        raise ConfigError(f"batch_size is {config.batch_size}: {error}") from error
    train_mean = train_mean_of(dataset, config)
    model = _make_model(config.model, train_mean)
    experiment = make_experiment(config, model)
    _check_custom_parts(experiment)
    sums = sha256_of_arrays({split: getattr(dataset, split) for split in SPLITS})
    return Prepared(config, dataset, sums, train_mean, model, experiment)


def train_mean_of(dataset: data.Dataset, config: Config) -> np.ndarray:
    """The mean of the training images `[pixels]`, in [0, 1]: of what the model sees."""
    if config.dataset.binarization == "threshold":
        return (dataset.train >= 128).mean(axis=0, dtype=np.float64)
    return dataset.train.mean(axis=0, dtype=np.float64) / 255


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
    layers, f = experiment.objective.layers_and_f(experiment.init(seed).params, x)
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
      record: what the checkpoint says of its run; None if older code has written it.
      path: of the run directory.
      imports_allowed: whether a custom data set may be imported, too.
    """

    model: Any
    params: tuple[dict, ...]
    config: Config
    step: int
    state: State
    experiment: Experiment
    record: Record | None = None
    path: pathlib.Path = pathlib.Path()
    imports_allowed: bool = False


def load_run(
    workdir: str | os.PathLike, step: int | None = None, point: int | None = None, *, allow_imports: bool = False
) -> Run:
    """A run from its directory, finished or not; its data set is not needed, and nothing is written.

    The directory is data, perhaps someone else's: all of it is checked, and nothing that its config names is imported
    unless the caller allows it.

    Args:
      workdir: the run directory.
      step: of the checkpoint; None for the newest that can be read.
      point: of a run with a grid, the number of a point; this is returned as if it had been trained alone.
      allow_imports: whether custom parts, "package.module:name" in the config, may be imported and called.

    Raises:
      CheckpointError: if the checkpoint is not there or cannot be read.
      ConfigError: if the config names custom parts, which are not allowed; or JAX's settings do not fit.
      RunDirError: if this is no run directory, is damaged, has no checkpoint yet, or no such point.
    """
    config = RunDir(workdir).read_config()
    points, listed = points_of(config), "; ".join(f"{n}: {point_text(p)}" for n, p in enumerate(points_of(config)))
    if not config.grid and point is not None:
        raise RunDirError(f"point is {point}, but the run in {workdir} has no grid; accepted: None")
    if config.grid and (point is None or not 0 <= point < len(points)):
        raise RunDirError(f"point is {point}, but the run in {workdir} has a grid; accepted: {listed}")
    run, first = load_members(workdir, step, allow_imports=allow_imports), (point or 0) * len(config.seeds)
    config, members = at_point(config, points[point or 0]), slice(first, first + len(config.seeds))
    state = jax.tree.map(lambda leaf: leaf[members], run.state)
    return run._replace(
        config=config, params=run.params[members], state=state, experiment=make_experiment(config, run.model)
    )


def load_members(workdir: str | os.PathLike, step: int | None = None, *, allow_imports: bool = False) -> Run:
    """All members of a run, see `grid.members_of`, instead of the seeds of one point."""
    check_jax_settings()
    run_dir = RunDir(workdir)
    config = run_dir.read_config()
    if not allow_imports:
        refuse_imports(config, run_dir.config_file, unused=("dataset.name", "writers"))
    try:
        check_to_read(config)
        train_mean = run_dir.read_train_mean()
        check_sizes(config, len(train_mean))
        model = _make_model(config.model, train_mean)
        experiment = make_experiment(config, model)
    except ConfigError as error:
        raise RunDirError(f"{run_dir.config_file}: {error}") from error
    seeds = np.array([member.seed for member in members_of(config)], np.uint32)
    like = jax.eval_shape(jax.vmap(experiment.init), seeds)

    def check(saved: Saved) -> None:
        check_run(read_record(saved.record, run_dir.platform), config, saved.state, saved.step)

    place = (run_dir.checkpoints, like, check)
    found = read_latest(*place) if step is None else read_step(place[0], step, *place[1:])
    if found is None:
        raise RunDirError(f"{run_dir.path} has no checkpoint yet")
    record, state = read_record(found.record, run_dir.platform), found.state
    if record is not None and record.train_mean != array_sum(train_mean):
        raise RunDirError(f"{run_dir.train_mean_file} is damaged: it is not the mean that the checkpoint was made with")
    params = tuple(jax.tree.map(lambda leaf, n=number: leaf[n], state.params) for number in range(len(seeds)))
    return Run(model, params, config, found.step, state, experiment, record, run_dir.path, allow_imports)


def load_images(run: Run) -> data.Dataset:
    """The images of a run from `load_run`.

    Raises:
      ConfigError: for a custom data set, which is not allowed.
      DataError: if there are none.
      RunDirError: if they are not those that it was trained with.
    """
    if not run.imports_allowed:
        refuse_imports({"dataset": run.config.dataset}, RunDir(run.path).config_file)
    dataset = load_dataset(run.config.dataset)
    sums = sha256_of_arrays({split: getattr(dataset, split) for split in SPLITS})
    if run.record is not None:
        RunDir(run.path).check_sums(run.record.images, sums)
    else:
        RunDir(run.path).check_images(train_mean_of(dataset, run.config), sums)
    return dataset


# --- What cannot fit --------------------------------------------------------------------------------------------------
#
# The estimates are lower bounds: only what must be in memory at once is counted, so nothing is refused that would fit.
# What they miss ends the run when the device refuses it.


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
