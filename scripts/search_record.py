"""What a search tried and did not choose: every row of a table held to one value of a setting, the rest free.

    asgnn reproduce table2 --models gcn,gcn-jaccard,gcn-svd,elastic,appnp,asgnn-paper,asgnn --store runs/results.sqlite
    python scripts/search_record.py runs/results.sqlite

Needs the whole store of the search, which is a hundred times the one that is kept in docs/results. For each value there
is the setting that is best on validation in the first stage (two trials), its validation accuracy and its figure in the
table. "best" is the best figure of any setting: no choice on validation could be told to take it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from asgnn.experiments.reproduce import FIRST_TRIALS, Question, questions
from asgnn.experiments.spec import load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.trainings import Outcome, Settings, Training

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "search.json"
FREE = ("lr", "weight_decay", "dropout")  # of all models; what else a row has is its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--tables", default="table1,table2")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    given = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    machines, versions = set(), set()
    for path in given.stores:
        with Store.open(path, create=False) as store:
            for table in given.tables.split(","):
                for question in questions(load_spec(table)):
                    outcomes = _first_stage(store, question)
                    if outcomes:
                        held = _held(question, outcomes)
                        of_row = found.setdefault(table, {}).setdefault(question.row.name, {})
                        of_row.setdefault(question.case.dataset, {})[f"{question.case.rate:g}"] = held
                        machines |= {one.machine for one in outcomes.values()}
                        versions |= {one.version for one in outcomes.values()}
    record = {
        "command": "python scripts/search_record.py STORE",
        "trials": FIRST_TRIALS,
        "machines": sorted(machines),
        "versions": sorted(versions),
        "settings": "table, row, dataset, rate, setting, value: [validation accuracy, figure of the table]",
        **found,
    }
    given.output.write_text(json.dumps(record, separators=(",", ":")) + "\n")


def _first_stage(store: Store, question: Question) -> Mapping[Training, Outcome]:
    """Of a question that chose on plain validation; nothing where the store does not have the whole stage."""
    if question.rule != "validation" or len(question.candidates) == 1:
        return {}
    trainings = [
        Training(question.case.of_trial(seed), question.row.model, settings, seed)
        for settings in question.candidates
        for seed in range(FIRST_TRIALS)
    ]
    there = store.get([training.key for training in trainings])
    return {training: there[training.key] for training in trainings} if len(there) == len(trainings) else {}


def _held(question: Question, outcomes: Mapping[Training, Outcome]) -> dict[str, object]:
    by_settings: dict[Settings, list[Mapping[str, float]]] = {}
    for training, outcome in outcomes.items():
        by_settings.setdefault(training.settings, []).append(outcome.figures)
    worth = []  # of each setting: best on validation first, then the lower loss
    for settings, figures in by_settings.items():
        val, loss, figure = (fmean(one[name] for one in figures) for name in ("val", "val_loss", question.spec.figure))
        worth.append((val, -loss, figure, dict(settings)))
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
