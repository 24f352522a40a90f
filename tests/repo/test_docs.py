"""Documents say what the code does: each reason, setting, header, family and command, and nothing that isn't there."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from samewise.core import key
from samewise.core.families.registry import FAMILIES
from samewise.core.fingerprint import Environment
from samewise.core.plan import Epochs
from samewise.core.reason import Reason
from samewise.settings import Settings, flat, load
from tests.repo.files import PAGES, ROOT, blocks, first_cells, section, text, words

README = text("README.md")
ALL = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_reason_has_its_row_and_no_row_is_made_up() -> None:
    rows = [words(cell)[0] for cell in first_cells(section(README, "Reasons"))]
    assert sorted(rows) == sorted(reason.value for reason in Reason)


def test_the_settings_page_is_a_complete_file_of_the_defaults(tmp_path: Path) -> None:
    (block,) = blocks(text("docs/settings.md"), "toml")
    config, empty = tmp_path / "samewise.toml", tmp_path / "empty.toml"
    config.write_text(block, encoding="utf-8")
    empty.write_text("", encoding="utf-8")
    assert flat(load(config)) == flat(load(empty))

    written = tomllib.loads(block)
    assert written.keys() == Settings.model_fields.keys()
    for name, field in Settings.model_fields.items():
        shown = written[name][0] if isinstance(written[name], list) else written[name]
        example = field.default[0] if name == "upstreams" else field.default
        assert shown.keys() == type(example).model_fields.keys(), name


def test_settings_in_the_readme_are_accepted(tmp_path: Path) -> None:
    for number, block in enumerate(blocks(README, "toml")):
        config = tmp_path / f"{number}.toml"
        config.write_text(block, encoding="utf-8")
        load(config)


def test_every_header_of_ours_is_documented() -> None:
    names: set[str] = set()
    for module in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= {node.value.lower()} if re.fullmatch(r"x-samewise-[a-z-]*[a-z]", node.value.lower()) else set()
    assert len(names) >= 8
    assert {name for name in names if f"`{name}" not in ALL} == set()


def test_headers_of_the_readme_exist() -> None:
    code = "\n".join(module.read_text(encoding="utf-8").lower() for module in (ROOT / "proxy").rglob("*.py"))
    told = set(re.findall(r"`(x-samewise-[a-z-]+)", README))
    assert {name for name in told if name not in code} == set()


def test_every_family_is_documented_with_its_path() -> None:
    rows = re.findall(r"^\| (\w+) \| `(/v1/[a-z/]+)` \|", section(README, "What is cached"), re.MULTILINE)
    assert sorted(rows) == sorted((family.name, family.path) for family in FAMILIES)


def test_delivery_is_documented_family_by_family() -> None:
    page = section(text("docs/keys.md"), "Delivery")
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|$", page, re.MULTILINE)
    told = {family: set(words(members)) for families, members in rows for family in words(families)}
    assert told == {family.name: set(family.delivery) for family in FAMILIES}


def test_what_a_family_never_caches_is_documented() -> None:
    page = section(text("docs/keys.md"), "What can't be described").partition("And in each family")[0]
    told = {family for cell in first_cells(page) for family in words(cell)}
    assert told == {family.name for family in FAMILIES}


def test_the_preimage_is_documented_member_by_member() -> None:
    page = section(text("docs/keys.md"), "The preimage")
    image = key.preimage(
        tenant="",
        namespace="",
        family="chat",
        model="m",
        environment=Environment(id="e", origin="contract"),
        epochs=Epochs(),
        sample=0,
        request={},
    )
    members = list(json.loads(image))
    assert [words(cell)[0] for cell in first_cells(page)] == members
    (example,) = blocks(page, "json")
    assert list(json.loads(example)) == members
    assert json.loads(example)["v"] == key.KEY_VERSION


def test_the_table_of_deterministic_settings_is_what_the_backend_prints() -> None:
    from samewise_backend.cli import main as backend

    printed = CliRunner().invoke(backend, ["settings"])
    assert printed.exit_code == 0, printed.output
    assert f"<!-- samewise-backend settings -->\n\n{printed.output.strip()}\n\n<!-- end -->" in README


def commands(program: str, main: click.Command) -> set[str]:
    assert isinstance(main, click.Group)
    return {f"{program} {name}" for name, command in main.commands.items() if not command.hidden}


def test_every_command_is_documented_and_no_other() -> None:
    from samewise.main import main as samewise
    from samewise_backend.cli import main as backend

    known = commands("samewise", samewise) | commands("samewise-backend", backend)
    told = {
        " ".join(word.split()[:2])
        for cell in first_cells(section(README, "Commands"))
        for word in words(cell)
        if word.startswith(("samewise ", "samewise-backend "))
    }
    assert told == known


def test_options_of_serve_are_documented() -> None:
    from samewise.main import main as samewise

    assert isinstance(samewise, click.Group)
    options = {
        option
        for parameter in samewise.commands["serve"].params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    }
    assert {option for option in options if f"`{option}" not in README} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    gone = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert gone == []


def test_make_targets_in_documents_exist() -> None:
    told = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(ALL, "sh")), re.MULTILINE))
    told |= set(re.findall(r"`make ([a-z-]+)", ALL))
    known = set(re.findall(r"^([a-z][a-z-]*):", text("Makefile"), re.MULTILINE))
    assert told
    assert told - known == set()


def test_python_in_the_readme_is_python() -> None:
    for block in blocks(README, "python"):
        compile(block, "README.md", "exec")


def test_pictures_are_well_formed_and_say_what_they_show() -> None:
    pictures = list((ROOT / "docs").glob("*.svg"))
    assert pictures
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        titles = [child.text for child in root if child.tag.endswith(("title", "desc"))]
        assert len(titles) == 2, picture
        assert all(titles), picture
