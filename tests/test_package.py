"""The package: its version, its dependencies, and the files in the wheel. ``make wheel`` tries it once installed."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import asgnn

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"docs", "dev"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(one.name): one for one in found}


# --- version ----------------------------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {asgnn.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    releases = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases[0] == asgnn.__version__


# --- dependencies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["core", *EXTRAS])
def test_the_lock_file_pins_what_the_package_asks_for(group: str) -> None:
    pinned = pins()
    for text in PROJECT["dependencies"] if group == "core" else EXTRAS[group]:
        asked = Requirement(text)
        if asked.name == "asgnn":
            assert asked.extras <= EXTRAS.keys()
            continue
        (pin,) = pinned[canonicalize_name(asked.name)].specifier
        assert pin.operator == "=="
        assert asked.specifier.contains(pin.version), f"{asked} and {pin}"


def test_the_lock_file_names_versions_only() -> None:
    """No address and no local version: another machine could not install them."""
    for pin in pins().values():
        assert pin.url is None
        assert "+" not in str(pin.specifier)


def test_all_is_every_extra_of_a_user() -> None:
    (asked,) = map(Requirement, EXTRAS["all"])
    assert asked.extras == EXTRAS.keys() - {"all"} - FOR_DEVELOPERS


def test_every_extra_is_tried_after_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    check_wheel, smoke = (importlib.import_module(name) for name in ("check_wheel", "smoke"))
    assert {extra.name for extra in check_wheel.EXTRAS} == EXTRAS.keys() - {"all"} - FOR_DEVELOPERS
    for extra in check_wheel.EXTRAS:
        assert smoke.CHECKS[extra.check][1] == f"asgnn[{extra.name}]"


def test_import_loads_only_the_packages_that_models_need() -> None:
    """PyG itself loads pandas where it is installed."""
    code = """
import sys, numpy, scipy.sparse, torch, torch_geometric
before = set(sys.modules)
import asgnn
print({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = ast.literal_eval(done.stdout)
    assert "asgnn" in new
    assert not new & {"pandas", "sklearn", "safetensors", "networkx", "jinja2", "matplotlib", "typer", "rich", "ray"}


# --- the wheel --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    assert file.name == f"asgnn-{asgnn.__version__}-py3-none-any.whl"
    return zipfile.ZipFile(file)


def test_the_wheel_holds_the_sources_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == sources
    # what is easily forgotten: templates, specifications, data and the portfolio are no modules
    for ending in (".html", ".toml", ".npz", ".json"):
        assert any(name.endswith(ending) for name in held), ending


def test_the_wheel_states_licence_readme_and_command(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    text = wheel.read(metadata).decode()
    head, _, readme = text.partition("\n\n")
    assert "License-Expression: MIT" in head
    assert {"LICENSE", "NOTICE"} == set(re.findall(r"^License-File: (.*)$", head, flags=re.MULTILINE))
    assert readme.strip() == (ROOT / "README.md").read_text().strip()
    assert set(re.findall(r"^Provides-Extra: (.*)$", head, flags=re.MULTILINE)) == set(EXTRAS)
    asked = re.findall(r"^Requires-Dist: (.*)$", head, flags=re.MULTILINE)
    assert names([line for line in asked if "extra ==" not in line]) == names(PROJECT["dependencies"])
    (commands,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "asgnn = asgnn_command:main" in wheel.read(commands).decode()
