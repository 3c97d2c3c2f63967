"""What the examples share: training with a clock, two flags, a text of results and a figure."""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import matplotlib
import numpy as np
import optax
from jax import lax

matplotlib.use("agg")

from matplotlib.figure import Figure


def fit(
    loss: Callable[[Any, jax.Array], jax.Array],
    weights: Any,
    rate: float,
    chunks: int,
    length: int,
    evaluate: Callable[[Any], Any],
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Trains by Adam.

    Args:
      loss: of weights and a key.
      weights: where it begins.
      rate: the learning rate.
      chunks: how often to look.
      length: steps between looks.
      evaluate: of weights, before the first step and after each chunk.

    Returns:
      CPU seconds of training before each look, without those to compile; what `evaluate` returned; the weights.
    """
    optimizer = optax.adam(rate)

    def step(state: Any, key: jax.Array) -> tuple:
        updates, opt = optimizer.update(jax.grad(loss)(state[0], key), state[1])
        return (optax.apply_updates(state[0], updates), opt), None

    state, keys = (weights, optimizer.init(weights)), jax.random.split(jax.random.key(3), (chunks, length))
    chunk = jax.jit(lambda state, keys: lax.scan(step, state, keys)[0]).lower(state, keys[0]).compile()
    seconds, seen = [0.0], [evaluate(weights)]
    for key in keys:
        start = time.process_time()
        state = jax.block_until_ready(chunk(state, key))
        seconds.append(seconds[-1] + time.process_time() - start)
        seen.append(evaluate(state[0]))
    return np.array(seconds), np.array(seen), state[0]


def report(name: str, run: Callable[[bool], tuple[list[str], Figure]], arguments: list[str] | None = None) -> None:
    """Runs an example; prints its lines, and writes them and its figure to `name`.txt and `name`.png.

    Args:
      name: of the example.
      run: takes whether the run is a small one, for tests.
      arguments: of the command line.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(), help="folder of the text and the figure")
    flags = parser.parse_args(arguments)
    lines, figure = run(flags.small)
    text = "\n".join(lines)
    print(text)
    (flags.out / f"{name}.txt").write_text(text + "\n")
    figure.savefig(flags.out / f"{name}.png", dpi=90, bbox_inches="tight")
