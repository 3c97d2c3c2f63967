"""What `scripts.benchmark` measures: the cases, their floating-point operations, and a process to measure in.

As a program, `python -m scripts.benchmark_cases '{"cores": [0, 1], "seeds": 2}'` trains the linear DisARM model, or
that of another "config", on these cores: it compiles, says "ready", and for every line on its standard input runs a
chunk and prints the seconds.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.command_line import get_config
from disarm_jax.experiment.build import make_model, registry_for
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.devices import SeedAxis
from disarm_jax.experiment.evaluate import mean_bound
from disarm_jax.experiment.fields import Config
from disarm_jax.experiment.load import make_experiment
from disarm_jax.experiment.step import Experiment, State
from scripts.benchmark_torch import images

PIXELS = 784
SIBLINGS = ("disarm", "reinforce_loo", "arm", "relax", "disarm_midpoint")  # compared most closely, on the linear model
STEPS = 100  # in one compiled chunk; a tenth of it for a step of more than 3 GFLOP


class Case(NamedTuple):
    """A training step to measure.

    Attributes:
      group: of the table.
      name: of the row.
      config: resolved.
      axis: what grows along the rows of the group, if anything does.
    """

    group: str
    name: str
    config: Config
    axis: float | None = None


def config_of(file: str, num_seeds: int = 1, **fields: Any) -> Config:
    """A config with some fields changed, resolved: `config_of("layers:2", batch_size=100)`.

    Sections are joined to fields by two underscores.
    """
    config = get_config(file)
    config.seeds = tuple(range(num_seeds))
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return resolve(config)


def all_cases(quick: bool) -> list[Case]:
    """The rows of the table; a few of each group if it must be quick."""
    return [*_estimator_cases(quick), *_bound_cases(quick), *_class_cases(quick), *_growth_cases(quick)]


def _estimator_cases(quick: bool) -> list[Case]:
    singles = [name for name in dj.estimator_names() if dj.estimator_info(name).objective == "expectation"]
    cases = []
    for group, file in {"linear": "elbo_linear", "nonlinear": "elbo_nonlinear"}.items():
        few = SIBLINGS if group == "linear" else ("disarm",)
        chosen = few if quick else singles
        cases += [Case(group, name, config_of(file, estimator__name=name)) for name in chosen]
    for depth in () if quick else (2, 3, 4):
        names = dj.hierarchical_names()
        cases += [Case(f"{depth} layers", n, config_of(f"layers:{depth}", estimator__name=n)) for n in names]
    return cases


def _bound_cases(quick: bool) -> list[Case]:
    cases = []
    models = {"linear": ()} if quick else {"linear": (), "nonlinear": (200, 200)}
    for group, hidden in models.items():
        for pairs in (1,) if quick else (1, 10):
            for file in (f"multisample:disarm,{pairs}", f"multisample:vimco,{2 * pairs}"):
                name = f"multisample_disarm, {pairs} pairs" if "disarm" in file else f"vimco, {2 * pairs} samples"
                cases.append(Case(f"multi-sample, {group}", name, config_of(file, model__hidden=hidden)))
            of_pairs = {"model__hidden": hidden, "estimator__name": "multisample_disarm_midpoint"}
            name = f"multisample_disarm_midpoint, {pairs} pairs"
            cases.append(Case(f"multi-sample, {group}", name, config_of(f"multisample:disarm,{pairs}", **of_pairs)))
    return cases


def _class_cases(quick: bool) -> list[Case]:
    names = ("disarm_iw", "disarm_iw_midpoint")
    if not quick:
        names = (*names, "disarm_tree", "disarm_tree_midpoint", "reinforce_loo", "reinforce_loo_midpoint", "reinmax")
    models = {"linear": ()} if quick else {"linear": (), "nonlinear": (200, 200)}
    return [
        Case(f"20 × 10 classes, {group}", name, config_of("categorical", model__hidden=hidden, estimator__name=name))
        for group, hidden in models.items()
        for name in names
    ]


def _growth_cases(quick: bool) -> list[Case]:
    if quick:
        return []
    fields = {
        "batch size": ("batch_size", (25, 50, 100, 200, 400)),
        "latents": ("model__latents", (50, 100, 200, 400, 800)),
        "pairs": ("estimator__options__num_pairs", (1, 2, 4, 8, 16)),
    }
    cases = []
    for group, (field, values) in fields.items():
        for value in values:
            given = (value,) if field == "model__latents" else value
            cases.append(Case(group, f"{value}", config_of("elbo_linear", **{field: given}), value))
    for pairs in (1, 2, 5, 10, 20, 50):
        config = config_of("multisample", model__hidden=(), objective__num_samples=pairs)
        cases.append(Case("pairs of the multi-sample bound", f"{pairs}", config, pairs))
    return cases


def flops_by_hand(config: Config) -> float | None:
    """Floating-point operations of the products that a step cannot do without; None if ∇f is needed.

    Forward products, and the derivatives of the weights and of the inputs of inner layers. The inputs of the first
    layer of each network are data or samples: nothing is differentiated with respect to them. In a chain the branches
    share the layers before they leave the trunk, so that layer t, counting from 0, has t + 2 different rows. If decoder
    and prior learn from a fresh sample, it is one more row, and the only one that goes backward through the decoder.
    Element-wise work is not counted.
    """
    latents, hidden, batch = config["model"]["latents"], tuple(config["model"]["hidden"]), config["batch_size"]
    name, depth, known = config["estimator"]["name"], len(latents), registry_for(latents)
    latents = [int(np.prod(layer)) for layer in latents]  # numbers of bits, or of variables and classes
    info = known.info(name, **({} if depth > 1 else config["estimator"]["options"]))
    if info.needs_grad or not isinstance(info.evaluations, int):
        return None
    if depth > 1 and name not in ("arm", "disarm", "reinforce_loo"):
        return None
    rows = info.evaluations  # of the layer next to the image: in a chain the trunk and the branch that leaves it there
    fresh = config["objective"]["num_samples"] if config["objective"]["generative_samples"] == "independent" else 0

    def network(rows_forward: int, rows_backward: int, *sizes: int) -> int:
        products = [first * second for first, second in itertools.pairwise(sizes)]
        backward = sum(products) + sum(products[1:])
        return 2 * batch * (rows_forward * sum(products) + rows_backward * backward)

    total = network(1, 1, PIXELS, *hidden, latents[0])
    total += network(rows + fresh, fresh or rows, latents[0], *hidden, PIXELS)
    for t in range(1, depth):
        total += network(t + 1 + fresh, 1, latents[t - 1], *hidden, latents[t])
        total += network(t + 2 + fresh, fresh or t + 2, latents[t], *hidden, latents[t - 1])
    return float(total)


def reference(config: Config) -> dict[str, np.ndarray]:
    """Weights of a model with one layer, samples, and the ELBO and gradients there, by DisARM, for `benchmark_torch`.

    The gradient of the loss, of which the optimisers see the sum over the batch for the encoder and else the mean.
    """
    model = make_model(config["model"], PIXELS, np.full(PIXELS, 0.13))
    experiment = make_experiment(config, model)
    params = jax.jit(experiment.init)(jnp.uint32(0)).params
    x = data.binarize(jax.random.key(1), jnp.asarray(images(config["batch_size"])), "dynamic")
    (est,) = (build(x) for build in experiment.builders)

    def objective(params: dict, pair: jax.Array, fresh: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers, f = experiment.objective.layers_and_f(params, x)
        logits = layers[0](x)
        out = est.tell((), logits, draw._replace(b=pair), lax.stop_gradient(f(pair)))
        through_samples = jnp.sum(lax.stop_gradient(out.grad) * logits)
        return -through_samples - jnp.mean(f(fresh[None])), jnp.mean(out.value)

    logits = experiment.objective.layers_and_f(params, x)[0][0](x)
    draw = est.draw((), jax.random.key(2), logits)
    fresh = model.law.sample(jax.random.key(3), logits, 1)[0]
    grads, value = jax.grad(objective, has_aux=True)(params, draw.b, fresh)
    arrays = {
        "x": x,
        "pair": draw.b,
        "fresh": fresh,
        "mean": np.full(PIXELS, 0.13, np.float32),
        "expected/value": value,
    }
    arrays |= {f"expected/{name}": leaf for name, leaf in _by_layer(grads).items()} | _by_layer(params)
    arrays["rates"] = [config["optimizer"][group]["learning_rate"] for group in ("encoder", "prior")]
    return {name: np.asarray(leaf, np.float32) for name, leaf in arrays.items()}


def _by_layer(params: dict) -> dict[str, jax.Array]:
    """The parameters of a model with one layer by names such as "encoder/0/kernel"."""
    found = {"prior": params["prior"]}
    for group in ("encoder", "decoder"):
        for name, layer in params[group]["networks_0"].items():
            found |= {f"{group}/{name.removeprefix('Dense_')}/{kind}": layer[kind] for kind in ("kernel", "bias")}
    return found


def step_of(experiment: Experiment) -> Callable:
    """One step of a state on all images, without what is measured at the end of a chunk."""

    def step(state: State, images: jax.Array) -> Any:
        plans = experiment.plan(state.seed, state.step[None], images.shape[0])
        plan = jax.tree.map(lambda leaf: leaf[0], plans)
        return experiment.step(state, experiment.batch(plan, images), plan.draw_keys)

    return step


class Training:
    """A compiled chunk of steps, and the state it goes on from."""

    def __init__(self, config: Config, pixels: np.ndarray, num_devices: int = 1):
        """Compiles; `config["seeds"]` are spread over so many devices."""
        experiment = make_experiment(config, make_model(config["model"], PIXELS, np.full(PIXELS, 0.13)))
        axis = SeedAxis(len(config["seeds"]), jax.devices()[:num_devices])
        self._images = axis.share(pixels)
        self._state = axis.map(experiment.init)(axis.put(np.asarray(config["seeds"], np.uint32)))
        state = jax.eval_shape(experiment.init, jnp.uint32(0))
        self.xla_flops = jax.jit(step_of(experiment)).lower(state, self._images).cost_analysis()["flops"]
        self._steps = STEPS if self.xla_flops < 3e9 else STEPS // 10

        def steps(state: State, images: jax.Array) -> Any:  # what is measured at the end of a chunk is none of them
            state, metrics = experiment.run_chunk(state, images, self._steps)
            return state, metrics._replace(at_end={})

        run = axis.map(steps, donate=True)
        start = time.perf_counter()
        with jax.default_matmul_precision(config["matmul_precision"]):
            self._run = run.lower(self._state, self._images).compile()
        self.compile_seconds = time.perf_counter() - start
        self.temporary_bytes = self._run.memory_analysis().temp_size_in_bytes
        self.run()

    def run(self) -> float:
        """One more chunk; the seconds of a step."""
        start = time.perf_counter()
        self._state, _ = jax.block_until_ready(self._run(self._state, self._images))
        return (time.perf_counter() - start) / self._steps


def sgemm(size: int = 1024) -> Callable[[], float]:
    """A product of square matrices; run, it returns the seconds of 2·size³ operations."""
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    return _timed(jax.jit(lambda a: a @ a).lower(matrix).compile(), matrix, 5)


def copy(size: int = 1 << 25) -> Callable[[], float]:
    """Reads and writes so many floats, more than any cache holds; run, it returns the seconds."""
    array = [jnp.zeros(size, jnp.float32)]
    # In place: the system takes longer to give out fresh memory than to fill it.
    add = jax.jit(lambda a: a + 1, donate_argnums=0).lower(array[0]).compile()

    def run() -> float:
        start = time.perf_counter()
        for _ in range(5):
            array[0] = jax.block_until_ready(add(array[0]))
        return (time.perf_counter() - start) / 5

    run()
    return run


def _timed(function: Callable, argument: jax.Array, times: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(times):
            jax.block_until_ready(function(argument))
        return (time.perf_counter() - start) / times

    run()
    return run


def evaluation(num_images: int, num_samples: int = 100) -> tuple[Callable[[], float], float]:
    """The bound of a split of the linear model, with its operations counted by hand."""
    config = config_of("elbo_linear")
    model = make_model(config["model"], PIXELS, np.full(PIXELS, 0.13))
    state = jax.jit(make_experiment(config, model).init)(jnp.uint32(0))
    settings = (jnp.int32(0), num_samples, "dynamic", config["eval"]["batch_size"])
    bound = jax.jit(lambda pixels: mean_bound(model, state, pixels, *settings))
    pixels = jnp.asarray(images(num_images))
    flops = 2.0 * num_images * (1 + num_samples) * PIXELS * config["model"]["latents"][0]
    with jax.default_matmul_precision(config["matmul_precision"]):
        return _timed(bound.lower(pixels).compile(), pixels, 1), flops


def serve(request: dict) -> None:
    """Trains in this process whenever a line comes in, see the top of the file."""
    os.sched_setaffinity(0, request["cores"])
    seeds = request.get("seeds", 1)
    devices = min(seeds, len(request["cores"]))
    jax.config.update("jax_num_cpu_devices", devices)
    training = Training(config_of(request.get("config", "elbo_linear"), seeds), images(), devices)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(np.median([training.run() for _ in range(5)]), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
