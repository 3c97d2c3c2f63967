#!/usr/bin/env bash
# Sets up .venv if need be, then checks the style and the types and runs the whole suite. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/basedpyright --project pyproject.toml --pythonpath .venv/bin/python
cores=$(nproc)
processes=$((cores < 4 ? cores + 1 : 4)) # some wait for Slurm and for runs that they have started
.venv/bin/python -m pytest -n "$processes" --dist worksteal "$@" # neighbours, which share fixtures, stay together
