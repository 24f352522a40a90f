"""What is known of vLLM, held against the source of the vLLM that is installed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from samewise.core.dialects import GREEDY_IGNORES, NEUTRAL, Dialect, dialect
from samewise.core.sampling import FIELDS

pytestmark = pytest.mark.vllm

_CLASSES = {
    "chat": ("openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "completions": ("openai/completion/protocol.py", "CompletionRequest"),
    "responses": ("openai/responses/protocol.py", "ResponsesRequest"),
    "messages": ("anthropic/protocol.py", "AnthropicMessagesRequest"),
}
_SAMPLING = {*NEUTRAL, *GREEDY_IGNORES}


@pytest.fixture(scope="module", name="vllm")
def _vllm() -> Path:
    root = Path(__file__).parent.parent.parent
    found = sorted(root.glob(".venv-vllm/lib/python*/site-packages/vllm/sampling_params.py"))
    if not found:
        pytest.skip("there is no vLLM in .venv-vllm")
    return found[-1].parent


def _class(path: Path, name: str) -> ast.ClassDef:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"{path} has no class {name}")


def _fields(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    return {
        each.target.id: each.value
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_")
    }


def _known(family: str) -> Dialect:
    known = dialect("vllm", family)
    assert known is not None
    return known


def _literal(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call):
        named = {each.arg: each.value for each in node.keywords}
        if "default_factory" in named:
            return {"list": [], "dict": {}}.get(ast.unparse(named["default_factory"]))
        return ast.literal_eval(named["default"] if "default" in named else node.args[0])
    return None if node is None else ast.literal_eval(node)


@pytest.mark.parametrize("family", list(_CLASSES))
def test_the_sampling_fields_of_each_family_are_those_that_vllm_reads(vllm: Path, family: str) -> None:
    path, name = _CLASSES[family]
    fields = _fields(_class(vllm / "entrypoints" / path, name)).keys() & _SAMPLING
    assert _known(family).fields & _SAMPLING == fields


@pytest.mark.parametrize("family", ["chat", "completions"])
def test_defaults_are_those_that_vllm_documents(vllm: Path, family: str) -> None:
    path, name = _CLASSES[family]
    node = _class(vllm / "entrypoints" / path, name)
    (table,) = [
        each.value
        for each in node.body
        if isinstance(each, ast.AnnAssign | ast.Assign)
        and ast.unparse(each).startswith("_DEFAULT_SAMPLING_PARAMS")
        and each.value is not None
    ]
    assert ast.literal_eval(table) == dict(NEUTRAL)
    fields = _fields(node)
    for member, value in _known(family).implied.items():
        if member in fields:
            assert (_literal(fields[member]) or value) == value, member
    if family == "completions":
        assert _literal(fields["max_tokens"]) == _known(family).defaults["max_tokens"]


def test_generation_defaults_that_vllm_heeds_are_those_that_we_know(vllm: Path) -> None:
    source = ast.parse((vllm / "config" / "model.py").read_text("utf-8"))
    (heeded,) = [
        ast.literal_eval(node.value)
        for node in ast.walk(source)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "available_params"
    ]
    assert set(heeded) <= {*NEUTRAL, "max_new_tokens"}


def test_greedy_resets_and_the_least_temperature_are_vllms(vllm: Path) -> None:
    text = (vllm / "sampling_params.py").read_text("utf-8")
    source = ast.parse(text)
    constants = {ast.unparse(node.targets[0]): node.value for node in source.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(constants["_MAX_TEMP"]) == _known("chat").least_temperature
    greedy = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "self.temperature < _SAMPLING_EPS"
    ]
    reset = {
        ast.unparse(each.targets[0]).removeprefix("self.")
        for node in greedy
        for each in node.body
        if isinstance(each, ast.Assign)
    }
    assert set(GREEDY_IGNORES) - {"seed"} <= reset


def test_profile_fields_are_vllms(vllm: Path) -> None:
    assert _fields(_class(vllm / "sampling_params.py", "SamplingParams")).keys() >= FIELDS
