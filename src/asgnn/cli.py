"""The command line: asgnn demo | datasets | train | attack | reproduce | report | store."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.experiments import Cell, Record, run_cell
from asgnn.experiments.attack import METHODS, AttackSpec, keep_attack, parse_settings
from asgnn.experiments.demo import run_demo
from asgnn.experiments.report import FORMATS, write_report
from asgnn.experiments.report.tables import MeanStd, metric
from asgnn.experiments.reproduce import Engine, plan
from asgnn.experiments.run import ATTACKS, default_split
from asgnn.experiments.spec import load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.trainings import Case, Choice
from asgnn.experiments.work import Batch, Executor, cluster, local, on_ray, processes
from asgnn.graphs import DATASETS, PUBLISHED_SPLITS, available, find_dataset
from asgnn.training import RECIPES
from asgnn.version import __version__

app = typer.Typer(
    help="Classify the nodes of a graph whose edges cannot be trusted.", no_args_is_help=True, add_completion=False
)
store = typer.Typer(help="Look into stores of results, and merge those of several machines.", no_args_is_help=True)
app.add_typer(store, name="store")
out = Console()
err = Console(stderr=True)

EXIT_CODES: dict[type[BaseException], int] = {ConfigError: 2, GraphError: 3, DataUnavailable: 3, DataCorrupt: 3}
INTERRUPTED = 130
RESULTS = Path("runs/results.sqlite")  # where reproduce keeps, and report reads, unless told otherwise
PAUSE = 10.0  # seconds between two lines about an attack
STOPPED = "Interrupted; whatever was already written is kept."
# typer brings a click of its own in some releases and uses the public one in others: take the class from typer itself
UsageProblem = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class SplitName(StrEnum):
    published = "published"
    random = "random"


class ObjectiveName(StrEnum):
    degree = "degree"
    paper = "paper"


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class SearchName(StrEnum):
    paper = "paper"
    wide = "wide"
    small = "small"
    none = "none"


class SplitsName(StrEnum):
    given = "given"
    random = "random"


class ExecutorName(StrEnum):
    local = "local"
    ray = "ray"


class What(StrEnum):
    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    convergence = "figure-convergence"
    structure = "figure-structure"
    everything = "all"
    small = "small"


Device = Annotated[DeviceName, typer.Option(help="Where to train; auto takes a GPU where there is one.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


def _device(name: DeviceName) -> str:
    import torch

    if name is DeviceName.cuda and not torch.cuda.is_available():
        raise ConfigError("--device cuda needs a GPU that torch can see, and there is none; use --device cpu.")
    return "cuda" if name is not DeviceName.cpu and torch.cuda.is_available() else "cpu"


@contextmanager
def _bar(what: str) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, where a person is there to see it: told what is done, of how much, of what."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, what=what: bar.update(task, completed=done, total=total, description=what)


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
    table = Table(title="Largest connected components, undirected, without self-loops")
    for heading in ("dataset", "nodes", "edges", "features", "classes", "here", "published split"):
        table.add_column(heading, justify="left" if heading in ("dataset", "here") else "right")
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
    dataset: Annotated[str, typer.Option(help="A name that `asgnn datasets` lists.")],
    model: Annotated[str, typer.Option(help=f"One of {', '.join(RECIPES)}.")] = "asgnn",
    objective: Annotated[ObjectiveName | None, typer.Option(help="ASGNN's objective; degree by default.")] = None,
    poisoned: Annotated[
        str | None,
        typer.Option(help=f"Train on an attacked graph: {', '.join(ATTACKS)}, or a file that asgnn attack wrote."),
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
    device: Device = DeviceName.auto,
    as_json: AsJson = False,
) -> None:
    """Train a model on a graph, clean or attacked, and report what it is worth."""
    name = find_dataset(dataset).name
    cell = Cell(
        dataset=name,
        model=model,
        objective=None if objective is None else objective.value,
        poisoned=poisoned,
        rate=rate,
        split=split or default_split(name, poisoned),
        trials=trials,
    )
    # without --split the cell has the one that the flips were made for
    if split and poisoned not in (None, "dice") and split != (made_for := default_split(name, poisoned)):
        err.print(f"Note: these flips were made against the split {made_for}; on another one the attack is weaker.")
    with _bar(f"{model} on {name}") as progress:
        record = run_cell(cell, device=_device(device), progress=progress)
    if as_json:
        typer.echo(json.dumps(record.as_dict()))
    else:
        _show(record)


def _show(record: Record) -> None:
    cell, figures = record.cell, record.as_dict()
    graph = cell.dataset if cell.poisoned is None else f"{cell.dataset}, {cell.poisoned}"
    graph += f" at {cell.rate:g}" if cell.rate else ""
    table = Table(
        title=f"{cell.model} on {graph}", caption=f"{cell.split} split, {record.seconds:.1f} s on {record.device}"
    )
    table.add_column("accuracy, %")
    table.add_column(f"mean of {cell.trials}", justify="right")
    table.add_column("± std", justify="right")
    table.add_row("test", f"{figures['test_mean']:.2f}", f"{figures['test_std']:.2f}", style="bold")
    if record.target is not None:
        table.add_row("attacked nodes", f"{figures['target_mean']:.2f}", f"{figures['target_std']:.2f}")
    table.add_row("validation", f"{figures['val_mean']:.2f}", f"{figures['val_std']:.2f}")
    out.print(table)
    if record.edge_auc is not None:
        out.print(
            f"Its learned weights tell added edges from given ones with an AUC of {figures['edge_auc_mean']:.3f} "
            "(1 is perfect, 0.5 is chance)."
        )


@app.command()
def attack(
    dataset: Annotated[str, typer.Option(help="A name that `asgnn datasets` lists.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the flips, ending in .npz.")],
    rate: Annotated[float, typer.Option(help="Flips as a share of the edges, for all methods but nettack.")] = 0.0,
    per_target: Annotated[
        int, typer.Option(help="Flips for each target, for nettack; targets are the test nodes of degree above 10.")
    ] = 0,
    split: Annotated[
        SplitName | None, typer.Option(help="Whose labels the attacker knows; published where there is one.")
    ] = None,
    trial: Annotated[int, typer.Option(help="Which random split, with --split random.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of the attack's random numbers.", min=0)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method as name=value, say variant=train; may be repeated."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, whatever an earlier run has left.")] = False,
    device: Device = DeviceName.auto,
    as_json: AsJson = False,
) -> None:
    """Attack a graph and keep the flips; stopped, it goes on where it was when started again."""
    name = find_dataset(dataset).name
    kind = split or (SplitName.published if name in PUBLISHED_SPLITS else SplitName.random)
    spec = AttackSpec(
        dataset=name,
        method=method,
        rate=rate,
        per_target=per_target,
        split=kind.value if kind is SplitName.published else f"random:{trial}",
        seed=seed,
        settings=parse_settings(method, settings or []),
    )
    with _bar(f"{method} on {name}") as progress:
        outcome = keep_attack(spec, output, device=_device(device), fresh=fresh, progress=progress)
    if as_json:
        typer.echo(json.dumps(outcome.as_dict()))
        return
    flips = outcome.as_dict()
    table = Table(title=f"{method} on {name}", caption=f"{flips['machine']}, {outcome.said}")
    for heading in ("flips", "added", "removed", "added between classes", "share of the edges"):
        table.add_column(heading, justify="right")
    between = "" if flips["between"] is None else f"{flips['between']:.0%}"
    table.add_row(str(flips["flips"]), str(flips["added"]), str(flips["removed"]), between, f"{flips['rate']:.1%}")
    out.print(table)
    out.print(f"Written: {output}", soft_wrap=True)
    out.print(f"Now see what it does: asgnn train --dataset {name} --model gcn --poisoned {output}", soft_wrap=True)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the table and the picture.")] = Path(
        "runs/demo"
    ),
    trials: Annotated[int, typer.Option(help="Trials of each model on each graph.")] = 3,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute anew what an earlier run has kept.")] = False,
    device: Device = DeviceName.auto,
) -> None:
    """GCN, APPNP and ASGNN on the built-in Cora, clean and ever more attacked: a table and a picture."""
    with _bar("demo") as progress:
        outcome = run_demo(output, trials=trials, device=_device(device), fresh=fresh, progress=progress)
    table = Table(
        title=f"Test accuracy on Cora, %, mean ± std of {trials} seeds",
        caption="one random 10/10/80 split; the flips are the ones our Metattack made against it",
    )
    table.add_column("flips / edges", justify="right")
    for name in outcome.models:
        table.add_column(name, justify="right")
    for rate in outcome.rates:
        figures = [outcome.figures[name, rate] for name in outcome.models]
        best = max(figure["test_mean"] for figure in figures)
        cells = [f"{figure['test_mean']:.1f} ± {figure['test_std']:.1f}" for figure in figures]
        marked = [f"[bold]{c}[/bold]" if f["test_mean"] == best else c for c, f in zip(cells, figures, strict=True)]
        table.add_row(f"{rate:.0%}", *marked)
    out.print(table)
    worst = outcome.figures["asgnn", outcome.rates[-1]]
    out.print(
        f"At {outcome.rates[-1]:.0%} ASGNN's learned edge weights tell planted edges from given ones with an AUC of "
        f"{worst['edge_auc_mean']:.3f} (1 is perfect, 0.5 is chance)."
    )
    out.print(f"Written: {', '.join(str(path) for path in outcome.written)}", soft_wrap=True)


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


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
        int, typer.Option(help="Processes of this machine that batches are trained in; they may share a GPU.", min=1)
    ] = 1,
    batch: Annotated[int | None, typer.Option(help="Trainings side by side at the most.", min=1)] = None,
    device: Device = DeviceName.auto,
) -> None:
    """Run a table or figure of the paper; stopped, it goes on where it was.

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
        rates=[_number(rate) for rate in _listed(rates)],
        trials=trials,
        search=search.value,
        splits=splits.value,
        # many workers want all work at once that does not wait for other work
        together=executor is ExecutorName.ray or workers > 1,
    )
    with _executor(executor, address, workers, device) as (run, place):
        store_path.parent.mkdir(parents=True, exist_ok=True)
        with Store.open(store_path) as kept, _told(asked.expected) as (progress, attacking):
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
        if workers == 1:
            yield local(place), place
        else:
            with processes(workers, place) as run:
                yield run, place
        return
    with cluster(address) as has_gpu:
        if device is DeviceName.cuda and not has_gpu:
            raise ConfigError("--device cuda needs a GPU in the Ray cluster, and there is none; use --device cpu.")
        place = "cuda" if has_gpu and device is not DeviceName.cpu else "cpu"
        yield on_ray(place), place


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"A rate is a number, and {word!r} is not.") from None


