#!/usr/bin/env bash
# Does the package work with nothing but jax and numpy beside it? Installs its wheel with the oldest releases of both that
# pyproject.toml names, and with the newest ones, by every Python of 3.11 or later on the PATH; in each environment runs
# tests/installed.py and the first example of the README. About a minute of one core for each.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pythons=()
for python in python3.{11..15}; do
    if command -v "$python" >/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null; then pythons+=("$python"); fi
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

# The oldest releases have wheels for the oldest Python alone.
for environment in "oldest:${pythons[0]}" "${pythons[@]/#/newest:}"; do
    age=${environment%%:*} folder=$scratch/${environment/:/-}
    "${environment#*:}" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$scratch/$age.txt" "$scratch"/*.whl
    (cd "$scratch" && "$folder/bin/python" installed.py && "$folder/bin/python" example.py)
    "$folder/bin/python" -m pip list --disable-pip-version-check
done
echo "oldest_jax: the package works with jax and numpy alone, the oldest and the newest, by ${pythons[*]}"
