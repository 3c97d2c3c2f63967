"""Checks a config before any work starts, and fills in the defaults that depend on other fields.

Every error names the field, its value and what is accepted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from ml_collections import ConfigDict

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.data.binarization import MODES
from disarm_jax.experiment import choices
from disarm_jax.models import KERNEL_INITS

# Fields that may change when a run is continued: they say how long it is, what is written when, and where the images
# are (which must be the same), not what is learnt.
CADENCE = ("steps", "log_every", "eval", "checkpoint")
PLACES = ("dataset.source", "dataset.data_dir")


class ConfigError(ValueError):
    """A config that states no experiment; its message names the field, the value and what is accepted."""


def resolve(config: Mapping[str, Any] | ConfigDict) -> dict[str, Any]:
    """A config as plain nested dicts, every field checked and every dependent default filled in.

    Args:
      config: with the fields of `configs/base.py`.

    Raises:
      ConfigError: for the first field that is wrong.
    """
    resolved = plain(config)
    _check_section(resolved)
    _check_together(resolved)
    _resolve_objective(resolved)
    _resolve_estimators(resolved)
    _resolve_rest(resolved)
    return resolved


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


def changeable(field: str) -> bool:
    """Whether a field, by its dotted name, may change when a run is continued.

    >>> changeable("eval.train_every"), changeable("estimator.name")
    (True, False)
    """
    return field.split(".")[0] in CADENCE or field in PLACES


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields that may not change in which two resolved configs differ, one line each."""
    before, after = dict(flat(old)), dict(flat(new))
    return [
        f"{field}: {before.get(field)!r} in the run directory, {after.get(field)!r} now"
        for field in sorted(before.keys() | after.keys())
        if not changeable(field) and before.get(field) != after.get(field)
    ]


def check_measured(texts: Any, config: Mapping[str, Any], field: str) -> list[str]:
    """Estimators to measure, as written in `variance.estimators`, each in the one way in which it is printed.

    Args:
      texts: a list of them.
      config: whose objective and model they are for; resolved, at least in these.
      field: where they are written, for errors.

    Raises:
      ConfigError: if one of them is unknown or does not fit the config's objective and model.
    """
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(field, texts, "names of estimators, such as ('arm', 'disarm')")
    labels = []
    for number, text in enumerate(texts):
        place = f"{field}[{number}]"
        try:
            spec = choices.parse_estimator(text)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from error
        if not _ESTIMATOR.good(spec.name):
            _refuse(place, spec.name, _ESTIMATOR.accepted)
        labels.append(str(_checked_estimator(place, spec, config)))
    if len(set(labels)) < len(labels):
        _refuse(field, labels, "different estimators")
    return labels


class _Rule(NamedTuple):
    good: Callable[[Any], bool]
    accepted: str


def _one_of(*words: str) -> _Rule:
    return _Rule(lambda value: isinstance(value, str) and value in words, ", ".join(words))


def _named(*names: str) -> _Rule:
    """Names, or import paths, which are tried when all fields have the right form."""
    rule = _one_of(*names)
    good = lambda value: isinstance(value, str) and (choices.is_import_path(value) or rule.good(value))
    return _Rule(good, f"{rule.accepted}, or an import path 'module:name'")


def _integer(least: int, most: int = 2**31 - 1) -> _Rule:
    good = lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return _Rule(good, f"an integer from {least} to {most}")


def _real(good: Callable[[float], bool], accepted: str) -> _Rule:
    is_real = lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return _Rule(lambda value: is_real(value) and good(value), accepted)


def _several(item: _Rule, least: int, accepted: str) -> _Rule:
    good = lambda value: isinstance(value, list) and len(value) >= least and all(map(item.good, value))
    return _Rule(good, accepted)


def _optional(rule: _Rule) -> _Rule:
    return _Rule(lambda value: value is None or rule.good(value), f"{rule.accepted}, or None")


_COUNT, _SEED = _integer(1), _integer(0, 2**32 - 1)
_FLAG = _Rule(lambda value: isinstance(value, bool), "True or False")
_PATH = _Rule(lambda value: isinstance(value, str), "a path")
_OPTIONS = _Rule(lambda value: isinstance(value, dict), "a section of options")
_FROM_ZERO = _real(lambda value: value >= 0, "a number from 0 on")
_FRACTION = _real(lambda value: 0 <= value < 1, "a number from 0 to below 1")
_ESTIMATOR = _named(*sorted({*dj.estimator_names(), *dj.categorical.estimator_names()}))
_PAIR = _Rule(
    lambda value: isinstance(value, list) and len(value) == 2 and _COUNT.good(value[0]) and _integer(2).good(value[1]),
    "",
)
_LATENTS = _Rule(
    lambda value: _several(_COUNT, 1, "").good(value) or _several(_PAIR, 1, "").good(value),
    "one or more positive integers, such as (200,), or a pair of variables and classes, such as ((20, 10),)",
)
_REDUCTION = _one_of("mean", "sum")
_OPTIMIZER = {
    "name": _one_of("adam", "sgd"),
    "learning_rate": _FROM_ZERO,
    "b1": _FRACTION,
    "b2": _FRACTION,
    "eps": _real(lambda value: value > 0, "a positive number"),
}

