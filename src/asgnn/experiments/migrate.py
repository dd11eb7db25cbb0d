"""A store of schema 1, in which attacks and splits were strings, written as one of today's schema."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError
from asgnn.experiments.encoding import DAMAGED, MadeAttack, from_text, require, shown_key, unpack
from asgnn.experiments.schema import SCHEMA, damaged, sentences
from asgnn.experiments.store import Store, check_header, check_whole, connect
from asgnn.experiments.values import (
    Attack,
    Case,
    Choice,
    Outcome,
    Series,
    SplitName,
    Training,
    as_settings,
    key_of,
    parse_attack,
    trainings_of,
)

VALIDATION = "+validation-nettack"  # after the name of an attack: validation nodes were attacked besides
MADE = "split-"  # before it: made for the split it was used with
TRAININGS = """
SELECT t.key, c.dataset, c.poisoned, c.rate, c.split, t.model, s.text, t.seed, f.text, t.figures, l.text, t.scalars,
    t.seconds, t.batch, m.text, o.text
FROM trainings t LEFT JOIN cases c ON c.id = t.case_id LEFT JOIN texts s ON s.id = t.settings_id
    LEFT JOIN texts f ON f.id = t.figure_names_id LEFT JOIN texts l ON l.id = t.scalar_names_id
    LEFT JOIN texts m ON m.id = t.machine_id LEFT JOIN texts o ON o.id = t.version_id
"""
CHOICES = """
SELECT h.key, h."table", c.dataset, c.poisoned, c.rate, c.split, h.row, h.rule, h.search, h.model, s.text, h.tried,
    h.trainings
