#!/usr/bin/env bash
# Does the package work with nothing but jax and numpy beside it? Installs its wheel with the oldest releases of both that
# pyproject.toml names, and with the newest ones, by every Python of 3.11 or later on the PATH or among pyenv's; in each
# environment runs tests/installed.py and the first example of the README. About a minute of one core for each. Names the
# Pythons that pyproject.toml claims to support and that are not here.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pythons=() versions=()
for version in 3.{11..15}; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            pythons+=("$python") versions+=("$version")
            break
        fi
    done
done
if [ ${#pythons[@]} -eq 0 ]; then
    echo "oldest_jax: no Python of 3.11 or later here that can make virtual environments" >&2
    exit 1
fi
"${pythons[0]}" - >"$scratch/oldest.txt" <<'PYTHON'
import pathlib, tomllib

for need in tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["dependencies"]:
    name, _, version = need.partition(">=")
    for package in (name, "jaxlib") if name == "jax" else (name,):
        print(f"{package}=={version}")
PYTHON
printf 'jax\nnumpy\n' >"$scratch/newest.txt"
awk '/^```python$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' README.md >"$scratch/example.py"
cp tests/installed.py "$scratch"
"${pythons[0]}" -m venv "$scratch/build"
"$scratch/build/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch" .

try() { # which releases, by which of the Pythons
    local folder=$scratch/$1-${versions[$2]}
    "${pythons[$2]}" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$scratch/$1.txt" "$scratch"/*.whl
    (cd "$scratch" && "$folder/bin/python" installed.py && "$folder/bin/python" example.py)
    "$folder/bin/python" --version
    "$folder/bin/python" -m pip list --disable-pip-version-check
}
try oldest 0 # these have wheels for the oldest Python alone
for index in "${!pythons[@]}"; do try newest "$index"; done
echo "oldest_jax: the package works with jax and numpy alone, the oldest and the newest, by Python ${versions[*]}"
for version in $(sed -n 's/.*Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml); do
    [[ " ${versions[*]} " == *" $version "* ]] || echo "oldest_jax: Python $version is not here, and was not tried" >&2
done
