"""Differentiates f exactly once, at points that carry no derivative of their own.

An estimator uses ∇f as a number. If f were differentiated as it is, an outer derivative with respect to what f closes
over, such as the weights of a decoder, would also differentiate the backward pass of f, before anything could stop it.
Many functions cannot be differentiated twice, and none should have to be. So f is first traced to a program in which
the closed-over values are inputs, and only the points remain differentiable.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun


def detached(f: Callable, *args: Any) -> tuple:
    """Returns f and its arguments, ready to be differentiated: `jax.vjp(*detached(f, x))`.

    The new f depends on its arguments alone: the values that the given one closes over carry no derivative, so that f
    needs no second derivative where an outer one is taken with respect to them. Whatever is to be differentiated
    besides the points, such as the tunables of an estimator, must be an argument.

    Args:
      f: a pure function of arrays, or of pytrees of them. It is called once.
      *args: the point where it is differentiated. The new f takes only arguments of the same shapes.

    Returns:
      The tuple `(new f, *args)`.

    Raises:
      TypeError: if f changes the state of a module.
    """
    program, rebuild = _trace(f, args)
    return rebuild(program, lax.stop_gradient(program.consts)), *args


def vjp(f: Callable, points: Any, *, has_aux: bool = False) -> tuple:
    """Like `jax.vjp`, but only the value of f, not its pullback, is differentiable in what f closes over.

    f is called once in Python, and its program runs twice, for the value and for the pullback. Under jit, XLA merges
    what the two have in common, unless f contains loops or functions that are opaque to it.

    Args:
      f: as in `detached`.
      points: an array or a pytree of arrays.
      has_aux: whether f returns a pair `(out, aux)`.

    Returns:
      `(out, pullback)`, or `(out, pullback, aux)` with `has_aux`.
    """
    program, rebuild = _trace(f, (points,))
    found = rebuild(program, program.consts)(points)
    out, aux = found if has_aux else (found, None)
    varying = vary_like(points, out)
    if varying is points:
        call = rebuild(program, lax.stop_gradient(program.consts))
    else:  # a program is of fixed types, to which the axes of a mesh belong
        call, _ = detached(f, varying)
    _, pull, *_ = jax.vjp(call, varying, has_aux=has_aux)
    return (out, pull, aux) if has_aux else (out, pull)


def vary_like(x: Any, *others: Any) -> Any:
    """Returns x, marked as varying over all mesh axes of `jax.shard_map` over which any of the others varies.

    The derivative with respect to a value that is the same on all devices is the sum of the derivatives on each device.
    Where devices have their own samples, or f has its own data on each, each device needs its own derivative:
    differentiate at `vary_like(x, samples, f_b)`. Outside of `jax.shard_map` the function returns x itself.
    """
    axes = frozenset().union(*(_varying_axes(leaf) for leaf in jax.tree.leaves(others)))
    if all(axes <= _varying_axes(leaf) for leaf in jax.tree.leaves(x)):
        return x
    return jax.tree.map(lambda leaf: _vary(leaf, tuple(sorted(axes - _varying_axes(leaf)))), x)


@contextlib.contextmanager
def stateless_f() -> Iterator[None]:
    """Raises TypeError with advice where Flax NNX refuses to change the state of a module inside a transformation."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "TraceContextError":  # of Flax, which is not imported here
            raise
        raise TypeError(
            f"f changes the state of a module ({error}), but must be a pure function where an estimator differentiates "
            "it. Draw dropout masks and other random numbers outside of f and let f close over them; or split the "
            "module by nnx.split outside of f and merge it inside by nnx.merge(…, copy=True); or switch the randomness "
            "off by module.eval()"
        ) from error


def _trace(f: Callable, args: tuple) -> tuple[Any, Callable]:
    """Returns the program of f, whose constants are the values that f closes over, and a function to call both."""

    def fresh(*args: Any) -> Any:  # JAX would remember the program of f itself, and what it closed over then
        return f(*args)

    with stateless_f():
        program, shapes = jax.make_jaxpr(fresh, return_shape=True)(*args)
    structure = jax.tree.structure(shapes)

    def rebuild(program: Any, constants: Any) -> Callable:
        flat = jaxpr_as_fun(program.replace(consts=constants))
        return lambda *args: jax.tree.unflatten(structure, flat(*jax.tree.leaves(args)))

    return program, rebuild


def _varying_axes(x: Any) -> frozenset:
    """Returns the mesh axes of `jax.shard_map` over which x varies, which releases of JAX store in different places."""
    kind = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    axes = getattr(getattr(kind, "manual_axis_type", kind), "varying", getattr(kind, "vma", None))
    return axes or frozenset()  # of a ShapeDtypeStruct JAX 0.6.2 says None


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if hasattr(lax, "pcast"):
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]  # in releases of JAX without pcast
