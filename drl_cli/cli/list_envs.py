"""drl-list envs: a line per environment: whether it runs here or what to install, whence it is, tuned values."""

from collections.abc import Sequence

import yaml

from drl_cli.errors import UsageError
from drl_cli.settings.conf import conf_dir, options


def answer(args: Sequence[str]) -> list[str]:
    """What `drl-list envs` prints: those of conf/env first; raises UsageError where it is given options."""
    if args:
        raise UsageError(f"drl-list envs takes no options, got {' '.join(args)}")
    from drl_cli.envs.catalog import entries, missing_package  # it imports gymnasium

    found = entries()
    needed_by = {entry.id: entry.missing for entry in found}
    ids = {name: yaml.safe_load((conf_dir() / "env" / f"{name}.yaml").read_text())["id"] for name in options("env")}
    for id in ids.values():
        if package := missing_package(id):
            needed_by[id] = package.install
    rows = [(name, needed_by.get(id), f"conf/env, {id}") for name, id in ids.items()]
    rows += [(entry.id, entry.missing, entry.family) for entry in found]
    width = max(len(name) for name, *_ in rows)
    tuned = _tuned()
    lines = []
    for name, needed, notes in rows:
        status = "runs   " if needed is None else "missing"
        install = "" if needed is None else f": pip install '{needed}'"
        lines.append(f"{name:<{width}}  {status}  {notes}{install}{tuned.get(name, '')}")
    return lines


def _tuned() -> dict[str, str]:
    """By environment, `; tuned for ppo, sac`."""
    sets = [name.partition("-") for name in options("tuned") if name != "none"]
    return {env: f"; tuned for {', '.join(algo for algo, _, other in sets if other == env)}" for _, _, env in sets}
