"""How well the midpoint's scale comes from the other rows of a batch: variance relative to DisARM on several functions.

    python -m scripts.midpoint_scale --out results/midpoint

Functions of 60 bits, with logits drawn once from a normal distribution of standard deviation 0.7, and batches of 1 to
50 rows: the variance of `disarm_midpoint` with λ from the batch, and with fixed λ up to 1, of which a learnt one would
find the best. Writes `scale.md`.
"""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import disarm_jax as dj
from disarm_jax.command_line import flags_only, run_script

BITS = 60
SCALES = (0.25, 0.5, 0.75, 1.0)


def functions(rng: np.random.Generator) -> dict[str, Callable]:
    """Smooth functions, and some that the slope at a midpoint says little about."""

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    decoder, offset, output, square = normal(BITS, 40) / np.sqrt(BITS), normal(40), normal(40), normal(BITS, BITS)
    steps = jnp.arange(1.0, BITS + 1)
    return {
        "linear decoder": lambda b: jnp.sum(jax.nn.softplus(4 * b @ decoder + offset[None, None]), axis=-1),
        "quadratic": lambda b: jnp.sum((b @ square) * b, axis=-1),
        "tanh network": lambda b: jnp.tanh(2 * (2 * b - 1) @ decoder) @ output,
        "tanh network, inputs × 4": lambda b: jnp.tanh(8 * (2 * b - 1) @ decoder) @ output,
        "cos(Σ i b_i)": lambda b: jnp.cos(b @ steps),
        "step function": lambda b: (b.sum(-1) > BITS / 2).astype(b.dtype) + 0.3 * b[..., 0],
    }


def row_of_table(f: Callable, logits: jax.Array, num_draws: int) -> list[float]:
    """The variance with λ from the batch, and with each fixed λ, relative to DisARM's."""

    def total(est: dj.Estimator) -> float:
        params = est.init(jax.random.key(0), logits)
        return float(dj.gradient_variance(est)(params, jax.random.key(1), logits, f, num_draws).total)

    ests = [dj.disarm_midpoint(), *(dj.disarm_midpoint(init_scale=scale) for scale in SCALES)]
    disarm = total(dj.disarm())
    return [total(est) / disarm for est in ests]


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_string("out", "runs/midpoint_scale", "Folder of the table.", **options)
    shared = "Draws, shared between the rows of a batch."
    flags.DEFINE_integer("num_draws", 20_000, shared, lower_bound=100, **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures all functions and writes the table."""
    flags_only(argv)
    rng = np.random.default_rng(0)
    fs = functions(rng)
    lines = ["| f | rows | λ from the batch | " + " | ".join(f"λ = {scale:g}" for scale in SCALES) + " |"]
    lines.append("|---" * (3 + len(SCALES)) + "|")
    for name, f in fs.items():
        for rows in (1, 2, 8, 50):
            logits = jnp.asarray(0.7 * rng.normal(size=(rows, BITS)), jnp.float32)
            found = row_of_table(f, logits, max(values.num_draws // rows, 400))
            lines.append(f"| {name} | {rows} | " + " | ".join(f"{value:.3g}" for value in found) + " |")
            print(lines[-1], flush=True)
    folder = pathlib.Path(values.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    run_script(main, define_flags)
