"""The data and the config of the run directories under frozen_v1, which commit 199d2a9 wrote.

The images are made by arithmetic alone, so that they are the same with every version of NumPy.
"""

from typing import Any

import numpy as np

# In full where a default could change: these are the settings of files that cannot change any more.
SETTINGS: dict[str, Any] = {
    "dataset.name": "frozen:images",
    "model.latents": (5,),
    "objective.generative_samples": "shared",
    "estimator.name": "relax",
    "estimator.relax_form": "image",  # called network_sees_image then
    "estimator.options.hidden": 3,
    "optimizer.encoder.learning_rate": 1e-2,
    "optimizer.decoder.learning_rate": 1e-2,
    "optimizer.prior.reduction": "sum",
    "steps": 20,
    "batch_size": 5,
    "seeds": (0, 3),
    "log_every": 5,
    "eval.train_every": 10,
    "eval.test_every": 10,
    "eval.test_samples": 3,
    "eval.batch_size": 8,
    "checkpoint.every": 10,
    "checkpoint.minutes": None,
    "checkpoint.keep": 1,
    "variance.estimators": ("disarm",),
}


def images() -> dict[str, np.ndarray]:
    """Three splits of 6 × 6 images with some structure."""
    rows, columns = np.mgrid[:6, :6]
    splits, first = {}, 0
    for split, count in (("train", 40), ("validation", 9), ("test", 11)):
        number = np.arange(first, first + count)[:, None, None]
        splits[split] = ((rows * (number % 3) + columns * (number % 5) + 7 * number) * 23 % 256).astype(np.uint8)
        first += count
    return splits
