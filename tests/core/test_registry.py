from __future__ import annotations

from samewise.core.families.registry import BY_NAME, BY_PATH, FAMILIES


def test_every_family_is_found_by_name_and_by_path() -> None:
    assert FAMILIES
    for family in FAMILIES:
        assert BY_NAME[family.name] is family
        assert BY_PATH[family.path] is family
        assert family.path.startswith("/v1/")


def test_chat_is_a_family() -> None:
    assert BY_PATH["/v1/chat/completions"] is BY_NAME["chat"]
