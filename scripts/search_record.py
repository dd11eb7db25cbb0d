"""What a search tried and did not choose: every row of a table held to one value of a setting, the rest free.

    asgnn reproduce table2 --models gcn,gcn-jaccard,gcn-svd,elastic,appnp,asgnn-paper,asgnn --store runs/results.sqlite
    python scripts/search_record.py runs/results.sqlite

Needs the whole store of the search, which is a hundred times the one that is kept in docs/results. For each value there
is the setting that is best on validation in the first stage (two trials), its validation accuracy and its figure in the
table. "best" is the best figure of any setting: no choice on validation could be told to take it.

"sees" is how well a rule of choice orders the settings as the table does: Spearman's rank correlation, over all
settings, of what the rule judges by and the figure of the table. "attacked" is whom a targeted attack and that of the
second rule are on, how many nodes and their median degree, and how many validation nodes are of the first's kind.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr

from asgnn.attacks import nettack_targets
from asgnn.experiments.reproduce import FIRST_TRIALS, Question, questions, validation_targets
from asgnn.experiments.run import find_split, load_graph
from asgnn.experiments.spec import load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.trainings import Case, Outcome, Settings, Training

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "search.json"
FREE = ("lr", "weight_decay", "dropout")  # of all models; what else a row has is its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--tables", default="table1,table2")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    given = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, dict[str, Any]]]]] = {}
    attacked: dict[str, dict[str, dict[str, list[int]]]] = {}
    machines, versions = set(), set()
    for path in given.stores:
        with Store.open(path, create=False) as store:
            for table in given.tables.split(","):
                for question in questions(load_spec(table)):
                    outcomes, judged = (
                        _first_stage(store, question, case) for case in (question.case, question.judge[0])
                    )
                    if not outcomes or not judged:
                        continue
                    of_row = found.setdefault(table, {}).setdefault(question.row.name, {})
                    entry = of_row.setdefault(question.case.dataset, {}).setdefault(f"{question.case.rate:g}", {})
                    entry.setdefault("sees", {})[question.rule] = _sees(question, judged, outcomes)
                    if question.rule == "validation":
                        entry |= _held(question, outcomes)
                    else:
                        of_dataset = attacked.setdefault(question.case.dataset, {})
                        of_dataset.setdefault(f"{question.case.rate:g}", _attacked(question.case))
                    for one in chain.from_iterable((*outcomes.values(), *judged.values())):
                        machines.add(one.machine)
                        versions.add(one.version)
    record = {
        "command": "python scripts/search_record.py STORE",
        "trials": FIRST_TRIALS,
        "machines": sorted(machines),
        "versions": sorted(versions),
        "settings": "table, row, dataset, rate, setting, value: [validation accuracy, figure of the table]",
        "attacked": attacked,
        **found,
    }
    given.output.write_text(json.dumps(record, separators=(",", ":")) + "\n")


def _first_stage(store: Store, question: Question, case: Case) -> dict[Settings, list[Outcome]]:
    """On one of the question's two graphs; nothing where there was no search or the store does not have all of it."""
    if len(question.candidates) == 1:
        return {}
    trainings = {
        settings: [Training(case.of_trial(seed), question.row.model, settings, seed) for seed in range(FIRST_TRIALS)]
        for settings in question.candidates
    }
    there = store.get([one.key for of_settings in trainings.values() for one in of_settings])
    if len(there) < FIRST_TRIALS * len(trainings):
        return {}
    return {settings: [there[one.key] for one in of_settings] for settings, of_settings in trainings.items()}


@cache
def _attacked(case: Case) -> dict[str, list[int]]:
    graph = load_graph(case)
    assert graph.flips is not None
    assert graph.flips.targets is not None
    split = find_split(case.split, graph.data, case.dataset)
    degree = torch.bincount(graph.data.edge_index[0], minlength=graph.data.num_nodes)
    nodes = {"test": graph.flips.targets, "validation": validation_targets(graph.data, split)}
    found = {name: [ours.numel(), int(degree[ours].median())] for name, ours in nodes.items()}
    return found | {"of the kind": [nettack_targets(graph.data, split.val).numel()]}


def _mean(outcomes: Iterable[Outcome], figure: str) -> float:
    return fmean(one.figures[figure] for one in outcomes)


def _sees(
    question: Question, judged: Mapping[Settings, list[Outcome]], outcomes: Mapping[Settings, list[Outcome]]
) -> float:
    by = [_mean(judged[settings], question.judge[1]) for settings in question.candidates]
    shown = [_mean(outcomes[settings], question.spec.figure) for settings in question.candidates]
    return round(float(spearmanr(by, shown).statistic), 2)


def _held(question: Question, outcomes: Mapping[Settings, list[Outcome]]) -> dict[str, object]:
    worth = [  # of each setting: best on validation first, then the lower loss
        (_mean(found, "val"), -_mean(found, "val_loss"), _mean(found, question.spec.figure), dict(settings))
        for settings, found in outcomes.items()
    ]
    out: dict[str, object] = {"best": round(max(figure for _, _, figure, _ in worth), 2)}
    for name, values in question.row.grids[question.search].items():
        if name in FREE:
            continue
        by_value: dict[str, list[float]] = {}
        for value in values:
            val, _, figure, _ = max((one for one in worth if one[3][name] == value), key=lambda one: one[:2])
            by_value[f"{value:g}"] = [round(val, 2), round(figure, 2)]
        out[name] = by_value
    return out


if __name__ == "__main__":
    main()
