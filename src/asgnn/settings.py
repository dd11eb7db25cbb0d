"""Settings of a model or a training, read off its signature: they are stated once, where the code takes them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from asgnn.errors import ConfigError

MOST = 2**31 - 1
PER_TRIAL = "per trial"
PerTrial = Annotated[float, PER_TRIAL]
"""The type of a setting in which the trials of one batch may differ: its model keeps it as a parameter or a buffer."""
REQUIRED = inspect.Parameter.empty
KINDS = (bool, int, float, str)


@dataclass(frozen=True)
class Setting:
    """One setting by its name.

    Attributes:
        name: as it is written in a file of settings or on the command line.
        default: :data:`REQUIRED` where there is none.
        kind: bool, int, float or str; ``None`` for anything else, which no file or command line can give.
        per_trial: whether the trials of one batch may differ in it.
        argument: the argument it belongs to: its own name, or that of the dataclass of which it is a field.
        optional: whether it may be ``None``.
    """

    name: str
    default: Any
    kind: type | None
    per_trial: bool
    argument: str
    optional: bool = False

    def check(self, value: Any) -> Any:
        """``value`` as this setting has it; raises where it is of another kind."""
        if value is None and self.optional:
            return value
        fits = {bool: bool, int: Integral, float: Real, str: str}.get(self.kind or object, object)
        if not isinstance(value, fits) or (isinstance(value, bool) and self.kind in (int, float)):
            raise ConfigError(f"The setting {self.name} must be {_WORDS[self.kind]}, and {value!r} is not.")
        return float(value) if self.kind is float else value  # type: ignore[arg-type]

    def parse(self, text: str) -> Any:
        """The value that a text stands for."""
        if self.optional and text.lower() == "none":
            return None
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            if self.kind is None:
                raise ValueError
            return self.kind(text)
        except (KeyError, ValueError):
            raise ConfigError(f"The setting {self.name} must be {_WORDS[self.kind]}, and {text!r} is not.") from None


def check_count(name: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Raises unless a setting is a whole number in a range; bounded before any memory is taken for it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}; it is {value!r}.")


_WORDS: dict[type | None, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    None: "given in Python",
}


@cache
def settings_of(kind: Any) -> Mapping[str, Setting]:
    """The settings of what ``kind`` makes, in the order of its arguments.

    An argument that is a dataclass stands for its fields, by their own names.
    """
    call = _call(kind)
    try:
        hints = get_type_hints(call, include_extras=True)
    except Exception:  # a module from elsewhere may have annotations that only its type checker can read
        hints = {}
    found: dict[str, Setting] = {}
    for parameter in _parameters(call):
        hint = hints.get(parameter.name)
        group = _dataclass_in(hint)
        if group is None:
            found[parameter.name] = _setting(parameter.name, hint, parameter.default, parameter.name)
            continue
        of_fields = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = REQUIRED if field.default is MISSING else field.default
            found[field.name] = _setting(field.name, of_fields[field.name], default, parameter.name)
    return types.MappingProxyType(found)


def _call(kind: Callable[..., Any]) -> Callable[..., Any]:
    """What is called: of a class its constructor."""
    return kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc]


def takes_any(kind: Callable[..., Any]) -> bool:
    """Whether ``kind`` takes arguments that it does not name."""
    call = _call(kind)
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(call).parameters.values())


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [p for p in found if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def _setting(name: str, hint: Any, default: Any, argument: str) -> Setting:
    marked = PER_TRIAL in getattr(hint, "__metadata__", ())
    optional = default is None or types.NoneType in _parts(hint)
    return Setting(name, default, _kind(hint, default), marked, argument, optional)


def _kind(hint: Any, default: Any) -> type | None:
    if type(default) in KINDS:
        return type(default)
    parts = _parts(hint)
    if any(get_origin(part) is Literal for part in parts):
        return str
    return next((kind for kind in KINDS if kind in parts), None)


def _parts(hint: Any) -> tuple[Any, ...]:
    """The members of a union, of whatever is annotated."""
    if get_origin(hint) is Annotated:
        return _parts(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for member in get_args(hint) for part in _parts(member))
    return (hint,)


def _dataclass_in(hint: Any) -> type | None:
    return next((part for part in _parts(hint) if isinstance(part, type) and is_dataclass(part)), None)


def arguments_for(kind: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that give ``kind`` these settings: fields of a dataclass are put together."""
    known = settings_of(kind)
    call = _call(kind)
    out: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        setting = known.get(name)
        if setting is None or setting.argument == name:
            out[name] = value
        else:
            grouped.setdefault(setting.argument, {})[name] = value
    for argument, values in grouped.items():
        group = _dataclass_in(get_type_hints(call)[argument])
        assert group is not None
        out[argument] = group(**values)
    return out


def settings_given(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, defaults included, of what ``kind(*args, **kwargs)`` made."""
    bound = inspect.signature(_call(kind)).bind(None, *args, **kwargs)
    bound.apply_defaults()
    out: dict[str, Any] = {}
    for name, setting in settings_of(kind).items():
        value = bound.arguments[setting.argument]
        if setting.argument != name:
            value = setting.default if value is None else getattr(value, name)
        out[name] = value
    return out
