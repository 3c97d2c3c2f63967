"""Checks a config before any work starts, and fills in the defaults that depend on other fields.

Every error names the field, its value and what is accepted.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.data.binarization import MODES
from disarm_jax.experiment import choices
from disarm_jax.models import KERNEL_INITS

OBJECTIVES = ("elbo", "multisample")
OPTIMIZERS = ("adam", "sgd")
REDUCTIONS = ("mean", "sum")
GENERATIVE_SAMPLES = ("shared", "independent")

# Fields that may change when a run is continued: they say how long it is and what is written when, not what is learnt.
CADENCE = ("steps", "log_every", "eval", "checkpoint")


class ConfigError(ValueError):
    """A config that states no experiment; its message names the field, the value and what is accepted."""


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as plain nested dicts, every field checked and every dependent default filled in.

    Args:
      config: with the fields of `configs/base.py`.

    Raises:
      ConfigError: for the first field that is wrong.
    """
    config = plain(config)
    _check_fields(config)
    _check_numbers(config)
    _check_names(config)
    _check_model(config)
    _resolve_objective(config)
    _resolve_estimators(config)
    _resolve_rest(config)
    return config


def plain(value: Any) -> Any:
    """Nested dicts, tuples as lists and numpy numbers as Python's: what JSON can hold, so that files compare equal."""
    if isinstance(value, Mapping | ConfigDict):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All fields with dotted names."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields, other than those of `CADENCE`, in which two resolved configs differ, one line each."""
    before, after = dict(flat(old)), dict(flat(new))
    return [
        f"{field}: {before.get(field)!r} in the run directory, {after.get(field)!r} now"
        for field in sorted(before.keys() | after.keys())
        if field.split(".")[0] not in CADENCE and before.get(field) != after.get(field)
    ]


def _refuse(field: str, value: Any, accepted: str) -> None:
    raise ConfigError(f"{field} is {value!r}; accepted: {accepted}")


def _check_fields(config: dict) -> None:
    """Refuses configs that do not have just the fields of the base config, except inside `options`."""
    expected = {
        "dataset": ("name", "source", "data_dir", "path", "binarization", "static_seed"),
        "model": (
            *("name", "latents", "hidden", "negative_slope", "kernel_init", "center_input", "signed_input"),
            *("output_bias_from_mean", "options"),
        ),
        "objective": ("name", "num_samples", "stop_q", "generative_samples"),
        "estimator": ("name", "options", "network_sees_image"),
        "optimizer": ("encoder", "decoder", "prior", "tunables"),
        "eval": ("train_every", "test_every", "train_samples", "test_samples", "batch_size"),
        "checkpoint": ("every", "keep"),
        "variance": ("decay", "estimators"),
    }
    _check_keys("config", config, (*expected, "steps", "batch_size", "seeds", "log_every"))
    for section, fields in expected.items():
        _check_keys(section, config[section], fields)
    for group, section in config["optimizer"].items():
        fields = ("name", "learning_rate", "b1", "b2", "eps")
        _check_keys(f"optimizer.{group}", section, fields if group == "tunables" else (*fields, "reduction"))
    for field in ("model.options", "estimator.options"):
        section, name = field.split(".")
        if not isinstance(config[section][name], dict):
            _refuse(field, config[section][name], "a dict of options")


