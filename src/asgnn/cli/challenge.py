"""The command asgnn challenge: models under attackers who know them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asgnn.challenge.attempts import EFFORTS
from asgnn.challenge.suite import SEEDS
from asgnn.challenge.values import KINDS
from asgnn.cli.app import AsJson, Device, Sets, app, find_device, out, print_json, print_table
from asgnn.cli.experiments import Dataset
from asgnn.errors import ConfigError
from asgnn.experiments.challenge import (
    CONTROLS,
    Subject,
    add_unit_test,
    headings,
    jobs_of,
    parse_splits,
    run_challenge,
    standing,
    table_rows,
)
from asgnn.experiments.store import Store

CHALLENGES = Path("runs/challenge.sqlite")


@app.command()
def challenge(
    models: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[,MODEL…]",
            help="Names of recipes or package.module:Class; with settings as in asgnn+lam=1+gamma=2.",
        ),
    ],
    dataset: Dataset,
    split: Annotated[
        str, typer.Option(help="One split or several, as in stratified:0..4, random:0 or published.")
    ] = "stratified:0",
    budget: Annotated[str, typer.Option(help="Flips as shares of the edges, separated by commas.")] = "0.05,0.1,0.15",
    kind: Annotated[str, typer.Option(help="evasion, poisoning or both.")] = "evasion",
    effort: Annotated[str, typer.Option(help=f"How many attacks: {' or '.join(EFFORTS)}.")] = "quick",
    settings: Sets = None,
    seeds: Annotated[int, typer.Option(help="Trainings on each poisoned graph.")] = SEEDS,
    local: Annotated[
        bool,
        typer.Option("--local", help="Attack single test nodes; --budget are shares of the degree, such as 0.2,1,2."),
    ] = False,
    unit_test: Annotated[
        Path | None, typer.Option(help="The file unit_test.npz of Mujkanovic et al., whose flips are tried, too.")
    ] = None,
    store_path: Annotated[Path, typer.Option("--store", help="The file for results, which are reused.")] = CHALLENGES,
    workers: Annotated[int, typer.Option(help="Number of local processes; they may share a GPU.")] = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Attack models by all means, knowing them, and show what is left for each budget; resumes if interrupted."""
    if kind not in (*KINDS, "both"):
        raise ConfigError(f"--kind must be evasion, poisoning or both; it is {kind!r}.")
    try:
        shares = [float(word) for word in budget.split(",") if word.strip()]
    except ValueError:
        raise ConfigError(f"--budget must be numbers separated by commas; it is {budget!r}.") from None
    subjects = [Subject.parse(name.strip(), settings or []) for name in models.split(",") if name.strip()]
    if local and (kind != "evasion" or unit_test is not None):
        raise ConfigError("--local attacks single nodes of a trained model; it goes with --kind evasion alone.")
    kinds = KINDS if kind == "both" else (kind,)
    asked = jobs_of(
        kinds,
        dataset,
        parse_splits(split),
        [*subjects, *CONTROLS.values()],
        shares,
        effort,  # type: ignore[arg-type]
        nodes=local,
        seeds=seeds,
    )
    store_path.parent.mkdir(parents=True, exist_ok=True)
    if unit_test is not None:
        add_unit_test(store_path, unit_test, asked)
    run_challenge(
        asked,
        store_path,
        device=find_device(device),
        workers=workers,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    with Store.open(store_path, create=False) as kept:
        found = standing(kept, asked)
    if as_json:
        return print_json([{**asdict(one), "subject": one.subject.name} for one in found])
    budgets = asked[0].budgets
    for which in dict.fromkeys(one.kind for one in found):
        group = [one for one in found if one.kind == which]
        title = f"{asked[0].dataset}, {which}: test accuracy, %"
        count = max(len(one.splits) for one in group)
        caption = (
            f"mean of {count} splits; for each budget the worst of all attempts"
            if count > 1
            else ("for each budget the worst of all attempts")
        )
        print_table(title, headings(budgets), table_rows(group, budgets), caption=caption)
        for one in group:
            for sentence in () if one.subject in CONTROLS.values() else one.signs:
                out.print(f"{one.subject.name}: {sentence}", soft_wrap=True)
    out.print(f"Flips and outcomes are stored in {store_path}.", soft_wrap=True)
