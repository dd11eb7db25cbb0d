"""Results of a search: for each value of a setting, the best result over all other settings.

    asgnn reproduce table2 --models gcn,gcn-jaccard,gcn-svd,elastic,appnp,asgnn-paper,asgnn --store runs/results.sqlite
    python scripts/search_record.py runs/results.sqlite

Needs the whole store of the search, which is a hundred times larger than the store in docs/results. For each value, the
record has the validation accuracy and the table's figure of the setting with the best validation accuracy in the first
stage (two trials). "best" is the best figure of any setting, which no choice on validation can be sure to find.

"sees" is Spearman's rank correlation, over all settings, between the figure that a rule uses and the figure of the
table. "attacked" describes the targets of the attack and those of the rule "attacked validation": their number and
median degree. "of the kind" is the number of validation nodes that fulfil the condition for targets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr

from asgnn.attacks import nettack_targets
from asgnn.experiments.attacks import attacked_nodes
from asgnn.experiments.measure import find_split, load_graph
from asgnn.experiments.questions import FIRST_TRIALS, Question, questions
from asgnn.experiments.spec import load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.values import Case, Outcome, Settings, trainings_of

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "search.json"
FREE = ("lr", "weight_decay", "dropout")  # settings that all models share
Stage = dict[Settings, list[Outcome]]  # the outcomes of each setting in one stage of a search


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
                cells = groupby(questions(load_spec(table)), key=lambda question: (question.row.name, question.case))
                for (row, case), asked in cells:  # one question per rule
                    stages = _first_stages(store, list(asked))
                    if not stages:
                        continue
                    rate = f"{case.amount:g}"
                    found.setdefault(table, {}).setdefault(row, {}).setdefault(case.dataset, {})[rate] = _cell(stages)
                    if len(stages) > 1:
                        attacked.setdefault(case.dataset, {})[rate] = _attacked(case)
                    for outcome in chain.from_iterable(chain(*(stage.values() for _, stage in stages))):
                        machines.add(outcome.machine)
                        versions.add(outcome.version)
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


def _first_stages(store: Store, asked: Sequence[Question]) -> list[tuple[Question, Stage]]:
    """The first stage of each rule, plain validation first; empty if the store lacks that one."""
    stages = [(question, _first_stage(store, question)) for question in asked]
    return [(question, stage) for question, stage in stages if stage] if stages[0][1] else []


def _first_stage(store: Store, question: Question) -> Stage:
    """Empty if there was no search, or if the store lacks a part of it."""
    if len(question.candidates) == 1:
        return {}
    case, _ = question.judge
    asked = {
        settings: trainings_of(case, question.row.model, settings, FIRST_TRIALS) for settings in question.candidates
    }
    there = store.get([one.key for trainings in asked.values() for one in trainings])
    if len(there) < FIRST_TRIALS * len(asked):
        return {}
    return {settings: [there[one.key] for one in trainings] for settings, trainings in asked.items()}


def _cell(stages: Sequence[tuple[Question, Stage]]) -> dict[str, Any]:
    plain, outcomes = stages[0]
    sees = {question.rule: _sees(question, judged, outcomes) for question, judged in stages}
    return {"sees": sees, **_held(plain, outcomes)}


@cache
def _attacked(case: Case) -> dict[str, list[int]]:
    graph = load_graph(case)
    assert graph.flips is not None
    assert graph.flips.targets is not None
    split = find_split(case.split, graph.data, case.dataset)
    degree = torch.bincount(graph.data.edge_index[0], minlength=graph.data.num_nodes)
    nodes = {"test": graph.flips.targets, "validation": attacked_nodes(graph.data, split, "validation")}
    found = {name: [ours.numel(), int(degree[ours].median())] for name, ours in nodes.items()}
    return found | {"of the kind": [nettack_targets(graph.data, split.val).numel()]}


def _mean(outcomes: Iterable[Outcome], figure: str) -> float:
    return fmean(one.figures[figure] for one in outcomes)


def _sees(question: Question, judged: Stage, outcomes: Stage) -> float:
    by = [_mean(judged[settings], question.judge[1]) for settings in question.candidates]
    shown = [_mean(outcomes[settings], question.spec.figure) for settings in question.candidates]
    return round(float(spearmanr(by, shown).statistic), 2)


def _held(question: Question, outcomes: Stage) -> dict[str, Any]:
    worth = [  # sorted by validation accuracy, then by the lower validation loss
        (_mean(found, "val"), -_mean(found, "val_loss"), _mean(found, question.spec.figure), dict(settings))
        for settings, found in outcomes.items()
    ]
    out: dict[str, Any] = {"best": round(max(figure for _, _, figure, _ in worth), 2)}
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
