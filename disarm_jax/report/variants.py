"""Named variants: runs that differ from the reference protocol of a cell in one known way.

A variant stands in a row of its own beside the reference, under its name.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from disarm_jax.experiment import build


class Variant(NamedTuple):
    """A known way to differ from the reference.

    Attributes:
      field: of the config, with dots.
      value: that makes the variant, where the reference has another.
      name: shown behind the estimator's.
      comparable: whether its numbers count in the verdict like those of the reference.
    """

    field: str
    value: Any
    name: str
    comparable: bool


VARIANTS = (
    # Decoder and prior learn from the estimator's own samples, or from a fresh one as in the released code.
    Variant("objective.generative_samples", "shared", "shared samples", comparable=False),
    Variant("objective.generative_samples", "independent", "independent samples", comparable=False),
    # The paper's text has the arithmetic baseline of VIMCO, the released code the geometric one.
    Variant("estimator.options.baseline", "geometric", "geometric baseline", comparable=True),
    Variant("estimator.options.baseline", "arithmetic", "arithmetic baseline", comparable=True),
)


def value_of(config: Mapping[str, Any], field: str) -> Any:
    """A field of a resolved config; the default of an option that is not set."""
    value: Any = config
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    option = field.removeprefix("estimator.options.")
    if value is None and option != field:
        return build.default_option(config["estimator"]["name"], option, config["model"]["latents"])
    return value


def variants_of(config: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The variants by which a config differs from its reference."""
    return tuple(
        variant
        for variant in VARIANTS
        if value_of(config, variant.field) == variant.value != value_of(reference, variant.field)
    )


def names_of(config: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """What to add to the estimator's name: its variants; of comparable variants, the name of the reference as well.

    So VIMCO always says which baseline it has.
    """
    names = [
        variant.name
        for variant in VARIANTS
        if value_of(config, variant.field) == variant.value
        and (variant.comparable or value_of(reference, variant.field) != variant.value)
    ]
    return ", ".join(names)
