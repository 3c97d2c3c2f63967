"""The training step of DisARM on the ELBO in PyTorch, in several versions: ours is compared with the fastest.

Needs PyTorch and NumPy alone, so that it runs with any Python that has them. As a program, `python benchmark_torch.py
'{"file": "linear.npz", "version": "compiled", "cores": [0]}'` checks on the numbers on file, which
`benchmark_cases.reference` has made, that the step computes the same as ours, says "ready", and for every line on its
standard input makes some steps and prints the seconds of one.

A step is the whole of ours: images by number, their binarisation, the pair of samples, the fresh sample for decoder and
prior, Adam for encoder and decoder, SGD for the prior, and the moving averages of the encoder's gradient.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np

VERSIONS = ("eager", "compiled", "compiled with its optimiser")
STEPS, WARM_UP = 100, 20
DECAY = 0.999


class Step:
    """The step of one of the versions, and the state it goes on from."""

    def __init__(self, case: dict[str, np.ndarray], version: str):
        """Takes the weights on file; compiles with the first call."""
        import torch  # pyright: ignore[reportMissingImports]  # not among the requirements

        self._torch = torch
        tensor = lambda array: torch.nn.Parameter(torch.tensor(np.ascontiguousarray(array)))
        depth = sum(name.startswith("encoder") for name in case) // 2
        self.encoder, self.decoder = (
            [(tensor(case[f"{group}/{n}/kernel"].T), tensor(case[f"{group}/{n}/bias"])) for n in range(depth)]
            for group in ("encoder", "decoder")
        )
        self.prior, self.mean = tensor(case["prior"]), torch.tensor(case["mean"])
        self.images = torch.tensor(images())
        self.batch_size, rates = len(case["x"]), case["rates"].tolist()
        weights = [leaf for layer in self.encoder for leaf in layer]
        self._moments = [[torch.zeros_like(leaf) for leaf in weights] for _ in range(2)]
        adam = [*weights, *(leaf for layer in self.decoder for leaf in layer)]
        eager, whole = (version == VERSIONS[number] for number in (0, 2))
        fused = {"foreach": True} if whole else {"fused": True}  # a fused optimiser is one operation, and not compiled
        self._adam = torch.optim.Adam(adam, lr=rates[0], eps=1e-7, **fused)
        self._sgd = torch.optim.SGD([self.prior], lr=rates[1], **fused)
        compiled = (lambda function: function) if eager else torch.compile
        self._loss, self._batch, self._average = map(compiled, (self.loss, self.batch, self.average))
        self._update = torch.compile(self._optimizers) if whole else self._optimizers

    def logits(self, layers: list[tuple], inputs: Any) -> Any:
        """The output of a network with LeakyReLUs."""
        functional = self._torch.nn.functional
        for number, (weight, bias) in enumerate(layers):
            inputs = functional.linear(inputs, weight, bias)
            inputs = functional.leaky_relu(inputs, 0.3) if number < len(layers) - 1 else inputs
        return inputs

    def log_joint(self, x: Any, b: Any) -> Any:
        """log p(x, b) of samples `[..., B, D]`."""
        pixels = self.logits(self.decoder, 2 * b - 1)
        return self._log_prob(pixels, x) + self._log_prob(self.prior, b)

    def _log_prob(self, logits: Any, b: Any) -> Any:
        return (b * logits - self._torch.nn.functional.softplus(logits)).sum(-1)

    def pair(self, logits: Any) -> Any:
        """An antithetic pair `[2, B, D]`."""
        uniform, p = self._torch.rand_like(logits), self._torch.sigmoid(logits)
        return self._torch.stack([uniform > 1 - p, uniform < p]).float()

    def loss(self, x: Any, pair: Any = None, fresh: Any = None) -> tuple[Any, Any]:
        """What PyTorch is to differentiate, and the ELBO, at new samples or at given ones."""
        torch = self._torch
        logits = self.logits(self.encoder, x - self.mean)
        with torch.no_grad():
            pair = self.pair(logits) if pair is None else pair
            fresh = (torch.rand_like(logits) < torch.sigmoid(logits)).float() if fresh is None else fresh
            f = self.log_joint(x, pair) - self._log_prob(logits, pair)
            estimate = 0.5 * (f[0] - f[1]).unsqueeze(-1) * (pair[0] - pair[1]) * torch.sigmoid(logits.abs())
        # The sum over the batch for the encoder, the mean for decoder and prior.
        return -(estimate * logits).sum() - self.log_joint(x, fresh).mean(), f.mean()

    def batch(self, chosen: Any) -> Any:
        """Images by number, with new bits."""
        pixels = self.images[chosen].float() / 255
        return (self._torch.rand_like(pixels) < pixels).float()

    def average(self, gradients: list[Any]) -> None:
        """Takes one more gradient of the encoder into the moving averages."""
        torch, (mean, square) = self._torch, self._moments
        gradients = torch._foreach_div(gradients, float(self.batch_size))
        torch._foreach_lerp_(mean, gradients, 1 - DECAY)
        torch._foreach_mul_(square, DECAY)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - DECAY)

    def step(self) -> None:
        """One step."""
        x = self._batch(self._torch.randint(len(self.images), (self.batch_size,)))
        self._loss(x)[0].backward()
        self._average([leaf.grad for layer in self.encoder for leaf in layer])
        self._update()
        for optimizer in (self._adam, self._sgd):
            optimizer.zero_grad()

    def _optimizers(self) -> None:
        self._adam.step()
        self._sgd.step()

    def check(self, case: dict[str, np.ndarray]) -> None:
        """Raises AssertionError if the ELBO or a gradient is not that on file, at the samples on file."""
        tensors = [self._torch.tensor(case[name]) for name in ("x", "pair", "fresh")]
        loss, value = self._loss(*tensors)
        loss.backward()
        found = {"value": value.detach()}
        for group, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            for number, (weight, bias) in enumerate(layers):
                found |= {f"{group}/{number}/kernel": weight.grad.T, f"{group}/{number}/bias": bias.grad}
        found["prior"] = self.prior.grad
        for name, value in found.items():
            expected = case[f"expected/{name}"]
            np.testing.assert_allclose(
                value.numpy(), expected, rtol=0, atol=1e-4 * np.abs(expected).max(), err_msg=name
            )
        for optimizer in (self._adam, self._sgd):
            optimizer.zero_grad()

    def run(self) -> float:
        """Some more steps; the seconds of one."""
        start = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        return (time.perf_counter() - start) / STEPS


def images(num: int = 50_000, pixels: int = 784) -> np.ndarray:
    """Grey values with as many zeros as MNIST has."""
    rng = np.random.default_rng(0)
    return rng.integers(1, 256, (num, pixels), np.uint8) * (rng.random((num, pixels)) < 0.19).astype(np.uint8)


def serve(request: dict[str, Any]) -> None:
    """Checks, and makes steps whenever a line comes in, see the top of the file."""
    os.sched_setaffinity(0, request["cores"])
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(len(request["cores"]))
    with np.load(request["file"]) as arrays:
        case = dict(arrays)
    step = Step(case, request["version"])
    step.check(case)
    for _ in range(WARM_UP):
        step.step()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(np.median([step.run() for _ in range(5)]), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
