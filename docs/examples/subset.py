"""Which 10 of 2,000 covariates? Best subset selection by gradients, beside the lasso.

f is minus the log marginal likelihood of a linear model on the chosen covariates, plus a price for each: the objective
itself and not a relaxation of it. Bits with probabilities σ(logits) choose, and E f(b) is minimised over the logits.
Then the same with exactly 10 covariates, by `dj.subsets`.
"""

import time

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

import disarm_jax as dj

TRUE, ROWS = 10, 160


def data(key, columns):
    """Rows to learn from and fresh ones: correlated covariates, a response that depends on 10, and these 10."""
    keys = jax.random.split(key, 5)
    noise, start = jax.random.normal(keys[0], (columns, 2 * ROWS)), jax.random.normal(keys[1], (2 * ROWS,))
    x = lax.scan(lambda last, new: (0.5 * last + 0.75**0.5 * new,) * 2, start, noise)[1].T
    support = jax.random.permutation(keys[2], columns)[:TRUE]
    weights = jax.random.uniform(keys[3], (TRUE,), minval=0.5, maxval=1.0) * jnp.where(jnp.arange(TRUE) % 2, 1.0, -1.0)
    y = x[:, support] @ weights + jax.random.normal(keys[4], (2 * ROWS,))
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:]), np.asarray(support)


def make_f(x, y, price):
    """f: choices `[N, D]` to minus the log marginal likelihood plus the price; weights have a standard normal prior."""

    def one(b):
        factor = jnp.linalg.cholesky(jnp.eye(ROWS) + (x * b) @ x.T)
        residual = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * residual @ residual + jnp.sum(jnp.log(jnp.diag(factor))) + price * jnp.sum(b)

    return lambda b: lax.map(one, b)


def unbiased(est, f):
    """The objective by an estimator, a function of logits and key."""
    return lambda logits, key: dj.expectation(est)(est.init(key, logits), key, logits, f)


def straight_through(f, num):
    """The objective by samples of exactly 10 that have a biased gradient."""
    draw = jax.vmap(dj.subsets.straight_through, in_axes=(0, None, None))
    return lambda logits, key: jnp.mean(f(draw(jax.random.split(key, num), logits, TRUE)))


def lasso(x, y, penalties, steps):
    """Coefficients `[penalties, D]` by proximal gradient steps, each started at the last penalty's."""
    size = 1 / jnp.linalg.norm(x, 2) ** 2

    def step(weights, threshold):
        moved = weights - size * x.T @ (x @ weights - y)
        return jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - size * threshold, 0)

    solve = lambda weights, penalty: (lax.fori_loop(0, steps, lambda _, w: step(w, penalty), weights),) * 2
    return np.asarray(jax.jit(lambda p: lax.scan(solve, jnp.zeros(x.shape[1]), p)[1])(penalties))


def run(small):
    """Chooses by each method, and says how many of the chosen covariates are true ones."""
    columns, steps = (40, 15) if small else (2000, 1500)
    (x, y), (fresh_x, fresh_y), support = data(jax.random.key(1), columns)
    f, fit = make_f(x, y, jnp.log(columns / TRUE)), make_f(x, y, 0.0)
    start, (traced, ranked) = time.process_time(), (figure := Figure(figsize=(8, 3.2))).subplots(1, 2)
    path = lasso(x, y, float(jnp.max(jnp.abs(x.T @ y))) * jnp.geomspace(1, 0.02, 30), 10 if small else 300)
    best = np.argmin(np.mean((fresh_y - path @ fresh_x.T) ** 2, axis=1))
    chosen, seconds, traces = {}, {}, {}
    chosen["lasso, penalty by fresh rows"] = np.flatnonzero(path[best])
    seconds["lasso, penalty by fresh rows"] = time.process_time() - start
    bits, exactly = jnp.full(columns, -4.0), jnp.zeros(columns)
    loo = dj.subsets.reinforce_loo(TRUE, num_samples=16)
    for name, objective, logits, num in [
        ("DisARM, 4 pairs", unbiased(dj.disarm(num_pairs=4), f), bits, steps),
        ("REINFORCE-LOO, 8 samples", unbiased(dj.reinforce_loo(num_samples=8), f), bits, steps),
        ("midpoint, 1 pair", unbiased(dj.disarm_midpoint(init_scale=1.0), f), bits, steps),
        ("exactly 10, REINFORCE-LOO 16", unbiased(loo, fit), exactly, steps),
        ("exactly 10, straight-through", straight_through(fit, 4), exactly, steps // 3),
    ]:
        clock, traces[name], last = common.fit(objective, logits, 0.1, num // 5, 5, np.asarray)
        chosen[name] = np.flatnonzero(last > 0) if logits is bits else np.argsort(-np.asarray(last))[:TRUE]
        seconds[name] = clock[-1]
    lines = [f"{'':28}  chosen  true ones  CPU seconds"]
    for name, found in chosen.items():
        lines.append(f"{name:28} {len(found):7d} {np.isin(found, support).sum():10d} {seconds[name]:12.1f}")
    probabilities = 1 / (1 + np.exp(-traces["DisARM, 4 pairs"]))
    others = np.delete(probabilities, support, axis=1)
    traced.plot(5 * np.arange(len(others)), np.sort(others, axis=1)[:, -20:], color="#999999", lw=0.5)
    traced.plot(5 * np.arange(len(others)), probabilities[:, support], color="#D55E00", lw=1)
    traced.set(xlabel="step", ylabel="probability", title="DisARM: true ones in red")
    order, size = np.argsort(-np.abs(path[best])), np.sort(np.abs(path[best]))[::-1]
    ranked.bar(np.arange(len(order)), size, width=1, color=np.where(np.isin(order, support), "#D55E00", "#999999"))
    ranked.set_xlim(-1, len(chosen["lasso, penalty by fresh rows"]))
    ranked.set(xlabel="rank", ylabel="|coefficient|", title="lasso: true ones in red")
    return lines, figure


if __name__ == "__main__":
    common.report("subset", run)
