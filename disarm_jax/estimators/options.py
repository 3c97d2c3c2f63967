"""Checks of the options and the tunables of estimators."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np


def at_least(option: str, value: int, minimum: int) -> int:
    """Returns an integer option. Raises ValueError if it is not an integer or is below its minimum."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{option} must be an integer of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{option} must be at least {minimum}, got {value}")
    return int(value)


def number(option: str, value: float, good: Callable[[float], bool], accepted: str) -> float:
    """Returns a real option. Raises ValueError unless it is `good`; `accepted` describes the accepted values."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and good(value)):
        raise ValueError(f"{option} must be {accepted}, got {value!r}")
    return float(value)


def finite(option: str, value: float) -> float:
    """Returns a real option. Raises ValueError if it is not finite."""
    return number(option, value, math.isfinite, "a finite number")


def positive(option: str, value: float) -> float:
    """Returns a real option. Raises ValueError if it is not positive and finite."""
    return number(option, value, lambda x: 0 < x < math.inf, "positive and finite")


def flag(option: str, value: bool) -> bool:
    """Returns an option that is True or False. Raises ValueError if it is neither."""
    if not isinstance(value, bool):
        raise ValueError(f"{option} must be True or False, got {value!r}")
    return value


def one_of(option: str, value: str, accepted: tuple[str, ...]) -> str:
    """Returns an option that is one of several names. Raises ValueError if it is none of those accepted."""
    if value not in accepted:
        raise ValueError(f"unknown {option} {value!r}; accepted: {', '.join(accepted)}")
    return value


def check_known(name: str, chosen: Iterable[str], accepted: Collection[str]) -> None:
    """Raises TypeError if one of the options chosen is not accepted; `name` is what the options belong to."""
    for option in chosen:
        if option not in accepted:
            raise TypeError(f"{name} has no option {option!r}; accepted: {', '.join(accepted) or 'none'}")


def check_params(name: str, params: Any, tunables: tuple[str, ...]) -> None:
    """Raises TypeError if the `params` of an estimator with tunables lack one of them, as `()` does."""
    missing = [key for key in tunables if not (isinstance(params, Mapping) and key in params)]
    if missing:
        raise TypeError(
            f"{name} has tunables ({', '.join(tunables)}): params must come from its init(key, logits), got {params!r}"
        )


def params_of_layers(name: str, params: Any, depth: int) -> tuple:
    """Returns the tunables of each layer of a chain. Raises TypeError if their number is not that of the layers."""
    if not isinstance(params, tuple | list) or len(params) != depth:
        raise TypeError(
            f"{name} has tunables for each of {depth} layers: params must come from its init(key, …), got {params!r}"
        )
    return tuple(params)


def check_estimator(user: str, est: Any) -> None:
    """Raises TypeError if `est` is not an estimator, with advice on the likeliest mistakes.

    Args:
      user: the name of the function that needs an estimator.
      est: the object that was given.
    """
    if hasattr(est, "init") and hasattr(est, "apply"):
        return
    advice = ""
    if isinstance(est, str):
        advice = f"; make one of the name: dj.make_estimator({est!r})"
    elif callable(est):
        called = getattr(est, "__name__", "it")
        advice = f"; {called} is a function that makes one: call it, {called}()"
    raise TypeError(f"{user} takes an estimator, got {est!r}{advice}")
