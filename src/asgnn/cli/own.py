"""The commands on a graph of one's own: asgnn look | fit | predict | audit | clean."""

from __future__ import annotations

import functools
import inspect
import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
import typer

from asgnn.cli.app import (
    INTERRUPTED,
    AsJson,
    Device,
    Sets,
    app,
    bar,
    fail,
    find_device,
    note,
    note_memory,
    out,
    print_json,
    print_table,
    print_written,
)
from asgnn.errors import ConfigError
from asgnn.experiments.values import parse_settings
from asgnn.graphs import NamedGraph, read_graph
from asgnn.graphs.checks import labels_of
from asgnn.graphs.read import EdgeRows, read_rows
from asgnn.graphs.sources import check_place, write_file
from asgnn.graphs.tables import counted
from asgnn.settings import check_count
from asgnn.training import RECIPES, recipe

if TYPE_CHECKING:
    from asgnn.audit import Audit
    from asgnn.estimator import RobustNodeClassifier

SHOWN = 10  # names of features, classes or edges in what is printed
TABLES = (".csv", ".tsv", ".parquet", ".json")
MANY_CLASSES = 50  # with more, predictions have no column for each class


@dataclass(frozen=True)
class Files:
    """The files of a graph and how to read them; see :func:`~asgnn.graphs.read_graph`."""

    edges: Annotated[
        Path,
        typer.Argument(metavar="EDGES", help="The edges: CSV, TSV, Parquet, .npz, GraphML or a plain list of edges."),
    ]
    features: Annotated[Path | None, typer.Option(help="The nodes: a table with ids, features and labels.")] = None
    label: Annotated[str | None, typer.Option(help="The column with the classes.")] = None
    id: Annotated[
        str | None, typer.Option(help="The column of the features with the ids. Default: id, or the first.")
    ] = None
    source: Annotated[
        str | None, typer.Option(help="The column of the edges with one end. Default: source, or the first.")
    ] = None
    target: Annotated[
        str | None, typer.Option(help="The column of the edges with the other end. Default: target, or the second.")
    ] = None
    weight: Annotated[str | None, typer.Option(help="The column of the edges with weights. Default: weight.")] = None
    ignore: Annotated[list[str] | None, typer.Option(help="A column of the features that is not used; repeatable.")] = (
        None
    )
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line has names. Default: recognised.")
    ] = None
    separator: Annotated[str | None, typer.Option(help="Between columns. Default: recognised.")] = None
    encoding: Annotated[str | None, typer.Option(help="Of the text. Default: recognised.")] = None

    def options(self) -> dict[str, Any]:
        """The arguments of ``read_graph``."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**found, "ignore": tuple(self.ignore or ())}

    def read(self, model: RobustNodeClassifier | None = None) -> NamedGraph:
        """Return the graph; given a model, with the features that it knows."""
        names = None if model is None else [str(name) for name in model.feature_names_in_]
        return read_graph(**self.options(), feature_names=names)


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :class:`Files` in place of its parameter ``files``."""
    hints = get_type_hints(command, include_extras=True)
    of_files = get_type_hints(Files, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for own in inspect.signature(command).parameters.values():
        if own.name != "files":
            parameters.append(own.replace(annotation=hints[own.name], kind=keyword))
            continue
        for one in fields(Files):
            default = inspect.Parameter.empty if one.name == "edges" else one.default
            parameters.append(inspect.Parameter(one.name, keyword, default=default, annotation=of_files[one.name]))

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        files = Files(**{one.name: given.pop(one.name) for one in fields(Files)})
        try:
            with _warnings_as_notes():
                command(files=files, **given)
        except KeyboardInterrupt:
            fail("Interrupted; nothing was written.", INTERRUPTED)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    del wrapped.__wrapped__
    return wrapped


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print the warnings of this package as notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [one for one in caught if one.category.__module__.startswith("asgnn")]
    for sentence in dict.fromkeys(str(one.message).rstrip(".") for one in ours):
        note(sentence)


ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that asgnn fit wrote.")]


def _load(folder: Path, device: str) -> RobustNodeClassifier:
    from asgnn.estimator import RobustNodeClassifier

    return RobustNodeClassifier.load(folder, device=find_device(device))


# --- look -----------------------------------------------------------------------------------------------------------


@app.command()
@reads
def look(files: Files, as_json: AsJson = False) -> None:
    """Read a graph and say what was understood: nodes, edges, features, labels, and what was dropped and why."""
    with bar(f"reading {files.edges}"):
        graph = files.read()
    found = summary(graph)
    if as_json:
        return print_json(found)
    rows = [
        ("nodes", f"{found['nodes']:,}"),
        ("without edges", f"{found['isolated']:,}"),
        ("edges", f"{found['edges']:,}"),
        ("weights", _range(found["weights"]) if found["weights"] else "none"),
        ("mean degree", f"{found['mean_degree']:.1f}"),
        ("features", f"{len(found['features']):,}" if found["features"] else "none"),
        ("labelled nodes", f"{found['labelled']:,} of {found['nodes']:,}" if found["classes"] else "none"),
        ("classes", len(found["classes"]) or "none"),
    ]
    if found["same_class"] is not None:
        rows.append(("edges within a class", f"{found['same_class']:.1%} of those between labelled nodes"))
    print_table(str(files.edges), ("what", "found"), rows, left=2)
    if found["classes"]:
        sizes = sorted(found["classes"].items(), key=lambda one: -one[1])
        shown = [(name, f"{count:,}", f"{count / found['labelled']:.1%}") for name, count in sizes[:SHOWN]]
        left = len(sizes) - len(shown)
        print_table("", ("class", "nodes", "share"), shown, caption=f"and {left} more classes" if left > 0 else "")
    if found["features"]:
        more = ", …" if len(found["features"]) > SHOWN else ""
        out.print(f"Features: {', '.join(found['features'][:SHOWN])}{more}", soft_wrap=True)
    _print_notes(graph.notes)


def summary(graph: NamedGraph) -> dict[str, Any]:
    """The numbers that describe a graph, as JSON."""
    row, col = graph.data.edge_index.numpy()
    degree = np.bincount(row, minlength=graph.num_nodes)
    y = labels_of(graph.data).numpy() if len(graph.classes) else np.full(graph.num_nodes, -1)
    sizes = np.bincount(y[y >= 0], minlength=len(graph.classes))
    both = (y[row] >= 0) & (y[col] >= 0)
    edges = graph.edge_list()
    weights = edges["weight"].astype(float) if "weight" in edges else None
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "isolated": int((degree == 0).sum()),
        "mean_degree": round(float(degree.mean()), 3),
        "weights": None if weights is None else [float(weights.min()), float(weights.max())],
        "features": list(graph.feature_names),
        "labelled": int((y >= 0).sum()),
        "classes": {str(name): int(size) for name, size in zip(graph.classes, sizes, strict=True)},
        "same_class": float((y[row] == y[col])[both].mean()) if both.any() else None,
        "notes": list(graph.notes),
    }


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:g} to {ends[1]:g}"


