import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samewise_backend import manifest, model_files
from samewise_backend.digests import Digests, Snapshot
from samewise_backend.manifest import Live, Loaded, confirm, decode_loaded, encode_loaded, read
from tests.support.patience import ENOUGH


class Watched:
    """A live manifest of a model, looked at whenever `now` is asked for."""

    def __init__(self, model: Path) -> None:
        self.listers = model_files.groups(model_files.resolve(str(model)))
        self.digests = Digests()
        self.loaded = read(self.listers, self.digests)
        self.live = Live({"engine": "x"}, {"instance": "i"}, self.loaded, self.listers, self.digests)

    def now(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.live.current(look=True).body)
        return found

    def until(self, holds: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """The manifest once it holds; hashing happens in a thread of its own."""
        deadline = time.monotonic() + ENOUGH
        while time.monotonic() < deadline:
            found = self.now()
            if holds(found):
                return found
            threading.Event().wait(0.005)
        raise AssertionError(f"never: {found}")


@pytest.fixture
def watched(own_model: Path) -> Iterator[Watched]:
    made = Watched(own_model)
    yield made
    made.live.close()


def _hashed(found: dict[str, object], name: str = "weights_on_disk") -> bool:
    return str(found.get(name, "")).startswith("sha256:")


def test_replaced_weights_change_the_id_at_once_and_what_was_loaded_stays(watched: Watched, own_model: Path) -> None:
    before = watched.now()
    shutil.copy(own_model / "tokenizer.json", own_model / "model.safetensors")
    at_once = watched.now()
    assert at_once["id"] != before["id"]
    assert at_once["weights"] == before["weights"]
    later = watched.until(_hashed)
    assert later["weights"] == before["weights"]
    assert later["weights_on_disk"] != before["weights"]


def test_weights_that_come_back_bring_the_old_id_back(watched: Watched, own_model: Path) -> None:
    before, kept = watched.now(), (own_model / "model.safetensors").read_bytes()
    (own_model / "model.safetensors").write_bytes(b"other")
    assert watched.until(_hashed)["id"] != before["id"]
    (own_model / "model.safetensors").write_bytes(kept)
    assert watched.until(lambda found: found["id"] == before["id"]) == before


def test_the_same_replacement_gives_the_same_id_in_every_process(watched: Watched, own_model: Path) -> None:
    other = Watched(own_model)
    (own_model / "model.safetensors").write_bytes(b"other")
    assert watched.until(_hashed)["id"] == other.until(_hashed)["id"]
    other.live.close()


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("tokenizer.json", "tokenizer"),
        ("chat_template.jinja", "chat_template"),
        ("generation_config.json", "generation_config"),
        ("config.json", "config"),
    ],
)
def test_every_group_is_watched(watched: Watched, own_model: Path, name: str, group: str) -> None:
    before = watched.now()
    with (own_model / name).open("a") as file:
        file.write("\n")
    assert watched.now()["id"] != before["id"]
    assert _hashed(watched.until(lambda found: _hashed(found, f"{group}_on_disk")), f"{group}_on_disk")


def test_a_new_shard_and_a_missing_one_are_noticed(watched: Watched, own_model: Path) -> None:
    ids = [watched.now()["id"]]
    (own_model / "model-2.safetensors").write_bytes(b"more")
    ids.append(watched.until(_hashed)["id"])
    for path in own_model.glob("*.safetensors"):
        path.unlink()
    ids.append(watched.until(lambda found: found.get("weights_on_disk") == "none")["id"])
    assert len(set(ids)) == 3


def test_touching_a_file_changes_nothing_in_the_end(watched: Watched, own_model: Path) -> None:
    before = watched.now()
    os.utime(own_model / "model.safetensors")
    assert watched.until(lambda found: "weights_on_disk" not in found)["id"] == before["id"]


def test_files_are_looked_at_no_oftener_than_the_interval(own_model: Path) -> None:
    listers = model_files.groups(model_files.resolve(str(own_model)))
    looks = []

    def lister() -> Snapshot:
        looks.append(1)
        return listers["weights"]()

    time_now = [0.0]
    loaded = {"weights": Loaded(listers["weights"](), "sha256:x")}
    live = Live({}, {}, loaded, {"weights": lister}, Digests(), interval=1.0, clock=lambda: time_now[0])
    for _ in range(100):
        live.current()
    assert not looks
    time_now[0] = 1.0
    for _ in range(100):
        live.current()
    assert len(looks) == 1
    live.close()


