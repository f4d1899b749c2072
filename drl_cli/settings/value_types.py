"""Value types: which values a key accepts, derived from the type hint of a config field.

A value type reads values, describes itself for the help, and lists the words that tab completion offers.
"""

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from drl_cli.replay.base import ReplayConfig
from drl_cli.replay.config import SAMPLERS
from drl_cli.utils.ranges import OR_NULL, Range, Texts
from drl_cli.utils.spelling import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

OTHER_WORDS = {
    "gpu": "cuda",
    "true": "offline",
    **dict.fromkeys(("yes", "y", "on"), "true"),
    **dict.fromkeys(("no", "n", "off"), "false"),
}
"""Words of other tools, and the words that we use for them."""
FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "mio": 1e6, "%": 0.01}
SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
MEGABYTES = {"k": 1e-3, "m": 1, "g": 1e3, "t": 1e6, "kb": 1e-3, "mb": 1, "gb": 1e3, "tb": 1e6}
"""Units behind a number: of counts, of seconds and of megabytes."""
NO_UNIT = "has no unit of time or size"
MISSING = "???"
"""The value in Hydra's yaml that marks a key without a default."""


class UnknownKey(str):
    """The dotted name of an unknown key. In a list of problems, it stands for an error line that is made later."""


class Unreadable(TypeError):
    """A config class has fields whose types can't be set on a command line. `problems` has a line for each field."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


NOTHING = ("none", "false", "inf")
"""Values by which a user may mean null, in small letters. yaml reads `off` and `no` as False."""


@dataclass(frozen=True)
class ValueType:
    """A type of values. This base class accepts any value.

    `forms` describe the accepted kinds of values for the help. `words` are offered by tab completion.
    """

    forms: tuple[str, ...] = ("value",)
    words: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the type and range as the help shows them, such as `int >= 1 or null`."""
        *others, last = self.forms
        return f"{', '.join(others)} or {last}" if others else last

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        """Return the value for the config, and append errors to `problems`."""
        return value


NULL = ValueType(("null",), ("null",))
"""The type of null. `OneOf` accepts null if this is one of its types."""


@dataclass(frozen=True)
class Scalar(ValueType):
    """A truth value, a number or a text. A number may have bounds."""

    base: type[Any] = str
    bounds: Range | Texts | None = None

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        result = self._converted(value)
        if result is None:
            names = {bool: "true or false", str: "text", float: "a number", int: "a whole number"}
            hint = _word_hint(str(value), self.words) if self.base is bool else ""
            hint = f".{hint}" if hint else _number_hint(path, value)
            problems.append(f"{path}: must be {names[self.base]}, got {shown(value)}{hint}")
        elif self.bounds is not None and result not in self.bounds:
            hint = _word_hint(str(value), self.words)
            problems.append(f"{path}: must be {self.bounds}, got {value}{hint and f'.{hint}'}")
        return result

    def _converted(self, value: Any) -> Any:
        """Return the value converted to this type, or None. A number may be text, because yaml reads 1e-3 as text."""
        if isinstance(value, bool) or self.base in (bool, str):
            return value if type(value) is self.base else None
        try:
            number = float(value) if isinstance(value, int | float | str) else float("nan")
        except (ValueError, OverflowError):
            return None
        if number != number or abs(number) == float("inf"):
            return None
        if self.base is float:
            return number
        return int(value if isinstance(value, int) else number) if number.is_integer() else None


@dataclass(frozen=True)
class Choice(ValueType):
    """A value from a fixed set of words or numbers."""

    choices: tuple[Any, ...] = ()

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        if isinstance(value, bool) and "on" in self.choices:  # yaml reads `on` and `off` as truth values
            value = "on" if value else "off"
        if value not in self.choices:
            hint = _word_hint(value, self.words) if isinstance(value, str | bool) else ""
            allowed = f"{shown(value)} is not one of {', '.join(self.words)}"
            if len(self.choices) == 1:
                allowed = f"must be {self.choices[0]}, got {shown(value)}"
            problems.append(f"{path}: {allowed}{hint and f'.{hint}'}")
        return value


