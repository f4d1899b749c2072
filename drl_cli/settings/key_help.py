"""drl-list keys and drl-train --help GROUP: list keys with their types, ranges, defaults and meanings."""

import dataclasses
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms
from drl_cli.config.config import Config
from drl_cli.errors import UsageError
from drl_cli.replay.config import SAMPLERS
from drl_cli.settings.algorithm import config_class
from drl_cli.settings.build import Key, as_typed, default_values, is_within, keys_of
from drl_cli.settings.command_line import meant
from drl_cli.settings.conf import LOADER, bases, conf_dir, defaults, groups, option_path, option_text, options
from drl_cli.settings.options import parse
from drl_cli.settings.value_types import ValueType, group_of
from drl_cli.utils.spelling import did_you_mean

TOP = "top level"
NARROWEST = 30
"""Minimum width [characters] of the column of meanings. In a narrower terminal, meanings are not wrapped here."""
Entries = dict[str, tuple[str, str]]
"""For each dotted key: the value as written in a yaml, and the comment after the value."""


@dataclass(frozen=True)
class Section:
    """The keys of a group's option, or of the top level. `about` is the first comment of the yaml."""

    title: str
    about: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Options:
    """Options of drl-list keys."""

    format: Literal["text", "markdown"] = "text"


def answer(args: Sequence[str]) -> list[str]:
    """Return the lines that `drl-list keys [GROUP ...] [format=markdown]` prints. Raise UsageError."""
    own = [arg for arg in args if arg.partition("=")[0] not in groups() and "=" in arg]
    found = sections([arg for arg in args if arg not in own])
    return markdown(found) if parse(own, Options).format == "markdown" else text(found)


def sections(topics: Sequence[str]) -> list[Section]:
    """Return the sections for groups, options (`algo.sac`, `algo=sac`) or keys. Without topics, return all sections.

    Several words may also be one name, as in `learning rate`.
    """
    if len(topics) > 1 and (key := meant("_".join(topics))):
        return find(key.partition("=")[0])
    if topics:
        return [section for topic in topics for section in find(topic)]
    top_level = Section(TOP, "", tuple(_keys(read((conf_dir() / "train.yaml").read_text()), keys_of(AlgoConfig))))
    return [top_level, *(section for group in groups() if not is_overlay(group) for section in group_sections(group))]


def is_overlay(group: str) -> bool:
    """Return whether the options of a group only set keys of other groups, as in the group `tuned`."""
    return group not in group_of(Config).keys


def find(topic: str) -> list[Section]:
    """Return the sections that a word names. Raise UsageError, with the most similar name, if there are none."""
    group, _, option = topic.replace("=", ".", 1).partition(".")
    if topic in groups():
        return group_sections(topic)
    if group in groups() and option in options(group):
        return [option_section(group, option)]
    every = sections([])
    found = [(section, tuple(key for key in section.keys if is_within(key.name, [topic]))) for section in every]
    if kept := [dataclasses.replace(section, keys=keys) for section, keys in found if keys]:
        return kept
    named = [(section, tuple(key for key in section.keys if key.name.rpartition(".")[2] == topic)) for section in every]
    if kept := [dataclasses.replace(section, keys=keys) for section, keys in named if keys]:
        return kept
    if topic.startswith("algo="):  # a module of the user
        return [option_section(group, option)]
    words = [key.name for section in every for key in section.keys]
    known = [*groups(), *words, *(f"{name}.{choice}" for name in groups() for choice in options(name))]
    key = meant(topic.lower())
    hint = f" Did you mean {key}?" if key else did_you_mean(topic, known)
    raise UsageError(f"no group or key '{topic}'.{hint}   groups: {', '.join(groups())}")


def group_sections(group: str) -> list[Section]:
    """Return a section for each option of a group.

    The default option lists all keys. Other options, except in `algo` and `tuned`, list only the keys that differ.
    """
    names = options(group)
    if group == "algo" or is_overlay(group):
        return [option_section(group, name) for name in names]
    first = defaults()[group]
    base = option_section(group, first)
    title = group if names == [first] else f"{group}={first} (default)"
    others = [option_section(group, name) for name in names if name != first]
    return [
        dataclasses.replace(base, title=title),
        *(dataclasses.replace(each, keys=tuple(key for key in each.keys if key not in base.keys)) for each in others),
    ]


def option_section(group: str, name: str) -> Section:
    """Return the section with all keys that an option sets, including keys of other groups. Raise UsageError."""
    content, entries, about = option_text(group, name), Entries(), "no yaml, the defaults of its Config"
    if group == "algo" and name not in options("algo"):
        defaults = default_values(config_class(name)) | {"name": name}
        entries = {f"algo.{key}": (as_typed(value), "") for key, value in defaults.items()}
    if content is not None:
        try:
            entries |= _with_bases(content, group)
        except yaml.YAMLError as error:
            raise UsageError(f"{option_path(group, name)}: not readable: {' '.join(str(error).split())}") from error
        comments = [line for line in content.splitlines() if line.startswith("#") and "@package" not in line]
        about = comments[0].lstrip("# ") if comments else ""
    values = {key: value for key, (value, _) in entries.items()}
    algo = values.get("algo.name", name) if name in options("algo") else name
    sampler = values.get("replay.sampler", values.get("replay", ""))
    return Section(f"{group}={name}", about, tuple(_keys(entries, _described(group, algo, sampler))))


