"""Each test has an empty cache and no network; only tests with the ``mirror`` fixture use the mirror."""

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from asgnn.graphs import Source

MIRROR = os.environ.get("ASGNN_MIRROR")


def no_network(*_args, **_kwargs):
    raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASGNN_MIRROR", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", no_network)


@pytest.fixture
def mirror(isolated: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Enables the mirror; skips the test if the mirror or a file is missing."""

    def need(*sources: Source | None) -> Path:
        if not MIRROR:
            pytest.skip("ASGNN_MIRROR is not set")
        for source in sources:
            if source is not None and not source.within(Path(MIRROR)).is_file():
                pytest.skip(f"the mirror lacks {source.owner_repo}/{source.path}")
        monkeypatch.setenv("ASGNN_MIRROR", MIRROR)
        return Path(MIRROR)

    return need
