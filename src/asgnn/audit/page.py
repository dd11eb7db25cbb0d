"""The audit as one HTML file: ranked edges, their neighbourhoods layer by layer, and the choice of a threshold."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asgnn.errors import GraphError
from asgnn.graphs.sources import write_file
from asgnn.settings import check_count, check_number

if TYPE_CHECKING:
    import pandas as pd

    from asgnn.audit import Audit

MOST_ROWS = 500_000  # beyond, files of tens of megabytes; a table of more rows is taller than Firefox allows
D3_MODULES = ("dispatch", "timer", "quadtree", "selection", "force", "drag")  # each after the ones that it uses
NO_CLASS = 65_535
OF_NODES = ("class", "confidence")


def write_audit_page(
    audit: Audit, path: Path | str, *, threshold: float | None = None, title: str = "Edge audit", rows: int = MOST_ROWS
) -> Path:
    """Write ``audit`` as one HTML file that loads nothing else, and return its path.

    ``threshold`` is the suspicion from which the page first shows edges as removed: 0.5 if suspicion is a probability,
    otherwise that of the 5 % most suspicious edges. Of more than ``rows`` edges, the page has the most suspicious, and
    says so. A page of 100,000 edges with 8 layers has about 5 MB.
    """
    if threshold is not None:
        check_number("threshold", threshold, -np.inf, np.inf, "()")
    check_count("rows", rows, 1)
    path = Path(path)
    write_file(path, render_audit_page(audit, threshold=threshold, title=title, rows=rows).encode(errors="replace"))
    return path


def render_audit_page(
    audit: Audit, *, threshold: float | None = None, title: str = "Edge audit", rows: int = MOST_ROWS
) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=(loader := PackageLoader("asgnn.audit")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}

    def source(name: str) -> Markup:
        return Markup(loader.get_source(environment, name)[0])

    return environment.get_template("page.html").render(
        title=title,
        notes=audit.notes,
        css=source("page.css"),
        js=source("page.js"),
        d3=[source(f"d3/d3-{name}.min.js") for name in D3_MODULES],
        d3_licence=source("d3/LICENSE"),
        data=page_data(audit, threshold=threshold, rows=rows),
    )


def page_data(audit: Audit, *, threshold: float | None = None, rows: int = MOST_ROWS) -> dict[str, Any]:
    """What the page's script reads: columns as base64 of little-endian arrays, what belongs to a node only once."""
    edges, missing = _ranked(_with_weights(audit), "suspicion"), _ranked(audit.missing, "plausibility")
    total, probability = len(edges), audit.score == "combined"
    if threshold is None:
        suspicion = edges["suspicion"].to_numpy(np.float64)
        finite = suspicion[np.isfinite(suspicion)]
        threshold = 0.5 if probability or not finite.size else float(np.quantile(finite, 0.95))
    edges, missing = edges.iloc[:rows], missing.iloc[:rows]
    ends, ids = _numbered([frame[end] for frame in (edges, missing) for end in ("source", "target")])
    classes, of_nodes = _node_columns((edges, missing), ends, len(ids))
    return {
        "probability": probability,
        "threshold": threshold,
        "total": total,
        "ids": ids,
        "classes": classes,
        "nodes": of_nodes,
        "edges": _table(edges, ends[:2]),
        "missing": _table(missing, ends[2:]),
    }


def _with_weights(audit: Audit) -> pd.DataFrame:
    """The edges with the weights of the given graph, if it has any."""
    given = audit.graph.edge_list()
    return audit.edges.assign(weight=given["weight"].to_numpy()) if "weight" in given else audit.edges


def _ranked(frame: pd.DataFrame, score: str) -> pd.DataFrame:
    """The rows by rank, or by falling score if they have none."""
    needed = ["source", "target", score]
    if absent := [name for name in needed if name not in frame.columns]:
        if not len(frame):
            return frame.reindex(columns=needed)
        raise GraphError(f"An audit's table has no column {absent[0]!r}; it has {', '.join(map(str, frame.columns))}.")
    if "rank" in frame.columns:
        return frame.sort_values("rank", kind="stable")
    return frame.sort_values(score, ascending=False, kind="stable")


