"""The variance of estimators at fixed parameters and a fixed batch, by group of parameters, with standard errors.

The moving averages of training follow a model that moves: here nothing does, so the numbers are variances of the
estimators alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import data
from disarm_jax.experiment.build import estimator_builder, make_optimizer, parse_estimator
from disarm_jax.experiment.load import Run
from disarm_jax.experiment.step import descend, draw_gradients, init_tunables, project
from disarm_jax.objectives import Objective


class GroupVariance(NamedTuple):
    """Of the gradient of one group of parameters.

    Attributes:
      variance: of one draw, averaged over the group's parameters.
      stderr: its standard error.
      mean: of the gradient over the draws.
    """

    variance: jax.Array
    stderr: jax.Array
    mean: Any


def parameter_groups(params: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of a model's parameters by name; an encoder of several layers also layer by layer.

    >>> sorted(parameter_groups({"encoder": {"networks_0": 1, "networks_1": 2}, "decoder": 3, "prior": 4}))
    ['decoder', 'encoder', 'encoder/networks_0', 'encoder/networks_1', 'prior']
    """
    layers = params["encoder"] if len(params["encoder"]) > 1 else {}
    return dict(params) | {f"encoder/{name}": layer for name, layer in layers.items()}


def measure(
    objective: Objective, build: Callable, tunables: Any, params: dict, key: jax.Array, x: jax.Array, num_draws: int
) -> dict[str, GroupVariance]:
    """The variance of the gradient of the batch's mean objective over independent draws.

    By group of parameters; and as the group "logits" that of each image's objective with respect to the logits.

    Every draw is made twice, once for the mean and once for the distance from it, so the memory does not grow with
    their number.

    Args:
      objective: of the model.
      build: from images to the estimator.
      tunables: its params.
      params: of the model.
      key: consumed.
      x: `[B, pixels]`, binary.
      num_draws: at least 2.
    """
    est, keys = build(x), jax.random.split(key, num_draws)

    def draw(key: jax.Array) -> dict:
        gradients = draw_gradients(objective, est, tunables, params, key, x)
        return parameter_groups(gradients.params) | {"logits": gradients.logits}

    def add(total: dict, key: jax.Array) -> tuple[dict, None]:
        return jax.tree.map(jnp.add, total, draw(key)), None

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(draw, keys[0]))
    total, _ = lax.scan(add, zeros, keys)
    mean = jax.tree.map(lambda t: t / num_draws, total)

    def distance(_: None, key: jax.Array) -> tuple[None, dict]:
        def mean_square(gradient: Any, centre: Any) -> jax.Array:
            leaves = list(zip(jax.tree.leaves(gradient), jax.tree.leaves(centre), strict=True))
            return jnp.asarray(sum(jnp.sum((g - c) ** 2) for g, c in leaves)) / sum(g.size for g, _ in leaves)

        gradient = draw(key)
        return None, {name: mean_square(gradient[name], mean[name]) for name in gradient}

    _, squares = lax.scan(distance, None, keys)
    return {
        name: GroupVariance(
            jnp.sum(s) / (num_draws - 1), jnp.std(s, ddof=1) / jnp.sqrt(jnp.float32(num_draws)), mean[name]
        )
        for name, s in squares.items()
    }


def split_names(text: str) -> list[str]:
    """Estimators listed with commas, of which those in parentheses belong to the options.

    >>> split_names("arm, vimco(num_samples=10, repeats=2)")
    ['arm', 'vimco(num_samples=10, repeats=2)']
    """
    return re.split(r"\s*,\s*(?![^(]*\))", text.strip())


def builder_of(run: Run, label: str) -> Callable:
    """From images to the estimator, as the run's training would make it."""
    return estimator_builder(parse_estimator(label), run.model.latents, run.config.estimator.relax_form)


def fixed_batch(
    run: Run, dataset: data.Dataset, draw_seed: int, batch_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The batch that all estimators see, and the keys that tunables and draws are made with."""
    batch_key, binarize_key, tune_key, draw_key = jax.random.split(jax.random.key(draw_seed), 4)
    chosen = data.batch_indices(batch_key, 0, batch_size, len(dataset.train))
    images = jnp.asarray(dataset.train)[chosen]
    return data.binarize(binarize_key, images, run.config.dataset.binarization), tune_key, draw_key


def tunables_of(
    run: Run,
    label: str,
    build: Callable,
    dataset: data.Dataset,
    seed_number: int,
    key: jax.Array,
    num_steps: int,
    learning_rate: float,
    *,
    objective: Objective | None = None,
) -> Any:
    """An estimator's tunables: the run's, or trained here at the run's parameters, as for another objective always.

    Args:
      run: at a checkpoint.
      label: names the estimator.
      build: from images to the estimator.
      dataset: of the run, from whose training set batches are taken.
      seed_number: of the run's seeds.
      key: consumed.
      num_steps: updates, if they are trained; 0 leaves them as they begin.
      learning_rate: of these steps.
      objective: by default the run's.
    """
    runs_own, config = run.experiment.objective, run.config
    objective = objective or runs_own
    alike = (objective.num_samples, objective.stop_q) == (runs_own.num_samples, runs_own.stop_q)
    if label in run.experiment.labels and alike:
        state = run.state.measured[run.experiment.labels.index(label)].tunables
        return jax.tree.map(lambda leaf: leaf[seed_number], state)
    optimizer = make_optimizer({**config.optimizer.tunables, "learning_rate": learning_rate})

    def trained(params: dict, key: jax.Array, images: jax.Array) -> Any:
        init_key, batch_key, step_key = jax.random.split(key, 3)
        x = jnp.zeros((1, images.shape[1]))
        tunables = init_tunables(objective, build(x), params, init_key, x)
        if not jax.tree.leaves(tunables):
            return tunables

        def step(carry: tuple, number: jax.Array) -> tuple:
            tunables, opt_state = carry
            binarize_key, draw_key = jax.random.split(jax.random.fold_in(step_key, number))
            chosen = data.batch_indices(batch_key, number, config.batch_size, images.shape[0])
            x = data.binarize(binarize_key, images[chosen], config.dataset.binarization)
            draw = draw_gradients(objective, build(x), tunables, params, draw_key, x)
            tunables, opt_state = descend(optimizer, tunables, opt_state, draw.tunables)
            return (project(tunables), opt_state), None

        (tunables, _), _ = lax.scan(step, (tunables, optimizer.init(tunables)), jnp.arange(num_steps))
        return tunables

    return jax.jit(trained)(run.params[seed_number], key, dataset.train)
