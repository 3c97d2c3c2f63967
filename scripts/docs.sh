#!/usr/bin/env bash
# Builds the documentation site into site/, strictly: a warning or a dead link is an error. Open site/index.html, which needs
# no server and no network. Makes .venv-docs with what docs/requirements.txt pins, unless it is there and up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-docs/installed
wanted=$(sha256sum <docs/requirements.txt)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    echo "docs: installing into .venv-docs"
    [ -x .venv-docs/bin/python ] || "${PYTHON:-python3}" -m venv .venv-docs
    .venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
    echo "$wanted" >"$stamp"
fi
NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --site-dir "${1:-site}"
.venv-docs/bin/python -m scripts.docs_links "${1:-site}"
