"""The one place where a word of a config becomes a model, a data set, an objective, an estimator or an optimiser.

A name with a colon, "package.module:name", is imported, so a custom part needs no change here: see docs/extend.md.
"""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import disarm_jax as dj
from disarm_jax import bernoulli, data
from disarm_jax.categorical.catalogue import CLASSES
from disarm_jax.data.npz import flatten
from disarm_jax.data.types import SPLITS, Progress, Provenance, no_progress, sha256_of_arrays
from disarm_jax.estimators.controlled import Controlled
from disarm_jax.estimators.registry import BITS, Registry, info_of
from disarm_jax.estimators.relaxation import network_of
from disarm_jax.experiment.fields import has_classes, imported, is_import_path, part
from disarm_jax.models import BernoulliVAE, CategoricalVAE
from disarm_jax.objectives import Objective, weigh

MODELS = {"bernoulli_vae": BernoulliVAE, "categorical_vae": CategoricalVAE}
OBJECTIVES = {"elbo": lambda: weigh, "multisample": lambda: weigh}
OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}
SCHEDULES = {"cosine": optax.cosine_decay_schedule}  # after the warm-up; "constant" is a number where it can be


class EstimatorSpec(NamedTuple):
    """An estimator as written in a config.

    Attributes:
      name: of the registry, or an import path.
      options: of its factory.
    """

    name: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        """As `parse_estimator` reads it."""
        listed = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({listed})" if listed else self.name


def parse_estimator(text: str) -> EstimatorSpec:
    """A name, or a name with options as in Python.

    >>> parse_estimator("vimco(num_samples=10, repeats=2)")
    EstimatorSpec(name='vimco', options={'num_samples': 10, 'repeats': 2})
    """
    name, parenthesis, arguments = str(text).partition("(")
    if not parenthesis:
        return EstimatorSpec(name.strip(), {})
    try:
        call = ast.parse(f"f({arguments}", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError
        options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        if len(options) < len(call.keywords):  # **options, or an option given twice
            raise ValueError
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):  # the first two are the parser's stack
        shown = repr(text) if len(text) < 200 else f"{text[:200]!r}…"
        raise ValueError(f"cannot read the estimator {shown}; accepted: 'name' or 'name(option=value, …)'") from None
    return EstimatorSpec(name.strip(), options)


def registry_for(latents: Sequence[Any]) -> Registry:
    """The factories of estimators for bits, or for classes."""
    return CLASSES if has_classes(latents) else BITS


def size_option(name: str, latents: Sequence[Any] = ()) -> str:
    """The option that says how many samples the bound of a multi-sample estimator has."""
    return "num_pairs" if "num_pairs" in registry_for(latents).defaults(name) else "num_samples"


def num_bound_samples(name: str, options: Mapping[str, Any], latents: Sequence[Any]) -> int:
    """How many samples an estimator of a bound draws: those at which f is evaluated and that count for the value."""
    est = registry_for(latents).make(name, **options)
    sampling = est.base if isinstance(est, Controlled) else est
    evaluations = info_of(sampling).evaluations
    assert isinstance(evaluations, int)  # as for every estimator of a bound
    return evaluations


def default_option(name: str, option: str, latents: Sequence[Any] = ()) -> Any:
    """The default of an estimator's option; None for a custom estimator, or one without such an option."""
    registry = registry_for(latents)
    return registry.defaults(name).get(option) if name in registry.names() else None


def estimator_builder(spec: EstimatorSpec, latents: Sequence[Any], relax_form: str) -> Callable[[Any], dj.Estimator]:
    """A function from the images x `[B, pixels]` of a step to the estimator.

    Only the network of RELAX looks at them, as it does in the released code of the paper; its estimator is made inside
    the step. All others are made here, once.

    Args:
      spec: what to make.
      latents: of the model; more than one layer takes the hierarchical form.
      relax_form: of RELAX's control variate, one of `fields.RELAX_FORMS`.

    Raises:
      TypeError, ValueError: from the factory, naming what it does not accept.
    """
    if is_import_path(spec.name):
        est = imported(spec.name)(**spec.options)
        if not isinstance(est, dj.Estimator):
            raise ValueError(f"{spec.name!r} must return a disarm_jax.Estimator, got {type(est).__name__}")
        return lambda x: est

    def make(**options: Any) -> dj.Estimator:
        maker = registry_for(latents).make if len(latents) == 1 else dj.hierarchical
        return maker(spec.name, **spec.options, **options)

    est = make()
    if spec.name != "relax" or relax_form == "z":
        return lambda x: est
    hidden = spec.options.get("hidden", default_option("relax", "hidden"))
    if relax_form == "image":
        return lambda x: make(control_variate=conditional_network(hidden, x))
    if len(latents) == 1:
        return lambda x: make(control_variate=conditional_network(hidden, x), scaled_network=True)
    released = make(
        control_variate=functools.partial(conditional_network, hidden), scaled_network=True, shared_tunables=True
    )
    return lambda x: released


