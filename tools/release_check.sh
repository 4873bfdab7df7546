#!/usr/bin/env bash
# Build sdist and wheel, install the wheel in a new environment outside the checkout, and train with it there.
# Usage: tools/release_check.sh PYTHON, an interpreter that has the package `build`.
set -euo pipefail
builder="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
checkout="$(cd "$(dirname "$0")/.." && pwd)"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

step() { printf '\n== %s\n' "$*"; }

step "build the sdist from the tracked files, and the wheel from the sdist"
mkdir "$place/source"
(cd "$checkout" && git ls-files -z | tar --null --files-from=- --create) | tar --extract --directory "$place/source"
"$builder" -m build --outdir "$place/dist" "$place/source" > "$place/build.log" 2>&1 \
    || { tail -n 40 "$place/build.log"; exit 1; }
(cd "$place/dist" && ls -l)

step "install the wheel in a new environment"
"$builder" -m venv "$place/env"
"$place/env/bin/pip" install --quiet "$place"/dist/*.whl
"$place/env/bin/pip" check

step "use it from another folder"
mkdir "$place/elsewhere"
cd "$place/elsewhere"
export METTA_CACHE_DIR="$place/cache" PATH="$place/env/bin:$PATH"
unset PYTHONPATH
metta --version
python "$checkout/tools/release_smoke.py" "$checkout" "$place"/dist/*.whl
metta train cartpole total_timesteps=4096 checkpoint_interval=2 --run smoke
metta resume smoke total_timesteps=8192
metta runs
metta eval smoke:best --episodes 5

step "release-check passed"
