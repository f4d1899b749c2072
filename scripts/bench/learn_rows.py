"""The rows of learn.yaml: their types, and the words of their commands."""

from typing import Any

from golden_cases import flat

Row = dict[str, Any]
Records = dict[str, dict[str, Row]]  # row -> seed -> record
Current = dict[str, str | None]  # row -> identity of its golden values


def overrides(row: Row, common: list[str]) -> list[str]:
    own = list(flat(row["overrides"]))
    keys = {one.partition("=")[0] for one in own}
    shared = [one for one in common if one.partition("=")[0] not in keys]
    total = "total_updates" if is_offline(row) else "total_env_steps"
    return [*words_of(row)[:2], *shared, f"{total}={row['budget']}", *data_word(row), *own]


def is_offline(row: Row) -> bool:
    return "mode=offline" in flat(row["overrides"])


def words_of(row: Row) -> list[str]:
    """Return the words of the row's command, without those that all rows share."""
    return [f"env={row['env']}", f"algo={row['algo']}", *data_word(row), *flat(row["overrides"])]


def data_word(row: Row) -> list[str]:
    """Return the word for the row's datasets, or nothing."""
    paths = [dataset_path(name) for name in row.get("data", ())]
    return [f"data={paths[0]}" if len(paths) == 1 else f"data=[{','.join(paths)}]"] if paths else []


def dataset_path(name: str) -> str:
    """Return the path of a dataset of learn.yaml, from the folder of the repository."""
    return f"outputs/data/{name}.npz"