@contextmanager
def _told(expected: int) -> Iterator[tuple[Callable[[int, Batch], None], Callable[[Case, int, int], None]]]:
    """What is done, what is left and when it ends: a bar for a person, lines for a log, one a batch."""
    began = last = time.monotonic()
    first, said = -1, 0.0

    def tell(done: int, batch: Batch) -> None:
        nonlocal first, last
        last = time.monotonic()
        # what was in the store already took no time, and says nothing about what is left
        first = done - len(batch.trainings) if first < 0 else first
        left = (last - began) / max(done - first, 1) * max(expected - done, 0)
        case = batch.trainings[0].case
        where = f"{case.dataset} {case.poisoned or 'clean'} {case.rate:g}"
        line = (
            f"{done}/{expected} trainings, {timedelta(seconds=round(left))} left: {batch.trainings[0].model}, {where}"
        )
        print(line, file=sys.stderr, flush=True)

    def tell_attack(case: Case, made: int, flips: int) -> None:
        nonlocal began, last, said
        now = time.monotonic()
        began, last = began + now - last, now  # what attacks take is no time of trainings
        if made == flips or now - said >= PAUSE:
            print(f"{_attack(case)}: {made}/{flips} flips", file=sys.stderr, flush=True)
            said = now

    if not err.is_terminal:
        yield tell, tell_attack
        return
    with _bar("training") as bar:
        yield (
            lambda done, batch: bar(done, expected),
            lambda case, made, flips: bar(made, flips, _attack(case)),
        )


