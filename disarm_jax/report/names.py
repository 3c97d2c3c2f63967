"""What models and estimators are called in tables and figures."""

from collections.abc import Mapping
from typing import Any

from disarm_jax.report.palette import style_of


def model_name(config: Mapping[str, Any]) -> str:
    """Linear, nonlinear or its layers, with widths that are not the paper's."""
    latents, hidden = config["model"]["latents"], config["model"]["hidden"]
    layers = f"{len(latents)}-Layer " if len(latents) > 1 else ""
    name = layers + ("Nonlinear" if hidden else "Linear")
    usual = all(width == 200 for width in latents) and hidden in ([], [200, 200])
    return name if usual else f"{name}, latents {latents}" + (f", hidden {hidden}" if hidden else "")


def estimator_name(config: Mapping[str, Any]) -> str:
    """As in the paper's tables; with the size of a multi-sample bound."""
    name, size = config["estimator"]["name"], config["objective"]["num_samples"]
    if config["objective"]["name"] == "elbo":
        return style_of(name).name
    title = "DisARM" if name == "multisample_disarm" else style_of(name).name
    pairs = "pair" if "disarm" in name else "sample"
    return f"{title} {size}-{pairs}" + ("s" if size > 1 else "")


def bound_title(metric: str) -> str:
    """A metric in words.

    >>> bound_title("train_elbo"), bound_title("test_100_sample_bound")
    ('train ELBO', 'test 100-sample bound')
    """
    return metric.replace("_sample", "-sample").replace("_", " ").replace("elbo", "ELBO")