def _check_keys(where: str, section: Any, fields: Sequence[str]) -> None:
    if not isinstance(section, dict):
        _refuse(where, section, f"a section with the fields {', '.join(fields)}")
    for field in sorted(set(fields) ^ set(section)):
        problem = "has no field" if field in fields else "has the unknown field"
        raise ConfigError(f"{where} {problem} {field!r}; accepted: {', '.join(fields)}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_numbers(config: dict) -> None:
    integers = {"steps": 1, "batch_size": 1, "log_every": 1, "checkpoint.every": 1, "checkpoint.keep": 1}
    integers |= {"eval.train_every": 1, "eval.test_every": 1, "eval.batch_size": 1, "dataset.static_seed": 0}
    optional = {"objective.num_samples": 1, "eval.train_samples": 1, "eval.test_samples": 1}
    fields = dict(flat(config))
    for field, minimum in (integers | optional).items():
        value = fields[field]
        if value is None and field in optional:
            continue
        if not (_is_integer(value) and minimum <= value < 2**31):
            _refuse(field, value, f"an integer from {minimum} to 2147483647")
    for field in ("checkpoint.every", "eval.train_every", "eval.test_every"):
        if fields[field] % config["log_every"]:
            _refuse(field, fields[field], f"a multiple of log_every, which is {config['log_every']}")
    positive: tuple[Callable, str] = (lambda value: value > 0, "a positive number")
    fraction: tuple[Callable, str] = (lambda value: 0 <= value < 1, "a number from 0 to below 1")
    reals = {"variance.decay": fraction, "model.negative_slope": (lambda value: value >= 0, "a number from 0 on")}
    for group in config["optimizer"]:
        reals |= {f"optimizer.{group}.{name}": fraction for name in ("b1", "b2")}
        reals |= {f"optimizer.{group}.eps": positive}
        reals |= {f"optimizer.{group}.learning_rate": (lambda value: value >= 0, "a number from 0 on")}
    for field, (good, accepted) in reals.items():
        if not (_is_real(fields[field]) and good(fields[field])):
            _refuse(field, fields[field], accepted)
    seeds = config["seeds"]
    listed = isinstance(seeds, list) and seeds and all(_is_integer(seed) and 0 <= seed < 2**32 for seed in seeds)
    if not listed or len(set(seeds)) < len(seeds):
        _refuse("seeds", seeds, "one or more different integers from 0 to 4294967295, such as (0, 1, 2)")


def _check_names(config: dict) -> None:
    fields = dict(flat(config))
    accepted = {
        "objective.name": OBJECTIVES,
        "objective.generative_samples": GENERATIVE_SAMPLES,
        "dataset.binarization": MODES,
        "model.kernel_init": KERNEL_INITS,
    }
    accepted |= {f"optimizer.{group}.name": OPTIMIZERS for group in config["optimizer"]}
    accepted |= {f"optimizer.{group}.reduction": REDUCTIONS for group in ("encoder", "decoder")}
    accepted["optimizer.prior.reduction"] = (*REDUCTIONS, None)
    for field, known in accepted.items():
        if fields[field] not in known:
            _refuse(field, fields[field], ", ".join(map(str, known)))
    flags = ("model.center_input", "model.signed_input", "model.output_bias_from_mean", "estimator.network_sees_image")
    for field in flags:
        if not isinstance(fields[field], bool):
            _refuse(field, fields[field], "True or False")
    if fields["objective.stop_q"] not in (True, False, None):
        _refuse("objective.stop_q", fields["objective.stop_q"], "True, False or None")
    for field in ("dataset.data_dir", "dataset.path"):
        if not isinstance(fields[field], str | None):
            _refuse(field, fields[field], "a path or None")
    known_paths = {"dataset.name": data.dataset_names(), "model.name": tuple(choices.MODELS)}
    for field, known in (known_paths | {"estimator.name": dj.estimator_names()}).items():
        _check_name(field, fields[field], known)
    name, source = fields["dataset.name"], fields["dataset.source"]
    if not choices.is_import_path(name) and source not in data.source_names(name):
        _refuse("dataset.source", source, f"{', '.join(data.source_names(name))} for {name}")
    if name == "npz" and fields["dataset.path"] is None:
        _refuse("dataset.path", None, "the path of an npz file, for the data set npz")


def _check_name(field: str, name: Any, known: Sequence[str]) -> None:
    """Refuses a name that is neither known nor an import path to something callable."""
    if not isinstance(name, str) or (not choices.is_import_path(name) and name not in known):
        _refuse(field, name, f"{', '.join(known)}, or an import path 'module:name'")
    if choices.is_import_path(name):
        try:
            choices.imported(name)
        except ValueError as error:
            raise ConfigError(f"{field}: {error}") from error


def _check_model(config: dict) -> None:
    for field, least in (("latents", 1), ("hidden", 0)):
        sizes = config["model"][field]
        good = isinstance(sizes, list) and all(_is_integer(size) and size > 0 for size in sizes)
        if not good or len(sizes) < least:
            _refuse(f"model.{field}", sizes, f"{'one or more' if least else 'any number of'} positive integers: (200,)")


def _resolve_objective(config: dict) -> None:
    objective, estimator = config["objective"], config["estimator"]
    options = {name: value for name, value in estimator["options"].items() if value is not None}
    estimator["options"] = options
    bound = objective["name"] == "multisample"
    if bound and objective["stop_q"]:
        _refuse("objective.stop_q", True, "False or None: a multi-sample bound keeps the derivative of log q")
    if objective["stop_q"] is None:
        objective["stop_q"] = not bound
    own = choices.is_import_path(estimator["name"])
    if not bound:
        if objective["num_samples"] not in (None, 1):
            _refuse("objective.num_samples", objective["num_samples"], "1 or None for the ELBO; estimator.options.num_pairs or .num_samples average several draws")
        objective["num_samples"] = 1
        return
    if len(config["model"]["latents"]) > 1:
        _refuse("model.latents", config["model"]["latents"], "one layer, for the multisample objective")
    if own:
        if objective["num_samples"] is None:
            _refuse("objective.num_samples", None, "K of the bound, which an own estimator does not tell")
        return
    _check_kind("estimator.name", estimator["name"], config)
    option = choices.size_option(estimator["name"])
    if objective["num_samples"] is None:
        objective["num_samples"] = options.get(option, choices.default_option(estimator["name"], option))
    if options.setdefault(option, objective["num_samples"]) != objective["num_samples"]:
        _refuse(f"estimator.options.{option}", options[option], f"objective.num_samples, which is {objective['num_samples']}, or None")


def _check_kind(field: str, name: str, config: dict) -> None:
    """Refuses an estimator that is not for the objective or has no form for the model's layers."""
    bound = config["objective"]["name"] == "multisample"
    layers = len(config["model"]["latents"])
    accepted = [n for n in dj.estimator_names() if (dj.estimator_info(n).objective == "bound") == bound]
    if name not in accepted:
        _refuse(field, name, f"{', '.join(accepted)} for the objective {config['objective']['name']}")
    if layers > 1 and name not in dj.hierarchical_names():
        _refuse(field, name, f"{', '.join(dj.hierarchical_names())} for a model with {layers} stochastic layers")


def _resolve_estimators(config: dict) -> None:
    estimator, measured = config["estimator"], config["variance"]["estimators"]
    _check_estimator("estimator", choices.EstimatorSpec(estimator["name"], estimator["options"]), config)
    if not isinstance(measured, list) or not all(isinstance(text, str) for text in measured):
        _refuse("variance.estimators", measured, "names of estimators, such as ('arm', 'disarm')")
    for number, text in enumerate(measured):
        field = f"variance.estimators[{number}]"
        try:
            spec = choices.parse_estimator(text)
        except ValueError as error:
            raise ConfigError(f"{field}: {error}") from error
        _check_name(field, spec.name, dj.estimator_names())
        _check_estimator(field, spec, config)
        measured[number] = str(spec)
    if len(set(measured)) < len(measured):
        _refuse("variance.estimators", measured, "different estimators")


def _check_estimator(field: str, spec: choices.EstimatorSpec, config: dict) -> None:
    layers = len(config["model"]["latents"])
    if choices.is_import_path(spec.name):
        if layers > 1:
            _refuse(f"{field} name", spec.name, f"{', '.join(dj.hierarchical_names())} for a model with {layers} layers")
    else:
        _check_kind(f"{field}.name" if field == "estimator" else field, spec.name, config)
    try:
        choices.estimator_builder(spec, layers, config["estimator"]["network_sees_image"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{field} {spec}: {error}") from error


def _resolve_rest(config: dict) -> None:
    bound, name = config["objective"]["name"] == "multisample", config["estimator"]["name"]
    prior = config["optimizer"]["prior"]
    if prior["reduction"] is None:
        prior["reduction"] = "sum" if bound or name == "relax" else "mean"
    if not bound:
        train, test = 1, 100
    elif choices.is_import_path(name):
        train = test = config["objective"]["num_samples"]
    else:
        train = test = dj.estimator_info(name, **config["estimator"]["options"]).evaluations
    for split, samples in (("train", train), ("test", test)):
        if config["eval"][f"{split}_samples"] is None:
            config["eval"][f"{split}_samples"] = samples
