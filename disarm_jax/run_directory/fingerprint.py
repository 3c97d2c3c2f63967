"""What a checkpoint belongs to: recorded in it when it is saved, compared when a run continues or is evaluated.

The record holds the config, the sha256 of the images of every split, that of `train_mean.npy`, the settings of JAX and
of the machine that the bits depend on, and the number and checksum of the rows in `metrics.jsonl`. A checkpoint of
older code has no record: what it does not hold cannot be checked, and is no error.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from disarm_jax.experiment.config import ConfigError, differences, migrated, versioned
from disarm_jax.experiment.devices import Device, usable_cores
from disarm_jax.experiment.fields import Config
from disarm_jax.experiment.grid import members_of
from disarm_jax.run_directory.checkpoint import CheckpointError, OtherRunError
from disarm_jax.run_directory.rows import RowSums

FORMAT = 1
STREAM = ("threefry_partitionable", "random_seed_offset")  # settings that change every random number


class Record(NamedTuple):
    """What a checkpoint says of the run that it belongs to.

    Attributes:
      config: resolved.
      images: sha256 of each split.
      train_mean: sha256 of the mean of the training images.
      settings: of JAX and the machine, by name.
      rows: of metrics.jsonl when it was saved.
    """

    config: Config
    images: Mapping[str, str]
    train_mean: str
    settings: Mapping[str, Any]
    rows: RowSums

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        fields = self._asdict() | {"config": versioned(self.config), "rows": self.rows.as_json()}
        return {"format": FORMAT} | {name: dict(v) if isinstance(v, Mapping) else v for name, v in fields.items()}


def read_record(value: Any, platform: Callable[[], str]) -> Record | None:
    """The record in the metadata of a checkpoint; None if older code has written it, which made none.

    Raises:
      CheckpointError: if it is damaged, or newer code has written it.
    """
    if value is None:
        return None
    kinds = {"config": dict, "images": dict, "train_mean": str, "settings": dict, "rows": dict}
    found = value if isinstance(value, dict) else {}
    rows = RowSums.from_json(found.get("rows"))
    if found.get("format") != FORMAT or rows is None:
        raise CheckpointError(f"what it says of its run is not of format {FORMAT}; newer code may have written it")
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            raise CheckpointError(f"what it says of its run has no {name}")
    try:
        config = migrated(found["config"], platform)
    except (AttributeError, ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"the config of its run cannot be read: {error}") from error
    return Record(config, found["images"], found["train_mean"], found["settings"], rows)


def check_run(record: Record | None, config: Config, state: Any, step: int) -> None:
    """Refuses a checkpoint that was saved by another run, or under another step.

    Args:
      record: of the checkpoint.
      config: of the run.
      state: in the checkpoint.
      step: that its name says.

    Raises:
      OtherRunError: which says what differs.
    """
    made = sorted({int(number) for number in state.step})
    if made != [step]:
        raise OtherRunError(f"it was saved at step {', '.join(map(str, made))}")
    expected = [member.seed for member in members_of(config)]
    if list(state.seed) != expected:
        seeds = ", ".join(str(int(seed)) for seed in state.seed)
        raise OtherRunError(f"it is of another run: of the seeds {seeds}, not {', '.join(map(str, expected))}")
    if record is not None and (found := differences(record.config, config)):
        listed = "; ".join(line.replace("in the run directory", "there").replace(" now", " here") for line in found)
        raise OtherRunError(f"it is of another run: {listed}")


def array_sum(array: np.ndarray) -> str:
    """The sha256 of an array's type, shape and bytes."""
    header = f"{array.dtype.str}{list(array.shape)}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


def settings_now(devices: Sequence[Device]) -> dict[str, Any]:
    """What the bits of a run depend on besides its config, images and code."""
    platform = devices[0].platform
    found = {
        "threefry_partitionable": bool(jax.config.values["jax_threefry_partitionable"]),
        "random_seed_offset": int(jax.config.values.get("jax_random_seed_offset", 0)),
        "platform": platform,
        "devices": len(devices),
        "jax": jax.__version__,
    }
    return found | ({"threads": _threads()} if platform == "cpu" else {})


def _threads() -> int:
    chosen = os.environ.get("PJRT_NPROC", "")
    return int(chosen) if chosen.isdecimal() else usable_cores()


def changed_settings(record: Record | None, now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Settings that have changed since a checkpoint was saved, with both values, in words.

    Returns:
      Those that change the random numbers, and those that may change the last bits.
    """
    before = record.settings if record is not None else {}
    changed = [name for name in now if name in before and before[name] != now[name]]
    words = lambda name: f"{name} was {before[name]!r:.40} and is {now[name]!r} now"
    return [words(name) for name in changed if name in STREAM], [words(n) for n in changed if n not in STREAM]
