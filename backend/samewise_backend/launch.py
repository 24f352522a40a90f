"""From what an operator wants and what the device reports to vLLM's arguments and environment. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samewise_backend.determinism import Setting, settings_for
from samewise_backend.device import Device

MIDDLEWARE = "samewise_backend.middleware.EnvironmentContract"
WORKER_EXTENSION = "samewise_backend.vllm_worker.Report"
FACTS_VARIABLE = "SAMEWISE_BACKEND_FACTS"
"""Where the launcher leaves what it saw before vLLM read the model; the middleware reads it."""

MAX_SEQUENCES = 64
MIN_BATCHED_TOKENS = 8192
_ALWAYS_INVARIANT = (9, 0)
_SINCE_AMPERE = (0, 32)
_AMPERE = (8, 0)


@dataclass(frozen=True)
class Options:
    """What an operator asked for. `engine_args` are vLLM's own, given after `--`; they win over ours.

    `model_length` is what the model's configuration allows, None where it doesn't say.
    """

    model: str
    served_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: str | None = None
    engine_args: tuple[str, ...] = ()
    model_length: int | None = None
    vllm_version: tuple[int, ...] = _SINCE_AMPERE
    local: bool = True


@dataclass(frozen=True)
class Launch:
    """`argv` follows `vllm serve`. `environment` is complete. `settings` are the table's rows in force."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    settings: Mapping[str, str]


def plan(options: Options, device: Device, environment: Mapping[str, str]) -> Launch:
    """Ours, then the operator's: a variable that is set and a flag that is given are left as they are.

    Raises ValueError where the operator's choice can't work on the device.
    """
    variables = {name: value for name, value in environment.items() if value or not name.startswith("VLLM_")}
    if device.kind == "cpu" and variables.get("VLLM_BATCH_INVARIANT", "0") not in {"0", "false", "False"}:
        raise ValueError("VLLM_BATCH_INVARIANT needs a GPU: on a CPU it ends vLLM's worker at the first request")
    chosen: dict[str, str] = {}
    for setting in settings_for(device, "variable"):
        value = _variable(setting, options, device)
        if value is not None:
            variables.setdefault(setting.name, value)
        if setting.name in variables:
            chosen[setting.name] = variables[setting.name]
    if options.local:
        variables.setdefault("HF_HUB_OFFLINE", "1")
    variables.setdefault("VLLM_NO_USAGE_STATS", "1")

    argv = [options.model, "--host", options.host, "--port", str(options.port)]
    if options.served_name is not None:
        argv += ["--served-model-name", options.served_name]
    given = _names(options.engine_args)
    for setting in settings_for(device, "flag"):
        stem = _stem(setting.name)
        flag_value = _flag(setting, options, device)
        if stem not in given:
            argv += [setting.name] if flag_value is None else [setting.name, flag_value]
            chosen[f"--{stem}"] = "false" if setting.name.startswith("--no-") else flag_value or "true"
    if options.dtype is not None and "dtype" not in given and "--dtype" not in argv:
        argv += ["--dtype", options.dtype]
    if "enable-prompt-tokens-details" not in given:
        argv.append("--enable-prompt-tokens-details")
    if "worker-extension-cls" not in given:
        argv += ["--worker-extension-cls", WORKER_EXTENSION]
    argv += ["--middleware", MIDDLEWARE]
    return Launch(argv=(*argv, *options.engine_args), environment=variables, settings=chosen)


def batch_invariant(device: Device, version: tuple[int, ...]) -> bool:
    """Whether vLLM's batch-invariant mode works: CUDA of capability 9.0 and up, 8.0 and up since vLLM 0.32.

    vLLM, features/batch_invariance.
    """
    if device.kind != "cuda" or device.capability is None:
        return False
    return device.capability >= (_AMPERE if version >= _SINCE_AMPERE else _ALWAYS_INVARIANT)


def _variable(setting: Setting, options: Options, device: Device) -> str | None:
    match setting.name:
        case "VLLM_BATCH_INVARIANT":
            return setting.value if batch_invariant(device, options.vllm_version) else None
        case "OMP_NUM_THREADS":
            return str(max(1, device.cores - 1))
        case _:
            return setting.value


def _flag(setting: Setting, options: Options, device: Device) -> str | None:
    match setting.name:
        case "--dtype":
            return options.dtype or setting.value
        case "--max-num-seqs":
            return str(MAX_SEQUENCES)
        case "--max-num-batched-tokens":
            length = _given(options.engine_args, "max-model-len") or str(options.model_length or 0)
            wanted = int(length) if length.isdigit() else options.model_length or 0
            return str(max(wanted, MAX_SEQUENCES, 2048) if device.kind == "cpu" else MIN_BATCHED_TOKENS)
        case _:
            return setting.value


def _stem(flag: str) -> str:
    """One name for a flag and its negation; vLLM takes `_` for `-` and `--a.b` for a member of `--a`."""
    name = flag.split("=", 1)[0].removeprefix("--").replace("_", "-").split(".", 1)[0]
    return name.removeprefix("no-")


_SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}


def _names(arguments: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_stem(one) for one in arguments if one.startswith("--"))


def _given(arguments: tuple[str, ...], stem: str) -> str | None:
    """The value of a flag among an operator's arguments, the last one where it is repeated."""
    found = None
    for position, one in enumerate(arguments):
        if one.startswith("--") and _stem(one) == stem:
            if "=" in one:
                found = one.split("=", 1)[1]
            elif position + 1 < len(arguments):
                found = arguments[position + 1]
    return found


_PRIVATE = ("api-key", "ssl", "hf-token", "otlp", "middleware")
_DELIVERY = frozenset(
    {"host", "port", "uds", "root-path", "uvicorn-log-level", "disable-uvicorn-access-log", "enable-log-requests"}
    | {"log-config-file", "disable-log-stats", "max-log-len", "allowed-origins", "allow-credentials", "middleware"}
    | {"kv-cache-memory-bytes", "gpu-memory-utilization", "download-dir", "disable-fastapi-docs", "lora-modules"}
    | {"model", "served-model-name", "enable-prompt-tokens-details", "worker-extension-cls"}
)


def identity_arguments(arguments: tuple[str, ...]) -> list[str]:
    """Arguments that may decide an answer, as `--name=value`, sorted, the last of each. No secret, no address."""
    kept: dict[str, str] = {}
    position = 0
    while position < len(arguments):
        one = arguments[position]
        position += 1
        if not _is_flag(one):
            continue
        name, equals, value = one.partition("=")
        stem = _SHORT.get(name) or name.removeprefix("--").replace("_", "-")
        values = [value] if equals else []
        while not equals and position < len(arguments) and not _is_flag(arguments[position]):
            values.append(arguments[position])
            position += 1
        text = " ".join(values)
        hashed_elsewhere = stem == "chat-template" and Path(text).is_file()
        if stem not in _DELIVERY and not stem.startswith(_PRIVATE) and not hashed_elsewhere:
            kept[stem] = text
    return [f"--{stem}={value}" if value else f"--{stem}" for stem, value in sorted(kept.items())]


def _is_flag(argument: str) -> bool:
    """Whether it begins a new argument; a negative number is a value."""
    return argument.startswith("-") and not argument[1:2].isdigit()


def chat_template(options: Options) -> str | None:
    """The file that an operator gave as the chat template, None for the model's own or a literal one."""
    given = _given(options.engine_args, "chat-template")
    return given if given is not None and Path(given).is_file() else None
