import hashlib
import json
from pathlib import Path

import pytest

from samewise_backend import model_files
from samewise_backend.digests import Digests
from samewise_backend.model_files import Model, NoModel, groups, resolve


def _model(directory: Path, **files: str) -> Model:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)
    return resolve(str(directory))


def _names(model: Model, group: str) -> list[str]:
    return [state.name for state in groups(model)[group]()]


def test_each_file_that_decides_an_answer_is_in_one_group(tiny_model: Path) -> None:
    model = resolve(str(tiny_model))
    found = {name: [state.name for state in lister()] for name, lister in groups(model).items()}
    assert found == {
        "weights": ["model.safetensors"],
        "tokenizer": ["tokenizer.json", "tokenizer_config.json"],
        "chat_template": ["chat_template.jinja"],
        "generation_config": ["generation_config.json"],
        "config": ["config.json"],
    }


def test_safetensors_are_the_weights_where_other_formats_lie_beside_them(tmp_path: Path) -> None:
    both = _model(tmp_path / "both", model__safetensors="s", pytorch_model__bin="b", training_args__bin="t")
    assert _names(both, "weights") == ["model.safetensors"]
    only = _model(tmp_path / "only", pytorch_model__bin="b", training_args__bin="t")
    assert _names(only, "weights") == ["pytorch_model.bin"]


def test_code_that_a_model_brings_along_counts_as_configuration(tmp_path: Path) -> None:
    assert _names(_model(tmp_path / "m", modeling_x__py="pass"), "config") == ["config.json", "modeling_x.py"]


def test_a_template_inside_of_the_tokenizers_configuration_counts(tmp_path: Path) -> None:
    model = _model(tmp_path / "m", tokenizer_config__json='{"chat_template": "x"}')
    assert _names(model, "chat_template") == ["tokenizer_config.json"]


def test_an_operators_template_takes_the_place_of_the_models(tmp_path: Path, tiny_model: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    listed = groups(resolve(str(tiny_model)), str(template))["chat_template"]()
    assert [state.path for state in listed] == [str(template.resolve())]


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_what_is_no_model_is_refused_with_its_name(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoModel, match=place):
        resolve(str(tmp_path / place))


def _hub(cache: Path, content: bytes) -> Path:
    """A repository as the hub's client lays it out; returns the blob of the weights."""
    repository = cache / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(blob)
    return blob


def test_a_hub_model_is_found_in_the_cache_and_keeps_its_revision(tmp_path: Path) -> None:
    _hub(tmp_path, b"weights")
    model = resolve("org/name", {"HF_HUB_CACHE": str(tmp_path)})
    assert (model.hub, model.revision) == ("org/name", "abc")
    by_path = resolve(str(model.directory))
    assert (by_path.hub, by_path.revision) == ("org/name", "abc")


def test_lfs_hashes_of_an_untouched_hub_model_are_those_of_its_files(tmp_path: Path) -> None:
    blob = _hub(tmp_path, b"weights")
    model = resolve("org/name", {"HF_HUB_CACHE": str(tmp_path)})
    weights = groups(model)["weights"]()
    assert list(Digests().contents(weights)) == [blob.name]
    info = model_files.hub_info(model, weights, Digests())
    assert info == {"hub": "org/name", "revision": "abc", "lfs": {"model.safetensors": blob.name}, "edited": []}


def test_a_file_that_was_edited_in_the_hubs_cache_wins_over_its_name(tmp_path: Path) -> None:
    blob = _hub(tmp_path, b"weights")
    model = resolve("org/name", {"HF_HUB_CACHE": str(tmp_path)})
    before = Digests().group(groups(model)["weights"]())
    blob.write_bytes(b"weightz")
    weights = groups(model)["weights"]()
    assert Digests().group(weights) != before
    assert model_files.hub_info(model, weights, Digests())["edited"] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("config", "length"),
    [({"max_position_embeddings": 7}, 7), ({"text_config": {"n_positions": 9}}, 9), ({}, None)],
)
def test_the_length_comes_from_the_configuration(tmp_path: Path, config: dict[str, object], length: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_files.model_length(resolve(str(tmp_path))) == length
