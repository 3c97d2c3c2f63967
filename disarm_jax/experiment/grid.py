"""Several runs in one program: the points of a grid of numbers, such as learning rates, each with every seed.

A grid is text, "field=number,number", and several of these with spaces between them are combined, each with each.
Fields with commas between them get the same number: "optimizer.encoder.learning_rate,optimizer.decoder.learning_rate=
1e-4,3e-4". A step takes these numbers as arguments of its program, also without a grid, so that on a CPU a member of a
grid computes the same bits as the run alone.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from disarm_jax.experiment.fields import FIELDS, Config, ConfigError, did_you_mean, flat, is_import_path, plain, rule_of

NUMBERS = ("learning_rate", "eps", "clip")  # not b1 and b2: optax rounds 1 − b1 as a constant, and not as an argument
GRID_FIELDS = tuple(f"optimizer.{group}.{name}" for group in FIELDS["optimizer"] for name in NUMBERS)
MAX_POINTS = 10_000  # before they are listed: a few numbers for every field would fill the memory

Point = Mapping[str, float]


class Member(NamedTuple):
    """One run of a program, as it is told apart from the others.

    Attributes:
      seed: of its random numbers.
      point: the number of its point of the grid; None without a grid.
    """

    seed: int
    point: int | None = None

    def columns(self) -> dict[str, int]:
        """What a row of metrics.jsonl says of it."""
        return {"seed": self.seed} if self.point is None else {"seed": self.seed, "point": self.point}


def canonical(text: str) -> str:
    """A grid in the one way in which it is written to files.

    >>> canonical("  optimizer.prior.learning_rate=1e-2,.1 optimizer.encoder.clip=1,2")
    'optimizer.prior.learning_rate=0.01,0.1 optimizer.encoder.clip=1.0,2.0'

    Raises:
      ConfigError: for anything that is no grid.
    """
    return " ".join(f"{','.join(fields)}={','.join(map(repr, numbers))}" for fields, numbers in _axes(text))


def points_of(config: Mapping[str, Any]) -> tuple[Point, ...]:
    """What the points of a config's grid set, the last field changing fastest; without a grid one that sets nothing."""
    axes = [[dict.fromkeys(fields, number) for number in numbers] for fields, numbers in _axes(config["grid"])]
    return tuple(dict(itertools.chain(*map(dict.items, parts))) for parts in itertools.product(*axes))


def members_of(config: Mapping[str, Any]) -> tuple[Member, ...]:
    """All runs of a config's program: the seeds of the first point, then those of the next."""
    numbers = range(len(points_of(config))) if config["grid"] else (None,)
    return tuple(Member(seed, point) for point in numbers for seed in config["seeds"])


def at_point(config: Mapping[str, Any], point: Point) -> Config:
    """The config of a point's run alone."""
    return with_fields(config, {**point, "grid": ""})


def with_fields(config: Mapping[str, Any], values: Mapping[str, Any]) -> Config:
    """A config with other values of some fields, by dotted name; they may be traced."""
    changed = plain(config)
    for field, value in values.items():
        *sections, name = field.split(".")
        section = changed
        for part in sections:
            section = section[part]
        section[name] = value
    return Config(changed)


def numbers_of(config: Config) -> dict[str, np.ndarray]:
    """The numbers that steps take as arguments, `[M]` for M members, by field.

    Of a custom optimiser or schedule, which may look at its numbers, only those that the grid sets.
    """
    points = points_of(config)
    fields = dict(flat(config["optimizer"], "optimizer."))

    def is_taken(field: str) -> bool:
        custom = [is_import_path(fields[f"{field.rpartition('.')[0]}.{name}"]) for name in ("name", "schedule")]
        return field in points[0] or not (fields[field] is None or any(custom))

    values = lambda field: [point.get(field, fields[field]) for point in points]
    return {
        field: np.repeat(np.array(values(field), np.float32), len(config["seeds"]))
        for field in filter(is_taken, GRID_FIELDS)
    }


def point_text(point: Point) -> str:
    """A point in words.

    >>> point_text({"optimizer.encoder.learning_rate": 0.001, "optimizer.prior.clip": 2.0})
    'encoder.learning_rate=0.001,prior.clip=2.0'
    """
    return ",".join(f"{field.removeprefix('optimizer.')}={number!r}" for field, number in point.items())


def _axes(text: str) -> list[tuple[Sequence[str], list[float]]]:
    """The parts of a grid, checked: fields that have the same number, and the numbers."""
    axes, seen = [], set()
    for part in text.split():
        names, _, listed = part.partition("=")
        fields = names.split(",")
        for field in fields:
            if field not in GRID_FIELDS:
                accepted = f"numbers that a step takes as such: optimizer.<group>.{', '.join(NUMBERS)}"
                guess = did_you_mean(field, GRID_FIELDS)
                raise ConfigError(f"grid has the field {field!r}; accepted: {accepted}{guess}")
            if field in seen:
                raise ConfigError(f"grid has the field {field!r} twice; accepted: each field once")
            seen.add(field)
        numbers = [_number(fields, value) for value in listed.split(",")]
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"grid has {part!r}; accepted: different numbers")
        axes.append((fields, numbers))
    if (points := math.prod(len(numbers) for _, numbers in axes)) > MAX_POINTS:
        raise ConfigError(f"grid has {points:,} points; accepted: up to {MAX_POINTS:,}")
    return axes


def _number(fields: Sequence[str], text: str) -> float:
    for field in fields:
        try:
            number = float(text)
        except ValueError:
            number = None
        if number is None or not rule_of(field).good(number):
            accepted = rule_of(field).accepted.removesuffix(", or None")
            raise ConfigError(f"grid sets {field} to {text!r}; accepted: {accepted}, as in {field}=1e-4,3e-4")
    return float(text)
