#!/usr/bin/env bash
# Prints the first interpreter from 3.11 to 3.14 that can make a virtual environment; nothing where there is none.
for candidate in python3.12 python3.11 python3.13 python3 python3.14 python; do
  found=$(command -v "$candidate") || continue
  if "$found" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
    echo "$found"
    exit 0
  fi
done
