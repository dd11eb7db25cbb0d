"""The command line: asgnn demo | datasets | train | attack | reproduce | report | store."""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.experiments.attacks import METHODS, attack_settings, made_case, write_attack
from asgnn.experiments.demo import MODELS, RATES, run_demo
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import Batch, Executor, cluster, local, on_ray, processes
from asgnn.experiments.migrate import migrate
from asgnn.experiments.questions import plan
from asgnn.experiments.report import FORMATS, write_report
from asgnn.experiments.report.tables import MeanStd, metric
from asgnn.experiments.spec import load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.trials import run_trials
from asgnn.experiments.values import (
    NAMES,
    PER_TARGET,
    Attack,
    Case,
    Choice,
    SplitName,
    diverged,
    made_against,
    parse_case,
    parse_settings,
)
from asgnn.graphs import DATASETS, PUBLISHED_SPLITS, available, find_dataset
from asgnn.training import RECIPES, recipe
from asgnn.version import __version__

app = typer.Typer(
    help="Classify the nodes of a graph whose edges cannot be trusted.", no_args_is_help=True, add_completion=False
)
store = typer.Typer(help="Look into stores of results, and merge those of several machines.", no_args_is_help=True)
app.add_typer(store, name="store")
# names of files are printed as they are: brackets in them are no markup
out = Console(markup=False, highlight=False)
err = Console(stderr=True, markup=False, highlight=False)

EXIT_CODES: dict[type[BaseException], int] = {ConfigError: 2, GraphError: 3, DataUnavailable: 3, DataCorrupt: 3}
INTERRUPTED = 130
RESULTS = Path("runs/results.sqlite")  # where reproduce keeps, and report reads, unless told otherwise
PAUSE = 10.0  # seconds between two lines about an attack
STOPPED = "Interrupted; whatever was already written is kept."
# typer brings a click of its own in some releases and uses the public one in others: take the class from typer itself
UsageProblem = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


DeviceName = StrEnum("DeviceName", ["auto", "cpu", "cuda"])
SplitKind = StrEnum("SplitKind", ["published", "random"])
SearchName = StrEnum("SearchName", ["paper", "wide", "small", "none"])
SplitsName = StrEnum("SplitsName", ["given", "random"])
ExecutorName = StrEnum("ExecutorName", ["local", "ray"])
What = StrEnum("What", ["table1", "table2", "table3", "figure-convergence", "figure-structure", "all", "small"])

Device = Annotated[DeviceName, typer.Option(help="Where to train; auto takes a GPU where there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output and nothing else there.")]
Dataset = Annotated[str, typer.Option(help="A name that `asgnn datasets` lists.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again, whatever an earlier run has left.")]
StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="A file of results.")]


def _device(name: DeviceName) -> str:
    import torch

    if name is DeviceName.cuda and not torch.cuda.is_available():
        raise ConfigError("--device cuda needs a GPU that torch can see, and there is none; use --device cpu.")
    return "cuda" if name is not DeviceName.cpu and torch.cuda.is_available() else "cpu"


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; called with what is done, and of how much."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _table(title: str, headings: tuple[str, ...], left: tuple[str, ...] = (), caption: str | None = None) -> Table:
    """A table whose columns are numbers, but for those named in ``left``."""
    # texts, because a plain string would be searched for markup
    table = Table(title=Text(title), caption=None if caption is None else Text(caption))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    return table


