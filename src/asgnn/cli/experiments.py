"""The commands on benchmark graphs: asgnn demo | datasets | train | attack | reproduce | report | store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from asgnn.cli.app import (
    AsJson,
    Device,
    Sets,
    app,
    bar,
    find_device,
    note,
    note_diverged,
    note_memory,
    out,
    print_json,
    print_table,
    print_written,
)
from asgnn.errors import ConfigError
from asgnn.experiments.attacks import attack_settings, made_case, write_attack
from asgnn.experiments.demo import MODELS, RATES, mean_std, run_demo
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import Batch, Executor, cluster, local, on_ray, processes
from asgnn.experiments.measure import find_split, load_graph
from asgnn.experiments.migrate import migrate
from asgnn.experiments.own_graph import add_graph
from asgnn.experiments.questions import TOPICS, plan
from asgnn.experiments.records import RECORDS, read_record
from asgnn.experiments.report import FORMATS, write_report
from asgnn.experiments.report.tables import MeanStd, metric
from asgnn.experiments.spec import SEARCHES, SMALL, load_spec
from asgnn.experiments.store import Counts, Store
from asgnn.experiments.trials import run_trials
from asgnn.experiments.values import (
    METHODS,
    NAMES,
    PER_TARGET,
    Attack,
    Case,
    Choice,
    SplitName,
    as_settings,
    count_diverged,
    key_of,
    made_against,
    parse_case,
    parse_settings,
)
from asgnn.graphs import DATASETS, available, count_published, describe, find_dataset, load_dataset, read_graph
from asgnn.training import RECIPES, Tuned, recipe, tune
from asgnn.training.tune import BASELINES, PATIENCE, words

store = typer.Typer(help="Show, merge and migrate stores of results.", no_args_is_help=True)
app.add_typer(store, name="store")

RESULTS = Path("runs/results.sqlite")  # default of reproduce and report
PAUSE = 10.0  # seconds between two lines of an attack's progress
SHOWN = 6  # settings in the table of train --tune
Dataset = Annotated[str, typer.Option(help="A name that `asgnn datasets` lists.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Discard the results of an earlier run.")]
StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="A store of results.")]


def _auc(figures: dict[str, Any]) -> str:
    return f"added from original edges with an AUC of {figures['edge_auc_mean']:.3f} (1 is perfect, 0.5 is chance)."


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the datasets: their size, and whether they need a download."""
    sizes = ("nodes", "edges", "features", "classes")
    rows: list[dict[str, Any]] = []
    for name, dataset in DATASETS.items():
        about = {"here": available(name), "published_splits": count_published(name)}
        rows.append({"name": name, **{size: getattr(dataset, size) for size in sizes}, **about})
    if as_json:
        return print_json(rows)
    headings = ("dataset", *sizes, "available", "splits")
    cells = [[*list(row.values())[:-1], row["published_splits"] or ""] for row in rows]
    title = "Undirected graphs without self-loops; splits: the number of published ones"
    print_table(title, headings, cells)
    if any(row["here"] == "download" for row in rows):
        out.print(
            '"download" is fetched on first use; offline, set ASGNN_MIRROR to a folder that contains OWNER/REPO/PATH.'
        )


