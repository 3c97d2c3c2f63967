"""Finds out by tracing whether a function is affine in its argument."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Linear in all operands together; in the first operand, whatever the others are; in each of two operands.
_LINEAR = {
    *("add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "cumsum"),
    *("neg", "optimization_barrier", "pad", "pvary", "reduce_sum", "reshape", "rev", "sharding_constraint", "slice"),
    *("squeeze", "sub", "transpose"),
}
_LINEAR_IN_FIRST = {"div", "dynamic_slice", "gather"}
_BILINEAR = {"conv_general_dilated", "dot_general", "mul"}
_CALLS = {"checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"}  # not those with a derivative rule


def is_affine(function: Callable, example: jax.Array) -> tuple[bool, str | None]:
    """Returns whether tracing shows a function to be affine, and a reason in words if it does not.

    An affine function that rounds to fewer digits than float32, to bfloat16 for instance, does not count as affine; no
    reason is given then, because only its rounding is not affine.

    Args:
      function: maps an array to a pytree of arrays.
      example: an argument, of which only shape and dtype matter.
    """
    # A new function for each call: JAX would remember the trace of `function`, which may have changed since.
    jaxpr = jax.make_jaxpr(lambda example: function(example))(example).jaxpr
    try:
        _, narrow = _depends(jaxpr, [True])
    except _NotAffineError as error:
        return False, str(error)
    return not narrow, None


class _NotAffineError(Exception):
    pass


def _depends(jaxpr: Any, arguments: list[bool]) -> tuple[list[bool], bool]:
    """Returns which results depend on the marked arguments, and whether any of these is narrower than float32.

    Raises:
      _NotAffineError: if one of the results does not depend affinely on them.
    """
    dependent = {var for var, depends in zip(jaxpr.invars, arguments, strict=True) if depends}
    narrow = any(map(_is_narrow, dependent))
    for eqn in jaxpr.eqns:
        depends = [not hasattr(var, "val") and var in dependent for var in eqn.invars]
        if not any(depends):
            continue
        name, inner = eqn.primitive.name, eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if name in _CALLS and inner is not None:
            results, inner_narrow = _depends(getattr(inner, "jaxpr", inner), depends)
            narrow = narrow or inner_narrow
        elif (
            name in _LINEAR
            or (name in _LINEAR_IN_FIRST and depends[0] and not any(depends[1:]))
            or (name in _BILINEAR and sum(depends) == 1)
            or (name == "select_n" and not depends[0])
        ) and all(jnp.issubdtype(var.aval.dtype, jnp.floating) for var in eqn.outvars):
            results = [True] * len(eqn.outvars)
            narrow = narrow or any(map(_is_narrow, eqn.outvars))
        else:
            raise _NotAffineError(f"it applies {name!r} to what depends on b")
        dependent.update(var for var, depends in zip(eqn.outvars, results, strict=True) if depends)
    return [not hasattr(var, "val") and var in dependent for var in jaxpr.outvars], narrow


def _is_narrow(var: Any) -> bool:
    return jnp.finfo(var.aval.dtype).bits < 32