def test_info_is_no_part_of_the_identity(watched: Watched) -> None:
    other = Live({"engine": "x"}, {"instance": "another"}, watched.loaded, watched.listers, watched.digests)
    assert other.current().id == watched.live.current().id
    assert other.current().body != watched.live.current().body
    other.close()


def test_weights_changed_in_the_engines_memory_belong_to_nobody_else(watched: Watched) -> None:
    ids = [watched.now()["id"]]
    for _ in range(2):
        watched.live.mutated()
        ids.append(watched.now()["id"])
    assert len(set(ids)) == 3


def test_files_that_changed_while_the_engine_read_them_are_unknown(watched: Watched, own_model: Path) -> None:
    (own_model / "model.safetensors").write_bytes(b"swapped meanwhile")
    confirmed = confirm(watched.loaded, watched.listers, "instance-1")
    assert confirmed["weights"].digest == "unknown:instance-1"
    assert confirmed["config"] == watched.loaded["config"]


def test_a_reload_makes_what_is_on_the_disk_what_is_loaded(watched: Watched, own_model: Path) -> None:
    (own_model / "model.safetensors").write_bytes(b"other")
    watched.until(_hashed)
    watched.live.replace(read(watched.listers, watched.digests))
    found = watched.now()
    assert "weights_on_disk" not in found
    assert found["weights"] != watched.loaded["weights"].digest


def _adapter(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_model.safetensors").write_bytes(content)
    return directory


def test_an_adapter_joins_and_leaves_the_identity(watched: Watched, tmp_path: Path) -> None:
    before = watched.now()
    lister = model_files.adapter(_adapter(tmp_path / "lora", b"a"))
    watched.live.adapters({"lora": lister})
    with_adapter = watched.now()
    assert with_adapter["id"] != before["id"]
    watched.live.adapters({})
    assert watched.now()["id"] == before["id"]


def test_an_adapter_that_changes_on_the_disk_keeps_what_was_loaded(watched: Watched, tmp_path: Path) -> None:
    directory = _adapter(tmp_path / "lora", b"a")
    watched.live.adapters({"lora": model_files.adapter(directory)})
    loaded = watched.now()["adapters"]
    assert isinstance(loaded, dict)
    _adapter(directory, b"bb")
    adapters = watched.now()["adapters"]
    assert isinstance(adapters, dict)
    assert adapters["lora"] == loaded["lora"]
    assert "lora_on_disk" in adapters


def test_an_adapter_that_is_read_again_at_each_request_is_what_lies_on_the_disk(
    watched: Watched, tmp_path: Path
) -> None:
    directory = _adapter(tmp_path / "lora", b"a")
    watched.live.adapters({"lora": model_files.adapter(directory)}, reread=frozenset({"lora"}))
    _adapter(directory, b"bb")
    expected = Digests().group(model_files.adapter(directory)())
    assert watched.until(lambda found: found["adapters"] == {"lora": expected})


def test_what_the_launcher_saw_reaches_the_process_that_loads(watched: Watched) -> None:
    assert decode_loaded(encode_loaded(watched.loaded)) == watched.loaded


@pytest.mark.parametrize("text", ["", "[]", "{}x", '{"weights": {}}', '{"weights": {"digest": "x", "files": [[1]]}}'])
def test_other_text_in_its_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_loaded(text)


def test_ten_gigabytes_take_no_time_once_they_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    cache = tmp_path / "cache"
    cache.mkdir()
    listers = model_files.groups(model_files.resolve(str(tmp_path)))
    for shard in range(10):
        with (tmp_path / f"model-{shard}.safetensors").open("wb") as file:
            file.truncate(1 << 30)
    for state in listers["weights"]():
        (cache / state.key()).write_text("1" * 64)
    digests = Digests(cache)
    assert digests.contents(listers["weights"]()) == ["1" * 64] * 10
    manifest.read(listers, digests)
