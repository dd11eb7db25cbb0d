"""The command asgnn certify: certified accuracy against the number of flips, beside the floors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor
from torch_geometric.data import Data

from asgnn.certify import Ballot, predict_without_edges, share_right, vote_by_neighbors, vote_by_parts
from asgnn.certify.partition import FLOOR_MODELS, NEIGHBORS, PARTS
from asgnn.cli.app import AsJson, Device, Sets, app, bar, find_device, out, print_json, print_table, print_written
from asgnn.cli.own import check_output
from asgnn.errors import ConfigError
from asgnn.experiments.machine import machine
from asgnn.experiments.measure import find_split
from asgnn.experiments.values import SplitName, parse_settings
from asgnn.graphs import Split, describe, find_dataset, load_dataset
from asgnn.graphs.sources import write_file
from asgnn.settings import check_choice
from asgnn.training import RECIPES, recipe

VOTERS = ("neighbors", "parts")


@app.command()
def certify(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}; or package.module:Class.")],
    dataset: Annotated[str, typer.Option(help="A name that `asgnn datasets` lists.")],
    by: Annotated[
        str,
        typer.Option(
            help="Who votes: neighbors, each with its edge-free class, or parts, a model for each part of the edges."
        ),
    ] = "neighbors",
    parts: Annotated[int, typer.Option(help="Number of parts of the edges, for --by parts.")] = PARTS,
    abstain: Annotated[
        bool, typer.Option("--abstain", help="For --by parts: a part votes on a node only if it has an edge of it.")
    ] = False,
    anchor: Annotated[
        int | None,
        typer.Option(help="Further votes for the edge-free class. Default: chosen on the validation nodes."),
    ] = None,
    radii: Annotated[str, typer.Option(help="Numbers of flips, separated by commas.")] = "0,5,10,20",
    split: Annotated[
        str | None, typer.Option(help="published, published:I or random:I. Default: published, else random:0.")
    ] = None,
    models: Annotated[int, typer.Option(help="Number of edge-free models.")] = FLOOR_MODELS,
    seed: Annotated[int, typer.Option(help="Of the hash, the initial weights and the dropout.")] = 0,
    settings: Sets = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the figures, .json.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Certify how many flips of edges cannot change the predictions, before and after training."""
    check_choice("--by", by, VOTERS)
    if output is not None:
        check_output(output, (".json",))
    flips = _radii(radii)
    chosen = recipe(model)
    given = dict(parse_settings(model, chosen.settings, settings or []))
    if "prior_neighbors" in chosen.settings:
        given = {"prior_neighbors": NEIGHBORS, "prior_weight": 1.0, **given}
    chosen = chosen.with_settings(given)
    name = find_dataset(dataset).name
    data, place = load_dataset(name), find_device(device)
    named = (SplitName.usual(name) if split is None else SplitName.parse(split)).of_trial(name, 0)
    nodes = find_split(named, data, name)
    with bar(f"{model} on {name}") as progress:
        if by == "parts":
            ballot = vote_by_parts(
                chosen, data, nodes, parts=parts, abstain=abstain, models=models, seed=seed, device=place,
                progress=progress,
            )  # fmt: skip
        else:
            ballot = vote_by_neighbors(chosen, data, nodes, models=models, seed=seed, device=place)
        mlp = predict_without_edges(recipe("mlp"), data, nodes, models=models, seed=seed, device=place)
    found: dict[str, Any] = {
        "dataset": name,
        "split": str(named),
        "model": model,
        "settings": given,
        "by": by,
        **({"parts": parts, "abstain": abstain} if by == "parts" else {}),
        **figures(ballot, data, nodes, flips, anchor, mlp),
        "device": machine(place),
    }
    if output is not None:
        write_file(output, (json.dumps(found, indent=1) + "\n").encode())
    if as_json:
        return print_json(found)
    rows = []
    for i, count in enumerate(flips):
        floors = (found["test"]["edge_free"], found["test"]["mlp"])
        cells = (found["test"]["certified"][i], *floors, found["validation"]["certified"][i])
        rows.append([count, *(f"{100 * cell:.2f}" for cell in cells)])
    headings = ("flips", f"{model}, {by}", "edge-free twin", "MLP", "validation")
    caption = f"anchor {found['anchor']}, {named} split, {found['seconds']:.1f} s on {found['device']}"
    print_table(f"Certified accuracy on {name}, %", headings, rows, left=0, caption=caption)
    out.print(f"{name}: {describe(data)}", soft_wrap=True)
    out.print("No number of flips changes the edge-free twin and the MLP: their columns are floors.", soft_wrap=True)
    if output is not None:
        print_written(output)


def figures(
    ballot: Ballot, data: Data, split: Split, radii: list[int], anchor: int | None, mlp: Tensor
) -> dict[str, Any]:
    """Certified accuracies on validation and test nodes beside the floors; without an anchor, one is chosen."""
    chosen = ballot.choose_anchor(data, split.val, radii) if anchor is None else anchor
    certificate = ballot.certificate(chosen)
    found: dict[str, Any] = {"anchor": chosen, "radii": radii, "seconds": round(ballot.seconds, 2)}
    for name, nodes in (("validation", split.val), ("test", split.test)):
        found[name] = {
            "certified": [round(one, 4) for one in certificate.certified_accuracy(data, nodes, radii).values()],
            "edge_free": round(certificate.floor_accuracy(data, nodes), 4),
            "mlp": round(share_right(mlp, data, nodes), 4),
        }
    return found


def _radii(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0 or len(set(found)) < len(found):
        raise ConfigError(f"--radii are different numbers of flips, separated by commas; {text!r} is not.")
    return found