@dataclass(frozen=True)
class ListOf(ValueType):
    """A list of items of the same type. In the config it is a tuple."""

    item: ValueType = ValueType()

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self.item.read(item, f"{path}[{i}]", problems) for i, item in enumerate(value))
        unfit = list[str]()
        self.item.read(value, path, unfit)
        hint = f"; say {path}=[{value}]" if isinstance(value, str | int | float) and not unfit else ""
        problems.append(f"{path}: must be a list, got {value!r}{hint}")
        return None


@dataclass(frozen=True)
class MappingOf(ValueType):
    """A mapping from any names to values of the same type."""

    item: ValueType = ValueType()

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        if isinstance(value, Mapping):
            return {name: self.item.read(item, f"{path}.{name}", problems) for name, item in value.items()}
        problems.append(f"{path}: must be a mapping such as {{a: 1}}, got {value!r}")
        return None


@dataclass(frozen=True)
class OneOf(ValueType):
    """A value of any of several types. The first type that accepts the value reads it."""

    types: tuple[ValueType, ...] = ()

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        if value is None and NULL in self.types:
            return None
        refusals: list[str] = []
        for each in self.types:
            if each != NULL:
                lines: list[str] = []
                result = each.read(value, path, lines)
                if not lines:
                    return result
                refusals += lines
        inside = [line for line in refusals if not line.startswith(f"{path}: ")]  # errors in nested values
        if not inside and len(refusals) > 1:  # each type names only itself
            hint = _word_hint(value, self.words) if isinstance(value, str | bool) else ""
            refusals = [f"{path}: must be {self.text}, got {shown(value)}{hint and f'.{hint}'}"]
        if not inside and NULL in self.types and str(value).lower() in NOTHING:
            refusals[-1] += f"; say {path}=null"
        problems += inside or refusals
        return None


@dataclass(frozen=True)
class Group(ValueType):
    """The value types of the keys of a config class, by the names that the user types."""

    config_class: type[Any] = object
    keys: Mapping[str, ValueType] = dataclasses.field(default_factory=dict)

    def read(self, value: Any, path: str, problems: list[str]) -> Any:
        if not isinstance(value, Mapping):
            problems.append(f"{path}: must be a group of options, got {value!r}")
            return None
        if self.config_class is ReplayConfig:
            return _read_replay(value, path, problems)
        num_before, prefix = len(problems), f"{path}." if path else ""
        problems += [UnknownKey(f"{prefix}{name}") for name in value if name not in self.keys]
        missing = [name for name in self.keys if value.get(name, MISSING) == MISSING]
        problems += [f"{prefix}{name}: is missing, say {prefix}{name}=..." for name in missing]
        attributes = {field.name.rstrip("_"): field.name for field in dataclasses.fields(self.config_class)}
        fields = {
            attributes[name]: kind.read(value[name], f"{prefix}{name}", problems)
            for name, kind in self.keys.items()
            if name not in missing
        }
        if len(problems) > num_before:
            return None
        try:
            return self.config_class(**fields)
        except ValueError as error:  # raised if the class refuses a combination of values
            problems.append(str(error) if str(error).startswith(prefix) else f"{path}: {error}")
            return None


