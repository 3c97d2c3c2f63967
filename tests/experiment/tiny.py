"""A config so small that a run of it takes no time but its compilation."""

import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import base

PIXELS = 16


def write_images(path: pathlib.Path, validation: int = 17) -> pathlib.Path:
    """An npz file of 60 training, 17 validation and 17 test images: bright on one side, grey on the other.

    Args:
      path: the file.
      validation: how many validation images. With 17 of them, one program evaluates them and the test images.
    """
    rng = np.random.default_rng(0)

    def images(count: int) -> np.ndarray:
        bright = rng.integers(0, 2, (count, 1)) == np.arange(PIXELS) // (PIXELS // 2)
        return np.where(bright, 230, 60).astype(np.uint8) + rng.integers(0, 20, (count, PIXELS), np.uint8)

    np.savez(path, train=images(60), validation=images(validation), test=images(17))
    return path


def tiny_settings(tmp_path: pathlib.Path, **overrides: Any) -> dict[str, Any]:
    """The fields in which the tiny config differs from the base config, by dotted name."""
    file = tmp_path / "images.npz"
    settings = {
        "dataset.name": "npz",
        "dataset.path": str(file if file.exists() else write_images(file)),
        "model.latents": (4,),
        "model.hidden": (),
        "optimizer.encoder.learning_rate": 1e-2,
        "optimizer.decoder.learning_rate": 1e-2,
        "steps": 20,
        "batch_size": 5,
        "seeds": (0,),
        "log_every": 5,
        "eval.train_every": 10,
        "eval.test_every": 10,
        "eval.test_samples": 3,
        "eval.batch_size": 8,
        "checkpoint.every": 5,
    }
    return settings | overrides


def tiny_config(tmp_path: pathlib.Path, **overrides: Any) -> ConfigDict:
    """A run of 20 steps with every kind of event in it: four checkpoints and two evaluations.

    Args:
      tmp_path: a folder, where the data set is written if it is not there yet.
      **overrides: fields by dotted name: `tiny_config(tmp_path, **{"estimator.name": "arm", "steps": 40})`.
    """
    config = base.get_config()
    config.update_from_flattened_dict(tiny_settings(tmp_path, **overrides))
    return config
