#!/usr/bin/env bash
# Makes .venv with everything that requirements.txt pins and this package, unless it is there and up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "setup: no '$python' here; install Python 3.11 or later (Debian: apt-get install python3 python3-venv)" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: $("$python" --version) is too old, 3.11 or later is needed; name another one with PYTHON=…" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "setup: '$python' cannot make virtual environments (Debian: apt-get install python3-venv)" >&2
    exit 1
fi

# The stamp is written last, so that an interrupted installation is made again.
stamp=.venv/installed
wanted=$(cat requirements.txt pyproject.toml | sha256sum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    echo "setup: installing into .venv (about a minute)"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
    echo "$wanted" >"$stamp"
fi
