"""The reference engine, put together: options, manifest, model, engine, server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from samewise_backend import manifest, model_files
from samewise_backend.determinism import apply_to_torch, numeric_environment, seed_everything, torch_state
from samewise_backend.device import Device, Kind, probe
from samewise_backend.digests import Digests, default_cache
from samewise_backend.engine import Engine
from samewise_backend.kv_blocks import BLOCK, MOST, KvBlocks
from samewise_backend.language_model import LanguageModel
from samewise_backend.manifest import Live, Loaded, Manifest
from samewise_backend.model_files import Lister, Model
from samewise_backend.protocol import Limits, Refused
from samewise_backend.sampler import RequestSampler, SamplerFactory
from samewise_backend.server import Serving, application, model_threads, serve
from samewise_backend.versions import distribution, numeric_versions
from samewise_backend.vllm_facts import NEUTRAL

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LENGTH_NAMES = ("max_new_tokens", "max_tokens")


@dataclass(frozen=True)
class Options:
    """All that decides what the reference engine answers, and where it listens. `kv_bytes` decides no bit of it."""

    model: Model
    name: str
    host: str
    port: int
    dtype: str
    device: Device
    max_length: int
    max_sequences: int = 64
    seed: int = 0
    threads: int = 1
    generation_config: str = "vllm"
    overrides: Mapping[str, Any] | None = None
    chat_template: str | None = None
    block_size: int = BLOCK
    prefix_caching: bool = True
    kv_bytes: int = MOST


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"engine arguments: {message}")


@dataclass(frozen=True)
class Place:
    """The model's name in requests, and where to listen."""

    name: str
    host: str = "127.0.0.1"
    port: int = 0


def parse(model: Model, place: Place, dtype: str | None, device: Kind, engine_args: tuple[str, ...]) -> Options:
    """Options from the command line; engine arguments are named as vLLM names them. Raises ValueError, LookupError."""
    parser = _Parser(prog="engine arguments", add_help=False, allow_abbrev=False)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default=dtype)
    parser.add_argument("--generation-config", choices=["vllm", "auto"], default="vllm")
    parser.add_argument("--override-generation-config", type=json.loads, default=None)
    parser.add_argument("--chat-template", default=None)
    parser.add_argument("--block-size", type=int, default=BLOCK)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=MOST)
    given = parser.parse_args(list(engine_args))
    reported = probe("cpu" if device == "auto" and not torch.cuda.is_available() else device)
    chosen = given.dtype or ("float32" if reported.kind == "cpu" else "auto")
    if chosen == "auto":
        config = model_files.read_json(model.directory / "config.json")
        chosen = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if chosen not in _DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(_DTYPES)} or auto, got {chosen}")
    most = model_files.model_length(model) or 2048
    length = given.max_model_len or most
    if not 1 <= length <= most:
        raise ValueError(f"--max-model-len must be between 1 and {most}, got {length}")
    if given.max_num_seqs < 1:
        raise ValueError(f"--max-num-seqs must be at least 1, got {given.max_num_seqs}")
    if given.block_size < 1:
        raise ValueError(f"--block-size must be at least 1, got {given.block_size}")
    if given.kv_cache_memory_bytes < 0:
        raise ValueError(f"--kv-cache-memory-bytes must not be negative, got {given.kv_cache_memory_bytes}")
    if given.chat_template is not None and not Path(given.chat_template).is_file():
        raise ValueError(f"--chat-template {given.chat_template} is not a file")
    if given.override_generation_config is not None and not isinstance(given.override_generation_config, dict):
        raise ValueError("--override-generation-config must be a JSON object")
    return Options(
        model=model,
        name=place.name,
        host=place.host,
        port=place.port,
        dtype=chosen,
        device=reported,
        max_length=length,
        max_sequences=given.max_num_seqs,
        seed=given.seed,
        threads=model_threads(),
        generation_config=given.generation_config,
        overrides=given.override_generation_config,
        chat_template=given.chat_template,
        block_size=given.block_size,
        prefix_caching=given.enable_prefix_caching,
        kv_bytes=given.kv_cache_memory_bytes,
    )


def listers_of(options: Options) -> dict[str, Lister]:
    return model_files.groups(options.model, options.chat_template)


def prepare(options: Options) -> None:
    """Set this process's torch as the table of deterministic settings says."""
    apply_to_torch()
    torch.set_num_threads(options.threads)
    seed_everything(options.seed)


def generation(options: Options) -> dict[str, Any]:
    """vLLM's order: neutral values, generation_config.json where it counts, then what the operator overrides."""
    config = {}
    if options.generation_config == "auto":
        config = model_files.read_json(options.model.directory / "generation_config.json")
    config |= dict(options.overrides or {})
    defaults = {name: config[name] if config.get(name) is not None else value for name, value in NEUTRAL.items()}
    lengths = [config[name] for name in _LENGTH_NAMES if isinstance(config.get(name), int)]
    return defaults | ({"max_tokens": lengths[0]} if lengths else {})