# The fields of a config, section by section, and what each of them may be whatever the others are.
_FIELDS = {
    "dataset": {
        "name": _named(*data.dataset_names()),
        "source": _Rule(lambda value: isinstance(value, str), "the name of a source"),
        "data_dir": _optional(_PATH),
        "path": _optional(_PATH),
        "binarization": _one_of(*MODES),
        "static_seed": _integer(0),
    },
    "model": {
        "name": _optional(_named(*choices.MODELS)),
        "latents": _LATENTS,
        "hidden": _several(_COUNT, 0, "any number of positive integers, such as (200, 200)"),
        "negative_slope": _FROM_ZERO,
        "kernel_init": _one_of(*KERNEL_INITS),
        "center_input": _FLAG,
        "signed_input": _FLAG,
        "output_bias_from_mean": _FLAG,
        "options": _OPTIONS,
    },
    "objective": {
        "name": _one_of("elbo", "multisample"),
        "num_samples": _optional(_COUNT),
        "stop_q": _optional(_FLAG),
        "generative_samples": _optional(_one_of("shared", "independent")),
    },
    "estimator": {"name": _ESTIMATOR, "options": _OPTIONS, "relax_form": _one_of(*choices.RELAX_FORMS)},
    "optimizer": {
        "encoder": _OPTIMIZER | {"reduction": _REDUCTION},
        "decoder": _OPTIMIZER | {"reduction": _REDUCTION},
        "prior": _OPTIMIZER | {"reduction": _optional(_REDUCTION)},
        "tunables": _OPTIMIZER,
    },
    "steps": _COUNT,
    "batch_size": _COUNT,
    "matmul_precision": _one_of("float32", "tensorfloat32", "bfloat16", "default"),
    "seeds": _several(_SEED, 1, "one or more different integers from 0 to 4294967295, such as (0, 1, 2)"),
    "log_every": _COUNT,
    "eval": {
        "train_every": _COUNT,
        "test_every": _COUNT,
        "train_samples": _optional(_COUNT),
        "test_samples": _optional(_COUNT),
        "batch_size": _COUNT,
    },
    "checkpoint": {"every": _COUNT, "keep": _COUNT},
    "variance": {"decay": _FRACTION, "estimators": _Rule(lambda value: True, "")},  # by check_measured
}


def _refuse(field: str, value: Any, accepted: str) -> NoReturn:
    raise ConfigError(f"{field} is {value!r}; accepted: {accepted}")


def _check_section(section: Any, rules: Mapping[str, Any] = _FIELDS, where: str = "") -> None:
    """Refuses a section that does not have just the fields of the table, and values that break a rule."""
    name, known = where.rstrip(".") or "config", ", ".join(rules)
    if not isinstance(section, dict):
        _refuse(name, section, f"a section with the fields {known}")
    for key in sorted(rules.keys() ^ section.keys()):
        problem = "has no field" if key in rules else "has the unknown field"
        raise ConfigError(f"{name} {problem} {key!r}; accepted: {known}")
    for key, rule in rules.items():
        if not isinstance(rule, _Rule):
            _check_section(section[key], rule, f"{where}{key}.")
        elif not rule.good(section[key]):
            _refuse(f"{where}{key}", section[key], rule.accepted)


def _check_together(config: dict) -> None:
    """Refuses fields that are good alone but not with the others."""
    dataset, model, seeds = config["dataset"], config["model"], config["seeds"]
    if len(set(seeds)) < len(seeds):
        _refuse("seeds", seeds, _FIELDS["seeds"].accepted)
    for section, field in (("checkpoint", "every"), ("eval", "train_every"), ("eval", "test_every")):
        if config[section][field] % config["log_every"]:
            accepted = f"a multiple of log_every, which is {config['log_every']}"
            _refuse(f"{section}.{field}", config[section][field], accepted)
    classes = choices.has_classes(model["latents"])
    if classes and len(model["latents"]) > 1:
        _refuse("model.latents", model["latents"], "one layer of categorical variables, such as ((20, 10),)")
    fitting = "categorical_vae" if classes else "bernoulli_vae"
    if model["name"] is None:
        model["name"] = fitting
    elif model["name"] in choices.MODELS and model["name"] != fitting:
        _refuse("model.name", model["name"], f"{fitting} for model.latents {model['latents']}, or None")
    for section in ("dataset", "model", "estimator"):
        if choices.is_import_path(config[section]["name"]):
            _check_import(f"{section}.name", config[section]["name"])
    if not choices.is_import_path(dataset["name"]) and dataset["source"] not in data.source_names(dataset["name"]):
        accepted = f"{', '.join(data.source_names(dataset['name']))} for {dataset['name']}"
        _refuse("dataset.source", dataset["source"], accepted)
    if dataset["name"] == "npz" and dataset["path"] is None:
        _refuse("dataset.path", None, "the path of an npz file, for the data set npz")
    if model["options"] and not choices.is_import_path(model["name"]):
        _refuse("model.options", model["options"], f"none for {model['name']}; they are for an own model")


