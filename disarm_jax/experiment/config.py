"""Resolves a config: checks it before any work starts, and fills in the defaults that depend on other fields.

Every error names the field, its value and what is accepted. Configs that older code has written are brought up to date
when they are read: a config in a file has a `version`; one without it is of version 1. A field that was added later
gets the value that was in force when the file was written, so that a run stays comparable and can be continued whatever
fields are added. To add or rename a field, append a function to `MIGRATIONS`.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

import disarm_jax as dj
from disarm_jax import data
from disarm_jax.experiment.build import (
    EstimatorSpec,
    default_option,
    estimator_builder,
    num_bound_samples,
    parse_estimator,
    registry_for,
    size_option,
)
from disarm_jax.experiment.fields import (
    FIELDS,
    Config,
    ConfigError,
    check_form,
    flat,
    has_classes,
    imported,
    is_import_path,
    plain,
    refuse,
    rule_of,
)
from disarm_jax.experiment.grid import canonical

# Fields that may change when a run is continued: they say how long it is, what is written when and where to, and where
# the images are (which must be the same), not what is learnt.
CADENCE = ("steps", "log_every", "eval", "checkpoint", "writers")
PLACES = ("dataset.source", "dataset.data_dir")


def resolve(config: Mapping[str, Any] | ConfigDict) -> Config:
    """A config that cannot change, every field checked and every dependent default filled in.

    Args:
      config: with the fields of `fields.FIELDS`; what this function has returned is returned as it is.

    Raises:
      ConfigError: for the first field that is wrong.
    """
    if isinstance(config, Config):
        return config
    resolved = plain(config)
    check_form(resolved)
    _check_together(resolved)
    _resolve_objective(resolved)
    _resolve_estimators(resolved)
    _resolve_rest(resolved)
    resolved["grid"] = canonical(resolved["grid"])
    return Config(resolved)


def imports_of(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields of a config in which custom parts are named, to be imported, and their names."""
    named = []
    for field, value in flat(config):
        if field == "variance.estimators":
            named += [(field, text.partition("(")[0]) for text in value]
        elif field == "writers" or field.rpartition(".")[2] in ("name", "schedule"):
            named += [(field, name) for name in (value if isinstance(value, list) else [value])]
    return [(field, name) for field, name in named if is_import_path(name)]


def refuse_imports(config: Mapping[str, Any], file: Any, unused: Sequence[str] = ()) -> None:
    """Refuses a config from a file that names custom parts, which would be imported and called.

    Args:
      config: with the form of a config.
      file: that it is from, for errors.
      unused: fields whose parts are not going to be imported.

    Raises:
      ConfigError: which names the first of them and what allows it.
    """
    for field, name in imports_of(config):
        if field in unused:
            continue
        allow = "to import it, if you trust the directory, add --allow_imports (in Python: allow_imports=True)"
        raise ConfigError(f"{file}: {field} is {name!r}, code that the directory does not hold; {allow}")


def check_to_read(config: Config) -> None:
    """Checks a config from a run directory as for training, but for what reading a run does not need.

    Raises:
      ConfigError: for the first field that is wrong.
    """
    needed = plain(config) | {"writers": []}
    if is_import_path(config.dataset.name):
        needed["dataset"] |= {"name": "npz", "source": "auto", "path": ""}
    resolve(needed)


def is_bound(config: Mapping[str, Any]) -> bool:
    """Whether the objective is a bound of K samples: multisample, or a custom one with several samples."""
    objective = config["objective"]
    return objective["name"] == "multisample" or (
        is_import_path(objective["name"]) and (objective["num_samples"] or 1) > 1
    )


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


def digest(config: Mapping[str, Any]) -> str:
    """A short name for what a resolved config learns; fields added later do not change it while they have no effect."""
    learnt = {field: value for field, value in flat(config) if not changeable(field)}
    learnt = {field: value for field, value in learnt.items() if ADDED.get(field, ()) != value}
    return hashlib.sha256(json.dumps(learnt, sort_keys=True).encode()).hexdigest()[:8]


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
        refuse(field, texts, "names of estimators, such as ('arm', 'disarm')")
    labels = []
    for number, text in enumerate(texts):
        place = f"{field}[{number}]"
        try:
            spec = parse_estimator(text)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from error
        labels.append(str(_checked_estimator(place, spec, config)))
    if len(set(labels)) < len(labels):
        refuse(field, labels, "different estimators")
    return labels