FROM choices h LEFT JOIN cases c ON c.id = h.case_id LEFT JOIN texts s ON s.id = h.settings_id
"""
ATTACKS = "SELECT a.key, a.spec, a.flips, a.seconds, m.text FROM attacks a LEFT JOIN texts m ON m.id = a.machine_id"


def migrate(old: Path, new: Path) -> dict[str, int]:
    """Write what ``old`` holds into ``new``, a store that is not there yet; says how many records of each kind.

    Every record of the old store is held against its key, and nothing is left out: a record that cannot be written in
    the new form stops the migration, and no new store is left.
    """
    if new.exists():
        raise ConfigError(f"{new} is there already; name a file that is not.")
    connection = connect(old)
    try:
        with sentences(old):
            application, number = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
            )
        if number == SCHEMA:
            raise ConfigError(f"{old} is in today's form already.")
        check_header(old, application, number, wanted=1)
        check_whole(old, connection)
        return _write(_Old(old, connection), new)
    finally:
        connection.close()


def _write(old: _Old, new: Path) -> dict[str, int]:
    half = new.with_name(f".{new.name}.partial")
    half.unlink(missing_ok=True)
    try:
        with Store.open(half) as store:
            keys: dict[str, str] = {}
            counts = {
                "trainings": store.add(old.outcomes(keys)),
                "choices": store._put("choices", old.choices(keys)),
                "series": store._put("series", old.series(keys)),
                "attacks": store._put("attacks", old.attacks()),
            }
            for name, count in counts.items():
                before = old.rows(f"SELECT count(*) FROM {name}")[0][0]
                if count != before:
                    raise ConfigError(f"{old.path} holds {before} {name}, of which {count} could be written.")
            store.vacuum()
        half.rename(new)
    finally:
        half.unlink(missing_ok=True)
    return counts


class _Old:
    """The records of a store of schema 1, each checked against its key there."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def rows(self, statement: str) -> list[Any]:
        with sentences(self.path):
            return self._connection.execute(statement).fetchall()

    def _each(self, kind: str, statement: str, read: Any) -> Iterator[Any]:
        for row in self.rows(statement):
            try:
                yield read(row)
            except DAMAGED as cause:
                raise damaged(self.path, f"in {kind}, {shown_key(row[0])} cannot be read ({cause})") from cause

    def outcomes(self, keys: dict[str, str]) -> Iterator[Outcome]:
        """All trainings; fills ``keys``, from an old key to the new one."""

        def read(row: Any) -> Outcome:
            key, dataset, poisoned, rate, split, model, settings, seed, *measured = row
            figure_names, figures, scalar_names, scalars, seconds, batch, machine, version = measured
            asked = from_text(settings)
            require(_old_key(dataset, poisoned, rate, split, model, asked, seed) == key.hex(), "another key")
            case = _case(dataset, poisoned, rate, split)
            training = Training(case, *_model(model, asked), seed)
            keys[key.hex()] = training.key
            found = dict(zip(from_text(figure_names), from_text(figures), strict=True))
            learned = dict(zip(from_text(scalar_names), from_text(scalars), strict=True))
            require(isinstance(machine, str) and isinstance(version, str), "its machine or version is missing")
            return Outcome(training, found, seconds, batch, machine, version, learned)

        return self._each("trainings", TRAININGS, read)

    def choices(self, keys: dict[str, str]) -> Iterator[Choice]:
        def read(row: Any) -> Choice:
            key, table, dataset, poisoned, rate, split, name, rule, search, model, settings, tried, trainings = row
            asked, reported = from_text(settings), json.loads(trainings)
            question = {"table": table, "dataset": dataset, "poisoned": poisoned, "rate": rate, "split": split}
            question |= {"row": name, "rule": rule, "search": search, "trials": len(reported)}
            require(key_of(question) == key.hex(), "another key")
            case, (new_model, new_settings) = _case(dataset, poisoned, rate, split), _model(model, asked)
            # trial i has seed i: so are the keys of trainings that are in another store known, too
            for seed, one in enumerate(trainings_of(case, new_model, new_settings, len(reported))):
                of_trial = f"random:{seed}" if split == "random" else split
                keys.setdefault(_old_key(dataset, poisoned, rate, of_trial, model, asked, seed), one.key)
            new = tuple(keys[one] for one in reported)
            return Choice(table, case, name, rule, search, new_model, new_settings, tried, new)

        return self._each("choices", CHOICES, read)

    def series(self, keys: dict[str, str]) -> Iterator[Series]:
        def read(row: Any) -> Series:
            training, kind, content = row
            return Series(keys[training.hex()], kind, from_text(content))

        return self._each("series", "SELECT training, kind, content FROM series", read)

    def attacks(self) -> Iterator[MadeAttack]:
        def read(row: Any) -> MadeAttack:
            key, spec, archive, seconds, machine = row
            asked = from_text(spec)
            require(key_of(asked) == key.hex(), "another key")
            case = _case(asked["dataset"], asked["attack"], asked["rate"], asked["split"])
            return MadeAttack(case, unpack(archive), archive, seconds, machine)

        return self._each("attacks", ATTACKS, read)


def _old_key(dataset: str, poisoned: str | None, rate: float, split: str, model: str, settings: Any, seed: int) -> str:
    case = {"dataset": dataset, "poisoned": poisoned, "rate": rate, "split": split}
    return key_of({**case, "model": model, "settings": settings, "seed": seed})


def _case(dataset: str, poisoned: str | None, rate: float, split: str) -> Case:
    name = poisoned or ""
    first = name.removesuffix(VALIDATION)
    attacks = []
    if first.startswith(MADE):
        attacks.append(Attack(first.removeprefix(MADE), "made", rate))
    elif first:
        attacks.append(parse_attack(first, rate))
    if name.endswith(VALIDATION):
        attacks.append(Attack("nettack", "made", rate, targets="validation"))
    require(bool(attacks) or not rate, "a rate without an attack")
    return Case(dataset, tuple(attacks), SplitName.parse(split))


def _model(model: str, settings: dict[str, Any]) -> tuple[str, Any]:
    """The paper's objective was a setting of ASGNN and is a recipe of its own."""
    left = {name: value for name, value in settings.items() if name != "objective" or model != "asgnn"}
    return ("asgnn-paper" if settings != left and settings["objective"] == "paper" else model), as_settings(left)
