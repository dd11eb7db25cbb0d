"""Writes src/asgnn/graphs/resources/cora.npz, the copy of Cora that needs no download.

The papers come from the parquet files inside the package graphdatascience (Apache-2.0). Only those two files
are read: nothing is downloaded and nothing of the package is run. Neither package is needed by the library
itself, so use a throwaway environment:

    pip install numpy pyarrow && pip install --no-deps graphdatascience
    python scripts/build_cora.py

or unpack the wheel anywhere and name the folder that holds ``graphdatascience/``. The output depends on the
input alone, byte for byte for one version of zlib; its SHA-256 is printed.

The nodes are in the order of their paper ids compared as strings and the classes are renumbered, so that node
and class numbers are those of the widely used ``cora.npz`` on which splits and attacked graphs have been
published.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TARGET = Path(__file__).parents[1] / "src" / "asgnn" / "graphs" / "resources" / "cora.npz"
CLASS_OF_SUBJECT = np.array([2, 5, 4, 3, 6, 1, 0], dtype=np.uint8)
# What the graph must be; a package that ships something else is refused.
NODES, EDGES, FEATURES, ONES = 2708, 5278, 1433, 49216


def find_package() -> Path:
    """The folder of the installed package, found without importing it."""
    spec = importlib.util.find_spec("graphdatascience")
    if spec is None or spec.origin is None:
        sys.exit("graphdatascience is not installed here; name the folder it is unpacked in.")
    return Path(spec.origin).parent


def read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        sys.exit("build_cora.py needs pyarrow: pip install pyarrow.")
    if not path.is_file():
        sys.exit(f"There is no file {path}.")
    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns


def build(package: Path) -> dict[str, NDArray[Any]]:
    folder = package / "resources" / "cora"
    nodes = read_parquet(folder / "cora_nodes.parquet.gzip")
    relations = read_parquet(folder / "cora_rels.parquet.gzip")

    order = sorted(range(len(nodes["nodeId"])), key=lambda row: str(nodes["nodeId"][row]))
    number = {nodes["nodeId"][row]: i for i, row in enumerate(order)}
    words = np.array([nodes["features"][row] for row in order])
    labels = CLASS_OF_SUBJECT[[nodes["subject"][row] for row in order]]
    pairs = {
        tuple(sorted((number[u], number[v])))
        for u, v in zip(relations["sourceNodeId"], relations["targetNodeId"], strict=True)
        if u != v
    }
    row, column = np.nonzero(words)
    found = (*words.shape, len(pairs), len(row), sorted(np.unique(words)))
    if found != (NODES, FEATURES, EDGES, ONES, [0, 1]):
        sys.exit(f"{folder} does not hold Cora as it is known: it has {found}.")
    return {
        "shape": np.array(words.shape, dtype=np.uint32),
        "attr_indptr": np.searchsorted(row, np.arange(NODES + 1)).astype(np.uint32),
        "attr_indices": column.astype(np.uint16),
        "edges": np.array(sorted(pairs), dtype=np.uint16),
        "labels": labels,
    }


def write(arrays: dict[str, NDArray[Any]], target: Path) -> None:
    """A NumPy archive whose bytes hold no date, so that the same arrays give the same file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(member, content.getvalue(), compresslevel=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", nargs="?", type=Path, help="folder graphdatascience/, unpacked or installed")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    package: Path = options.package or find_package()
    if (package / "graphdatascience").is_dir():
        package = package / "graphdatascience"
    write(build(package), options.output)
    content = options.output.read_bytes()
    print(f"{hashlib.sha256(content).hexdigest()}  {options.output.name} ({len(content)} bytes)")


if __name__ == "__main__":
    main()