def shown(value: Any) -> str:
    """Return a value as a message shows it: texts in quotes, null, true and false as the user types them."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _word_hint(word: str | bool, words: tuple[str, ...]) -> str:
    """Return ' Did you mean X?' for a word that names one of `words` elsewhere, or is similar to it, or ''."""
    other = OTHER_WORDS.get(str(word).lower())
    if other in words:
        return f" Did you mean {other}?"
    return did_you_mean(word, words) if isinstance(word, str) else ""


def _number_hint(path: str, value: Any) -> str:
    """Return '; say KEY=NUMBER' for a number with a unit, such as 100k, 10m (minutes in keys of seconds) or 2GB.

    A list or a range of numbers becomes the command of a sweep.
    """
    if isinstance(value, list) and value:
        return f"; several values are a sweep: drl-train -m {path}={','.join(map(str, value))}"
    if isinstance(value, str) and (ends := re.fullmatch(r"(\d+)(?:\.\.+|-|:)(\d+)", value)):
        return f"; several values are a sweep: drl-train -m '{path}=range({ends[1]},{int(ends[2]) + 1})'"
    match = re.fullmatch(r"([\d.]+) *([a-z]+|%)", value.lower()) if isinstance(value, str) else None
    if match is None:
        return ""
    units = SECONDS if path.endswith("_s") else MEGABYTES if path.endswith("_mb") else FACTORS
    if units is FACTORS and match[2] not in FACTORS and match[2] in {**SECONDS, **MEGABYTES}:
        return f"; {path} {NO_UNIT}: drl-list keys {path}"
    try:
        number = float(match[1]) * units[match[2]]
    except (KeyError, ValueError):
        return ""
    return f"; say {path}={number:.12g}"


def _read_replay(value: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """Return the config of a replay table. `sampler` names its class; if unknown, the class with most of these keys."""
    tables = {name: group_of(sampler) for name, sampler in SAMPLERS.items()}
    fitting = max(tables.values(), key=lambda table: len(table.keys.keys() & value.keys()))
    table = tables.get(str(value.get("sampler")), fitting)
    if value.keys() != table.keys.keys() and any(value.keys() == other.keys.keys() for other in tables.values()):
        problems.append(f"{path}.sampler: say {path}={value['sampler']}, which brings its options along")
        return None
    return table.read(value, path, problems)


def cached(function: F) -> F:
    """Cache a function whose argument is a class, as functools.cache does, but with a type that mypy accepts."""
    return cast(F, cache(function))


@cached
def group_of(config_class: type[Any]) -> Group:
    """Return the keys of a config class with their value types. Raise Unreadable if a type can't be read."""
    name = config_class.__name__
    try:
        hints = get_type_hints(config_class, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:  # raised by a type hint in quotes
        raise Unreadable([f"the types of {name} can't be read: {error}"]) from error
    keys, problems = dict[str, ValueType](), list[str]()
    for field in dataclasses.fields(config_class):
        try:
            keys[field.name.rstrip("_")] = value_type(hints[field.name])
        except Unreadable as error:
            problems += error.problems or [
                f"{name}.{field.name} is {hints[field.name]}; a field can be bool, int, float, str, Literal[...], "
                "tuple[X, ...], Mapping[str, X], a dataclass of these, and X | None"
            ]
    if problems:
        raise Unreadable(problems)
    return Group(("option",), (), config_class, keys)


def value_type(hint: Any, bounds: Any = None) -> ValueType:
    """Return the value type of a type hint. Raise Unreadable if the hint has none. `bounds` come from `Annotated`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = value_type(args[0], args[1] if isinstance(args[1], Range | Texts) else None)
        return OneOf((*kind.forms, "null"), (*kind.words, "null"), (kind, NULL)) if OR_NULL in args else kind
    if origin in (Union, types.UnionType):
        kinds = tuple(map(value_type, args))
        forms, words = (tuple(text for kind in kinds for text in getattr(kind, name)) for name in ("forms", "words"))
        return OneOf(forms, words, kinds)
    if origin is Literal:
        return Choice(words := tuple(map(str, args)), words, args)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        item = value_type(args[0])
        return ListOf((f"[{item.text}, ...]",), (), item)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = value_type(args[1])
        return MappingOf((f"{{name: {item.text}}}",), (), item)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return group_of(hint)
    if isinstance(bounds, Texts) and hint is str:
        return Scalar((*bounds.names, bounds.form), bounds.names, hint, bounds)
    if hint in (int, float):
        return Scalar((f"{hint.__name__} {bounds}" if bounds else hint.__name__,), (), hint, bounds)
    if hint in (bool, str):
        words = ("true", "false") if hint is bool else ()
        return Scalar(words or ("text",), words, hint)
    if hint in (Any, types.NoneType):
        return ValueType() if hint is Any else NULL
    raise Unreadable([])
