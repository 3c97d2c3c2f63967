"""What made a run: the code, the versions, the settings outside of the config, the machine and the data."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import disarm_jax as dj
from disarm_jax.experiment.devices import Device, processor_name, usable_cores
from disarm_jax.experiment.run import Prepared

PACKAGES = ("disarm_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
GIT_SECONDS = 10  # a slow file system must not keep a run from starting


def start_entry(step: int, prepared: Prepared, devices: Sequence[Device]) -> dict[str, Any]:
    """The entry of `run.json` for a process that trains from a step on."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "code": code(),
        "versions": versions(),
        "flags": {name: os.environ[name] for name in sorted(os.environ) if _is_flag(name)},
        "matmul_precision": prepared.config["matmul_precision"],
        "device": device(devices),
        "host": host(),
        "data": prepared.dataset.provenance._asdict(),
    }


def _is_flag(name: str) -> bool:
    return name.startswith(("JAX_", "XLA_")) or name == "PJRT_NPROC"


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a result may depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def device(devices: Sequence[Device]) -> dict[str, Any]:
    """The devices that the seeds are spread over."""
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}


def host() -> dict[str, Any]:
    """The machine around the devices."""
    return {"processor": processor_name(), "cores": os.cpu_count(), "usable_cores": usable_cores()}


def code(package: pathlib.Path = pathlib.Path(dj.__file__).parent) -> dict[str, Any]:
    """The commit of this code and whether it was changed since; both None where no repository tells.

    Args:
      package: the folder of the package.

    Returns:
      `commit`; `dirty`, whether tracked files have changed or there are new Python files; `version`.
    """
    commit = dirty = None
    # Installed by pip, the package may lie in a checkout of something else, which does not track it.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") and (head := _git(package, "rev-parse", "HEAD")):
        commit = head.strip()
        changed = _git(package, "status", "--porcelain", "--untracked-files=no")
        new = _git(package, "ls-files", "--others", "--exclude-standard", ":/*.py")
        dirty = None if changed is None or new is None else bool(changed or new)
    return {"commit": commit, "dirty": dirty, "version": dj.__version__}


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    """What git prints in a folder; None if it fails, is not there or takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets some
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # others may be at work in the repository
    settings = {"env": environment, "capture_output": True, "text": True, "timeout": GIT_SECONDS, "check": True}
    try:
        return subprocess.run(command, **settings).stdout
    except (OSError, subprocess.SubprocessError):
        return None