@app.command()
def train(
    dataset: Annotated[str, typer.Option(help="A name that `asgnn datasets` lists, or a file of edges.")],
    features: Annotated[
        Path | None, typer.Option(help="For a file of edges: the nodes, with ids and features.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="For a file of edges: the column with the classes.")] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(RECIPES)}; or package.module:Class.")] = "asgnn",
    settings: Sets = None,
    poisoned: Annotated[
        str | None, typer.Option(help=f"The attack: {', '.join(NAMES)}, or a file written by asgnn attack.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Flips as a share of the edges; for nettack, flips per target.")] = 0.0,
    split: Annotated[
        str | None,
        typer.Option(
            help="published, random (one per trial), published:I or random:I (split I for all trials). Default: the "
            "split of the attack, else the published ones, else random."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of trials, trained as one batch; trial i has seed i.")] = 10,
    tuned: Annotated[
        bool,
        typer.Option("--tune", help="First choose the settings on the validation nodes; --set fixes some."),
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(help="Number of settings that --tune tries. Default: a short fixed list, the portfolio."),
    ] = None,
    store_path: Annotated[Path | None, typer.Option("--store", help="A file for results, which are reused.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model on a graph, clean or attacked, and report its accuracy."""
    given = parse_settings(model, recipe(model).settings, settings or [])
    if budget is not None and not tuned:
        raise ConfigError("--budget is for --tune; use both or neither.")
    name = _own_dataset(dataset, features, label)
    case = parse_case(name or dataset, poisoned, rate, split)
    shown = dataset if name else case.dataset
    if (usual := DATASETS[case.dataset].metric) != "accuracy":
        given = as_settings({"metric": usual, **dict(given)})
    against = made_against(case.dataset, case.attacks[0]) if case.attacks else None
    if against not in (None, case.split):
        note(f"these flips were made against the split {against}; on another split the attack is weaker")
    search = None
    with _store(store_path) as kept:
        if tuned:
            if case.of_trial(0) != case:
                case = case.of_trial(0)
                note(f"with --tune all trials have one split, {case.split}")
            search = _tune(case, model, dict(given), budget, store_path, find_device(device))
            given = as_settings(search.settings)
        about = find_dataset(case.dataset)
        note_memory(model, dict(given), about.edges, lambda: load_dataset(about.name), find_device(device))
        with bar(f"{model} on {shown}") as progress:
            found = run_trials(case, model, given, trials, store=kept, device=find_device(device), progress=progress)
    note_diverged(found["diverged"], trials)
    if search is not None:
        found["tuned"] = _tuned_as_dict(search)
        if not as_json:
            _print_tuned(search)
    if as_json:
        return print_json(found | ({"file": dataset} if name else {}))
    graph = shown if poisoned is None else f"{shown}, {poisoned}"
    graph += f" at {rate:g}" if rate else ""
    caption = f"{case.split} split, {found['seconds']:.1f} s on {found['device']}"
    rows = []
    labels = {"test": "test", "target": "attacked nodes", "val": "validation"}
    if by_auc := "test_auc_mean" in found:
        labels = {"test_auc": "test, ROC-AUC", "test": "test, accuracy", "val": "validation, ROC-AUC"}
    for name, label in labels.items():
        if f"{name}_mean" in found:
            cells = (label, *(f"{found[f'{name}_{part}']:.2f}" for part in ("mean", "std")))
            rows.append([Text(cell, style="bold" if name == next(iter(labels)) else "") for cell in cells])
    headings = ("figure, %" if by_auc else "accuracy, %", f"mean of {trials}", "± std")
    print_table(f"{model} on {graph}", headings, rows, caption=caption)
    # says how many nodes are labelled if labels are missing
    out.print(f"{shown}: {describe(load_dataset(case.dataset))}", soft_wrap=True)
    if "edge_auc_mean" in found:
        out.print(f"The learned edge weights separate {_auc(found)}")


def _own_dataset(dataset: str, features: Path | None, label: str | None) -> str | None:
    """The name of the dataset of a file of edges, which is read; ``None`` if ``dataset`` is a name."""
    path = Path(dataset)
    try:
        find_dataset(dataset)
        is_file = False
    except ConfigError:
        is_file = bool(path.suffix) or path.exists()
    if not is_file:
        if features is not None or label is not None:
            raise ConfigError(f"--features and --label belong to a file of edges, and {dataset} is none.")
        return None
    graph = read_graph(path, features, label=label)
    if len(graph.classes) == 0:
        raise ConfigError("Say which column has the classes: add --label COLUMN.")
    for sentence in graph.notes:
        note(sentence.rstrip("."))
    return add_graph(graph)


def _tune(
    case: Case, model: str, fixed: dict[str, Any], budget: int | None, store_path: Path | None, device: str
) -> Tuned:
    """Choose settings on the graph of a case; trainings are kept beside the store."""
    if any(attack.source == "made" for attack in case.attacks):
        raise ConfigError("--tune needs flips that exist: make them with asgnn attack and pass the file as --poisoned.")
    graph = load_graph(case).data
    key = key_of(case.as_dict())[:12]
    epochs, patience = fixed.pop("epochs", None), fixed.pop("patience", PATIENCE)
    metric = fixed.pop("metric", "accuracy")
    with bar(f"settings of {model} on {case.dataset}") as progress:
        return tune(
            model,
            graph,
            find_split(case.split, graph, case.dataset),
            budget="portfolio" if budget is None else budget,
            fixed=fixed,
            epochs=epochs,
            patience=patience,
            metric=metric,
            device=device,
            checkpoint=None if store_path is None else store_path.with_suffix(f".tune-{key}.jsonl"),
            progress=progress,
        )


def _tuned_as_dict(found: Tuned) -> dict[str, Any]:
    return {
        "settings": dict(found.settings),
        "val_score": found.val_score,
        "scalars": dict(found.scalars),
        "comparison": {name: one.val_score for name, one in found.comparison.items()},
        "advice": list(found.advice),
        "tried": len(found.tried.best()),
        "seconds": round(found.seconds, 2),
    }


def _print_tuned(found: Tuned) -> None:
    rows = [
        [words(row.settings), row.epochs, row.trials, f"{100 * row.val_score:.2f}", f"{row.val_loss:.3f}"]
        for row in found.tried.best(SHOWN)
    ]
    headings = ("settings that differ from the recipe", "epochs", "trials", "score, %", "loss")
    tried = len(found.tried.best())
    caption = f"the best {len(rows)} of {tried} settings, by validation; {found.seconds:.1f} s"
    print_table("Choice of settings", headings, rows, caption=caption)
    out.print(f"Chosen: {words(found.settings)}")
    if found.scalars:
        out.print(f"Learned: {words({name: f'{value:.3g}' for name, value in found.scalars.items()})}")
    for name, one in found.comparison.items():
        out.print(f"On the same validation nodes {BASELINES[name]} reaches {100 * one.val_score:.2f} %.")
    for sentence in found.advice:
        out.print(sentence)


def _store(path: Path | None) -> Store:
    if path is None:
        return Store.in_memory()
    path.parent.mkdir(parents=True, exist_ok=True)
    return Store.open(path)


@app.command()
def attack(
    dataset: Dataset,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the flips, ending in .npz.")],
    rate: Annotated[float, typer.Option(help="Flips as a share of the edges, for all methods except nettack.")] = 0.0,
    per_target: Annotated[
        int, typer.Option(help="Flips per target, for nettack; targets are the test nodes of degree above 10.")
    ] = 0,
    split: Annotated[
        str | None, typer.Option(help="published or random: the split whose training labels the attacker knows.")
    ] = None,
    trial: Annotated[int, typer.Option(help="The number of the split, for random splits and several published.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the attack's random numbers.")] = 0,
    settings: Sets = None,
    fresh: Fresh = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Attack a graph and write the flips to a file; resumes if interrupted."""
    if method not in METHODS:
        raise ConfigError(f"There is no attack {method!r}; the attacks are {', '.join(METHODS)}.")
    if Attack(method, "made").unit == PER_TARGET:
        if rate or per_target < 1:
            raise ConfigError(f"{method} attacks single nodes: use --per-target, 1 or more, without --rate.")
    elif per_target or not 0 < rate <= 1:
        raise ConfigError(f"{method} attacks the whole graph: use --rate, above 0 and at most 1, without --per-target.")
    given = parse_settings(method, attack_settings(method), settings or [])
    usual = SplitName.usual(dataset) if split is None else SplitName(split)
    named = usual.of_trial(dataset, trial)
    name = parse_case(dataset, split=str(named)).dataset
    case = made_case(name, method, rate or float(per_target), named, settings=given, seed=seed)
    with bar(f"{method} on {name}") as progress:
        outcome = write_attack(case, output, device=find_device(device), fresh=fresh, progress=progress)
    flips = outcome.as_dict()
    if as_json:
        return print_json(flips)
    headings = ("flips", "added", "removed", "added between classes", "share of the edges")
    between = "" if flips["between"] is None else f"{flips['between']:.0%}"
    row = [flips["flips"], flips["added"], flips["removed"], between, f"{flips['rate']:.1%}"]
    print_table(f"{method} on {name}", headings, [row], left=0, caption=f"{flips['machine']}, {outcome.time}")
    print_written(output)
    out.print(f"To see its effect: asgnn train --dataset {name} --model gcn --poisoned {output}", soft_wrap=True)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("runs/demo"),
    trials: Annotated[int, typer.Option(help="Trials of each model on each graph.")] = 3,
    fresh: Fresh = False,
    device: Device = "auto",
) -> None:
    """Compare GCN, APPNP and ASGNN on the built-in Cora, clean and under attack: a table and a plot."""
    with bar("demo") as progress:
        found, files = run_demo(output, trials=trials, device=find_device(device), fresh=fresh, progress=progress)
    rows = []
    for rate in RATES:
        figures = [found[name, rate] for name in MODELS]
        best = max(one["test_mean"] for one in figures)
        cells = [Text(mean_std(one), style="bold" if one["test_mean"] == best else "") for one in figures]
        rows.append([f"{rate:.0%}", *cells])
    title = f"Test accuracy on Cora, %, mean ± std of {trials} seeds"
    caption = "one random 10/10/80 split; flips by our Metattack against this split"
    print_table(title, ("flips / edges", *MODELS), rows, left=0, caption=caption)
    note_diverged(sum(one["diverged"] for one in found.values()), trials * len(found))
    out.print(f"At {RATES[-1]:.0%} ASGNN's learned edge weights separate {_auc(found['asgnn', RATES[-1]])}")
    print_written(*files)


def _listed(words: str, kind: Callable[[str], Any] = str) -> list[Any]:
    try:
        return [kind(word.strip()) for word in words.split(",") if word.strip()]
    except ValueError as cause:
        raise ConfigError(f"--rates must be numbers separated by commas; it is {words!r}.") from cause


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help=f"A table or figure of the paper, or all: {', '.join(TOPICS)}.")],
    dataset: Annotated[str, typer.Option(help="Datasets, separated by commas; default: all.")] = "",
    models: Annotated[str, typer.Option(help="Rows of the table, separated by commas; default: all.")] = "",
    rates: Annotated[str, typer.Option(help="Columns of the table, separated by commas; default: all.")] = "",
    trials: Annotated[int, typer.Option(help="Number of seeds per reported figure.")] = 10,
    search: Annotated[str, typer.Option(help=f"The grid of settings: {', '.join(SEARCHES)}.")] = "paper",
    splits: Annotated[
        str, typer.Option(help="given, or for tables random: a new split and a new attack for each trial.")
    ] = "given",
    store_path: Annotated[Path, typer.Option("--store", help="The file for results, which are reused.")] = RESULTS,
    executor: Annotated[str, typer.Option(help="local or ray: where to train batches.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster; default: start one here.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of a Ray cluster for each batch; with 0.5, two share one.")] = 1,
    workers: Annotated[int, typer.Option(help="Number of local processes; they may share a GPU.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Maximal number of trainings in a batch.", min=1)] = None,
    device: Device = "auto",
) -> None:
    """Run a table or figure of the paper; resumes if interrupted.

    Settings are chosen on validation nodes: all settings of the grid run with two trials, and the best five with all
    trials. The best of these is reported. Results in the store are reused; asgnn report makes a page of them.
    """
    if executor not in ("local", "ray"):
        raise ConfigError(f"--executor must be local or ray; it is {executor!r}.")
    if address is not None and executor != "ray":
        raise ConfigError("--address belongs to a Ray cluster; add --executor ray.")
    if gpus != 1 and executor != "ray":
        raise ConfigError("--gpus belongs to a Ray cluster; add --executor ray. Local --workers share a GPU anyway.")
    if workers > 1 and executor == "ray":
        raise ConfigError("--workers is for local processes; a Ray cluster has its own.")
    asked = plan(
        what,
        datasets=[find_dataset(name).name for name in _listed(dataset)],
        models=_listed(models),
        rates=_listed(rates, float),
        trials=trials,
        search=search,
        splits=splits,
        # several workers need all independent work at once
        together=executor == "ray" or workers > 1,
    )
    with _executor(executor, address, workers, device, gpus) as (run, place), _store(store_path) as kept:
        progress, attacking = _progress(asked.expected)
        engine = Engine(kept, run, place, largest=batch, progress=progress, attacking=attacking)
        for choices in engine.run(asked):
            _show_choices(kept, choices)
    page = "" if what == SMALL else f"; asgnn report {store_path} makes a page of them"
    out.print(f"Results are stored in {store_path}{page}.", soft_wrap=True)


@contextmanager
def _executor(name: str, address: str | None, workers: int, device: str, gpus: float) -> Iterator[tuple[Executor, str]]:
    """The executor and its device; a cluster may have a GPU where this machine has none."""
    if name == "ray":
        with cluster(address) as has_gpu:
            place = find_device(device, has_gpu, "in the Ray cluster")
            yield on_ray(place, gpus=gpus), place
        return
    place = find_device(device)
    with nullcontext(local(place)) if workers == 1 else processes(workers, place) as run:
        yield run, place


def _progress(expected: int) -> tuple[Callable[[int, Batch], None], Callable[[Case, int, int], None]]:
    """Two functions that print progress on standard error: of trainings, and of attacks."""
    began = last = time.monotonic()
    first, said = -1, 0.0

    def report(done: int, batch: Batch) -> None:
        nonlocal first, last
        last = time.monotonic()
        # trainings from the store took no time, so they are not part of the estimate
        first = done - len(batch.trainings) if first < 0 else first
        left = (last - began) / max(done - first, 1) * max(expected - done, 0)
        case = batch.trainings[0].case
        where = f"{batch.trainings[0].model}, {case.dataset}, {case.label}"
        time_left = timedelta(seconds=round(left))
        print(f"{done}/{expected} trainings, {time_left} left: {where}", file=sys.stderr, flush=True)

    def report_attack(case: Case, made: int, flips: int) -> None:
        nonlocal began, last, said
        now = time.monotonic()
        began, last = began + now - last, now  # exclude the time of attacks from the estimate
        if made == flips or now - said >= PAUSE:
            attack = f"{case.attacks[-1].name} at {case.attacks[-1].amount:g} on {case.dataset}, {case.split}"
            print(f"{attack}: {made}/{flips} flips", file=sys.stderr, flush=True)
            said = now

    return report, report_attack


def _show_choices(kept: Store, choices: list[Choice]) -> None:
    """Prints the cells of tables next to the paper's figures."""
    for (name, case), cell in groupby(choices, key=lambda choice: (choice.table, choice.case)):
        spec = load_spec(name)
        figure = spec.figure_of(case.dataset)
        digits, rows = metric(figure).digits, []
        for choice in cell:
            row, outcomes = spec.row(choice.row), list(kept.get(choice.trainings).values())
            ours = MeanStd.of([outcome.figures[figure] for outcome in outcomes]).text(digits)
            paper = spec.paper.get(case.dataset, {}).get(case.amount, {}).get(row.paper or "")
            rows.append([row.label, choice.rule, choice.tried, ours, MeanStd(*paper).text(digits) if paper else ""])
            where = f"{row.label} on {case.dataset}, {case.label}: "
            note_diverged(count_diverged(outcomes), len(outcomes), where)
        title = f"{spec.title}: {case.dataset}, {spec.column(case.amount)} {spec.unit}"
        print_table(title, ("model", "chosen by", "settings tried", "ours", "paper"), rows, left=2)


@app.command()
def report(
    path: StoreFile = RESULTS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("runs/report"),
    formats: Annotated[str, typer.Option("--format", help="Formats, separated by commas.")] = ",".join(FORMATS),
) -> None:
    """Compare the results of a store with the paper: an HTML page, Markdown and LaTeX."""
    with Store.open(path, create=False) as found:
        written = write_report(found, output, formats.replace(",", " ").split())
    print_written(*written)


@store.command("show")
def show_store(path: StoreFile, as_json: AsJson = False) -> None:
    """Show the content of a store, and the machines and versions that produced it."""
    with Store.open(path, create=False) as found:
        summary = found.summary()
    if as_json:
        return print_json(asdict(summary))
    rows = [(name, getattr(summary, name)) for name in ("trainings", "diverged", "choices", "series", "attacks")]
    rows += [("hours of training", f"{summary.seconds / 3600:.2f}")]
    rows += [("hours of attacks", f"{summary.attack_seconds / 3600:.2f}")]
    rows += [(f"trained on {name}", count) for name, count in summary.machines.items()]
    rows += [(f"trained by version {name}", count) for name, count in summary.versions.items()]
    rows += [("size of the file", f"{summary.size / 2**20:.1f} MiB")]
    out.print(Text(str(path)), soft_wrap=True)  # not as a title, which a narrow terminal would break
    print_table("", ("content", "value"), rows)


@store.command("merge")
def merge_stores(
    into: Annotated[Path, typer.Argument(metavar="INTO", help="The store to extend; created if missing.")],
    sources: Annotated[list[Path], typer.Argument(metavar="FROM...", help="Stores to read; they do not change.")],
    reported: Annotated[bool, typer.Option(help="Only trainings that a table reports, without searches.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add the records of other stores to INTO; a record that INTO has already stays unchanged."""
    for path in sources:  # check all of them before writing
        Store.open(path, create=False).close()
    with Store.open(into) as target:
        merged = [(path, target.merge(path, reported=reported)) for path in sources]
        target.vacuum()
    if as_json:
        return print_json(
            [{"from": str(path), **{kind: one._asdict() for kind, one in each.items()}} for path, each in merged]
        )
    headings = ("from", "records", *Counts._fields)
    caption = "conflicts: different results for the same question; those of INTO were kept"
    rows = [(path, kind, *counts) for path, each in merged for kind, counts in each.items()]
    print_table(f"Merged into {into}", headings, rows, left=2, caption=caption)


@store.command("record")
def add_records(
    into: StoreFile,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help=f"{', '.join(RECORDS)}: JSON files to add.")],
) -> None:
    """Add records, which are tables of measurements such as docs/records/edges.json, for the report to show."""
    records = [read_record(path) for path in files]  # check all of them before writing
    with Store.open(into, create=False) as target:
        target.add_series(records)
    counts = (f"{len(one.content['rows'])} rows of {one.kind}" for one in records)
    out.print(f"Added to {into}: {', '.join(counts)}", soft_wrap=True)


@store.command("migrate")
def migrate_store(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A store of an earlier asgnn; it does not change.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The file to write; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Convert a store of an earlier asgnn to the current schema, completely or not at all."""
    counts = migrate(old, new)
    if as_json:
        return print_json(counts)
    out.print(f"Written: {new}, {', '.join(f'{n} {kind}' for kind, n in counts.items())}", soft_wrap=True)