def _note(sentence: str) -> None:
    if sentence:
        print(f"Note: {sentence}.", file=sys.stderr)


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the graphs: their size, where they come from, and whether they are here already."""
    rows = [
        {
            "name": name,
            "nodes": dataset.nodes,
            "edges": dataset.edges,
            "features": dataset.features,
            "classes": dataset.classes,
            "here": available(name),
            "published_split": name in PUBLISHED_SPLITS,
        }
        for name, dataset in DATASETS.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    headings = ("dataset", "nodes", "edges", "features", "classes", "here", "published split")
    table = _table("Largest connected components, undirected, without self-loops", headings, ("dataset", "here"))
    for row in rows:
        yes = "yes" if row.pop("published_split") else ""
        table.add_row(*(str(value) for value in row.values()), yes)
    out.print(table)
    if any(row["here"] == "download" for row in rows):
        out.print(
            '"download" is fetched when first used; offline, set ASGNN_MIRROR to a folder that holds OWNER/REPO/PATH.'
        )


@app.command()
def train(
    dataset: Dataset,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(RECIPES)}; or package.module:Class.")] = "asgnn",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the model or its training as name=value, say lr=0.01; repeatable."),
    ] = None,
    poisoned: Annotated[
        str | None,
        typer.Option(help=f"Train on an attacked graph: {', '.join(NAMES)}, or a file that asgnn attack wrote."),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Flips as a share of the edges; for nettack, flips for each target.")
    ] = 0.0,
    split: Annotated[
        str | None,
        typer.Option(
            help="published, random (one for each trial) or random:I (that of trial I for all). By default that which "
            "the attack was made for, else published where there is one, else random."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials, trained as one batch; trial i has seed i.")] = 10,
    store_path: Annotated[
        Path | None, typer.Option("--store", help="A file that outcomes are kept in, and taken from.")
    ] = None,
    device: Device = DeviceName.auto,
    as_json: AsJson = False,
) -> None:
    """Train a model on a graph, clean or attacked, and report its accuracy."""
    given = parse_settings(model, recipe(model).settings, settings or [])
    case = parse_case(dataset, poisoned, rate, split)
    against = made_against(case.dataset, case.attacks[0]) if case.attacks else None
    if against not in (None, case.split):
        _note(f"these flips were made against the split {against}; on another one the attack is weaker")
    with _bar(f"{model} on {case.dataset}") as progress, _store(store_path) as kept:
        found = run_trials(case, model, given, trials, store=kept, device=_device(device), progress=progress)
    if found["diverged"]:
        _note(f"{found['diverged']} of {trials} trainings diverged")
    if as_json:
        typer.echo(json.dumps(found))
        return
    graph = case.dataset if poisoned is None else f"{case.dataset}, {poisoned}"
    graph += f" at {rate:g}" if rate else ""
    caption = f"{case.split} split, {found['seconds']:.1f} s on {found['device']}"
    table = _table(f"{model} on {graph}", ("accuracy, %", f"mean of {trials}", "± std"), ("accuracy, %",), caption)
    for name, label in (("test", "test"), ("target", "attacked nodes"), ("val", "validation")):
        if f"{name}_mean" in found:
            figures = (f"{found[f'{name}_{part}']:.2f}" for part in ("mean", "std"))
            table.add_row(label, *figures, style="bold" if name == "test" else None)
    out.print(table)
    if "edge_auc_mean" in found:
        out.print(
            f"Its learned weights tell added edges from given ones with an AUC of {found['edge_auc_mean']:.3f} "
            "(1 is perfect, 0.5 is chance)."
        )


def _store(path: Path | None) -> Store:
    """In memory where there is no path."""
    if path is None:
        return Store.in_memory()
    path.parent.mkdir(parents=True, exist_ok=True)
    return Store.open(path)


@app.command()
def attack(
    dataset: Dataset,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the flips, ending in .npz.")],
    rate: Annotated[float, typer.Option(help="Flips as a share of the edges, for all methods but nettack.")] = 0.0,
    per_target: Annotated[
        int, typer.Option(help="Flips for each target, for nettack; targets are the test nodes of degree above 10.")
    ] = 0,
    split: Annotated[
        SplitKind | None, typer.Option(help="Whose labels the attacker knows; published where there is one.")
    ] = None,
    trial: Annotated[int, typer.Option(help="Which random split, with --split random.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of the attack's random numbers.", min=0)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method as name=value, say variant=train; repeatable."),
    ] = None,
    fresh: Fresh = False,
    device: Device = DeviceName.auto,
    as_json: AsJson = False,
) -> None:
    """Attack a graph and keep the flips; resumes if interrupted."""
    if method not in METHODS:
        raise ConfigError(f"There is no attack {method!r}; the attacks are {', '.join(METHODS)}.")
    if Attack(method, "made").unit == PER_TARGET:
        if rate or per_target < 1:
            raise ConfigError(f"{method} attacks single nodes: give it --per-target, 1 or more, and no --rate.")
    elif per_target or not 0 < rate <= 1:
        raise ConfigError(f"{method} attacks the whole graph: give it --rate, above 0 and at most 1, only.")
    given = parse_settings(method, attack_settings(method), settings or [])
    kind = split or (SplitKind.published if find_dataset(dataset).name in PUBLISHED_SPLITS else SplitKind.random)
    named = SplitName(kind.value, None if kind is SplitKind.published else trial)
    name = parse_case(dataset, split=str(named)).dataset
    case = made_case(name, method, rate or float(per_target), named, settings=given, seed=seed)
    with _bar(f"{method} on {name}") as progress:
        outcome = write_attack(case, output, device=_device(device), fresh=fresh, progress=progress)
    flips = outcome.as_dict()
    if as_json:
        typer.echo(json.dumps(flips))
        return
    headings = ("flips", "added", "removed", "added between classes", "share of the edges")
    table = _table(f"{method} on {name}", headings, caption=f"{flips['machine']}, {outcome.time}")
    between = "" if flips["between"] is None else f"{flips['between']:.0%}"
    table.add_row(str(flips["flips"]), str(flips["added"]), str(flips["removed"]), between, f"{flips['rate']:.1%}")
    out.print(table)
    out.print(f"Written: {output}", soft_wrap=True)
    out.print(f"To see its effect: asgnn train --dataset {name} --model gcn --poisoned {output}", soft_wrap=True)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the table and the picture.")] = Path(
        "runs/demo"
    ),
    trials: Annotated[int, typer.Option(help="Trials of each model on each graph.")] = 3,
    fresh: Fresh = False,
    device: Device = DeviceName.auto,
) -> None:
    """GCN, APPNP and ASGNN on the built-in Cora, clean and under attack: a table and a picture."""
    with _bar("demo") as progress:
        found = run_demo(output, trials=trials, device=_device(device), fresh=fresh, progress=progress)
    table = _table(
        f"Test accuracy on Cora, %, mean ± std of {trials} seeds",
        ("flips / edges", *MODELS),
        caption="one random 10/10/80 split; the flips are the ones our Metattack made against it",
    )
    for rate in RATES:
        figures = [found.figures[name, rate] for name in MODELS]
        best = max(figure["test_mean"] for figure in figures)
        cells = [
            Text(f"{one['test_mean']:.1f} ± {one['test_std']:.1f}", style="bold" if one["test_mean"] == best else "")
            for one in figures
        ]
        table.add_row(f"{rate:.0%}", *cells)
    out.print(table)
    if count := sum(one["diverged"] for one in found.figures.values()):
        _note(f"{count} of {trials * len(found.figures)} trainings diverged")
    out.print(
        f"At {RATES[-1]:.0%} ASGNN's learned edge weights tell added edges from given ones with an AUC of "
        f"{found.figures['asgnn', RATES[-1]]['edge_auc_mean']:.3f} (1 is perfect, 0.5 is chance)."
    )
    out.print(f"Written: {', '.join(str(path) for path in found.files)}", soft_wrap=True)


def _listed(words: str, kind: Callable[[str], Any] = str) -> list[Any]:
    """What stands between commas."""
    try:
        return [kind(word.strip()) for word in words.split(",") if word.strip()]
    except ValueError as cause:
        raise ConfigError(f"A rate is a number, and one of {words!r} is not.") from cause


@app.command()
def reproduce(
    what: Annotated[
        What, typer.Argument(help="A table or figure of the paper, all of them, or a small table to try it on.")
    ],
    dataset: Annotated[str, typer.Option(help="Datasets, with commas between; all of the table's by default.")] = "",
    models: Annotated[str, typer.Option(help="Rows of the table, with commas between; all by default.")] = "",
    rates: Annotated[str, typer.Option(help="Columns of the table, with commas between; all by default.")] = "",
    trials: Annotated[int, typer.Option(help="Seeds that each reported figure is the mean of.")] = 10,
    search: Annotated[
        SearchName, typer.Option(help="What is tried before: the paper's grid, ours, eight settings, nothing.")
    ] = (SearchName.paper),
    splits: Annotated[
        SplitsName,
        typer.Option(
            help="given, those that the attacked graphs were made for; or random, in the tables: one for each trial, "
            "with the graph attacked anew for it."
        ),
    ] = SplitsName.given,
    store_path: Annotated[
        Path, typer.Option("--store", help="The file that results are kept in, and taken from.")
    ] = RESULTS,
    executor: Annotated[ExecutorName, typer.Option(help="Where batches are trained.")] = ExecutorName.local,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster; by default one is started here.")] = (
        None
    ),
    workers: Annotated[
        int, typer.Option(help="Processes of this machine that batches are trained in; they may share a GPU.")
    ] = 1,
    batch: Annotated[int | None, typer.Option(help="Trainings side by side at the most.", min=1)] = None,
    device: Device = DeviceName.auto,
) -> None:
    """Run a table or figure of the paper; resumes if interrupted.

    Settings are chosen on validation: every one of the grid with two trials, the best five with all, the best of those
    is reported. What is in the store already is not trained again; asgnn report makes a page of it.
    """
    if address is not None and executor is not ExecutorName.ray:
        raise ConfigError("--address is that of a Ray cluster; add --executor ray.")
    if workers > 1 and executor is ExecutorName.ray:
        raise ConfigError("--workers are processes of this machine; a Ray cluster has its own.")
    asked = plan(
        what.value,
        datasets=[find_dataset(name).name for name in _listed(dataset)],
        models=_listed(models),
        rates=_listed(rates, float),
        trials=trials,
        search=search.value,
        splits=splits.value,
        # many workers want all work at once that does not wait for other work
        together=executor is ExecutorName.ray or workers > 1,
    )
    with _executor(executor, address, workers, device) as (run, place), _store(store_path) as kept:
        progress, attacking = _progress(asked.expected)
        engine = Engine(kept, run, place, largest=batch, progress=progress, attacking=attacking)
        for choices in engine.carry_out(asked):
            _show_choices(kept, choices)
    page = "" if what is What.small else f"; asgnn report {store_path} makes a page of it"
    out.print(f"Kept in {store_path}{page}.", soft_wrap=True)


@contextmanager
def _executor(
    name: ExecutorName, address: str | None, workers: int, device: DeviceName
) -> Iterator[tuple[Executor, str]]:
    """Where batches are trained, and on what: a cluster may have a GPU where this machine has none."""
    if name is ExecutorName.local:
        place = _device(device)
        with nullcontext(local(place)) if workers == 1 else processes(workers, place) as run:
            yield run, place
        return
    with cluster(address) as has_gpu:
        if device is DeviceName.cuda and not has_gpu:
            raise ConfigError("--device cuda needs a GPU in the Ray cluster, and there is none; use --device cpu.")
        place = "cuda" if has_gpu and device is not DeviceName.cpu else "cpu"
        yield on_ray(place), place


def _progress(expected: int) -> tuple[Callable[[int, Batch], None], Callable[[Case, int, int], None]]:
    """What is done, what is left and when it ends: a line on standard error for each batch."""
    began = last = time.monotonic()
    first, said = -1, 0.0

    def report(done: int, batch: Batch) -> None:
        nonlocal first, last
        last = time.monotonic()
        # what was in the store already took no time, and says nothing about what is left
        first = done - len(batch.trainings) if first < 0 else first
        left = (last - began) / max(done - first, 1) * max(expected - done, 0)
        case = batch.trainings[0].case
        where = f"{batch.trainings[0].model}, {case.dataset}, {case.label}"
        time_left = timedelta(seconds=round(left))
        print(f"{done}/{expected} trainings, {time_left} left: {where}", file=sys.stderr, flush=True)

    def report_attack(case: Case, made: int, flips: int) -> None:
        nonlocal began, last, said
        now = time.monotonic()
        began, last = began + now - last, now  # what attacks take is no time of trainings
        if made == flips or now - said >= PAUSE:
            attack = f"{case.attacks[-1].name} at {case.attacks[-1].amount:g} on {case.dataset}, {case.split}"
            print(f"{attack}: {made}/{flips} flips", file=sys.stderr, flush=True)
            said = now

    return report, report_attack


def _show_choices(kept: Store, choices: list[Choice]) -> None:
    """Cells of tables, each beside the paper's."""
    for (name, case), cell in groupby(choices, key=lambda choice: (choice.table, choice.case)):
        spec = load_spec(name)
        digits = metric(spec.figure).digits
        headings = ("model", "chosen by", "settings tried", "ours", "the paper's")
        title = f"{spec.title}: {case.dataset}, {spec.column(case.amount)} {spec.unit}"
        table = _table(title, headings, ("model", "chosen by"))
        for choice in cell:
            row, outcomes = spec.row(choice.row), list(kept.get(choice.trainings).values())
            ours = MeanStd.of([outcome.figures[spec.figure] for outcome in outcomes])
            paper = spec.paper.get(case.dataset, {}).get(case.amount, {}).get(row.paper or "")
            theirs = MeanStd(*paper).text(digits) if paper else ""
            table.add_row(row.label, choice.rule, str(choice.tried), ours.text(digits), theirs)
            if said := diverged(outcomes):
                _note(f"{row.label} on {case.dataset}, {case.label}: {said}")
        out.print(table)