def _check_import(field: str, path: str) -> None:
    try:
        choices.imported(path)
    except ValueError as error:
        _refuse(field, path, f"'module:name' of something that can be imported and called; {error}")


def _resolve_objective(config: dict) -> None:
    objective, estimator, latents = config["objective"], config["estimator"], config["model"]["latents"]
    estimator["options"] = {name: value for name, value in estimator["options"].items() if value is not None}
    bound = objective["name"] == "multisample"
    if bound and objective["stop_q"]:
        _refuse("objective.stop_q", True, "False or None: a multi-sample bound keeps the derivative of log q")
    if objective["stop_q"] is None:
        objective["stop_q"] = not bound
    if objective["generative_samples"] is None:
        objective["generative_samples"] = "shared" if bound else "independent"
    if bound and len(latents) > 1:
        _refuse("model.latents", latents, "one layer, for the multisample objective")
    if not bound and objective["num_samples"] not in (None, 1):
        accepted = "1 or None for the elbo; estimator.options.num_pairs or .num_samples average several draws"
        _refuse("objective.num_samples", objective["num_samples"], accepted)
    if not bound:
        objective["num_samples"] = 1
    elif objective["num_samples"] is None and choices.is_import_path(estimator["name"]):
        _refuse("objective.num_samples", None, "K of the bound, which an own estimator does not tell")


def _resolve_estimators(config: dict) -> None:
    estimator, variance = config["estimator"], config["variance"]
    spec = choices.EstimatorSpec(estimator["name"], estimator["options"])
    spec = _checked_estimator("estimator", spec, config)
    estimator["options"] = dict(spec.options)
    if config["objective"]["num_samples"] is None:  # and so the estimator's
        config["objective"]["num_samples"] = spec.options[choices.size_option(spec.name, config["model"]["latents"])]
    variance["estimators"] = check_measured(variance["estimators"], config, "variance.estimators")


def _checked_estimator(field: str, spec: choices.EstimatorSpec, config: Mapping[str, Any]) -> choices.EstimatorSpec:
    """The estimator, by default with the objective's K; refused if it is not for the objective or the model."""
    objective, latents = config["objective"], config["model"]["latents"]
    layers, known = len(latents), choices.estimators_for(latents)
    own, bound = choices.is_import_path(spec.name), objective["name"] == "multisample"
    name_field = "estimator.name" if field == "estimator" else field
    if own:
        _check_import(name_field, spec.name)
    else:
        fitting = [n for n in known.estimator_names() if (known.estimator_info(n).objective == "bound") == bound]
        if spec.name not in fitting:
            where = " and categorical variables" if known is dj.categorical else ""
            _refuse(name_field, spec.name, f"{', '.join(fitting)} for the objective {objective['name']}{where}")
    if layers > 1 and spec.name not in dj.hierarchical_names():
        accepted = f"{', '.join(dj.hierarchical_names())} for a model with {layers} stochastic layers"
        _refuse(name_field, spec.name, accepted)
    if bound and not own:
        option = choices.size_option(spec.name, latents)
        size = objective["num_samples"] or choices.default_option(spec.name, option, latents)
        spec = spec._replace(options={option: size} | dict(spec.options))
        # What is only measured may have another K, as the gradient of another bound.
        if field == "estimator" and objective["num_samples"] not in (None, spec.options[option]):
            _refuse(field, str(spec), f"{option}={size}, which is objective.num_samples, or no {option}")
    try:
        choices.estimator_builder(spec, latents, config["estimator"]["relax_form"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{field} is {str(spec)!r}: {error}") from error
    return spec


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
        train = test = choices.num_bound_samples(name, config["estimator"]["options"], config["model"]["latents"])
    for split, samples in (("train", train), ("test", test)):
        if config["eval"][f"{split}_samples"] is None:
            config["eval"][f"{split}_samples"] = samples