def _attack(case: Case) -> str:
    return f"{case.poisoned} at {case.rate:g} on {case.dataset}, {case.split}"


def _show_choices(kept: Store, choices: list[Choice]) -> None:
    """Cells of tables, each beside the paper's."""
    for (name, case), cell in groupby(choices, key=lambda choice: (choice.table, choice.case)):
        spec = load_spec(name)
        digits = metric(spec.figure).digits
        table = Table(title=f"{spec.title}: {case.dataset}, {spec.column(case.rate)} {spec.unit}")
        for heading in ("model", "chosen by", "settings tried", "ours", "the paper's"):
            table.add_column(heading, justify="left" if heading in ("model", "chosen by") else "right")
        for choice in cell:
            row = spec.row(choice.row)
            ours = MeanStd.of([outcome.figures[spec.figure] for outcome in kept.get(choice.trainings).values()])
            paper = spec.paper.get(case.dataset, {}).get(case.rate, {}).get(row.paper or "")
            theirs = MeanStd(*paper).text(digits) if paper else ""
            table.add_row(row.label, choice.rule, str(choice.tried), ours.text(digits), theirs)
        out.print(table)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A file of results.")] = RESULTS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("runs/report"),
    formats: Annotated[str, typer.Option("--format", help="Which of them, with commas.")] = ",".join(FORMATS),
) -> None:
    """Write what a store holds beside the paper's figures: one page for a browser, Markdown and LaTeX."""
    with Store.open(path, create=False) as found:
        written = write_report(found, output, formats.replace(",", " ").split())
    out.print(f"Written: {', '.join(str(path) for path in written)}", soft_wrap=True)


