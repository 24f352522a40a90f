"""API keys in a file of their own: `keys = [{ tenant = "a", sha256 = "..." }]`, as `[auth] keys` has them."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from pydantic import ValidationError

from samewise.settings.load import SettingsError, explain, read_toml
from samewise.settings.sections import ApiKey, Auth


def load_keys(path: str) -> tuple[ApiKey, ...]:
    """The keys of the file. Raises SettingsError where it can't be used as a whole."""
    data = read_toml(Path(path))
    unknown = sorted(set(data) - {"keys"})
    if unknown:
        raise SettingsError(path, f'should have nothing but "keys" (it has {unknown[0]!r})')
    try:
        return Auth.model_validate({"keys": data.get("keys", [])}).keys
    except ValidationError as error:
        raise SettingsError(path, str(explain(error))) from None


def stamp(path: str) -> Hashable:
    """Another value whenever the file is another; None while there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