def facts(options: Options) -> dict[str, Any]:
    """The identity but for the files. Call it after `prepare`."""
    return {
        "model": options.name,
        "engine": "reference",
        "engine_version": distribution("samewise") or "0",
        "generation_defaults": generation(options),
        "generation_config_mode": options.generation_config,
        "dtype": options.dtype,
        "quantization": None,
        "kv_cache_dtype": options.dtype,
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "expert": False},
        "attention_backend": ["sdpa"],
        "batch_invariant": True,
        "batching": "one sequence a forward pass",
        "speculative": None,
        "seed": options.seed,
        "max_model_len": options.max_length,
        "max_num_seqs": options.max_sequences,
        "max_num_batched_tokens": options.block_size,
        "enable_chunked_prefill": True,
        "block_size": options.block_size,
        "enable_prefix_caching": options.prefix_caching,
        "determinism": {"environment": numeric_environment(), "torch": torch_state()},
        "versions": numeric_versions(options.device.driver),
        "device": options.device.manifest(),
    }


def describe(options: Options) -> Manifest:
    """The manifest that a server with these options has, without starting one."""
    prepare(options)
    digests = Digests(default_cache())
    loaded = manifest.read(listers_of(options), digests)
    hub = model_files.hub_info(options.model, loaded["weights"].snapshot, digests)
    live = Live(facts(options), hub, loaded, listers_of(options), digests)
    live.close()
    return live.current()


def load(options: Options, instance: str, digests: Digests) -> tuple[LanguageModel, dict[str, Loaded]]:
    """A model, and what of its files it was made from."""
    listers = listers_of(options)
    before = manifest.read(listers, digests)
    device = "cuda" if options.device.kind == "cuda" else "cpu"
    model = LanguageModel(options.model.directory, dtype=_DTYPES[options.dtype], device=device)
    if options.chat_template is not None:
        model.tokenizer.chat_template = Path(options.chat_template).read_text()
    return model, manifest.confirm(before, listers, instance)


def limits(options: Options, model: LanguageModel) -> Limits:
    """What requests may ask of this model."""
    tokenizer = model.tokenizer

    def template(messages: list[dict[str, Any]], body: Mapping[str, Any]) -> list[int]:
        extra = body.get("chat_template_kwargs")
        try:
            text = tokenizer.apply_chat_template(
                messages,
                tools=body.get("tools") or None,
                tokenize=False,
                add_generation_prompt=body.get("add_generation_prompt", True) is not False,
                **(extra if isinstance(extra, dict) else {}),
            )
        except Exception as error:  # templates raise what they like
            raise Refused(f"the chat template refuses the messages: {error}", "messages") from None
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer.encode(text)
        return tokens

    return Limits(
        model=options.name,
        length=options.max_length,
        vocabulary=model.vocabulary,
        eos=_eos(options, tokenizer),
        defaults=generation(options),
        encode=encode,
        template=template,
    )


def _eos(options: Options, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's; those of generation_config.json too where that file counts."""
    found = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    if options.generation_config == "auto":
        more = model_files.read_json(options.model.directory / "generation_config.json").get("eos_token_id")
        found |= {more} if isinstance(more, int) else set(more or ())
    return frozenset(found)


@contextmanager
def assembled(options: Options, sampler: SamplerFactory = RequestSampler) -> Iterator[Serving]:
    """A started engine with its manifest; both end with the block."""
    prepare(options)
    instance = manifest.new_instance()
    digests = Digests(default_cache())
    model, loaded = load(options, instance, digests)
    info = manifest.process_info(instance) | {"model_path": str(options.model.directory)}
    info |= {"kv_cache_memory_bytes": options.kv_bytes}
    info |= model_files.hub_info(options.model, loaded["weights"].snapshot, digests)
    live = Live(facts(options), info, loaded, listers_of(options), digests)
    reuse = KvBlocks(lambda: live.current().id, size=options.block_size, most=options.kv_bytes)
    engine = Engine(
        model,
        max_sequences=options.max_sequences,
        sampler=sampler,
        reuse=reuse if options.prefix_caching else None,
        block=options.block_size,
    )
    current = {"limits": limits(options, model)}
    reloading = threading.Lock()

    def exchange() -> None:
        with reloading:
            fresh, read = load(options, instance, digests)
            done = threading.Event()

            def follow() -> None:
                current["limits"] = limits(options, fresh)
                live.replace(read, **facts(options))
                done.set()

            engine.swap(fresh, follow)
            done.wait()

    async def reload() -> None:
        await asyncio.to_thread(exchange)

    engine.start()
    try:
        yield Serving(
            engine=engine,
            live=live,
            limits=lambda: current["limits"],
            fingerprint=f"reference-{distribution('samewise') or '0'}",
            started=time.time(),
            reload=reload,
        )
    finally:
        engine.close()
        live.close()


def run(options: Options, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError where the port is taken."""
    with assembled(options) as serving:
        asyncio.run(_until_stopped(serving, options, ready))


async def _until_stopped(serving: Serving, options: Options, ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    await serve(application(serving), options.host, options.port, ready, stop)
