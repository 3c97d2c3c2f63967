"""The trials that a config file states, each with a name and a resolved config, all of them checked."""

import copy
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from disarm_jax.command_line import one_line
from disarm_jax.experiment.config import imports_of, resolve
from disarm_jax.experiment.fields import Config, ConfigError, flat, plain
from disarm_jax.sweep import hyper

MAX_NAME = 180  # of the 255 bytes that a file system allows; a log file adds a few


class SweepError(ValueError):
    """A sweep that cannot be launched; its message is one line that says why."""


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      name: of its run directory.
      fields: what it sets, by dotted name.
      config: resolved.
    """

    name: str
    fields: dict[str, Any]
    config: Config


def read_points(config_file: str | os.PathLike) -> hyper.Trials:
    """What `get_hyper` of a config file returns.

    Raises:
      SweepError: if there is none, or it states no sweep.
    """
    file = str(config_file).partition(":")[0]  # what is behind it is for get_config
    spec = importlib.util.spec_from_file_location("sweep_config", file)
    if spec is None or spec.loader is None:
        raise SweepError(f"{config_file} is no Python file, whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "get_hyper", None)):
        raise SweepError(f"{config_file} states no sweep: it has no function get_hyper(hyper)")
    try:
        points = module.get_hyper(hyper)
    except Exception as error:  # the file is not ours
        raise SweepError(f"get_hyper of {config_file}: {one_line(error)}") from error
    if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
        raise SweepError(f"get_hyper of {config_file} must return a list of dicts, such as hyper.sweep makes")
    if not points or points == [{}]:
        raise SweepError(f"the sweep of {config_file} is empty: a product with a sweep over no values has no trials")
    return [{str(field).removeprefix("config."): _plain(value) for field, value in point.items()} for point in points]


def _plain(value: Any) -> Any:
    """Without numpy's numbers, which a sweep over np.arange has."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def make_trials(config: ConfigDict, points: hyper.Trials, overrides: Mapping[str, Any]) -> list[Trial]:
    """The trials of a sweep, in its order.

    Args:
      config: of the file, with the overrides applied.
      points: what each trial sets.
      overrides: what the command line sets for all of them.

    Raises:
      SweepError: for an unknown field, a value that no config takes, trials that are the same.
    """
    known = dict(flat(plain(config)))
    for point in points:
        for field, value in point.items():
            if field not in known:
                raise SweepError(f"the sweep sets {field!r}, but the config has no such field; see configs/base.py")
            if field in overrides:
                raise SweepError(f"--config.{field} is swept, so it cannot be set for all trials; see --only")
            if (value is None and known[field] is not None) or not _writable(value):
                accepted = "numbers, strings, True, False and tuples of them"
                raise SweepError(f"the sweep sets {field} to {value!r}; accepted: {accepted}")
    trials, seen = [], {}
    for name, point in zip(trial_names(points), points, strict=True):
        resolved = _resolved(config, point, name)
        other = seen.setdefault(json.dumps(plain(resolved), sort_keys=True), name)
        if other != name or name in [trial.name for trial in trials]:
            sets = ", ".join(f"{field}={value}" for field, value in point.items()) or "nothing"
            raise SweepError(f"the sweep has the same trial twice: {other} and {name}, which sets {sets}")
        trials.append(Trial(name, {**overrides, **point}, resolved))
    return trials


def _writable(value: Any) -> bool:
    """Whether a command line can say it."""
    items = value if isinstance(value, list | tuple) else [value]
    return all(item is None or isinstance(item, bool | int | float | str) for item in items)


def _resolved(config: ConfigDict, point: Mapping[str, Any], name: str) -> Config:
    changed = copy.deepcopy(config)
    try:
        changed.update_from_flattened_dict({field: value for field, value in point.items() if value is not None})
        return resolve(changed)
    except (ConfigError, TypeError) as error:
        raise SweepError(f"{name}: {' '.join(str(error).split())}") from error


def select(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """The trials with certain values of certain fields.

    Args:
      trials: to choose from.
      only: "field=value", the value as in the names of trials or as in Python; several of one field accept each.

    Raises:
      SweepError: if a field is not swept, or no trial has a value.
    """
    accepted: dict[str, set[str]] = {}
    for wish in only:
        field, _, value = wish.removeprefix("config.").partition("=")
        field = field if any(field in trial.fields for trial in trials) else f"{field}.name"
        swept = {_text(trial.fields[field]): str(trial.fields[field]) for trial in trials if field in trial.fields}
        found = {text for text, in_python in swept.items() if value in (text, in_python)}
        if not found:
            fields = dict.fromkeys(field for trial in trials for field in trial.fields)
            listed = ", ".join(swept) or f"a value of {', '.join(fields)}"
            raise SweepError(f"--only={wish}: no trial has this value; accepted: {listed}")
        accepted.setdefault(field, set()).update(found)
    has = lambda trial, field: field in trial.fields and _text(trial.fields[field]) in accepted[field]
    chosen = [trial for trial in trials if all(has(trial, field) for field in accepted)]
    if not chosen:
        raise SweepError(f"--only={' --only='.join(only)}: no trial has all of these values")
    return chosen


def trial_names(points: hyper.Trials) -> list[str]:
    """Readable names from the fields that vary, the same whenever the same sweep is launched.

    >>> trial_names([{"dataset.name": "mnist", "model.hidden": (200, 200)}, {"dataset.name": "omniglot"}])
    ['dataset=mnist,model.hidden=200-200', 'dataset=omniglot']
    """
    values = [{field: repr(value) for field, value in point.items()} for point in points]
    varying = {field for point in values for field in point if any(p.get(field) != point[field] for p in values)}
    return [_name({f: v for f, v in point.items() if f in varying or len(points) == 1}) for point in points]


def _name(fields: Mapping[str, Any]) -> str:
    name = ",".join(f"{field.removesuffix('.name')}={_text(value)}" for field, value in fields.items()) or "trial"
    safe = re.sub(r"[^\w.,=+-]+", "_", name, flags=re.ASCII)[:MAX_NAME]
    if safe == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]  # two values may look alike without their odd letters
    return f"{safe}-{digest}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(str, value)) or "none"
    return "default" if value is None else str(value)


def stored_command(python: str, stored: str | os.PathLike, trial: Trial, workdir: str | os.PathLike) -> list[str]:
    """The command line that trains, and continues, a trial from its config as it was checked and stored."""
    custom = ["--allow_imports"] if imports_of(trial.config) else []  # they were imported when the config was checked
    return [python, "-m", "main", f"--stored_config={stored}", *custom, f"--workdir={workdir}"]


def main_command(python: str, config_file: str, trial: Trial, workdir: str | os.PathLike) -> list[str]:
    """The command line that trains the same from the config file as it is now, for people."""
    given = {field: value for field, value in trial.fields.items() if value is not None}
    fields = [f"--config.{field}={tuple(v) if isinstance(v, list) else v}" for field, v in given.items()]
    return [python, "-m", "main", f"--config={config_file}", *fields, f"--workdir={workdir}"]