def _check_together(config: dict) -> None:
    """Refuses fields that are good alone but not with the others."""
    dataset, model, seeds = config["dataset"], config["model"], config["seeds"]
    if len(set(seeds)) < len(seeds):
        refuse("seeds", seeds, rule_of("seeds").accepted)
    for section, field in (("checkpoint", "every"), ("eval", "train_every"), ("eval", "test_every")):
        if (config[section][field] or 0) % config["log_every"]:
            accepted = f"a multiple of log_every, which is {config['log_every']}"
            refuse(f"{section}.{field}", config[section][field], accepted)
    classes = has_classes(model["latents"])
    if classes and len(model["latents"]) > 1:
        refuse("model.latents", model["latents"], "one layer of categorical variables, such as ((20, 10),)")
    fitting = "categorical_vae" if classes else "bernoulli_vae"
    if model["name"] is None:
        model["name"] = fitting
    elif not is_import_path(model["name"]) and model["name"] != fitting:
        refuse("model.name", model["name"], f"{fitting} for model.latents {model['latents']}, or None")
    for section in ("dataset", "model", "estimator", "objective"):
        _check_import(f"{section}.name", config[section]["name"])
    for group in FIELDS["optimizer"]:
        _check_optimizer(f"optimizer.{group}", config["optimizer"][group], config["steps"])
    for number, name in enumerate(config["writers"]):
        _check_import(f"writers[{number}]", name)
    if not is_import_path(dataset["name"]) and dataset["source"] not in data.source_names(dataset["name"]):
        sources = data.source_names(dataset["name"])
        refuse("dataset.source", dataset["source"], f"{', '.join(sources)} for {dataset['name']}", sources)
    if dataset["name"] == "npz" and dataset["path"] is None:
        refuse("dataset.path", None, "the path of an npz file, for the data set npz")
    for section in ("model", "objective"):
        if config[section]["options"] and not is_import_path(config[section]["name"]):
            accepted = f"none for {config[section]['name']}; they are for a custom {section}"
            refuse(f"{section}.options", config[section]["options"], accepted)


def _check_import(field: str, path: str) -> None:
    if is_import_path(path):
        try:
            imported(path)
        except ValueError as error:
            refuse(field, path, f"'module:name' of something that can be imported and called; {error}")


def _check_optimizer(where: str, section: dict, steps: int) -> None:
    for field in ("name", "schedule"):
        _check_import(f"{where}.{field}", section[field])
    if section["options"] and not is_import_path(section["name"]):
        refuse(f"{where}.options", section["options"], f"none for {section['name']}; they are for a custom optimiser")
    if section["schedule"] == "constant":
        if section["decay_steps"] is not None:
            refuse(f"{where}.decay_steps", section["decay_steps"], "None for a constant schedule")
    elif section["decay_steps"] is None:
        section["decay_steps"] = steps  # a longer run has another schedule, so it is another run
    if section["decay_steps"] is not None and section["decay_steps"] <= section["warmup_steps"]:
        refuse(f"{where}.decay_steps", section["decay_steps"], f"more than warmup_steps, {section['warmup_steps']}")


def _resolve_objective(config: dict) -> None:
    objective, estimator, latents = config["objective"], config["estimator"], config["model"]["latents"]
    estimator["options"] = {name: value for name, value in estimator["options"].items() if value is not None}
    bound = is_bound(config)
    if bound and objective["stop_q"]:
        refuse("objective.stop_q", True, "False or None: a multi-sample bound keeps the derivative of log q")
    if objective["stop_q"] is None:
        objective["stop_q"] = not bound
    if objective["generative_samples"] is None:
        objective["generative_samples"] = "shared" if bound else "independent"
    if bound and len(latents) > 1:
        refuse("model.latents", latents, "one layer, for the multisample objective")
    if not bound and objective["num_samples"] not in (None, 1):
        accepted = "1 or None for the elbo; estimator.options.num_pairs or .num_samples average several draws"
        refuse("objective.num_samples", objective["num_samples"], accepted)
    if not bound:
        objective["num_samples"] = 1
    elif objective["num_samples"] is None and is_import_path(estimator["name"]):
        refuse("objective.num_samples", None, "K of the bound, which a custom estimator does not tell")


def _resolve_estimators(config: dict) -> None:
    estimator, variance = config["estimator"], config["variance"]
    spec = EstimatorSpec(estimator["name"], estimator["options"])
    spec = _checked_estimator("estimator", spec, config)
    estimator["options"] = dict(spec.options)
    if config["objective"]["num_samples"] is None:  # and so the estimator's
        config["objective"]["num_samples"] = spec.options[size_option(spec.name, config["model"]["latents"])]
    variance["estimators"] = check_measured(variance["estimators"], config, "variance.estimators")


