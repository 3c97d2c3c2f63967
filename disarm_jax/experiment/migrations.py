"""Configs that older code has written, brought up to date when they are read.

A config in a file has a `version`; one without it is of version 1. A field that was added later gets the value that was
in force when the file was written, so that a run stays comparable and can be continued whatever fields are added. To
add or rename a field, append a function to `MIGRATIONS`.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from disarm_jax.experiment.config import ConfigError


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


# The function at place n changes a config of version n + 1, in place, into one of version n + 2.
MIGRATIONS: tuple[Callable[[dict[str, Any], Callable[[], str]], None], ...] = (_from_1, _from_2)


def version() -> int:
    """The version of the configs that this code writes."""
    return len(MIGRATIONS) + 1


def versioned(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config as it is written to a file, with its version."""
    return {"version": version(), **config}


def migrated(saved: Mapping[str, Any], platform: Callable[[], str]) -> dict[str, Any]:
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
    return config
