#!/usr/bin/env bash
# Sets up .venv if need be, then trains a Bernoulli VAE with DisARM on 5,000 digits. Further flags go to main.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
exec .venv/bin/python -m main --config configs/quickstart.py --workdir runs/quickstart "$@"
