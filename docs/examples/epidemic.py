"""An epidemic among agents: recover the infection rate by gradient through a simulator that JAX cannot see.

While an agent is infectious, for three days, each of its contacts is infected with probability 1 − exp(−rate) a day.
One bit says, for each contact and each of these days, whether an infection would pass; given the bits, the simulator is
a NumPy loop. It is called through `jax.pure_callback`, and then the same by ask and tell. The loss of a pair of
independent epidemics is the product of their deviations from the observed curve, whose mean is the squared deviation of
the mean curve: the square for a single epidemic would add its variance, which depends on the rate as well.
"""

import time

import common
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import disarm_jax as dj

DAYS_ILL, TRUE_RATE, START = 3, 0.12, 0.3


def contacts(agents, degree):
    """Who meets whom: source and target of each contact, in both directions."""
    rng = np.random.default_rng(0)
    source, target = np.repeat(np.arange(agents), degree // 2), rng.integers(0, agents, agents * degree // 2)
    return np.concatenate([source, target]), np.concatenate([target, source])


def simulate(bits, links, agents, days):
    """New infections per day, as a share of the agents: `[M, days]` from bits `[M, DAYS_ILL, contacts]`."""
    caught = np.full((len(bits), agents), days + DAYS_ILL)  # the day of infection; this means never
    caught[:, :5] = 0
    source, target = links
    for day in range(1, days):
        age = day - 1 - caught[:, source]
        ill = (age >= 0) & (age < DAYS_ILL)
        passes = ill & (np.take_along_axis(bits, np.clip(age, 0, DAYS_ILL - 1)[:, None], axis=1)[:, 0] > 0)
        epidemic, contact = np.nonzero(passes & (caught[:, target] > day))
        caught[epidemic, target[contact]] = day
    return np.stack([np.mean(caught == day, axis=1) for day in range(days)], axis=1).astype(np.float32)


def make_simulator_loss(links, agents, observed):
    """f of a pair of epidemics in NumPy: bits `[N, 2 * DAYS_ILL * contacts]` to losses `[N]`."""

    def loss(b):
        bits = np.asarray(b).reshape(2 * len(b), DAYS_ILL, -1)
        deviation = agents * (simulate(bits, links, agents, len(observed)) - observed).reshape(len(b), 2, -1)
        return np.mean(deviation[:, 0] * deviation[:, 1], axis=1).astype(np.float32)

    return loss


def logits_of(log_rate, num):
    """The logit of 1 − exp(−rate) for each bit."""
    rate = jnp.exp(log_rate)
    return jnp.broadcast_to(jnp.log(jnp.expm1(rate)), (num,))


def gradients(est, loss, num):
    """The derivative with respect to the log rate, of log rate and key: by callback, and by ask and tell."""

    def f(b):
        return jax.pure_callback(loss, jax.ShapeDtypeStruct(b.shape[:1], jnp.float32), b, vmap_method="sequential")

    @jax.jit
    def through_callback(log_rate, key):
        return jax.grad(lambda log_rate: dj.expectation(est)((), key, logits_of(log_rate, num), f))(log_rate)

    draw = jax.jit(lambda log_rate, key: est.draw((), key, logits_of(log_rate, num)))

    @jax.jit
    def finish(log_rate, samples, f_b):
        logits, pull = jax.vjp(lambda log_rate: logits_of(log_rate, num), log_rate)
        return pull(est.tell((), logits, samples, f_b).grad)[0]

    def by_ask_and_tell(log_rate, key):
        samples = draw(log_rate, key)
        return finish(log_rate, samples, loss(np.asarray(samples.b)))

    return through_callback, by_ask_and_tell


def run(small):
    """Estimates the rate with DisARM and REINFORCE-LOO, from the same start."""
    agents, days, steps, pairs = (30, 6, 3, 2) if small else (200, 25, 200, 8)
    links = contacts(agents, 6)
    num = 2 * DAYS_ILL * len(links[0])
    truth = jax.random.bernoulli(jax.random.key(1), -np.expm1(-TRUE_RATE), (20 if small else 400, DAYS_ILL, num // 6))
    observed = simulate(np.asarray(truth), links, agents, days).mean(axis=0)
    loss, figure = make_simulator_loss(links, agents, observed), Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2)
    lines = [f"{'true rate':27} {TRUE_RATE:.3f}", f"{'start':27} {START:.3f}"]
    for est, color in (dj.disarm(num_pairs=pairs), "#D55E00"), (dj.reinforce_loo(num_samples=2 * pairs), "#E69F00"):
        through_callback, by_ask_and_tell = gradients(est, loss, num)
        for way, gradient in ("callback", through_callback), ("ask and tell", by_ask_and_tell):
            log_rate, trace, start, mean_square = jnp.log(START), [START], time.process_time(), 0.0
            for step, key in enumerate(jax.random.split(jax.random.key(2), steps)):
                slope = gradient(log_rate, key)
                mean_square = 0.9 * mean_square + 0.1 * slope**2
                log_rate -= 0.1 / (1 + step / 40) * slope / jnp.sqrt(mean_square / (1 - 0.9 ** (step + 1)))
                trace.append(float(jnp.exp(log_rate)))
            last = np.mean(trace[-len(trace) // 4 :])
            seconds = time.process_time() - start
            lines.append(f"{est.name + ', ' + way:27} {last:.3f}  {seconds:.1f} CPU seconds")
        left.plot(trace, color=color, label=est.name)
    left.axhline(TRUE_RATE, color="#000000", lw=0.8)
    left.set(xlabel="step", ylabel="infection rate", yscale="log")
    left.legend()
    right.plot(agents * observed, color="#000000")
    right.set(xlabel="day", ylabel="new infections", title="observed: mean of many epidemics")
    return lines, figure


if __name__ == "__main__":
    common.report("epidemic", run)
