"""One training step, read from top to bottom: the batch, the gradient, the update, and the compiled chunk of them.

Everything here is a pure function of one run's state; the loop around it is in `loop`. All randomness is a function of
(seed, step), so the state is all that is needed to go on where a run was interrupted.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.data.types import SPLITS
from disarm_jax.estimators.calling import attach
from disarm_jax.experiment.fields import Config
from disarm_jax.objectives import Objective, distribution, inference_layers, parts_of_elbo

GROUPS = ("encoder", "decoder", "prior")  # of a model's parameters, each with an optimiser
BLOCK = 1_000  # steps that are planned at once: the plan of a very long chunk would not fit into memory


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
      at_end: what is measured of the state at the end, by name.
    """

    objective: jax.Array
    first_bad: jax.Array
    gradient_variance: tuple[jax.Array, ...]
    at_end: dict[str, jax.Array]


class Keys(NamedTuple):
    """The keys of a run, from its seed alone."""

    init: jax.Array
    batches: jax.Array
    steps: jax.Array
    evaluation: jax.Array


def run_keys(seed: jax.Array) -> Keys:
    """The keys of a seed, threefry whatever JAX's default is."""
    return Keys(*jax.random.split(jax.random.key(seed, impl="threefry2x32"), 4))


class Plan(NamedTuple):
    """What a step draws from: images by number `[B]`, the key of their bits, and those of estimators `[E]`."""

    chosen: jax.Array
    binarize_key: jax.Array
    draw_keys: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A resolved config and its model as functions of one run, which the loop compiles.

    Attributes:
      config: resolved.
      objective: what is climbed, with the model.
      labels: names of the measured estimators, the training one first.
      builders: from the step's images to each of these estimators.
      optimizers: of the groups of parameters and of the tunables.
    """

    config: Config
    objective: Objective
    labels: tuple[str, ...]
    builders: tuple[Callable, ...]
    optimizers: dict[str, optax.GradientTransformation]

    def init(self, seed: jax.Array) -> State:
        """The state before the first step."""
        model_key, *tunables_keys = jax.random.split(run_keys(seed).init, 1 + len(self.builders))
        x = jnp.zeros((1, self.objective.model.pixels))
        params = self.objective.model.init(model_key, x)["params"]
        opt_state = {group: self.optimizers[group].init(params[group]) for group in GROUPS}
        zeros = jax.tree.map(jnp.zeros_like, params["encoder"])
        measured = []
        for build, key in zip(self.builders, tunables_keys, strict=True):
            tunables = init_tunables(self.objective, build(x), params, key, x)
            measured.append(Measured(tunables, self.optimizers["tunables"].init(tunables), zeros, zeros))
        return State(jnp.asarray(seed, jnp.uint32), jnp.zeros((), jnp.int32), params, opt_state, tuple(measured))

    def plan(self, seed: jax.Array, steps: jax.Array, num_images: int) -> Plan:
        """What some steps `[N]` draw from, at once: in the loop it would be dozens of tiny operations for each."""
        keys = run_keys(seed)

        def of_step(step: jax.Array) -> Plan:
            chosen = data.batch_indices(keys.batches, step, self.config.batch_size, num_images)
            step_keys = jax.random.split(jax.random.fold_in(keys.steps, step), 1 + len(self.builders))
            return Plan(chosen, step_keys[0], step_keys[1:])

        return jax.vmap(of_step)(steps)

    def batch(self, plan: Plan, images: jax.Array) -> jax.Array:
        """The binary images `[B, pixels]` of a step, from all of them, uint8 `[N, pixels]`."""
        return data.binarize(plan.binarize_key, images[plan.chosen], self.config.dataset.binarization)

    def step(self, state: State, x: jax.Array, draw_keys: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        """The state after one step on a batch; the objective, and whether all was finite."""
        # The gradient, by the estimator that trains and by those that are only measured.
        draws = [
            draw_gradients(self.objective, build(x), old.tunables, state.params, key, x)
            for build, old, key in zip(self.builders, state.measured, draw_keys, strict=True)
        ]
        # The update.
        params, opt_state = {}, {}
        for group in GROUPS:
            scale = x.shape[0] if self.config.optimizer[group].reduction == "sum" else 1
            loss_grads = jax.tree.map(lambda g, scale=scale: -scale * g, draws[0].params[group])
            updated = descend(self.optimizers[group], state.params[group], state.opt_state[group], loss_grads)
            params[group], opt_state[group] = updated
        measured = tuple(self.measure(old, draw) for old, draw in zip(state.measured, draws, strict=True))
        finite = jnp.all(jnp.stack([jnp.isfinite(draw.value) & finite_vectors(draw.params) for draw in draws]))
        return State(state.seed, state.step + 1, params, opt_state, measured), (draws[0].value, finite)

    def measure(self, old: Measured, draw: "Gradients") -> Measured:
        """The moments with one more gradient in them, and tunables that act from the next step on."""
        gradient, decay = draw.params["encoder"], self.config.variance.decay
        mean = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, old.mean, gradient)
        square = jax.tree.map(lambda s, g: decay * s + (1 - decay) * g * g, old.square, gradient)
        if not jax.tree.leaves(old.tunables):
            return old._replace(mean=mean, square=square)
        tunables, opt_state = descend(self.optimizers["tunables"], old.tunables, old.opt_state, draw.tunables)
        return Measured(project(tunables), opt_state, mean, square)

    def run_chunk(self, state: State, images: jax.Array, num_steps: int) -> tuple[State, ChunkMetrics]:
        """So many steps as one program, with the training images uint8 `[N, pixels]`."""
        first, num_images = state.step + 1, images.shape[0]
        plan_of = lambda state: jax.tree.map(lambda leaf: leaf[0], self.plan(state.seed, state.step[None], num_images))

        def step_and_next_batch(carry: tuple[State, jax.Array], draws: tuple[jax.Array, Plan]) -> tuple:
            draw_keys, next_plan = draws
            state, metrics = self.step(*carry, draw_keys)
            return (state, self.batch(next_plan, images)), metrics

        def block(carry: tuple[State, jax.Array], size: int) -> tuple:
            plans = self.plan(carry[0].seed, carry[0].step + jnp.arange(size + 1), num_images)
            draws = (plans.draw_keys[:-1], jax.tree.map(lambda leaf: leaf[1:], plans))
            return lax.scan(step_and_next_batch, carry, draws, unroll=min(self.config.unroll, size))

        # The next batch is drawn one step ahead and carried. Otherwise XLA recomputes its random bits in every loop
        # that reads it, which costs 5% of a linear step.
        carry, blocks = (state, self.batch(plan_of(state), images)), (num_steps - 1) // BLOCK
        carry, early = lax.scan(lambda carry, _: block(carry, BLOCK), carry, length=blocks) if blocks else (carry, ())
        (state, x), late = block(carry, num_steps - blocks * BLOCK)
        joined = lambda early, late: jnp.concatenate([early.reshape(-1), late])
        values, finite = jax.tree.map(joined, early, late) if blocks else late
        # A gradient that is not finite in its weights alone shows in the parameters at the end.
        finite = jnp.append(finite, finite_everywhere(state.params))
        first_bad = jnp.where(jnp.all(finite), 0, jnp.minimum(first + jnp.argmin(finite), state.step))
        variances = tuple(moving_variance(one, state.step, self.config.variance.decay) for one in state.measured)
        at_end = self.at_end(state, x, plan_of(state).draw_keys[0])
        return state, ChunkMetrics(jnp.mean(values), first_bad, variances, at_end)

    def at_end(self, state: State, x: jax.Array, draw_key: jax.Array) -> dict[str, jax.Array]:
        """Metrics of a state on the batch of the next step, whose gradient is the one that the step will make."""
        model, tunables = self.objective.model, state.measured[0].tunables
        draw = draw_gradients(self.objective, self.builders[0](x), tunables, state.params, draw_key, x)
        key = jax.random.fold_in(jax.random.fold_in(run_keys(state.seed).evaluation, state.step), len(SPLITS))
        return parts_of_elbo(model, state.params, key, x) | gradient_norms(draw.params) | tunable_means(tunables)


# --- The gradient ---------------------------------------------------------------------------------------------------


class Gradients(NamedTuple):
    """One draw of an estimator on one batch.

    Attributes:
      value: the objective, averaged over the batch.
      params: its gradient with respect to the model's parameters, by group.
      tunables: an unbiased estimate of the derivative, with respect to the tunables, of the variance of the encoder's
        gradient, summed over its parameters; of the logits' gradient for estimators that are `tuned_by_logits`.
      logits: `[B, D]`, or a tuple of these for several layers: the derivative of each image's objective with respect
        to the logits that comes from sampling.
    """

    value: jax.Array
    params: dict
    tunables: Any
    logits: Any


def init_tunables(objective: Objective, est: dj.Estimator, params: dict, key: jax.Array, x: jax.Array) -> Any:
    """The estimator's tunables at the start; `key` is consumed."""
    return est.init(key, distribution(x, inference_layers(objective.model, params)))


