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


IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


@dataclass(frozen=True)
class Texts:
    """Allows one of `names`, or a text that the regular expression `pattern` matches.

    `form` is such a text as the help shows it, and `advice` describes all allowed texts in errors.
    """

    names: tuple[str, ...]
    form: str
    pattern: str
    advice: str

    def __contains__(self, value: str) -> bool:
        return value in self.names or re.fullmatch(self.pattern, value, re.DOTALL) is not None

    def __str__(self) -> str:
        return self.advice


def name_or_class(*names: str) -> Texts:
    """Allow one of `names`, or the import path `my_pkg.my_mod:Class` of a class in the user's code."""
    listed = f"{', '.join(names)}, or " if names else ""
    return Texts(names, "my_pkg.my_mod:Class", IMPORT_PATH, f"{listed}a class of yours as my_pkg.my_mod:Class")


OR_NULL = "or null"
"""Annotates a field for which files and the command line may also have null. Composing replaces null by a value."""

Count: TypeAlias = Annotated[int, Range(least=1)]
Natural: TypeAlias = Annotated[int, Range(least=0)]
Positive: TypeAlias = Annotated[float, Range(above=0)]
NonNegative: TypeAlias = Annotated[float, Range(least=0)]
Label: TypeAlias = Annotated[
    str,
    Texts(
        (),
        "short text",
        r"\w([\w .:/@+=-]{0,58}[\w.:/@+=-])?",
        "1 to 60 letters, digits, spaces and . : / @ + = - _, and begin with a letter or a digit",
    ),
]
FolderPath: TypeAlias = Annotated[str, Texts((), "text", r".*\S.*", "the path of a folder, such as . for this folder")]
ImportPath: TypeAlias = Annotated[str, name_or_class()]
Fraction: TypeAlias = Annotated[float, Range(least=0, most=1)]
