"""Parse the part of Hydra's grammar that is needed before Hydra is imported: lists of values, quotes, escapes."""

import re
from collections.abc import Sequence

FUNCTION = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(.*\)", re.DOTALL)
"""A function call that stands for several values."""
PROSE = ("notes",)
"""Keys whose whole value is one text, with all its commas, quotes and brackets."""
OPEN, CLOSE = "([{", ")]}"


def parts(value: str) -> list[str]:
    """Split the values of a sweep, `a,b`, at commas outside quotes and brackets."""
    found, depth, quote, escaped = [""], 0, "", False
    for letter in value:
        if escaped or letter == "\\":
            escaped = not escaped
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in OPEN:
            depth += 1
        elif letter in CLOSE:
            depth -= 1
        elif letter == "," and depth == 0:
            found.append("")
            continue
        found[-1] += letter
    return found


def listed(value: str) -> list[str]:
    """Return the texts of a list, `[a,b]`, or of a value that is no list, this value alone."""
    items = parts(value[1:-1]) if value[:1] == "[" and value[-1:] == "]" else [value]
    return [unquoted(item.strip()) for item in items if item.strip()]


def is_sweep(value: str) -> bool:
    """Return whether a value stands for several values."""
    return len(parts(value)) > 1 or FUNCTION.fullmatch(value) is not None


def typed_keys(words: Sequence[object]) -> set[str]:
    """Return the keys of the words `key=value` of a command, as a run's run.json keeps them."""
    return {word.lstrip("+").partition("=")[0] for word in words if isinstance(word, str)}


def is_open(value: str) -> bool:
    """Return whether a value has an unclosed quote or bracket."""
    plain = re.sub(r"\\.|'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"", "", value)
    return any(plain.count(one) != plain.count(other) for one, other in zip(OPEN, CLOSE, strict=True)) or bool(
        set("'\"") & set(plain)
    )


def unquoted(value: str) -> str:
    """Return a value without its quotes or backslashes."""
    if value[:1] in ("'", '"') and value[-1:] == value[0]:
        return value[1:-1].replace(f"\\{value[0]}", value[0])
    return re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", value)