@app.command()
def report(
    path: StoreFile = RESULTS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("runs/report"),
    formats: Annotated[str, typer.Option("--format", help="Which of them, with commas.")] = ",".join(FORMATS),
) -> None:
    """Write what a store holds beside the paper's figures: one page for a browser, Markdown and LaTeX."""
    with Store.open(path, create=False) as found:
        written = write_report(found, output, formats.replace(",", " ").split())
    out.print(f"Written: {', '.join(str(path) for path in written)}", soft_wrap=True)


@store.command("show")
def show_store(path: StoreFile, as_json: AsJson = False) -> None:
    """Show what a store holds, and on which machines and by which versions it was made."""
    with Store.open(path, create=False) as found:
        summary = found.summary()
    if as_json:
        typer.echo(json.dumps(asdict(summary)))
        return
    table = _table(str(path), ("", " "), ("",))
    for name in ("trainings", "diverged", "choices", "series", "attacks"):
        table.add_row(name, str(getattr(summary, name)))
    table.add_row("hours of training", f"{summary.seconds / 3600:.2f}")
    table.add_row("hours of attacks", f"{summary.attack_seconds / 3600:.2f}")
    for kind, counts in (("on", summary.machines), ("by version", summary.versions)):
        for name, count in counts.items():
            table.add_row(Text(f"trained {kind} {name}"), str(count))
    table.add_row("size of the file", f"{summary.size / 2**20:.1f} MiB")
    out.print(table)


