"""Allowed values of config fields. Example: `lr: Annotated[float, Range(above=0)]`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Annotated, TypeAlias


@dataclass(frozen=True)
class Range:
    """Bounds of a number: `least` and `most` are inclusive, `above` and `below` are exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return all(holds(value, bound) for bound, _, holds in self._bounds())

    def __str__(self) -> str:
        return " and ".join(f"{sign} {bound:g}" for bound, sign, _ in self._bounds())

    def _bounds(self) -> list[tuple[float, str, Callable[[float, float], bool]]]:
        bounds = [(self.least, ">=", ge), (self.above, ">", gt), (self.most, "<=", le), (self.below, "<", lt)]
        return [(bound, sign, holds) for bound, sign, holds in bounds if bound is not None]


@dataclass(frozen=True)
class NameOrClass:
    """Allows one of `names`, or the import path `my_pkg.my_mod:Class` of a class in the user's code."""

    names: tuple[str, ...]
    form = "my_pkg.my_mod:Class"

    def __contains__(self, value: str) -> bool:
        return value in self.names or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value) is not None

    def __str__(self) -> str:
        names = f"{', '.join(self.names)}, or " if self.names else ""
        return f"{names}a class of yours as my_pkg.my_mod:Class"


@dataclass(frozen=True)
class DeviceName(NameOrClass):
    """Allows one of `names`, or one CUDA device by its number: `cuda:1`."""

    form = "cuda:N"

    def __contains__(self, value: str) -> bool:
        return value in self.names or re.fullmatch(r"cuda:\d+", value) is not None

    def __str__(self) -> str:
        return f"{', '.join(self.names)} or {self.form}"


@dataclass(frozen=True)
class ShortText(NameOrClass):
    """Allows a short text without commas, quotes and brackets, which can be typed and filtered on a command line."""

    form = "short text"

    def __contains__(self, value: str) -> bool:
        return re.fullmatch(r"\w([\w .:/@+=-]{0,58}[\w.:/@+=-])?", value) is not None

    def __str__(self) -> str:
        return "1 to 60 letters, digits, spaces and . : / @ + = - _, and begin with a letter or a digit"


@dataclass(frozen=True)
class FolderPath(NameOrClass):
    """Allows every text that is not empty."""

    form = "text"

    def __contains__(self, value: str) -> bool:
        return bool(value.strip())

    def __str__(self) -> str:
        return "the path of a folder, such as . for this folder"


OR_NULL = "or null"
"""Annotates a field for which files and the command line may also have null. Composing replaces null by a value."""

Count: TypeAlias = Annotated[int, Range(least=1)]
Natural: TypeAlias = Annotated[int, Range(least=0)]
Positive: TypeAlias = Annotated[float, Range(above=0)]
NonNegative: TypeAlias = Annotated[float, Range(least=0)]
Label: TypeAlias = Annotated[str, ShortText(())]
ImportPath: TypeAlias = Annotated[str, NameOrClass(())]
Fraction: TypeAlias = Annotated[float, Range(least=0, most=1)]
