"""One training step of one seed as a pure function: batch, estimate, update. What is around it is in `train`.

All randomness is a function of (seed, step), so the state is all that is needed to go on where a run was interrupted.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from disarm_jax import data
from disarm_jax.experiment.choices import EstimatorSpec, estimator_builder, make_optimizer, parse_estimator
from disarm_jax.experiment.gradients import Gradients, Objective, draw_gradients, init_tunables

GROUPS = ("encoder", "decoder", "prior")


class Measured(NamedTuple):
    """What is kept of an estimator: its tunables, and moments of the inference network's gradient.

    Attributes:
      tunables: the estimator's params.
      opt_state: of their optimiser.
      mean: moving average of the encoder's gradient (of the objective averaged over the batch).
      square: moving average of its square.
    """

    tunables: Any
    opt_state: Any
    mean: Any
    square: Any


class State(NamedTuple):
    """All there is of one seed's run; with several seeds every leaf has a leading axis.

    Attributes:
      seed: uint32.
      step: int32, steps made.
      params: of the model, by group.
      opt_state: of the optimisers, by group.
      measured: the estimator that trains, then those that are only measured along the way.
    """

    seed: jax.Array
    step: jax.Array
    params: dict
    opt_state: dict
    measured: tuple[Measured, ...]


class ChunkMetrics(NamedTuple):
    """What a chunk of steps tells of one seed.

    Attributes:
      objective: mean over the chunk's steps.
      first_bad: first step, from 1 on, whose objective or gradient was not finite; 0 if there is none.
      gradient_variance: one per measured estimator, averaged over the encoder's parameters.
      tunables: mean of each of the training estimator's tunables that is a number or has one entry per bit, by name.
    """

    objective: jax.Array
    first_bad: jax.Array
    gradient_variance: tuple[jax.Array, ...]
    tunables: dict[str, jax.Array]


class Keys(NamedTuple):
    """The keys of a run, from its seed alone."""

    init: jax.Array
    batches: jax.Array
    steps: jax.Array
    evaluation: jax.Array


def run_keys(seed: jax.Array) -> Keys:
    """The keys of a seed; threefry, whatever JAX's default is."""
    return Keys(*jax.random.split(jax.random.key(seed, impl="threefry2x32"), 4))


class Experiment(NamedTuple):
    """A checked and resolved config as the functions of one seed that the loop compiles.

    Attributes:
      objective: what is climbed, with the model.
      labels: names of the measured estimators, the training one first.
      builders: from the step's images to each of these estimators.
      init: `(seed) -> State`.
      run_chunk: `(state, images, num_steps) -> (State, ChunkMetrics)`, with the training images uint8 `[N, pixels]`.
    """

    objective: Objective
    labels: tuple[str, ...]
    builders: tuple[Callable, ...]
    init: Callable
    run_chunk: Callable