def draw_gradients(
    objective: Objective, est: dj.Estimator, tunables: Any, params: dict, key: jax.Array, x: jax.Array
) -> Gradients:
    """Draws samples once, and differentiates everything that learns from them.

    Args:
      objective: what to climb.
      est: the estimator; hierarchical if the model has several layers.
      tunables: its params.
      params: of the model, by group.
      key: consumed.
      x: `[B, pixels]`, binary.
    """
    estimator_key, generative_key = jax.random.split(key)

    def value_of(params):
        """The objective; and the logits' gradient, with what pulls derivatives of it back to the tunables."""
        fixed = () if objective.shared_samples else ("decoder", "prior")
        sampled = params | lax.stop_gradient({group: params[group] for group in fixed})
        layers, f = objective.layers_and_f(sampled, x)

        def apply(tunables):
            out = est.outcome(tunables, estimator_key, distribution(x, layers), f)
            return out.estimate.grad, out

        # The tunables are differentiated inside: their pull-back comes out with the samples already drawn.
        grads, pull_back, out = jax.vjp(apply, tunables, has_aux=True)
        value = jnp.mean(attach(out.estimate.value, grads, out.logits))
        if not objective.shared_samples:
            fresh = jnp.mean(objective.fresh_bound(params, generative_key, x, layers[0](x)))
            value = value + fresh - lax.stop_gradient(fresh)
        return value, (pull_back, grads)

    (value, (pull_back, logits_grads)), grads = jax.value_and_grad(value_of, has_aux=True)(params)
    if not jax.tree.leaves(tunables):
        return Gradients(value, grads, tunables, logits_grads)
    if est.variance_loss is not None or est.moves_samples:
        layers, f = objective.layers_and_f(lax.stop_gradient(params), x)
        loss = lambda tunables: dj.variance_loss(est)(tunables, estimator_key, distribution(x, layers), f)
        return Gradients(value, grads, jax.grad(loss)(tunables), logits_grads)

    # The paper's loss is the sum of squares of the encoder's gradient, G = Jᵀg with J the derivative of the logits. Its
    # derivative is that of g, pulled back from 2 J G. For estimators that are `tuned_by_logits` it is that of g alone.
    def trunk_logits(encoder):
        layers, f = objective.layers_and_f(params | {"encoder": encoder}, x)
        return est.outcome(tunables, estimator_key, distribution(x, layers), f).logits

    pushed = logits_grads
    if not est.tuned_by_logits:
        summed = jax.tree.map(lambda g: x.shape[0] * g, grads["encoder"])
        _, pushed = jax.jvp(trunk_logits, (params["encoder"],), (summed,))
    (tunables_grad,) = pull_back(jax.tree.map(lambda p: 2 * p, pushed))
    return Gradients(value, grads, tunables_grad, logits_grads)


