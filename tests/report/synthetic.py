"""Run directories as training leaves them, without training."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from disarm_jax.command_line import get_config
from disarm_jax.data import recorded
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.evaluate import bound_name, split_samples
from disarm_jax.experiment.fields import plain
from disarm_jax.files import write_text
from disarm_jax.report import paper
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.run_directory.rows import append_rows

DEVICE = {"platform": "cpu", "kind": "cpu", "count": 1, "processor": "a processor, 2 cores"}


def config_at(place: paper.Place, **overrides: Any) -> dict[str, Any]:
    """The resolved config of a place of the paper, with some fields set."""
    name, settings = paper.config_of(place)
    config = get_config(name)
    config.update_from_flattened_dict(settings | overrides)
    return plain(resolve(config))


def write_run(
    path: pathlib.Path,
    config: Mapping[str, Any],
    train: Sequence[float],
    test: Sequence[float] | None = None,
    *,
    step: int | None = None,
    seconds_per_step: float = 0.001,
    measured: Mapping[str, float] | None = None,
    samples: bool = False,
    code: Mapping[str, Any] | None = None,
    variance: float = 0.01,
    spread: float = 0.0,
) -> pathlib.Path:
    """A run directory whose bounds end at the given values, one for each seed.

    Args:
      path: of the directory, made here.
      config: resolved.
      train: bound on the training set at the last step, by seed.
      test: bound on the test set, by default the same.
      step: the last step made; a run that is not at its end has no summary.
      seconds_per_step: of all seeds together.
      measured: variances of estimators along the trajectory.
      samples: whether to draw a picture.
      code: commit, dirty and jax, of a run.json; None for a run that is older than this file.
      variance: of the gradient, half way; it grows to the double.
      spread: of the times of chunks around their mean, relative to it.
    """
    run_dir, last = RunDir(path), config["steps"] if step is None else step
    path.mkdir(parents=True)
    write_text(run_dir.config_file, json.dumps(config))
    numbers = split_samples(config)
    steps = [last * tenth // 10 for tenth in range(1, 11)]
    metrics, timings = [], []
    for chunk_number, now in enumerate(steps):
        for number, seed in enumerate(config["seeds"]):
            row = {"step": now, "seed": seed}
            variances = {"gradient_variance": variance} | {
                f"gradient_variance/{k}": v for k, v in (measured or {}).items()
            }
            variances = {name: value * (1 + now / last) for name, value in variances.items()}
            far = 100.0 * (1 - now / last)
            metrics.append(row | {"objective": train[number] - far} | variances)
            metrics.append(row | {bound_name("train", numbers["train"]): train[number] - far})
            if now in steps[4::5]:
                bound = (test or train)[number] - far
                metrics.append(row | {bound_name("test", numbers["test"]): bound})
        noisy = seconds_per_step * (1 + spread * (-1) ** chunk_number)
        chunk = {"step": now, "seconds": noisy * last / 10, "steps": last // 10}
        timings.append(chunk | {"what": "train" if now > steps[0] else "compile and train"})
        timings.append({"step": now, "what": "evaluate train", "seconds": 1.5})
    append_rows(run_dir.metrics_file, metrics)
    append_rows(run_dir.timings_file, timings)
    if samples:
        figure = Figure(figsize=(3, 1))
        figure.subplots().imshow(np.eye(8))
        figure.savefig(run_dir.samples)
    data = {"sha256": recorded.ARRAYS.get(config["dataset"]["name"]) or {}}
    command = ["/somewhere/main.py", "--config", "configs/base.py"]
    if code is not None:
        write_text(path / "run.json", json.dumps({"format": 1, "entries": [entry(data=data, command=command, **code)]}))
    if last == config["steps"]:
        write_text(run_dir.summary_file, json.dumps({"device": DEVICE, "data": data, "command": command}))
        write_text(run_dir.done_file, f"{last}\n")
    return path


def entry(
    *, commit: str | None, dirty: bool | None = False, jax: str = "0.10.2", step: int = 0, **more: Any
) -> dict[str, Any]:
    """An entry of a run.json."""
    found = {
        "started": "2026-11-18T09:00:00+00:00",
        "step": step,
        "command": [],
        "code": {"commit": commit, "dirty": dirty, "version": "0.1.0"},
        "versions": {"jax": jax, "jaxlib": jax},
        "flags": {},
        "matmul_precision": "float32",
        "device": {"platform": "cpu", "kind": "cpu", "count": 1},
        "host": {"processor": "a processor", "cores": 4, "usable_cores": 2},
        "data": {},
    }
    return found | more
