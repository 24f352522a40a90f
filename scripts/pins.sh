#!/usr/bin/env bash
# Prints the pins of a virtual environment, in the form that constraints files take.
#
#   scripts/pins.sh .venv > constraints.txt
#   scripts/pins.sh .venv-vllm > constraints-vllm.txt
#
# Without the part of a version that names a build (+cpu), so that the same file holds for every build; without
# Samewise itself, and without the code-free `vllm` that set-up writes.
set -euo pipefail
echo "# Written by scripts/pins.sh: what the tests were last run with. Upgrade in a fresh environment, then write it anew."
"$1/bin/python" -m pip --disable-pip-version-check freeze --all --exclude-editable \
  | sed -E 's/\+[a-z0-9.]+$//' \
  | grep -E '^[A-Za-z0-9._-]+==' \
  | grep -viE '^(pip|wheel|samewise|vllm|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+|triton)==' \
  | LC_ALL=C sort -f