def _print_notes(notes: Sequence[str]) -> None:
    for sentence in notes:
        out.print(f"- {sentence}", soft_wrap=True)


# --- fit and predict ------------------------------------------------------------------------------------------------


@app.command()
@reads
def fit(
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    model: Annotated[str, typer.Option(help=f"One of {', '.join(RECIPES)}.")] = "asgnn",
    settings: Sets = None,
    budget: Annotated[
        str, typer.Option(help="Settings to try: portfolio (a short list), none (only --set), or their number.")
    ] = "portfolio",
    models: Annotated[int, typer.Option(help="Number of models whose mean probability is used.")] = 5,
    validation: Annotated[float, typer.Option(help="Share of the labelled nodes that is held out.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split and of the models.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a classifier on a graph with some labelled nodes: choose settings, train, calibrate, write a folder."""
    from asgnn.estimator import RobustNodeClassifier
    from asgnn.saved import check_replaceable

    check_replaceable(output)
    given = dict(parse_settings(model, recipe(model).settings, settings or []))
    place = find_device(device)
    tries: Any = {"portfolio": "portfolio", "none": None}.get(budget, budget)
    if tries == budget != "portfolio":
        if not budget.isdecimal() or int(budget) == 0:
            raise ConfigError(f"--budget must be portfolio, none or a number from 1 up; it is {budget!r}.")
        tries = int(budget)
    graph = files.read()
    if len(graph.classes) == 0:
        raise ConfigError("Say which column has the classes: add --label COLUMN.")
    note_memory(model, given, graph.num_edges, lambda: graph.data, place)
    with bar(f"{model} on {files.edges.name}") as progress:
        clf = RobustNodeClassifier(
            model,
            settings=given,
            budget=tries,
            models=models,
            validation=validation,
            device=place,
            progress=progress,
            random_state=seed,
        )
        clf.fit(graph)
    clf.save(output)
    if as_json:
        return print_json(
            {
                "model": model,
                "settings": clf.settings_,
                "classes": [str(name) for name in clf.classes_],
                "validation_score": clf.validation_score_,
                "comparison": clf.comparison_,
                "temperature": clf.temperature_,
                "advice": list(clf.advice_),
                "notes": list(clf.notes_),
                "output": str(output),
            }
        )
    names = {"model": f"{model} with the chosen settings", "mlp": "MLP, which ignores the edges", "gcn": "GCN"}
    rows = [(f"{model}, mean of {counted(models, 'model')}", f"{100 * clf.validation_score_:.1f}")]
    rows += [(names.get(name, name), f"{100 * score:.1f}") for name, score in clf.comparison_.items()]
    caption = f"{len(clf.validation_ids_):,} nodes; settings were chosen on them, so the figures are optimistic"
    print_table(f"{files.edges}: accuracy on held-out nodes", ("classifier", "%"), rows, caption=caption)
    _print_notes([*clf.notes_, *clf.advice_])
    print_written(output)


@app.command()
@reads
def predict(
    model: ModelFolder,
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help=f"File for the classes: {', '.join(TABLES)}.")],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Classify the nodes of a graph with a trained model: the class, its confidence and the spread of the models."""
    import pandas as pd

    check_output(output, TABLES)
    clf = _load(model, device)
    graph = files.read(clf)
    probabilities = clf.predict_proba(graph)
    best = probabilities.argmax(1)
    table = pd.DataFrame({"id": graph.ids, "class": clf.classes_[best], "confidence": probabilities.max(1)})
    table["spread"] = clf.spread(graph)
    if len(clf.classes_) <= MANY_CLASSES:
        for at, name in enumerate(clf.classes_):
            table[f"probability_{name}"] = probabilities[:, at]
    write_file(output, table_bytes(table, output))
    confidence = table.groupby("class", sort=True)["confidence"]
    found = {str(name): [int(one.size), float(one.mean())] for name, one in confidence}
    if as_json:
        sizes = {name: {"nodes": size, "confidence": mean} for name, (size, mean) in found.items()}
        return print_json({"nodes": graph.num_nodes, "classes": sizes, "output": str(output)})
    rows = [(name, f"{size:,}", f"{mean:.2f}") for name, (size, mean) in found.items()]
    print_table(str(files.edges), ("class", "nodes", "mean confidence"), rows)
    _print_notes(graph.notes)
    print_written(output)


# --- audit and clean ------------------------------------------------------------------------------------------------


@app.command()
@reads
def audit(
    model: ModelFolder,
    files: Files,
    output: Annotated[
        list[Path],
        typer.Option("--output", "-o", help=f"File for the edges: .html, {', '.join(TABLES)}; repeatable."),
    ],
    missing: Annotated[int, typer.Option(help="Number of missing edges to suggest.")] = 1000,
    score: Annotated[str, typer.Option(help="What edges are ranked by.")] = "combined",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Rank the edges of a graph by how likely they are false, and suggest missing ones: a page or a table."""
    for path in output:
        check_output(path, (".html", *TABLES))
        if path.suffix.lower() in TABLES and path.suffix.lower() != ".json":
            check_output(_missing_file(path), TABLES)
    check_count("missing", missing, 0)
    clf = _load(model, device)
    graph = files.read(clf)
    with bar(f"edges of {files.edges.name}"):
        found = clf.audit(graph, missing=missing, score=score)
    written = [file for path in output for file in _write_audit(found, path, str(files.edges.name))]
    ranked = found.edges.sort_values("rank")
    if as_json:
        top = json.loads(ranked.head(SHOWN).to_json(orient="records"))
        shown = {"edges": len(ranked), "missing": len(found.missing), "most_suspicious": top}
        return print_json({**shown, "notes": list(found.notes), "output": [str(path) for path in written]})
    rows = [
        (one.source, one.target, f"{one.suspicion:.3f}", one.class_source, one.class_target)
        for one in ranked.head(SHOWN).itertuples()
    ]
    title = f"The most suspicious of {len(ranked):,} edges"
    print_table(title, ("source", "target", "suspicion", "class of source", "class of target"), rows, left=2)
    _print_notes([*graph.notes, *found.notes])
    print_written(*written)


def _missing_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}-missing{path.suffix}")


def _write_audit(found: Audit, path: Path, title: str) -> list[Path]:
    """Write an audit in the format of a file; return the files."""
    kind = path.suffix.lower()
    if kind == ".html":
        from asgnn.audit.page import write_audit_page

        write_audit_page(found, path, title=f"Edges of {title}")
        return [path]
    edges = found.edges.sort_values("rank")
    if kind == ".json":
        tables = {name: json.loads(one.to_json(orient="records")) for name, one in
                  (("edges", edges), ("missing", found.missing))}  # fmt: skip
        write_file(path, json.dumps({**tables, "notes": list(found.notes)}).encode())
        return [path]
    beside = _missing_file(path)
    contents = [(path, table_bytes(edges, path)), (beside, table_bytes(found.missing, path))]
    for file, content in contents:
        write_file(file, content)
    return [path, beside]


CLEANED = (*TABLES, ".txt", ".graphml", ".npz")


@app.command()
@reads
def clean(
    model: ModelFolder,
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help=f"File for the edges: {', '.join(CLEANED)}.")],
    number: Annotated[int | None, typer.Option(help="How many edges to remove.")] = None,
    share: Annotated[float | None, typer.Option(help="Share of the edges to remove, such as 0.05.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Remove edges of at least this suspicion.")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Remove as many as possible, of which this share is expected to be false.")
    ] = None,
    removed: Annotated[Path | None, typer.Option(help=f"File for the removed edges: {', '.join(TABLES)}.")] = None,
    score: Annotated[str, typer.Option(help="What edges are ranked by.")] = "combined",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a graph without its most suspicious edges; a table keeps its other rows and all columns."""
    from asgnn.audit import clean as clean_graph

    check_output(output, CLEANED)
    if removed is not None:
        check_output(removed, TABLES)
    asked = {"number": number, "share": share, "threshold": threshold, "precision": precision}
    if sum(value is not None for value in asked.values()) != 1:
        raise ConfigError("Say how many edges to remove: one of --number, --share, --threshold and --precision.")
    clf = _load(model, device)
    graph = files.read(clf)
    with bar(f"edges of {files.edges.name}"):
        found = clf.audit(graph, missing=0, score=score)
    kept = clean_graph(graph, found, **asked)  # type: ignore[arg-type]
    gone = _gone(found, kept)
    content = _cleaned_bytes(files, graph, kept, output)
    if removed is not None:
        write_file(removed, table_bytes(gone.sort_values("rank"), removed))
    write_file(output, content)
    counts = {"edges": graph.num_edges, "removed": len(gone), "kept": kept.num_edges}
    if as_json:
        return print_json({**counts, "output": str(output)})
    out.print(f"Removed {len(gone):,} of {graph.num_edges:,} edges; {kept.num_edges:,} are left.")
    if len(gone):
        least = float(gone["suspicion"].min())
        out.print(f"Suspicion of the removed edges: {least:.3f} to {float(gone['suspicion'].max()):.3f}.")
    _print_notes([*graph.notes, *found.notes])
    print_written(output, *([] if removed is None else [removed]))


def _keys(graph: NamedGraph) -> Any:
    """The edges of a graph as numbers, one for each undirected edge, in the order of ``edge_list``."""
    row, col = graph.data.edge_index.numpy()
    return (row * graph.num_nodes + col)[row < col]


def _gone(found: Audit, kept: NamedGraph) -> Any:
    """The rows of the audit whose edges were removed."""
    return found.edges[~np.isin(_keys(found.graph), _keys(kept))]


def _cleaned_bytes(files: Files, graph: NamedGraph, kept: NamedGraph, output: Path) -> bytes:
    """The content of the cleaned file."""
    kind = output.suffix.lower()
    if kind == ".graphml":
        from asgnn.graphs.convert import import_networkx

        file = io.BytesIO()
        import_networkx("Writing GraphML").write_graphml(kept.to_networkx(), file)
        return file.getvalue()
    if kind == ".npz":
        return _archive(kept)
    rows = read_rows(graph, **files.options())
    if rows is None or (rows.header and kind == ".txt"):  # a list without names has the ends and weights only
        return table_bytes(kept.edge_list(), output, header=kind != ".txt")
    return table_bytes(_kept_rows(rows, kept), output, header=rows.header)


def _kept_rows(rows: EdgeRows, kept: NamedGraph) -> Any:
    """The rows of the given table whose edges are left; self-loops, which are no edges, stay."""
    low, high = np.minimum(rows.source, rows.target), np.maximum(rows.source, rows.target)
    return rows.frame[np.isin(low * kept.num_nodes + high, _keys(kept)) | (low == high)]


def _archive(graph: NamedGraph) -> bytes:
    """A NumPy archive that ``read_graph`` reads."""
    edges = graph.edge_list()
    arrays: dict[str, Any] = {"edges": np.stack([graph.numbers(edges[name]) for name in ("source", "target")], axis=1)}
    arrays["ids"] = graph.ids if graph.ids.dtype.kind == "i" else graph.ids.astype(str)
    if "weight" in edges:
        arrays["edge_weight"] = edges["weight"].to_numpy()
    if graph.has_features:
        arrays |= {"x": graph.data.x.numpy(), "feature_names": np.array(graph.feature_names)}
    if len(graph.classes):
        arrays |= {"y": graph.data.y.numpy(), "classes": graph.classes.astype(str)}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


# --- files ----------------------------------------------------------------------------------------------------------


def check_output(path: Path, kinds: Sequence[str]) -> None:
    """Raise before anything is computed if a file cannot be written or its ending is not one of ``kinds``."""
    if path.suffix.lower() not in kinds:
        raise ConfigError(f"{path} must end in {' or '.join(filter(None, [', '.join(kinds[:-1]), kinds[-1]]))}.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'}, not a file.")
    check_place(path)
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as cause:
            raise ConfigError('Writing Parquet needs pyarrow: pip install "asgnn[parquet]".') from cause


def table_bytes(table: Any, path: Path, *, header: bool = True) -> bytes:
    """A table in the format of a file name; text is separated by tabs, except in .csv."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        file = io.BytesIO()
        texts = {name: str for name in table if table[name].dtype == object}
        table.astype(texts).to_parquet(file, index=False)
        return file.getvalue()
    if kind == ".json":
        return str(table.to_json(orient="records")).encode()
    separator = "," if kind == ".csv" else "\t"
    return str(table.to_csv(index=False, sep=separator, header=header)).encode()
