"""What data sets, models, estimators and runs are called in tables and figures."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from disarm_jax.report import paper
from disarm_jax.report.palette import own_name, style_of
from disarm_jax.report.pools import Pool
from disarm_jax.report.variants import VARIANTS, value_of

_BUILT_IN = ("bernoulli_vae", "categorical_vae")
_IN_MODEL_NAME = {"model.name", "model.latents", "model.hidden"}


def dataset_name(config: Mapping[str, Any]) -> str:
    """As in the paper; a custom one by its own name, an npz file by the file's."""
    name, path = config["dataset"]["name"], config["dataset"]["path"]
    if name == "npz" and path:
        return pathlib.PurePath(path).stem
    return paper.DATASETS.get(name, own_name(name))


def model_name(config: Mapping[str, Any]) -> str:
    """Linear, nonlinear or its layers, with widths that are not the paper's; a custom one with its own name before."""
    name, latents, hidden = (config["model"][field] for field in ("name", "latents", "hidden"))
    layers = f"{len(latents)}-Layer " if len(latents) > 1 else ""
    kind = layers + ("Nonlinear" if hidden else "Linear")
    if name not in _BUILT_IN:
        kind = f"{own_name(name)}, {kind}"
    usual = all(width == 200 for width in latents) and hidden in ([], [200, 200])
    return kind if usual else f"{kind}, latents {latents}" + (f", hidden {hidden}" if hidden else "")


def estimator_name(config: Mapping[str, Any]) -> str:
    """As in the paper's tables; with the size of a multi-sample bound."""
    name, size = config["estimator"]["name"], config["objective"]["num_samples"]
    if config["objective"]["name"] != "multisample":
        return style_of(name).name
    title = "DisARM" if name == "multisample_disarm" else style_of(name).name
    unit = "pair" if "disarm" in name else "sample"
    return f"{title} {size}-{unit}" + ("s" if size > 1 else "")


def distinct_names(pools: Sequence[Pool]) -> list[str]:
    """The estimators of pools; those of the same estimator are told apart by the settings that differ.

    Not by those that are in the name of the model, which stands beside the estimator's.
    """
    names = [estimator_name(pool.config) for pool in pools]
    labels = []
    for pool, name in zip(pools, names, strict=True):
        same = [other for other, other_name in zip(pools, names, strict=True) if other_name == name]
        fields = sorted({field for other in same for field in other.settings} - _IN_MODEL_NAME)
        fields = [field for field in fields if len({repr(other.settings.get(field)) for other in same}) > 1]
        labels.append(", ".join(dict.fromkeys([name, *(_setting(pool, field) for field in fields)])))
    return labels


def _setting(pool: Pool, field: str) -> str:
    value = value_of(pool.config, field)
    named = [variant.name for variant in VARIANTS if (variant.field, variant.value) == (field, value)]
    return named[0] if named else f"{field.rpartition('.')[2].replace('_', ' ')} {value}"
