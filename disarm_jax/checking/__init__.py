"""Checks before a long run whether f is as the estimators expect it, and which estimator suits it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from disarm_jax.checking import function, measure
from disarm_jax.checking.facts import Facts, find_facts
from disarm_jax.checking.report import Finding, Measured, Report
from disarm_jax.estimators import options
from disarm_jax.estimators.estimator import Estimator

__all__ = ["Facts", "Finding", "Measured", "Report", "check"]


def check(
    est: Estimator,
    f: Callable,
    logits: jax.Array,
    params: Any = None,
    key: jax.Array | None = None,
    *,
    f_of_logits: Callable | None = None,
    compare: bool | str | Sequence[str] = True,
    num_draws: int = 400,
) -> Report:
    """Checks an estimator together with f and logits, prints what it found, and returns it as a report.

    Call it once before a long run, outside of jit. It examines the estimator and its tunables, and f: shape and dtype,
    whether it is pure and treats each row on its own, finite values, a usable slope, and the structure that it
    declares. If one row has at most 1,024 outcomes, the mean of 10 `num_draws` draws is compared with the exact
    gradient. Last, other estimators are measured on the same f; this compiles them. Mistakes in est, f, logits or
    params raise no error; they are among the findings.

    Args:
      est: an estimator, for bits or for classes.
      f: the function inside the expectation, or log w for a bound.
      logits: `[*batch, D]` for bits, `[*batch, D, C]` for classes. A chain of layers in their place is checked only by
        one call of `est.apply`.
      params: the tunables of est; if None, they are made by `est.init`.
      key: a JAX random key; `jax.random.key(0)` if None.
      f_of_logits: `logits -> f`, to check for a bound that log w depends on the logits.
      compare: which other estimators to measure: True for a short list, False for none, "all" for every unbiased one,
        or a sequence of their names. Those that need ∇f are left out if f has no usable slope.
      num_draws: the number of draws of each estimator of the comparison, at least 16.

    Returns:
      The findings and the comparison; `report.ok` is whether there was no problem.

    Raises:
      ValueError: if `compare` or `num_draws` is not accepted.

    Example:
      >>> report = dj.check(dj.disarm(), lambda b: b.mean(), jnp.zeros((5, 3)))
      dj.check: 1 problem, 0 notes, 3 findings
        ok       estimator  est estimates the gradient of an expectation, for bits; it does not need ∇f.
        ok       params     est has no tunables; params=() will do.
        problem  shape      For samples of shape (1, 5, 3) f must return the shape (1, 5), but returned (). Sum over
                            the axes of one sample only, for instance axis=-1, and keep the leading axes.
    """
    options.at_least("num_draws", num_draws, 16)
    key = jax.random.key(0) if key is None else key
    report = _check(est, f, logits, params, key, f_of_logits, compare, num_draws)
    print(report)
    return report


def _check(
    est: Any, f: Callable, logits: Any, params: Any, key: jax.Array, f_of_logits: Callable | None, choice: Any, num: int
) -> Report:
    """Makes the checks in their order, up to the first after which nothing more can be found out."""
    for_est, for_samples, for_exact, for_compare = jax.random.split(key, 4)
    refused = _check_record(est, logits)
    if refused is not None:
        return Report((refused,))
    if not hasattr(logits, "dtype"):  # a chain of layers
        return Report((_check_chain(est, f, logits, params, for_est),))
    logits = jnp.asarray(logits)
    findings, params, facts = _check_estimator(est, params, for_est, logits)
    if facts is None:
        return Report(tuple(findings))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(for_samples)))
    numbers = np.asarray(logits)
    b = function.draw(rng, numbers, 3, facts.event_ndim)
    call = lambda b: f(b)  # f itself need not be hashable
    findings.append(function.check_shape(call, b, facts))
    if findings[-1].level == "problem":
        return Report(tuple(findings))
    findings.append(function.check_purity(call, b))
    if findings[-1].level == "problem":
        return Report(tuple(findings))
    rare, other = (function.draw(rng, function.tame(numbers, facts.event_ndim), 3, facts.event_ndim) for _ in range(2))
    findings += [
        function.check_rows(call, rare, other, facts.event_ndim),
        function.check_finite(call, rng, numbers, facts.event_ndim),
    ]
    subject = measure.Subject(est, params, logits, f, facts)
    findings += _found(_check_apply(subject))
    broken = any(finding.level == "problem" for finding in findings)
    slope, usable = function.check_slope(call, rng, numbers, facts)
    findings += _found(slope, function.check_structure(f, rare, other, facts.event_ndim))
    findings += _found(function.check_bound(f, f_of_logits, b, logits, facts))

    comparison: tuple[Measured, ...] = ()
    if broken:
        findings.append(Finding("measure", "note", "Nothing was measured, because of the problems above."))
    elif not facts.independent:
        text = "Nothing was measured: the exact gradient and the other estimators are for independent bits."
        findings.append(Finding("measure", "note", text))
    else:
        findings.append(measure.check_exact(subject, for_exact, 10 * num))
        if choice is not False:
            finding, comparison = measure.compare(subject, choice, usable, for_compare, num)
            findings.append(finding)
    return Report(tuple(findings), comparison)


def _found(*findings: Finding | None) -> list[Finding]:
    """Returns the findings without those that are None."""
    return [finding for finding in findings if finding is not None]


def _check_record(est: Any, logits: Any) -> Finding | None:
    """Checks est and logits as far as that is possible without a call; returns None if nothing is wrong."""
    if isinstance(est, str):
        text = f"est is the name {est!r}, not an estimator. Pass dj.make_estimator({est!r})."
        return Finding("estimator", "problem", text)
    if not (callable(getattr(est, "init", None)) and callable(getattr(est, "apply", None))):
        name = getattr(est, "__name__", type(est).__name__)
        todo = f"Call it: {name}(), with its options." if callable(est) else "Pass for instance dj.disarm()."
        kind = f"the function {name}, which makes estimators" if callable(est) else f"of type {name}"
        return Finding("estimator", "problem", f"est is {kind}; an estimator has init and apply. {todo}")
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(logits)):
        text = "logits are traced. Call dj.check outside of jit, grad and vmap, with numbers."
        return Finding("logits", "problem", text)
    return None


def _check_chain(est: Estimator, f: Callable, chain: Any, params: Any, key: jax.Array) -> Finding:
    """Makes one estimate for a chain, whose gradient is a tuple of arrays."""
    for_init, for_apply = jax.random.split(key)
    note = "Chains of layers are checked for errors and finite numbers alone."
    try:
        out = est.apply(est.init(for_init, chain) if params is None else params, for_apply, chain, f)
    except Exception as error:
        todo = "For one layer, logits must be an array."
        return Finding("chain", "problem", f"est.apply failed: {function.message(error)}. {todo} {note}")
    if not all(np.all(np.isfinite(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(out)):
        text = "The value or a gradient is infinite or NaN. Look for a logarithm of 0 or an overflow in f or a layer."
        return Finding("chain", "problem", f"{text} {note}")
    shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(out.grad))
    return Finding("chain", "note", f"est.apply gave finite numbers, with gradients of shape {shapes}. {note}")


def _check_estimator(
    est: Estimator, params: Any, key: jax.Array, logits: jax.Array
) -> tuple[list[Finding], Any, Facts | None]:
    """Returns findings on est, logits and params, the params to use, and the facts; None if est is unusable."""
    if bool(jnp.any(jnp.isnan(logits))):
        return [Finding("logits", "problem", "logits contain NaN: the network that made them is broken.")], None, None
    for_init, for_apply = jax.random.split(key)
    try:
        expected = est.init(for_init, logits)
        fits, finding = _check_params(params, expected)
        facts = find_facts(est, params if fits else expected, for_apply, logits)
    except Exception as error:
        text = f"est cannot be used with logits of shape {logits.shape} and dtype {logits.dtype}"
        return [Finding("estimator", "problem", f"{text}: {function.message(error)}.")], None, None
    kind = ("bits", "classes")[facts.event_ndim - 1]
    goal = "an expectation" if facts.objective == "expectation" else f"a bound of {facts.bound_samples} samples"
    grad = "it differentiates f" if facts.needs_grad else "it does not need ∇f"
    found = [Finding("estimator", "ok", f"est estimates the gradient of {goal}, for {kind}; {grad}."), finding]
    return found, params if fits else expected, facts


def _check_apply(subject: measure.Subject) -> Finding | None:
    """Checks that est accepts this f, which may declare a structure that does not fit; returns None if it does."""
    est, params, logits, f, _ = subject
    try:
        jax.eval_shape(lambda: est.apply(params, jax.random.key(0), logits, f))
    except Exception as error:
        return Finding("apply", "problem", f"est.apply failed for this f: {function.message(error)}.")
    return None


def _check_params(params: Any, expected: Any) -> tuple[bool, Finding]:
    """Returns whether to use the given params, and a finding on them."""
    if not jax.tree.leaves(expected):
        if jax.tree.leaves(params):
            return False, Finding("params", "note", "est has no tunables; the params given are not used. Pass ().")
        return False, Finding("params", "ok", "est has no tunables; params=() will do.")
    if not jax.tree.leaves(params):
        text = "est has tunables, but no params were given. They were made here; est.apply needs them from you:"
        return False, Finding("params", "note", f"{text} params = est.init(key, logits).")
    found, wanted = (jax.tree.structure(tree) for tree in (params, expected))
    shapes, wanted_shapes = ([jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (params, expected))
    if found != wanted or shapes != wanted_shapes:
        text = f"params do not fit est: expected {wanted} of shapes {wanted_shapes}, got {found} of shapes {shapes}."
        return False, Finding("params", "problem", f"{text} Make them with est.init(key, logits).")
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(params)):
        return True, Finding(
            "params", "problem", "params are infinite or NaN. Lower the learning rate of the tunables."
        )
    return True, Finding("params", "ok", "params have the structure and the shapes that est.init gives.")