@store.command("merge")
def merge_stores(
    into: Annotated[Path, typer.Argument(metavar="INTO", help="The store that grows; made if it is not there.")],
    sources: Annotated[list[Path], typer.Argument(metavar="FROM...", help="Stores that stay as they are.")],
    reported: Annotated[
        bool, typer.Option(help="Only the trainings that stand in a table, without the searches before them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take over from other stores what one does not have; where both have a record, that of INTO stays."""
    for path in sources:  # all of them before anything is written
        Store.open(path, create=False).close()
    with Store.open(into) as target:
        merged = [(path, target.merge(path, reported=reported)) for path in sources]
        target.vacuum()
    if as_json:
        found = [{"from": str(path), **{kind: asdict(one) for kind, one in each.items()}} for path, each in merged]
        typer.echo(json.dumps(found))
        return
    headings = ("from", "records", "new", "there", "conflicts")
    caption = "conflicts: there with another content, which was kept"
    table = _table(f"Merged into {into}", headings, ("from", "records"), caption)
    for path, each in merged:
        for kind, counts in each.items():
            table.add_row(Text(str(path)), kind, *(str(count) for count in asdict(counts).values()))
    out.print(table)


@store.command("migrate")
def migrate_store(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A store that an earlier asgnn wrote; stays as it is.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The file to write; must not be there.")],
    as_json: AsJson = False,
) -> None:
    """Write the records of an earlier asgnn's store in today's form, all of them or none."""
    counts = migrate(old, new)
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        out.print(f"Written: {new}, {', '.join(f'{n} {kind}' for kind, n in counts.items())}", soft_wrap=True)


def run() -> None:
    """The whole program: every failure a sentence on standard error and an exit code that says its kind.

    0 done, 2 wrong settings, 3 data that cannot be used or had, 1 anything else, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="asgnn")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, where a full disk still gets a sentence
    except (KeyboardInterrupt, typer.Abort):
        _fail(STOPPED, INTERRUPTED)
    except AsgnnError as known:
        _fail(str(known), next((code for kind, code in EXIT_CODES.items() if isinstance(known, kind)), 1))
    except BrokenPipeError:  # the reader of our output has gone, which is its right
        _discard_output()
        sys.exit(0)
    except OSError as system:
        where = f"{system.filename}: " if system.filename else ""
        _discard_output()
        _fail(f"The system refused: {where}{system.strerror or system}.", 1)
    except Exception as surprise:
        if isinstance(surprise, UsageProblem):  # an option that typer does not know, or cannot read
            surprise.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if os.environ.get("ASGNN_DEBUG"):
            raise
        # torch says so in words alone
        if isinstance(surprise, MemoryError) or "memory" in str(surprise).lower():
            _fail("There is not enough memory for this graph with these settings.", 1)
        _fail(
            f"This is a defect of asgnn ({type(surprise).__name__}: {surprise}); set ASGNN_DEBUG=1 for the traceback.",
            1,
        )
    if code == INTERRUPTED:  # some releases of typer catch Ctrl-C themselves and return this
        _fail(STOPPED, INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """What is still to be written would fail again, and loudly, when the program ends."""
    with suppress(OSError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """For terminals that lack a letter of a table or of the name of a file."""
    assert isinstance(error, UnicodeEncodeError)
    spelled = {"±": "+-", "…": "...", "–": "-", "−": "-", "’": "'", "“": '"', "”": '"'}
    return "".join(spelled.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("asgnn", _spell_out)


def _fail(sentence: str, code: int) -> None:
    print(f"asgnn: {sentence}", file=sys.stderr)
    sys.exit(code)