def make_experiment(config: Mapping[str, Any], model: Any) -> Experiment:
    """The experiment that a config states.

    Args:
      config: checked and resolved, see `experiment.config`.
      model: the VAE, made by `choices.make_model`.
    """
    objective = Objective(
        model,
        num_samples=config["objective"]["num_samples"],
        stop_q=config["objective"]["stop_q"],
        shared_samples=config["objective"]["generative_samples"] == "shared",
    )
    specs = [EstimatorSpec(config["estimator"]["name"], config["estimator"]["options"])]
    specs += [parse_estimator(text) for text in config["variance"]["estimators"]]
    relax_form = config["estimator"]["relax_form"]
    builders = tuple(estimator_builder(spec, model.latents, relax_form) for spec in specs)
    optimizers = {name: make_optimizer(section) for name, section in config["optimizer"].items()}
    batch_size, binarization = config["batch_size"], config["dataset"]["binarization"]
    scales = {group: batch_size if config["optimizer"][group]["reduction"] == "sum" else 1 for group in GROUPS}
    decay = config["variance"]["decay"]

    def init(seed: jax.Array) -> State:
        model_key, *tunables_keys = jax.random.split(run_keys(seed).init, 1 + len(builders))
        x = jnp.zeros((1, model.pixels))
        params = model.init(model_key, x)["params"]
        if set(params) != set(GROUPS):
            raise ValueError(f"the model's parameters are {sorted(params)}; accepted: {', '.join(GROUPS)}")

        def measured(build: Callable, key: jax.Array) -> Measured:
            tunables = init_tunables(objective, build(x), params, key, x)
            zeros = jax.tree.map(jnp.zeros_like, params["encoder"])
            return Measured(tunables, optimizers["tunables"].init(tunables), zeros, zeros)

        opt_state = {group: optimizers[group].init(params[group]) for group in GROUPS}
        started = tuple(measured(build, key) for build, key in zip(builders, tunables_keys, strict=True))
        return State(jnp.asarray(seed, jnp.uint32), jnp.zeros((), jnp.int32), params, opt_state, started)

    def measure(old: Measured, draw: Gradients) -> Measured:
        """The moments with one more gradient in them, and tunables that act from the next step on."""
        gradient = draw.params["encoder"]
        mean = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, old.mean, gradient)
        square = jax.tree.map(lambda s, g: decay * s + (1 - decay) * g * g, old.square, gradient)
        if not jax.tree.leaves(old.tunables):
            return old._replace(mean=mean, square=square)
        tunables, opt_state = descend(optimizers["tunables"], old.tunables, old.opt_state, draw.tunables)
        return Measured(project(tunables), opt_state, mean, square)

    def step_keys(state: State) -> jax.Array:
        return jax.random.split(jax.random.fold_in(run_keys(state.seed).steps, state.step), 1 + len(builders))

    def batch(state: State, images: jax.Array) -> jax.Array:
        chosen = data.batch_indices(run_keys(state.seed).batches, state.step, batch_size, images.shape[0])
        return data.binarize(step_keys(state)[0], images[chosen], binarization)

    def step(state: State, x: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        _, *draw_keys = step_keys(state)
        draws = [
            draw_gradients(objective, build(x), old.tunables, state.params, key, x)
            for build, old, key in zip(builders, state.measured, draw_keys, strict=True)
        ]
        params, opt_state = {}, {}
        for group in GROUPS:
            loss_grads = jax.tree.map(lambda g, scale=scales[group]: -scale * g, draws[0].params[group])
            updated = descend(optimizers[group], state.params[group], state.opt_state[group], loss_grads)
            params[group], opt_state[group] = updated
        measured = tuple(measure(old, draw) for old, draw in zip(state.measured, draws, strict=True))
        finite = jnp.all(jnp.stack([jnp.isfinite(draw.value) & finite_vectors(draw.params) for draw in draws]))
        return State(state.seed, state.step + 1, params, opt_state, measured), (draws[0].value, finite)

    def run_chunk(state: State, images: jax.Array, num_steps: int) -> tuple[State, ChunkMetrics]:
        def step_and_next_batch(carry: tuple[State, jax.Array], _: None) -> tuple:
            state, metrics = step(*carry)
            return (state, batch(state, images)), metrics

        first = state.step + 1
        # A batch is drawn in the step before, the last one for nothing: what is carried XLA cannot draw anew in every
        # loop that reads it, a twentieth of a linear step.
        started = (state, batch(state, images))
        (state, _), (values, finite) = lax.scan(step_and_next_batch, started, length=num_steps)
        # A gradient that is not finite in its weights alone shows in the parameters at the end.
        finite = jnp.append(finite, finite_everywhere(state.params))
        first_bad = jnp.where(jnp.all(finite), 0, jnp.minimum(first + jnp.argmin(finite), state.step))
        variances = tuple(moving_variance(measured, state.step, decay) for measured in state.measured)
        tunables = tunable_means(state.measured[0].tunables)
        return state, ChunkMetrics(jnp.mean(values), first_bad, variances, tunables)

    return Experiment(objective, tuple(map(str, specs)), builders, init, run_chunk)


def descend(optimizer: optax.GradientTransformation, params: Any, opt_state: Any, grads: Any) -> tuple[Any, Any]:
    """Parameters and optimiser state after one update."""
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats, which callers may forbid
        updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def project(tunables: Any) -> Any:
    """Tunables after an update: the β of `interpolated`, a probability, goes back to [0, 1], also as a base's."""
    if isinstance(tunables, dict) and "beta" in tunables:
        return tunables | {"beta": jnp.clip(tunables["beta"], 0, 1)}
    if isinstance(tunables, dict) and "base" in tunables:
        return tunables | {"base": project(tunables["base"])}
    return tunables


def finite_vectors(grads: Any) -> jax.Array:
    """Whether the gradients of all biases are finite: what is not finite in a layer's backward pass reaches its bias.

    The weights are left out because a reduction over all of them at every step would take a noticeable part of it.
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads) if leaf.ndim < 2]))


def finite_everywhere(tree: Any) -> jax.Array:
    """Whether all numbers are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def moving_variance(measured: Measured, step: jax.Array, decay: float) -> jax.Array:
    """EMA(g²) − EMA(g)², averaged over the parameters, with the weight of the zeros at the start divided out."""
    weight = 1 - decay ** step.astype(jnp.float32)
    total = sum(
        jnp.sum(square / weight - (mean / weight) ** 2)
        for mean, square in zip(jax.tree.leaves(measured.mean), jax.tree.leaves(measured.square), strict=True)
    )
    mean = total / sum(leaf.size for leaf in jax.tree.leaves(measured.mean))
    return jnp.maximum(mean, 0)  # rounding, where there is next to no variance


def tunable_means(tunables: Any) -> dict[str, jax.Array]:
    """The mean of each tunable that is a number or a vector of them, by name; networks are left out.

    >>> tunable_means({"scale": jnp.ones(()), "network": {"bias": jnp.ones(3)}})
    {'scale': Array(1., dtype=float32)}
    """
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tunables):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.ndim < 2 and "network" not in name:
            named[name] = jnp.mean(leaf)
    return named