def _numbered(columns: Sequence[pd.Series[Any]]) -> tuple[list[NDArray[np.uint32]], list[str]]:
    """The ids of each column as positions in one list of texts."""
    import pandas as pd

    codes, ids = pd.factorize(pd.concat([column.astype(object) for column in columns], ignore_index=True))
    if (codes < 0).any():
        raise GraphError("An audit's table has an edge without source or target.")
    parts = np.split(codes.astype(np.uint32), np.cumsum([len(column) for column in columns])[:-1])
    return parts, [str(one) for one in ids]


def _node_columns(
    frames: Sequence[pd.DataFrame], ends: Sequence[NDArray[np.uint32]], nodes: int
) -> tuple[list[str], dict[str, Any]]:
    """The names of the classes, and class and confidence of every node, taken from the rows that it is an end of."""
    import pandas as pd

    places = [(frame, end) for frame in frames for end in ("source", "target")]
    found: dict[str, Any] = {}
    names: list[str] = []
    given = {kind: [(frame[f"{kind}_{end}"], at) for (frame, end), at in zip(places, ends, strict=True)
                    if f"{kind}_{end}" in frame.columns] for kind in OF_NODES}  # fmt: skip
    if given["class"]:
        together = pd.concat([column.astype(object) for column, _ in given["class"]], ignore_index=True)
        codes, uniques = pd.factorize(together, sort=False)
        order = _sorted_places(uniques)
        if len(order) >= NO_CLASS:
            raise GraphError(f"The audit page shows at most {NO_CLASS - 1:,} classes; there are {len(order):,}.")
        names = [str(uniques[code]) for code in order]
        place = np.full(len(order) + 1, NO_CLASS, np.uint16)  # the last, for code -1: no class
        place[order] = np.arange(len(order))
        of_node, start = np.full(nodes, NO_CLASS, np.uint16), 0
        for column, at in given["class"]:
            of_node[at] = place[codes[start : start + len(column)]]
            start += len(column)
        found["class"] = _packed(of_node)
    if given["confidence"]:
        confidence = np.full(nodes, np.nan, np.float32)
        for column, at in given["confidence"]:
            confidence[at] = column.to_numpy(np.float32)
        found["confidence"] = _packed(confidence)
    return names, found


def _table(frame: pd.DataFrame, ends: Sequence[NDArray[np.uint32]]) -> dict[str, Any]:
    """The columns of a table: its ends, rank, scores, and the weights of the layers."""
    apart = {
        "source",
        "target",
        "rank",
        "weight",
        *(f"{kind}_{end}" for kind in OF_NODES for end in ("source", "target")),
    }
    layers = sorted((name for name in map(str, frame.columns) if re.fullmatch(r"weight_\d+", name)), key=_layer)
    scores = [name for name in map(str, frame.columns) if name not in apart and name not in layers]
    numeric = [name for name in scores if frame[name].dtype.kind in "fiub"]
    weights = {name: frame[name].to_numpy(np.float64) for name in (*(["weight"] if "weight" in frame else []), *layers)}
    largest = max([1.0, *(float(np.nanmax(one)) for one in weights.values() if len(one) and np.isfinite(one).any())])
    rank = frame["rank"].to_numpy(np.uint32) if "rank" in frame.columns else np.arange(1, len(frame) + 1)
    counted = np.array_equal(rank, np.arange(1, len(frame) + 1))
    return {
        "count": len(frame),
        "source": _packed(ends[0]),
        "target": _packed(ends[1]),
        "rank": None if counted else _packed(rank.astype(np.uint32)),
        "scores": [
            {"name": name, "label": name.replace("_", " "), "values": _packed(frame[name].to_numpy(np.float32))}
            for name in numeric
        ],
        "largest": largest,
        "given": _packed(weights["weight"].astype(np.float32)) if "weight" in weights else None,
        "layers": [{"name": name, "values": _packed(_in_steps(weights[name], largest))} for name in layers],
    }


def _sorted_places(values: NDArray[Any]) -> list[int]:
    """The places of values in their own order, or in that of their texts if they cannot be compared."""
    try:
        return sorted(range(len(values)), key=lambda place: values[place])
    except TypeError:
        return sorted(range(len(values)), key=lambda place: str(values[place]))


def _layer(name: str) -> int:
    return int(name.partition("_")[2])


def _in_steps(weights: NDArray[np.float64], largest: float) -> NDArray[np.uint16]:
    """Weights in steps of 1/65535 of the largest: half the size of float32."""
    return np.round(np.clip(np.nan_to_num(weights), 0, largest) * (65535 / largest)).astype(np.uint16)


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")
