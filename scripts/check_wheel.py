"""Builds the wheel, installs it into an empty environment, and tries it there, first alone and then with each extra.

    python scripts/check_wheel.py [--keep FOLDER]

The versions are those of requirements.lock, given to pip as constraints. Prints one line for each step and stops at
the first that fails. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "scripts" / "smoke.py"


@dataclass(frozen=True)
class Extra:
    """An extra, and a check of scripts/smoke.py that needs it and must name it if it is missing."""

    name: str
    check: str


EXTRAS = (
    Extra("cli", "command"),
    Extra("parquet", "parquet"),
    Extra("fast", "fast"),
    Extra("neighbors", "neighbors"),
    Extra("partition", "partition"),
    Extra("ray", "ray"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="make the environment here and keep it")
    asked = parser.parse_args()
    if asked.keep is not None:
        check(asked.keep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))


def check(folder: Path) -> None:
    """Builds, installs and tries the wheel in ``folder``."""
    dist, environment, elsewhere = folder / "dist", folder / "env", folder / "elsewhere"
    elsewhere.mkdir(parents=True, exist_ok=True)
    step("build", sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT))
    (wheel,) = dist.glob("asgnn-*.whl")
    venv.create(environment, with_pip=True, clear=True)
    python = str(environment / "bin" / "python")

    def install(extras: str = "") -> None:
        constraint = str(ROOT / "requirements.lock")
        step(f"install {wheel.name}{extras}", python, "-m", "pip", "install", "-c", constraint, f"{wheel}{extras}")

    def smoke(*checks: str) -> None:
        # in another folder and without the variables that could lead to the sources of this checkout
        step(f"try {', '.join(checks)}", python, "-I", str(SMOKE), *checks, cwd=elsewhere)

    install()
    smoke("core", *(f"without:{extra.check}" for extra in EXTRAS))
    for extra in EXTRAS:
        install(f"[{extra.name}]")
        smoke(extra.check)
    install("[all]")
    step("pip check", python, "-m", "pip", "check")


def step(what: str, *command: str, cwd: Path | None = None) -> None:
    """Runs a command; prints what it is and how long it took, and what it said if it failed."""
    begin = time.perf_counter()
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=around, capture_output=True, text=True)
    print(f"{what}: {'done' if done.returncode == 0 else 'failed'}, {time.perf_counter() - begin:.0f} s", flush=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
