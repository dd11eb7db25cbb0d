"""Converts a store of schema 1, where attacks and splits were strings, to the current schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError
from asgnn.experiments.encoding import DAMAGED, MadeAttack, from_text, require, require_key
from asgnn.experiments.schema import SCHEMA, Database
from asgnn.experiments.store import Store, unreadable
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

VALIDATION = "+validation-nettack"  # suffix of an attack's name: validation nodes were attacked, too
MADE = "split-"  # prefix: made for the split it was used with
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
SERIES = "SELECT training, kind, content FROM series"
ATTACKS = "SELECT a.key, a.spec, a.flips, a.seconds, m.text FROM attacks a LEFT JOIN texts m ON m.id = a.machine_id"


def migrate(old: Path, new: Path) -> dict[str, int]:
    """Write the records of ``old`` into the new store ``new``; returns their numbers by kind.

    Checks every record against its key. A record that cannot be converted stops the migration and leaves no new store.
    """
    if new.exists():
        raise ConfigError(f"{new} exists already; choose another name.")
    half = new.with_name(f".{new.name}.partial")
    with Database.connect(old) as source:
        if source.header()[1] == SCHEMA:
            raise ConfigError(f"{old} has the current schema already.")
        source.check(wanted=1)
        try:
            half.unlink(missing_ok=True)
            with Store.open(half) as store:
                counts = _copy(source, store)
            half.rename(new)
        finally:
            half.unlink(missing_ok=True)
    return counts


def _copy(source: Database, store: Store) -> dict[str, int]:
    keys: dict[str, str] = {}  # old key of a training → new key
    counts = {}
    # trainings first, because they fill ``keys``
    for name, (statement, read) in READERS.items():
        counts[name] = store.put(name, _records(source, name, statement, read, keys))
        before = source.rows(f"SELECT count(*) FROM {name}")[0][0]
        if counts[name] != before:
            raise ConfigError(f"{source.path} holds {before} {name}, but only {counts[name]} could be converted.")
    store.vacuum()
    return counts


def _records(source: Database, name: str, statement: str, read: Reader, keys: dict[str, str]) -> Iterator[Any]:
    for row in source.rows(statement):
        try:
            yield read(keys, *row)
        except DAMAGED as cause:
            raise unreadable(source.path, name, row[0], cause) from cause


def _outcome(keys: dict[str, str], key: bytes, *row: Any) -> Outcome:
    *names, model, settings, seed, figure_names, figures, scalar_names, scalars, seconds, batch, machine, version = row
    asked = from_text(settings)
    require_key(key, _old_key(names, model, asked, seed))
    training = Training(_case(*names), *_model(model, asked), seed)
    keys[key.hex()] = training.key
    measured, learned = (
        dict(zip(from_text(of), from_text(values), strict=True))
        for of, values in ((figure_names, figures), (scalar_names, scalars))
    )
    require(isinstance(machine, str) and isinstance(version, str), "its machine or version is missing")
    return Outcome(training, measured, seconds, batch, machine, version, learned)


def _choice(keys: dict[str, str], key: bytes, table: str, *row: Any) -> Choice:
    *names, name, rule, search, model, settings, tried, trainings = row
    asked, reported = from_text(settings), json.loads(trainings)
    question = {"table": table, "row": name, "rule": rule, "search": search, "trials": len(reported)}
    require_key(key, key_of(_named(names) | question))
    case, (new_model, new_settings) = _case(*names), _model(model, asked)
    # trial i has seed i, so the keys of trainings in other stores are known as well
    for seed, one in enumerate(trainings_of(case, new_model, new_settings, len(reported))):
        split = f"random:{seed}" if names[-1] == "random" else names[-1]
        keys.setdefault(_old_key([*names[:-1], split], model, asked, seed), one.key)
    return Choice(table, case, name, rule, search, new_model, new_settings, tried, tuple(keys[one] for one in reported))


def _series(keys: dict[str, str], training: bytes, kind: str, content: str) -> Series:
    return Series(keys[training.hex()], kind, from_text(content))


def _attack(_: dict[str, str], key: bytes, spec: str, *row: Any) -> MadeAttack:
    asked = from_text(spec)
    require_key(key, key_of(asked))
    return MadeAttack.unpack(_case(asked["dataset"], asked["attack"], asked["rate"], asked["split"]), *row)


Reader = Callable[..., Any]
READERS: dict[str, tuple[str, Reader]] = {
    "trainings": (TRAININGS, _outcome),
    "choices": (CHOICES, _choice),
    "series": (SERIES, _series),
    "attacks": (ATTACKS, _attack),
}


def _named(names: list[Any]) -> dict[str, Any]:
    return dict(zip(("dataset", "poisoned", "rate", "split"), names, strict=True))


def _old_key(names: list[Any], model: str, settings: Any, seed: int) -> str:
    return key_of(_named(names) | {"model": model, "settings": settings, "seed": seed})


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
    require(bool(attacks) or not rate, "it has a rate but no attack")
    return Case(dataset, tuple(attacks), SplitName.parse(split))


def _model(model: str, settings: dict[str, Any]) -> tuple[str, Any]:
    """The paper's objective, formerly a setting of ASGNN, is now a recipe of its own."""
    left = {name: value for name, value in settings.items() if name != "objective" or model != "asgnn"}
    return ("asgnn-paper" if settings != left and settings["objective"] == "paper" else model), as_settings(left)
