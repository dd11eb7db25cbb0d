"""Settings of models and of training, read from signatures, so that each setting is declared in one place."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from asgnn.errors import ConfigError

MAX_COUNT = 2**31 - 1
MAX_LAYERS = 100_000
PER_TRIAL = "per trial"
PerTrial = Annotated[float, PER_TRIAL]
"""The type of a setting that may differ between the trials of a batch; a model stores it as a parameter or buffer."""
REQUIRED = inspect.Parameter.empty
KINDS = (bool, int, float, str)


@dataclass(frozen=True)
class Setting:
    """One named setting.

    Attributes:
        name: the name used in settings files and on the command line.
        default: the default value, or :data:`REQUIRED`.
        kind: bool, int, float or str; ``None`` for any other type, which can only be set from Python.
        per_trial: whether the value may differ between the trials of a batch.
        argument: the argument that takes the value: the same name, or the dataclass argument it is a field of.
        optional: whether ``None`` is allowed.
        field: the name within the dataclass argument, or "" if the argument takes the value itself.
    """

    name: str
    default: Any
    kind: type | None
    per_trial: bool
    argument: str
    optional: bool = False
    field: str = ""

    def check(self, value: Any) -> Any:
        """Return ``value``, as a float where the setting is one; raise if its type is wrong."""
        if value is None and self.optional:
            return value
        expected = {bool: bool, int: Integral, float: Real, str: str}.get(self.kind or object, object)
        if not isinstance(value, expected) or (isinstance(value, bool) and self.kind in (int, float)):
            raise ConfigError(f"The setting {self.name} must be {_KIND_NAMES[self.kind]}; it is {value!r}.")
        return _float(value) if self.kind is float else value

    def parse(self, text: str) -> Any:
        """Convert text from a file or the command line to a value."""
        if self.optional and text.lower() == "none":
            return None
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            if self.kind is None:
                raise ValueError
            return self.kind(text)
        except (KeyError, ValueError):
            raise ConfigError(f"The setting {self.name} must be {_KIND_NAMES[self.kind]}; it is {text!r}.") from None


def check_count(name: str, value: Any, least: int = 1, most: int = MAX_COUNT) -> None:
    """Raise unless ``value`` is a whole number from ``least`` to ``most``; call it before allocating memory."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}; it is {value!r}.")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number with more than 308 digits
        return math.inf if value > 0 else -math.inf


def check_number(name: str, value: Any, low: float, high: float, ends: str = "[]") -> None:
    """Raise unless ``value`` is a number from ``low`` to ``high``; ``ends`` are the brackets of the interval."""
    number = _float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below):
        raise ConfigError(f"{name} must be a number in {ends[0]}{low:g}, {high:g}{ends[1]}; it is {value!r}.")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; it is {value!r}.")


_KIND_NAMES: dict[type | None, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    None: "set from Python",
}


@cache
def settings_of(kind: Any) -> Mapping[str, Setting]:
    """Return the settings of a class or function by name, in the order of its arguments.

    The fields of a dataclass argument are listed under their own names. A class may name further arguments that it
    takes beside those of its constructor, with their defaults, in ``shared_arguments``; their fields are listed as
    ``argument_field``.
    """
    call = _call(kind)
    try:
        hints = get_type_hints(call, include_extras=True)
    except Exception:  # annotations of foreign modules may not be importable at run time
        hints = {}
    settings: dict[str, Setting] = {}
    for parameter in _parameters(call):
        hint = hints.get(parameter.name)
        group = _dataclass_in(hint)
        if group is None:
            settings[parameter.name] = _setting(parameter.name, hint, parameter.default, parameter.name)
            continue
        field_hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = REQUIRED if field.default is MISSING else field.default
            found = _setting(field.name, field_hints[field.name], default, parameter.name)
            settings[field.name] = replace(found, field=field.name)
    for argument, neutral in shared_arguments(kind).items():
        field_hints = get_type_hints(type(neutral), include_extras=True)
        for field in fields(neutral):
            name = f"{argument}_{field.name}"
            found = _setting(name, field_hints[field.name], getattr(neutral, field.name), argument)
            settings[name] = replace(found, field=field.name)
    return types.MappingProxyType(settings)


def shared_arguments(kind: Any) -> Mapping[str, Any]:
    """The dataclass arguments that a class takes beside those of its constructor, with the values that mean "none"."""
    return getattr(kind, "shared_arguments", {}) if isinstance(kind, type) else {}


def _call(kind: Callable[..., Any]) -> Callable[..., Any]:
    """The constructor of a class, or the function itself."""
    return kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc]


def accepts_kwargs(kind: Callable[..., Any]) -> bool:
    """Whether ``kind`` accepts ``**kwargs``."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(_call(kind)).parameters.values())


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(call).parameters.values()
    return [p for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def _setting(name: str, hint: Any, default: Any, argument: str) -> Setting:
    per_trial = PER_TRIAL in getattr(hint, "__metadata__", ())
    optional = default is None or types.NoneType in _parts(hint)
    return Setting(name, default, _kind(hint, default), per_trial, argument, optional)


def _kind(hint: Any, default: Any) -> type | None:
    if type(default) in KINDS:
        return type(default)
    parts = _parts(hint)
    if any(get_origin(part) is Literal for part in parts):
        return str
    return next((kind for kind in KINDS if kind in parts), None)


def _parts(hint: Any) -> tuple[Any, ...]:
    """The members of a (possibly annotated) union; any other hint is its only member."""
    if get_origin(hint) is Annotated:
        return _parts(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for member in get_args(hint) for part in _parts(member))
    return (hint,)


def _dataclass_in(hint: Any) -> type | None:
    return next((part for part in _parts(hint) if isinstance(part, type) and is_dataclass(part)), None)


def arguments_for(kind: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for ``kind``, with dataclass fields gathered into dataclass arguments."""
    known = settings_of(kind)
    out: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        setting = known.get(name)
        if setting is None or setting.argument == name:
            out[name] = value
        else:
            grouped.setdefault(setting.argument, {})[setting.field] = value
    for argument, values in grouped.items():
        if argument in shared_arguments(kind):
            out[argument] = replace(shared_arguments(kind)[argument], **values)
            continue
        group = _dataclass_in(get_type_hints(_call(kind))[argument])
        assert group is not None
        out[argument] = group(**values)
    return out


def bound_settings(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of ``kind(*args, **kwargs)``, defaults included."""
    shared = {name: kwargs.get(name) or neutral for name, neutral in shared_arguments(kind).items()}
    own = {name: value for name, value in kwargs.items() if name not in shared}
    bound = inspect.signature(_call(kind)).bind(None, *args, **own)
    bound.apply_defaults()
    given = bound.arguments | shared
    out: dict[str, Any] = {}
    for name, setting in settings_of(kind).items():
        value = given[setting.argument]
        if setting.field:
            value = setting.default if value is None else getattr(value, setting.field)
        out[name] = value
    return out
