"""The program: its options, messages, exit codes, and what all commands share."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.version import __version__

if TYPE_CHECKING:
    from torch_geometric.data import Data

app = typer.Typer(
    help="Classify the nodes of a graph whose edges cannot be trusted.", no_args_is_help=True, add_completion=False
)
# no markup: file names may contain brackets
out = Console(markup=False, highlight=False)
err = Console(stderr=True, markup=False, highlight=False)

EXIT_CODES: dict[type[BaseException], int] = {ConfigError: 2, GraphError: 3, DataUnavailable: 3, DataCorrupt: 3}
INTERRUPTED = 130
STOPPED = "Interrupted; finished results are stored."
# some releases of typer bundle their own click, so take the class from typer
UsageProblem = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto uses a GPU if there is one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output.")]

Sets = Annotated[list[str] | None, typer.Option("--set", help="A setting as name=value, such as lr=0.01; repeatable.")]


def find_device(name: str, has_gpu: bool | None = None, place: str = "that torch can see") -> str:
    """The device to use; ``has_gpu`` is asked of torch by default."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda; it is {name!r}.")
    has_gpu = torch.cuda.is_available() if has_gpu is None else has_gpu
    if name == "cuda" and not has_gpu:
        raise ConfigError(f"--device cuda needs a GPU {place}, and there is none; use --device cpu.")
    return "cuda" if has_gpu and name != "cpu" else "cpu"


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; yields a function of the steps done and the number of all steps."""
    percentage = TextColumn("{task.percentage:3.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), percentage, TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1, caption: str = ""
) -> None:
    """Prints a table whose first ``left`` columns are text and whose other columns are numbers."""
    # Text objects, because rich would parse markup in plain strings
    table = Table(title=Text(title) if title else None, caption=Text(caption) if caption else None)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    out.print(table)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value))


def print_written(*paths: Path) -> None:
    out.print(f"Written: {', '.join(map(str, paths))}", soft_wrap=True)


def note(sentence: str) -> None:
    print(f"Note: {sentence}.", file=sys.stderr)


def note_memory(model: str, settings: Mapping[str, Any], edges: int, load: Callable[[], Data], device: str) -> None:
    """Says what training on a graph of ``edges`` undirected edges needs if it is large; others are not loaded."""
    import torch

    from asgnn.graphs import Split
    from asgnn.training import memory_plan, recipe
    from asgnn.training.memory import LARGE

    if 2 * edges < LARGE:
        return
    data = load()
    nobody = torch.empty(0, dtype=torch.int64)
    trial = recipe(model, **settings).trial(data, Split(nobody, nobody, nobody), 0)
    note(str(memory_plan(trial.model, data, device=device)))


def note_diverged(count: int, trainings: int, where: str = "") -> None:
    if count:
        note(f"{where}{count} of {trainings} trainings diverged")


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run() -> None:
    """Runs the program; an error is one sentence on standard error.

    Exit codes: 0 success, 2 wrong settings, 3 missing or unusable data, 130 interrupted, 1 any other error.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="asgnn")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, so that a full disk is reported
    except (KeyboardInterrupt, typer.Abort):
        fail(STOPPED, INTERRUPTED)
    except AsgnnError as known:
        fail(str(known), next((code for kind, code in EXIT_CODES.items() if isinstance(known, kind)), 1))
    except BrokenPipeError:  # the reader closed the pipe, which is no error
        _discard_output()
        sys.exit(0)
    except OSError as system:
        where = f" ({system.filename})" if system.filename else ""
        _discard_output()
        fail(f"The operating system reported an error: {system.strerror or system}{where}.", 1)
    except Exception as surprise:
        if isinstance(surprise, UsageProblem):  # an unknown or unreadable option
            surprise.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if os.environ.get("ASGNN_DEBUG"):
            raise
        # torch has no exception class for it on a CPU
        if isinstance(surprise, MemoryError) or "memory" in str(surprise).lower():
            fail("There is not enough memory for this graph with these settings.", 1)
        fail(
            f"This is a defect of asgnn ({type(surprise).__name__}: {surprise}); set ASGNN_DEBUG=1 for the traceback.",
            1,
        )
    if code == INTERRUPTED:  # some releases of typer catch Ctrl-C and return this code
        fail(STOPPED, INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """Buffered output would raise the same error again at exit."""
    with suppress(OSError):  # standard output may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """ASCII for characters that the terminal's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    spelled = {"±": "+-", "…": "...", "–": "-", "−": "-", "’": "'", "“": '"', "”": '"'}
    return "".join(spelled.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("asgnn", _spell_out)


def fail(sentence: str, code: int) -> NoReturn:
    """Print a sentence on standard error and leave the program."""
    print(f"asgnn: {sentence}", file=sys.stderr)
    sys.exit(code)