def _described(group: str, algo: str, sampler: str) -> dict[str, Key]:
    """Return the keys that an option may set, with their types for this algorithm and sampler."""
    if is_overlay(group):
        return {name: key for each in algorithms() for name, key in keys_of(config_class(each)).items()}
    table = group_of(SAMPLERS[sampler]).keys if sampler in SAMPLERS else {}
    keys = keys_of(config_class(algo) if group == "algo" else AlgoConfig)
    return {**keys, **{f"replay.{name}": Key(f"replay.{name}", kind) for name, kind in table.items()}}


def _keys(entries: Entries, described: Mapping[str, Key]) -> Iterator[Key]:
    for name, (value, comment) in entries.items():
        yield dataclasses.replace(described.get(name, Key(name, ValueType())), default=value, help=comment)


def read(content: str) -> Entries:
    """Return the entries of a yaml's text without its `defaults`."""
    root, lines = yaml.compose(content, Loader=LOADER), content.splitlines()

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, tuple[str, str]]]:
        for key, value in node.value:
            if isinstance(value, yaml.MappingNode) and not value.flow_style:
                yield from walk(value, f"{prefix}{key.value}.")
            elif prefix + key.value != "defaults":
                written = content[value.start_mark.index : value.end_mark.index]
                behind = lines[value.end_mark.line][value.end_mark.column :]
                yield prefix + key.value, (written.strip('"'), behind.partition("#")[2].strip())

    return dict(walk(root, "")) if isinstance(root, yaml.MappingNode) else {}


def _with_bases(content: str, group: str) -> Entries:
    node = yaml.load(content, LOADER) or {}
    texts = [base for name in bases(node) if (base := option_text(group, name)) is not None]
    entries = {key: entry for base in texts for key, entry in _with_bases(base, group).items()}
    chosen = [entry for entry in node.get("defaults", []) if isinstance(entry, dict)]
    for key, value in (pair for entry in chosen for pair in entry.items()):
        entries[key.removeprefix("override /")] = (str(value), "the algorithm's default option of this group")
    prefix = "" if "# @package _global_" in content else f"{group}."
    return entries | {prefix + key: entry for key, entry in read(content).items()}


def text(found: Sequence[Section]) -> list[str]:
    """Return one line per key, in aligned columns. On a terminal, wrap the meanings.

    The last column names the option that sets the key, if the list has several options of the key's group, so that
    each line can be read alone, for example after a grep.
    """
    rows = [(key.name, key.type.text, key.default) for section in found for key in section.keys]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    widths = [min(width, most) for width, most in zip(widths, (40, 32, 24), strict=False)]
    room = shutil.get_terminal_size().columns - sum(widths) - 8 if sys.stdout.isatty() else 0
    titles = Counter(section.title.partition("=")[0] for section in found)
    lines: list[str] = []
    for section in found:
        lines += ["", f"{section.title}   {section.about}".rstrip()]
        for key in section.keys:
            cells = zip((key.name, key.type.text, key.default), widths, strict=True)
            start = "  " + "  ".join(cell.ljust(width) for cell, width in cells) + "  "
            option = f" [{section.title}]" if titles[section.title.partition("=")[0]] > 1 else ""
            wrapped = textwrap.wrap(key.help + option, room) if room >= NARROWEST else [key.help + option]
            lines.append((start + (wrapped or [""])[0]).rstrip())
            lines += [" " * (sum(widths) + 8) + line for line in wrapped[1:]]
    return lines[1:]


def markdown(found: Sequence[Section]) -> list[str]:
    """Return the lines of docs/reference.md, with a table per section."""
    lines = [
        "# The reference of keys",
        "",
        "Every key of `drl-train`. These commands show the same: `drl-list keys`, `drl-list keys worker`, "
        "`drl-train --help algo.sac`.",
        "This page is written by `drl-list keys format=markdown > docs/reference.md`.",
    ]
    for section in found:
        lines += ["", f"## {section.title}", ""]
        lines += [_escaped(section.about), ""] if section.about else []
        lines += ["| key | type and range | default | meaning |", "|---|---|---|---|"]
        for key in section.keys:
            lines.append(f"| `{key.name}` | `{key.type.text}` | `{key.default}` | {_escaped(key.help)} |")
    return lines


def _escaped(line: str) -> str:
    """Return the text of a terminal as markdown, with links to pages of docs."""
    for letter in "\\|*":
        line = line.replace(letter, f"\\{letter}")
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](\1)", line.replace("<", "&lt;"))