@store.command("show")
def show_store(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A file of results.")], as_json: AsJson = False
) -> None:
    """Say what a store holds, and on which machines and by which versions it was made."""
    with Store.open(path, create=False) as found:
        summary = found.summary()
    if as_json:
        typer.echo(json.dumps(asdict(summary)))
        return
    table = Table(title=str(path), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("trainings", "choices", "series", "attacks"):
        table.add_row(name, str(getattr(summary, name)))
    table.add_row("hours of training", f"{summary.seconds / 3600:.2f}")
    table.add_row("hours of attacks", f"{summary.attack_seconds / 3600:.2f}")
    for kind, counts in (("on", summary.machines), ("by version", summary.versions)):
        for name, count in counts.items():
            table.add_row(f"trained {kind} {name}", str(count))
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
        typer.echo(json.dumps([{"from": str(path), **asdict(counts)} for path, counts in merged]))
        return
    table = Table(title=f"Merged into {into}", caption="conflicts: there with another content, which was kept")
    for heading in ("from", "records", "new", "there", "conflicts"):
        table.add_column(heading, justify="left" if heading in ("from", "records") else "right")
    for path, found in merged:
        for kind, counts in asdict(found).items():
            table.add_row(str(path), kind, *(str(count) for count in counts.values()))
    out.print(table)


def run() -> None:
    """The whole program: every failure a sentence on standard error and an exit code that says its kind.

    0 done, 2 wrong settings, 3 data that cannot be used or had, 1 anything else, 130 interrupted.
    """
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _fail(STOPPED, INTERRUPTED)
    except AsgnnError as known:
        _fail(str(known), next((code for kind, code in EXIT_CODES.items() if isinstance(known, kind)), 1))
    except BrokenPipeError:  # the reader of our output has gone, which is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as system:
        where = f"{system.filename}: " if system.filename else ""
        _fail(f"The system refused: {where}{system.strerror or system}.", 1)
    except MemoryError:
        _fail("There is not enough memory for this graph with these settings.", 1)
    except Exception as surprise:
        if isinstance(surprise, UsageProblem):  # an option that typer does not know, or cannot read
            surprise.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if os.environ.get("ASGNN_DEBUG"):
            raise
        _fail(
            f"This is a defect of asgnn ({type(surprise).__name__}: {surprise}); set ASGNN_DEBUG=1 for the traceback.",
            1,
        )
    if code == INTERRUPTED:  # some releases of typer catch Ctrl-C themselves and return this
        _fail(STOPPED, INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str, code: int) -> None:
    print(f"asgnn: {sentence}", file=sys.stderr)
    sys.exit(code)
