"""Which files of a model say what: weights, tokenizer, chat template, generation defaults, configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samewise_backend.digests import Digests, Snapshot, observe

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Suffixes in the order in which engines look for them; the first that occurs is what they load."""
_TOKENIZER = frozenset(
    {
        "added_tokens.json",
        "merges.txt",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "spiece.model",
        "tekken.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
_CHAT_TEMPLATE = frozenset({"chat_template.jinja", "chat_template.json"})
_NOT_WEIGHTS = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"})


class NoModel(ValueError):
    """There is no usable model at that place; the message is one line for a user."""


@dataclass(frozen=True)
class Model:
    """A model on disk. `hub` and `revision` are set where it came out of the hub's cache."""

    name: str
    directory: Path
    hub: str | None = None
    revision: str | None = None


Lister = Callable[[], Snapshot]
"""Looks at the disk anew and says what is there; called often, so it only lists and stats."""


def resolve(model: str, environment: Mapping[str, str] | None = None) -> Model:
    """A folder, or a name that the hub's cache already holds (nothing is downloaded). Raises NoModel."""
    directory = Path(model).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise NoModel(f"{model} has no config.json, so it is not a model")
        hub, revision = _hub_origin(directory)
        return Model(name=model, directory=directory, hub=hub, revision=revision)
    environment = os.environ if environment is None else environment
    home = environment.get("HF_HUB_CACHE") or str(Path(environment.get("HF_HOME") or "~/.cache/huggingface") / "hub")
    repository = Path(home).expanduser() / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        raise NoModel(f"{model} is neither a folder nor in the hub's cache") from None
    snapshot = repository / "snapshots" / revision
    if not (snapshot / "config.json").is_file():
        raise NoModel(f"the hub's cache holds no complete snapshot of {model}")
    return Model(name=model, directory=snapshot, hub=model, revision=revision)


def _hub_origin(directory: Path) -> tuple[str | None, str | None]:
    parts = directory.resolve().parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not parts[-3].startswith("models--"):
        return None, None
    return parts[-3].removeprefix("models--").replace("--", "/"), parts[-1]


def groups(model: Model, chat_template: str | None = None) -> dict[str, Lister]:
    """The groups that decide an answer, by the name that the manifest gives them.

    `chat_template` is a file that an operator gave in place of the model's own, or the template itself.
    """
    root = model.directory
    listers: dict[str, Lister] = {
        "weights": lambda: observe(root, _weights(root)),
        "tokenizer": lambda: observe(root, _named(root, _TOKENIZER)),
        "chat_template": lambda: observe(root, _templates(root, chat_template)),
        "generation_config": lambda: observe(root, _named(root, frozenset({"generation_config.json"}))),
        "config": lambda: observe(root, _others(root)),
    }
    return listers


def adapter(directory: Path) -> Lister:
    """All that a LoRA adapter is made of."""
    return lambda: observe(directory, (path for path in _files(directory) if not path.name.startswith(".")))


def _files(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if entry.is_file()]
    except OSError:
        return []


def _weights(root: Path) -> list[Path]:
    files = [path for path in _files(root) if path.name not in _NOT_WEIGHTS]
    for suffix in _WEIGHTS:
        found = [path for path in files if path.suffix == suffix]
        if found:
            return found + [path for path in files if path.name.endswith(f"{suffix}.index.json")]
    return []


def _named(root: Path, names: frozenset[str]) -> list[Path]:
    return [path for path in _files(root) if path.name in names or (path.suffix == ".tiktoken" and names is _TOKENIZER)]


def _templates(root: Path, given: str | None) -> list[Path]:
    """Template files, or the tokenizer's configuration, which holds the template of older models."""
    if given is not None:
        return [Path(given)]
    own = _named(root, _CHAT_TEMPLATE) + _files(root / "additional_chat_templates")
    return own or _named(root, frozenset({"tokenizer_config.json"}))


def _others(root: Path) -> list[Path]:
    """Configuration: every other JSON file, and code that the model brings along."""
    taken = _TOKENIZER | _CHAT_TEMPLATE | {"generation_config.json"}
    return [
        path
        for path in _files(root)
        if path.name not in taken and path.suffix in {".json", ".py"} and not path.name.endswith(".index.json")
    ]


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty where there is none. Raises NoModel where it is broken."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NoModel(f"{path} can't be read: {error}") from None
    return value if isinstance(value, dict) else {}


def model_length(model: Model) -> int | None:
    """Positions that the configuration allows, None where it doesn't say."""
    config = read_json(model.directory / "config.json")
    nested = config.get("text_config")
    for place in (config, nested if isinstance(nested, dict) else {}):
        for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"):
            value = place.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None


def blob_hashes(snapshot: Snapshot) -> dict[str, str]:
    """The LFS hash by file name, as the hub's cache has it in the name of the blob that a file links to."""
    names = {state.name: Path(state.path) for state in snapshot}
    return {name: path.name for name, path in names.items() if path.parent.name == "blobs" and len(path.name) == 64}


def hub_info(model: Model, weights: Snapshot, digests: Digests) -> dict[str, Any]:
    """What the hub's cache says of the weights, and whether the files on disk still agree. Empty for other models.

    Identity never depends on it: files are hashed as they are, and an untouched LFS blob has its hash as its name.
    """
    if model.hub is None:
        return {}
    expected = blob_hashes(weights)
    actual = dict(zip((state.name for state in weights), digests.contents(weights), strict=True)) if expected else {}
    edited = sorted(name for name, value in expected.items() if actual.get(name) != value)
    return {"hub": model.hub, "revision": model.revision, "lfs": expected, "edited": edited}