# --- The update -----------------------------------------------------------------------------------------------------


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


# --- The metrics ------------------------------------------------------------------------------------------------------


def finite_vectors(grads: Any) -> jax.Array:
    """Whether the gradients of all biases are finite: what is not finite in a layer's backward pass reaches its bias.

    The weights are left out because a reduction over all of them at every step would take a noticeable part of it.
    """
    return finite_everywhere([leaf for leaf in jax.tree.leaves(grads) if leaf.ndim < 2])


def finite_everywhere(tree: Any) -> jax.Array:
    """Whether all numbers are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def moving_variance(measured: Measured, step: jax.Array, decay: float) -> jax.Array:
    """EMA(g²) − EMA(g)², averaged over the parameters, with the weight of the zeros at the start divided out."""
    weight = 1 - decay ** step.astype(jnp.float32)
    summed = lambda mean, square: jnp.sum(square / weight - (mean / weight) ** 2)
    total = sum(jax.tree.leaves(jax.tree.map(summed, measured.mean, measured.square)))
    size = sum(leaf.size for leaf in jax.tree.leaves(measured.mean))
    return jnp.maximum(total / size, 0)  # rounding, where there is next to no variance


def gradient_norms(grads: dict) -> dict[str, jax.Array]:
    """The norm of each group's gradient, of the objective averaged over a batch."""
    square = lambda tree: jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)]))
    return {f"gradient_norm/{group}": jnp.sqrt(square(grads[group])) for group in sorted(grads)}


def tunable_means(tunables: Any) -> dict[str, jax.Array]:
    """The mean of each tunable that is a number or a vector of them, by name; networks are left out.

    >>> tunable_means({"scale": jnp.ones(()), "network": {"bias": jnp.ones(3)}})
    {'tunables/scale': Array(1., dtype=float32)}
    """
    name_of = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    named = {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tunables)}
    shown = {name: leaf for name, leaf in named.items() if leaf.ndim < 2 and "network" not in name}
    return {f"tunables/{name}": jnp.mean(leaf) for name, leaf in shown.items()}
