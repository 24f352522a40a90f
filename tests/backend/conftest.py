"""The reference engine inside of the test's own process; torch is imported by the tests that run it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from samewise_backend.engine import Engine
    from samewise_backend.language_model import LanguageModel


@pytest.fixture(scope="session")
def language_model(tiny_model: Path) -> LanguageModel:
    import torch

    from samewise_backend.language_model import LanguageModel

    torch.set_num_threads(1)
    return LanguageModel(tiny_model, dtype=torch.float32, device="cpu")


@pytest.fixture
def engine(language_model: LanguageModel) -> Iterator[Engine]:
    from samewise_backend.engine import Engine

    made = Engine(language_model)
    made.start()
    yield made
    made.close()
