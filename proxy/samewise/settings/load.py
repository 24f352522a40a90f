"""Reads settings from their four sources, and says in one line what is wrong with them."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableVariable

from samewise.settings import sections
from samewise.settings.show import mask_text

PREFIX = "SAMEWISE_"
DEFAULT_FILE = Path("samewise.toml")
_REFERENCE = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_SECRETS = frozenset({"token", "api_key", "secret", "old_secrets", "sha256", "hook"})
_SHOWN = 60
_KINDS = {
    "missing": "should be set",
    "string_type": "should be text",
    "string_too_short": "should not be empty",
    "tuple_type": "should be a list",
    "model_type": "should be a table of settings",
    "dict_type": "should be a table of settings",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
}


class SettingsError(Exception):
    """One line: the setting, and what it should be. Ends `serve` with exit code 2."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}" if setting else problem)
        self.setting = setting


class Settings(BaseSettings):
    """All settings; immutable."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
        nested_model_default_partial_update=False,
    )

    server: sections.Server = sections.Server()
    admin: sections.Admin = sections.Admin()
    upstreams: tuple[sections.Upstream, ...] = (sections.Upstream(),)
    store: sections.Store = sections.Store()
    cache: sections.Cache = sections.Cache()
    verify: sections.Verify = sections.Verify()
    routing: sections.Routing = sections.Routing()
    timeouts: sections.Timeouts = sections.Timeouts()
    environments: sections.Environments = sections.Environments()
    sampling: sections.Sampling = sections.Sampling()
    auth: sections.Auth = sections.Auth()
    receipts: sections.Receipts = sections.Receipts()
    telemetry: sections.Telemetry = sections.Telemetry()


def load(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from flags, variables, the file and the defaults, in this order. Raises SettingsError.

    `flags` have dotted names (`{"server.port": 8080, "upstreams": [{"url": ...}]}`); None means: not given.
    Without `config`, `samewise.toml` in the working directory is read where there is one. A string of the
    file may refer to a variable as `${NAME}`; `$$` is a dollar sign.
    """
    path = config if config is not None else DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    file = read_toml(path) if path is not None else {}
    _check_variables(os.environ)

    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=file)

    try:
        settings = Sourced(**_nested(flags or {}))
    except ValidationError as error:
        raise explain(error) from None
    except UnreadableVariable as error:
        raise _unreadable(error) from None
    if not settings.upstreams:
        raise SettingsError("upstreams", "should have at least one, such as --upstream http://127.0.0.1:8000/v1")
    if not settings.admin.token and not sections.is_loopback(settings.admin.host):
        raise SettingsError(
            "[admin] token", f"should be set where [admin] host is not loopback (it is {settings.admin.host})"
        )
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """The file, with the variables that it refers to. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(str(path), f"should be a TOML file that can be read ({reason})") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(str(path), f"should be TOML: {error}") from None
    resolved: dict[str, Any] = _resolve(data, "")
    return resolved


def _resolve(value: Any, where: str) -> Any:
    """The value with each `${NAME}` replaced by that variable."""

    def variable(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        try:
            return os.environ[match[2]]
        except KeyError:
            raise SettingsError(
                _name(where.split(".")), f"should refer to a variable that is set; {match[2]} is not"
            ) from None

    match value:
        case dict():
            return {name: _resolve(item, f"{where}.{name}" if where else name) for name, item in value.items()}
        case list():
            return [_resolve(item, f"{where}.{number}") for number, item in enumerate(value)]
        case str():
            return _REFERENCE.sub(variable, value)
        case _:
            return value


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        *path, leaf = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        branch[leaf] = value
    return tree


def _check_variables(environ: Mapping[str, str]) -> None:
    """Refuse a misspelt variable: an unknown section, or one underscore where two belong."""
    known = Settings.model_fields
    for variable, value in environ.items():
        name = variable.upper()
        if not name.startswith(PREFIX):
            continue
        section, separator, _ = name.removeprefix(PREFIX).partition("__")
        if separator:
            if section.lower() not in known:
                raise SettingsError(variable, f"should name a section: {_near(section.lower(), list(known))}")
            continue
        for candidate, field in known.items():
            model = field.annotation
            key = section.lower().removeprefix(f"{candidate}_")
            if not (isinstance(model, type) and issubclass(model, BaseModel) and key in model.model_fields):
                continue
            if section.lower() == f"{candidate}_{key}" and _is_ours(name, value):
                raise SettingsError(
                    variable, f"should be spelt {PREFIX}{candidate.upper()}__{key.upper()}, with two underscores"
                )


def _is_ours(variable: str, value: str) -> bool:
    """False for what the commands read (`SAMEWISE_ADMIN_TOKEN`) and what Kubernetes sets for a service."""
    return variable != f"{PREFIX}ADMIN_TOKEN" and not value.startswith(("tcp://", "udp://"))


def explain(error: ValidationError) -> SettingsError:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = [str(step) for step in first["loc"]]
    if first["type"] == "extra_forbidden":
        problem = f"is not a setting; {_near(where[-1], _names(where[:-1]))}"
        return SettingsError(_name(where), f"{problem}{_given(where, None)}")
    problem = _KINDS.get(first["type"]) or first["msg"].removeprefix("Value error, ").replace("Input should", "should")
    inner, separator, rest = problem.partition(": ")
    if separator and inner.isidentifier():
        return SettingsError(_name([*where, inner]), f"{rest}{_given([*where, inner], None)}")
    return SettingsError(_name(where), f"{problem}{_given(where, first['input'])}")


def _unreadable(error: UnreadableVariable) -> SettingsError:
    field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
    whole = f"{PREFIX}{field.upper()}"
    unread = (name for name in os.environ if name.upper().startswith(f"{whole}__") and not _is_json(os.environ[name]))
    lists = (name for name in unread if _is_list(name.upper().removeprefix(PREFIX).lower().split("__")))
    variable = next(lists, whole) if _is_json(os.environ.get(whole, "{}")) else whole
    example = """'[{"url": "http://127.0.0.1:8000/v1"}]'""" if field == "upstreams" else "'{...}'"
    return SettingsError(variable, "should be JSON, such as " + (example if variable == whole else "'[...]'"))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_list(path: list[str]) -> bool:
    """Whether a setting holds several values, and so is JSON in a variable."""
    section = Settings.model_fields[path[0]].annotation
    field = getattr(section, "model_fields", {}).get(path[1])
    return field is not None and get_origin(field.annotation) in (tuple, list, dict)


def _name(where: list[str]) -> str:
    """`[store] ttl` for store.ttl."""
    return f"[{'.'.join(where[:-1])}] {where[-1]}" if len(where) > 1 else where[0] if where else ""


def _given(where: list[str], value: Any) -> str:
    """What the setting is and where that was said, as far as it may be shown."""
    facts = []
    if isinstance(value, str | int | float) and not _SECRETS.intersection(where):
        text = mask_text(json.dumps(value, ensure_ascii=False))
        facts.append(f"it is {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}")
    variable = PREFIX + "__".join(step.upper() for step in where)
    if any(name.upper() == variable for name in os.environ):
        facts.append(f"from {variable}")
    return f" ({', '.join(facts)})" if facts else ""


def _near(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def _names(path: list[str]) -> list[str]:
    """Names of the settings of the section that a path leads to."""
    model: Any = Settings
    for step in path:
        fields = getattr(model, "model_fields", {})
        if step in fields:
            annotation = fields[step].annotation
            model = next((kind for kind in get_args(annotation) if hasattr(kind, "model_fields")), annotation)
    return list(getattr(model, "model_fields", {}))