def conditional_network(hidden: int, x: jax.Array) -> tuple[Callable, Callable]:
    """RELAX's network of [x, z] as the pair `(init, apply)` that it takes.

    One hidden layer as in `relax`; what x adds to it is computed once for z and z̃.
    """
    init_inner, apply_inner = network_of(hidden, None)

    def init(key: jax.Array, logits: jax.Array) -> dict:
        widened = jnp.zeros((*logits.shape[:-1], logits.shape[-1] + x.shape[-1]), logits.dtype)
        params = init_inner(key, widened)
        z_kernel, x_kernel = jnp.split(params["hidden"]["kernel"], [logits.shape[-1]])
        return {"z": params | {"hidden": params["hidden"] | {"kernel": z_kernel}}, "x": x_kernel}

    def apply(params: dict, z: jax.Array) -> jax.Array:
        inner = params["z"]
        bias = bernoulli.lift(inner["hidden"]["bias"], x.ndim) + x @ params["x"]
        return apply_inner(inner | {"hidden": inner["hidden"] | {"bias": bias}}, z)

    return init, apply


def make_model(config: Mapping[str, Any], pixels: int, train_mean: np.ndarray) -> Any:
    """The model of a config's `model` section.

    A custom one is a Flax module with the fields and methods of `BernoulliVAE`, and whatever `model.options` holds.

    Args:
      config: the section.
      pixels: of an image.
      train_mean: `[pixels]`, mean of the training images, in [0, 1].
    """
    return part(config["name"], MODELS)(
        latents=tuple(tuple(layer) if isinstance(layer, Sequence) else layer for layer in config["latents"]),
        pixels=pixels,
        hidden=tuple(config["hidden"]),
        negative_slope=config["negative_slope"],
        kernel_init=config["kernel_init"],
        input_mean=train_mean if config["center_input"] else None,
        output_mean=train_mean if config["output_bias_from_mean"] else None,
        signed_input=config["signed_input"],
        **config["options"],
    )


def make_objective(config: Mapping[str, Any], model: Any) -> Objective:
    """The objective of a config's `objective` section.

    The f of the ELBO and of multi-sample bounds is log w. A custom objective is a function of its options that returns
    another one, `(model, params, x, layers, first_logits, *, stop_q) -> f`, with the arguments of
    `objectives.log_weights`. Its f takes samples `[..., B, D]` of the latent variables, or a tuple of these for
    several layers, to values `[..., B]`.
    """
    made = part(config["name"], OBJECTIVES)(**config["options"])
    shared = config["generative_samples"] == "shared"
    return Objective(model, config["num_samples"], config["stop_q"], shared, made)


def make_optimizer(config: Mapping[str, Any]) -> optax.GradientTransformation:
    """The optimiser of one section of a config's `optimizer`.

    A custom one is called with the learning rate, a number or a function of the step, and `options`, as optax's are.
    """
    of_adam = {name: config[name] for name in ("b1", "b2", "eps")} if config["name"] == "adam" else {}
    optimizer = part(config["name"], OPTIMIZERS)(schedule_of(config), **of_adam, **config["options"])
    return optimizer if config["clip"] is None else optax.chain(optax.clip_by_global_norm(config["clip"]), optimizer)


def schedule_of(config: Mapping[str, Any]) -> Any:
    """The learning rate of a section of a config's `optimizer`: a number, or a function of the steps made before.

    A custom schedule is called with the learning rate and the number of steps after the warm-up, as optax's are.

    >>> section = {"learning_rate": 1.0, "schedule": "cosine", "warmup_steps": 10, "decay_steps": 30}
    >>> [round(float(schedule_of(section)(step)), 2) for step in (0, 5, 10, 20, 30)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rate, warmup, name = config["learning_rate"], config["warmup_steps"], config["schedule"]
    if name == "constant" and not warmup:
        return rate
    if name == "constant":
        after = optax.constant_schedule(rate)
    else:
        after = part(name, SCHEDULES)(rate, config["decay_steps"] - warmup)
    return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), after], [warmup]) if warmup else after


def load_dataset(config: Mapping[str, Any], progress: Progress = no_progress) -> data.Dataset:
    """The images of a config's `dataset` section, drawn once if its binarisation is static.

    A custom data set is a function without arguments that returns a `Dataset`, or a dict of uint8 arrays `[N, D]` or
    `[N, H, W]` by split.
    """
    if is_import_path(config["name"]):
        dataset = _custom_dataset(config["name"], imported(config["name"])())
    else:
        options = {name: config[name] for name in ("source", "data_dir", "path")}
        dataset = data.load(config["name"], **options, progress=progress)
    return data.binarize_once(dataset, config["static_seed"]) if config["binarization"] == "static" else dataset


def _custom_dataset(path: str, found: Any) -> data.Dataset:
    if isinstance(found, data.Dataset):
        return found
    if not (isinstance(found, Mapping) and set(found) == set(SPLITS)):
        raise data.DataError(f"{path!r} must return a Dataset or a dict with the keys {', '.join(SPLITS)}")
    flat, image_shape = flatten({split: np.asarray(found[split]) for split in SPLITS}, path)
    provenance = Provenance(path, "import", path, "order of the arrays returned", sha256_of_arrays(flat))
    return data.Dataset(**flat, image_shape=image_shape, provenance=provenance)