def _checked_estimator(field: str, spec: EstimatorSpec, config: Mapping[str, Any]) -> EstimatorSpec:
    """The estimator, by default with the objective's K; refused if it is not for the objective or the model."""
    objective, latents = config["objective"], config["model"]["latents"]
    layers, known = len(latents), registry_for(latents)
    custom, bound = is_import_path(spec.name), is_bound(config)
    name_field = "estimator.name" if field == "estimator" else field
    fitting, where = list(dj.hierarchical_names()), f"a model with {layers} stochastic layers"
    if layers == 1:
        fitting = [n for n in known.names() if (known.info(n).objective == "bound") == bound]
        where = f"the objective {objective['name']}{' and categorical variables' if has_classes(latents) else ''}"
    _check_import(name_field, spec.name)
    if spec.name not in fitting and not (custom and layers == 1):
        refuse(name_field, spec.name, f"{', '.join(fitting)} for {where}", fitting)
    if bound and not custom:
        option = size_option(spec.name, latents)
        size = objective["num_samples"] or default_option(spec.name, option, latents)
        spec = spec._replace(options={option: size} | dict(spec.options))
        # What is only measured may have another K, as the gradient of another bound.
        if field == "estimator" and objective["num_samples"] not in (None, spec.options[option]):
            refuse(field, str(spec), f"{option}={size}, which is objective.num_samples, or no {option}")
    try:
        estimator_builder(spec, latents, config["estimator"]["relax_form"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{field} is {str(spec)!r}: {error}") from error
    return spec


def _resolve_rest(config: dict) -> None:
    bound, name = is_bound(config), config["estimator"]["name"]
    prior = config["optimizer"]["prior"]
    if prior["reduction"] is None:
        prior["reduction"] = "sum" if bound or name == "relax" else "mean"
    if not bound:
        train, test = 1, 100
    elif is_import_path(name):
        train = test = config["objective"]["num_samples"]
    else:
        train = test = num_bound_samples(name, config["estimator"]["options"], config["model"]["latents"])
    for split, samples in (("train", train), ("test", test)):
        if config["eval"][f"{split}_samples"] is None:
            config["eval"][f"{split}_samples"] = samples


# Fields of later versions with the values that were in force before them, with which they have no effect.
ADDED: dict[str, Any] = {
    "objective.options": {},
    "writers": ["tensorboard"],
    "checkpoint.minutes": None,
    "unroll": 1,
    "grid": "",
}
_OF_OPTIMIZERS = {"schedule": "constant", "warmup_steps": 0, "decay_steps": None, "clip": None, "options": {}}
ADDED |= {f"optimizer.{group}.{name}": value for group in FIELDS["optimizer"] for name, value in _OF_OPTIMIZERS.items()}


def _from_1(config: dict[str, Any], platform: Callable[[], str]) -> None:
    if "matmul_precision" not in config:  # JAX's default was in force, which is full float32 on a CPU only
        config["matmul_precision"] = "float32" if platform() == "cpu" else "default"
    estimator = config.get("estimator")
    if isinstance(estimator, dict) and "network_sees_image" in estimator:
        sees_image = estimator.pop("network_sees_image")
        names = [estimator.get("name"), *config.get("variance", {}).get("estimators", [])]
        relax_is_used = any(str(name).partition("(")[0] == "relax" for name in names)
        # Without RELAX the field has no effect, so it gets the value that a config of today has.
        estimator["relax_form"] = ("image" if sees_image else "z") if relax_is_used else "released"


def _from_2(config: dict[str, Any], platform: Callable[[], str]) -> None:
    def learns_its_scale(name: Any, options: Any) -> bool:  # the option was a number then, 1 by default
        return str(name) == "disarm_midpoint" and isinstance(options, dict) and "init_scale" not in options

    estimator, variance = config.get("estimator"), config.get("variance")
    if isinstance(estimator, dict) and learns_its_scale(estimator.get("name"), estimator.get("options")):
        estimator["options"]["init_scale"] = 1.0
    if isinstance(variance, dict) and isinstance(variance.get("estimators"), list | tuple):
        variance["estimators"] = [_with_scale(text) for text in variance["estimators"]]


def _with_scale(text: Any) -> Any:
    """An estimator in words, with the default that the scale of a midpoint had."""
    name, parenthesis, rest = str(text).partition("(")
    if name.strip() != "disarm_midpoint" or "init_scale" in rest:
        return text
    return f"{name}(init_scale=1.0, {rest}" if parenthesis else f"{name}(init_scale=1.0)"


def _add_fields(config: dict[str, Any], platform: Callable[[], str]) -> None:
    for field, value in ADDED.items():
        *sections, name = field.split(".")
        section: Any = config
        for key in sections:
            section = section.get(key, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict):
            section.setdefault(name, copy.deepcopy(value))


# The function at place n changes a config of version n + 1, in place, into one of version n + 2.
_Migration = Callable[[dict[str, Any], Callable[[], str]], None]
MIGRATIONS: tuple[_Migration, ...] = (_from_1, _from_2, _add_fields, _add_fields)


def version() -> int:
    """The version of the configs that this code writes."""
    return len(MIGRATIONS) + 1


def versioned(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config as it is written to a file, with its version."""
    return {"version": version(), **plain(config)}


def migrated(saved: Mapping[str, Any], platform: Callable[[], str]) -> Config:
    """A config from a file with the fields of today, without its version.

    Args:
      saved: the contents of the file, which are left as they are.
      platform: returns the platform that the run was made on, such as "cpu"; called only if a field depends on it.

    Raises:
      ConfigError: if newer code has written it.
      TypeError: if it is no config at all.
    """
    if not isinstance(saved, Mapping):
        raise TypeError(f"it holds a {type(saved).__name__}, not a config")
    config = copy.deepcopy(dict(saved))
    found = config.pop("version", 1)
    if found not in range(1, version() + 1):
        raise ConfigError(f"version is {found!r}; accepted: 1 to {version()}; newer code may have written it")
    for migrate in MIGRATIONS[found - 1 :]:
        migrate(config, platform)
    return Config(config)
