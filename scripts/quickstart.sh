#!/usr/bin/env bash
# Sets up .venv if need be, then trains the paper's toy model with REINFORCE-LOO, ARM and DisARM. Arguments go to it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
exec .venv/bin/python -m scripts.toy "$@"
