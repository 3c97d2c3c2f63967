#!/usr/bin/env bash
# Sets up .venv if need be, then checks the style and the types and runs the whole suite. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
types=$(mktemp)
trap 'rm -f "$types"' EXIT
.venv/bin/basedpyright --project pyproject.toml --pythonpath .venv/bin/python >"$types" & # one core, half a minute
cores=$(nproc)
processes=$((cores < 4 ? cores + 1 : 4)) # some wait for Slurm and for runs that they have started
status=0
.venv/bin/python -m pytest -n "$processes" --dist worksteal "$@" || status=$? # neighbours, which share fixtures, stay together
wait $! || status=$?
cat "$types"
exit $status
