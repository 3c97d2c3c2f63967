"""Estimators for chains of stochastic layers: Algorithm 1 of the paper, for any estimator of samples.

The derivative with respect to logits_t needs f with layer t and everything after it drawn again. The trunk is b_1, …,
b_T. A branch of layer t shares b_1, …, b_{t−1} with the trunk, replaces b_t by a partner b̃_t, and draws the later
layers anew. The group of a layer is what the estimator for one layer draws there: its first sample is that of the
trunk, and each of the others is a partner with a branch of its own. Because the later layers are drawn given each
sample of the group, f at the group's samples has the mean that a function of b_t alone would have, and every formula
that is linear in f stays unbiased. Groups of n samples need T (n − 1) + 1 evaluations of f, in one call. For an f that
is a `LayerSum`, the terms of layers that branches share with the trunk are computed once.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from disarm_jax import bernoulli
from disarm_jax.estimators import calling, options
from disarm_jax.estimators.chain import Chain, chain_keys, check_chain
from disarm_jax.estimators.controlled import AtSamples, Control, Controlled, split_if
from disarm_jax.estimators.estimator import (
    Derived,
    Estimate,
    Estimator,
    EstimatorInfo,
    Function,
    Init,
    Outcome,
    SampleEstimator,
    Samples,
)
from disarm_jax.estimators.relaxation import Relaxation
from disarm_jax.structure import LayerSum, Parts, at_layer, parts_at, sum_of_rows


def of_chains(base: Estimator) -> Estimator:
    """Returns the form of an estimator for chains; see `hierarchical`.

    Raises:
      TypeError: if `base` is not an estimator.
      ValueError: if `base` has no form for chains.
    """
    options.check_estimator("hierarchical", base)
    if isinstance(base, HierarchicalEstimator) or (isinstance(base, Relaxation) and base.of_chain):
        raise ValueError(f"{base.name} is for chains already")
    if isinstance(base, Relaxation):
        info = _chain_info(base, "2 T + 1")
        return dataclasses.replace(base, of_chain=True, info=info)
    if not isinstance(base, SampleEstimator | Controlled):
        raise _no_form(base, "it calls f itself")
    sampling = base.base if isinstance(base, Controlled) else base
    if sampling.of_bound or sampling.event_ndim != 1:
        raise _no_form(base, "it estimates a bound" if sampling.of_bound else "it is for classes")
    if not sampling.independent:
        raise _no_form(base, "its bits are not independent")
    if sampling.info is None:
        return HierarchicalEstimator(base=base)
    branches = sampling.info.evaluations - 1 if isinstance(sampling.info.evaluations, int) else "D"
    extra = " + T" if isinstance(base, Controlled) else ""
    return HierarchicalEstimator(base=base, info=_chain_info(base, f"{branches} T + 1{extra}"))


def _no_form(base: Estimator, reason: str) -> ValueError:
    return ValueError(
        f"{base.name} has no form for chains, because {reason}; accepted: estimators of bits that evaluate f at "
        "samples, dj.taylor and dj.midpoint of these, and relax"
    )


def _chain_info(base: Estimator, evaluations: str) -> EstimatorInfo | None:
    return base.info and base.info._replace(name=f"hierarchical({base.name})", evaluations=evaluations)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HierarchicalEstimator(Derived):
    """Algorithm 1: trunk and branches for an estimator of samples, with or without a control variate.

    `params` is a tuple with the tunables of the base estimator for each layer; it is empty if there are none.

    Attributes:
      base: the estimator for one layer.
    """

    base: SampleEstimator | Controlled
    init: Init = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives the other fields."""
        object.__setattr__(self, "tuned_by_logits", self.base.tuned_by_logits)
        object.__setattr__(self, "init", self.init_params)
        super().__post_init__()

    @property
    def sampling(self) -> SampleEstimator:
        """The estimator that draws the samples, without a control variate."""
        return self.base.base if isinstance(self.base, Controlled) else self.base

    @property
    def moves_samples(self) -> bool:
        """Whether the tunables of the base estimator change the distribution of the samples."""
        return self.base.moves_samples

    def init_params(self, key: jax.Array, chain: Chain) -> tuple:
        """Returns the tunables of the base estimator for each layer."""
        shapes = check_chain(self.name, chain).shapes()
        keys = chain_keys(key, len(shapes))
        params = tuple(
            self.base.init(layer_key, jnp.zeros(shape.shape, shape.dtype))
            for layer_key, shape in zip(keys, shapes, strict=True)
        )
        return params if jax.tree.leaves(params) else ()

    def outcome(self, params: Any, key: jax.Array, logits: Chain, f: Function, has_aux: bool = False) -> Outcome:
        """Draws trunk and branches, evaluates f at all of them, and applies the formula of the base in each layer."""
        chain = check_chain(self.name, logits)
        depth = len(chain.layers)
        params = self._params_of_layers(params, depth)
        controlled = self.base if isinstance(self.base, Controlled) else None
        base_key, control_key = split_if(controlled is not None and controlled.control.random, key)
        own = [controlled.base_params(p) if controlled else p for p in params]
        drawn = _draw(self.sampling, own, base_key, chain)
        f_b, aux, parts = _evaluate(f, drawn, has_aux)
        grads, log_probs = [], []
        control_keys = [None] * depth if control_key is None else chain_keys(control_key, depth)
        for t, (trunk_logits, samples) in enumerate(zip(drawn.trunk, drawn.samples, strict=True)):
            f_group = drawn.group(t, f_b)
            if controlled is None:
                wide_f, _ = calling.widen(lax.stop_gradient(f_group), drawn.trunk[0])
                grad = self.sampling.formula(own[t], bernoulli.stop_and_widen(trunk_logits), *samples, wide_f)
            else:
                points, point_logits = _points(controlled.control, drawn, t, chain)
                part = at_layer(f, t, points, point_logits)
                if parts is None:
                    group = parts_at(part, samples.b)
                else:
                    of_group = functools.partial(drawn.group, t)
                    group = Parts(jax.tree.map(of_group, lax.stop_gradient(parts[t])), samples.b)
                at = AtSamples(part, trunk_logits, samples, group, f_group, has_aux and parts is None)
                grad = controlled.gradient(params[t], control_keys[t], at)
            grads.append(calling.finish(grad, trunk_logits))
            log_probs.append(self.sampling.log_prob_of(own[t], trunk_logits, samples))
        of_draws = functools.partial(drawn.draws, self.sampling.num_draws)
        wide_f, value_dtype = calling.widen(of_draws(f_b), drawn.trunk[0])
        estimate = Estimate(jnp.mean(wide_f, axis=0).astype(value_dtype), tuple(grads))
        aux = jax.tree.map(of_draws, aux)
        return Outcome(estimate, tuple(drawn.trunk), aux, tuple(log_probs) if self.moves_samples else None)

    def _params_of_layers(self, params: Any, depth: int) -> Sequence[Any]:
        """Returns the tunables of each layer. Raises TypeError if one is missing."""
        if not self.base.tunables:
            return [()] * depth
        layers = options.params_of_layers(self.name, params, depth)
        for own in layers:
            options.check_params(self.name, own, self.base.tunables)
            if isinstance(self.base, Controlled):
                self.base.check_scales(own)
        return layers


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Trunk and branches. Row 0 is the trunk; the branches follow in the order of the layers where they leave it.

    Attributes:
      trunk: `[*batch, D_t]` for each layer, the logits of the trunk.
      samples: for each layer the samples that the estimator for one layer drew, that of the trunk first.
      columns: `[R, *batch, D_t]` for each layer, all rows.
      num_rows: R_t for each layer, the number of rows that have left the trunk by then, including the trunk.
      given: `[R_t, *batch, D_t]` for each layer, the logits of these rows; one row for the first layer.
    """

    trunk: list[jax.Array]
    samples: list[Samples]
    columns: tuple[jax.Array, ...]
    num_rows: list[int]
    given: list[jax.Array]

    def group(self, t: int, rows: jax.Array) -> jax.Array:
        """Returns those rows that belong to the group of layer t."""
        before = 1 + sum(len(samples.b) - 1 for samples in self.samples[:t])
        return jnp.concatenate([rows[:1], rows[before : before + len(self.samples[t].b) - 1]])

    def draws(self, num: int | None, rows: jax.Array) -> jax.Array:
        """Returns the rows that are draws from q, of which there are `num` in each group; all rows if `num` is None."""
        if num is None:
            return rows
        return jnp.concatenate([rows[:1], *(self.group(t, rows)[1:num] for t in range(len(self.trunk)))])


def _draw(est: SampleEstimator, params: Sequence[Any], key: jax.Array, chain: Chain) -> _Drawn:
    depth = len(chain.layers)
    keys = chain_keys(key, 2 * depth - 1)
    group_keys, redraw_keys = keys[:depth], keys[depth:]
    trunk, groups, all_rows, given = [], [], [], []
    rows = None
    for t in range(depth):
        # The trunk has a call of its own: only its logits are differentiated, and a derivative has the rows of its
        # call.
        logits = chain.logits(t, None if rows is None else rows[:1])
        trunk.append(logits[0])
        if rows is not None and len(rows) > 1:
            logits = jnp.concatenate([logits, chain.logits(t, rows[1:])])
        alpha = bernoulli.stop_and_widen(logits)
        b, noise = est.sampler(params[t], group_keys[t], alpha[0])
        redrawn = bernoulli.sample(redraw_keys[t - 1], alpha[1:], 1) if t else []
        rows = jnp.concatenate([b[:1], *redrawn, b[1:]]).astype(logits.dtype)
        partners = jnp.broadcast_to(logits[:1], (len(b) - 1, *logits.shape[1:]))
        groups.append(Samples(b.astype(logits.dtype), noise))
        all_rows.append(rows)
        given.append(jnp.concatenate([logits, partners]) if t else logits)
    num = len(all_rows[-1])
    columns = [
        jnp.concatenate([rows, jnp.broadcast_to(rows[:1], (num - len(rows), *rows.shape[1:]))]) for rows in all_rows
    ]
    return _Drawn(trunk, groups, tuple(columns), [len(rows) for rows in all_rows], given)


def _evaluate(f: Function, drawn: _Drawn, has_aux: bool) -> tuple[jax.Array, Any, list[Any] | None]:
    """Returns f at all rows, its auxiliary output, and the results of the inner functions of a `LayerSum`."""
    shape = drawn.columns[0].shape[:-1]
    if not isinstance(f, LayerSum):
        return *calling.evaluate(f, drawn.columns, shape, has_aux), None
    terms, inner = f.terms(drawn.columns, f.given(drawn.given), drawn.num_rows)
    with_aux = f.with_aux(sum_of_rows(terms, [term[:1] for term in terms]), drawn.columns, has_aux)
    return *calling.evaluate(lambda _: with_aux, drawn.columns, shape, has_aux), inner


def _points(control: Control, drawn: _Drawn, t: int, chain: Chain) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns the points of all layers around which layer t is expanded, and the logits there, each with one row.

    The points are the bits of the trunk before layer t, the point of the control variate in layer t, and the means of
    the later layers given this point.
    """
    alpha = bernoulli.stop_and_widen(drawn.trunk[t])
    point = control.point(alpha, drawn.samples[t].b.astype(alpha.dtype))
    points = [column[:1] for column in drawn.columns[:t]]
    points.append(point[None].astype(drawn.columns[t].dtype))
    logits = [array[None] for array in drawn.trunk[: t + 1]]
    for s in range(t + 1, len(drawn.trunk)):
        logits.append(chain.logits(s, points[-1]))
        mean = jax.nn.sigmoid(bernoulli.stop_and_widen(logits[s]))
        points.append(mean.astype(drawn.columns[s].dtype))
    return lax.stop_gradient((points, logits))
