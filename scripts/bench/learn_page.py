"""The text of docs/results.md, from the rows of learn.yaml and the records of docs/results.json."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from learn_rows import Current, Records, Row, dataset_path, words_of

HEAD = """# Results

scripts/bench/learn.py writes this page from scripts/bench/learn.yaml and docs/results.json. Do not edit the page.

The command of a row is `drl-train COMMAND mode=single seed=SEED stop.return=THRESHOLD total_env_steps=BUDGET`, without
`mode=single` if COMMAND contains a mode, without `stop.return` if the row has no threshold, and with `total_updates` in
place of `total_env_steps` if COMMAND contains `mode=offline`. All other values are the defaults of drl-train, including
tuned values. Rows with `sb3` in their name are runs of stable-baselines3 with the values of this command.

A run ends when the mean return of an evaluation reaches the threshold, or when the run has made all environment steps
of its budget. An evaluation that reaches the threshold plays more greedy episodes, up to 120 (Acrobot-v1: 200), to
confirm the mean. The picture below a table shows the evaluations of these runs, drawn by drl-compare. The columns are:

- **row**: the name of the row in learn.yaml, the file with the settings, the budget and the seeds.
- **command**: COMMAND, the words that select the environment and the algorithm, and further words if needed.
- **budget**: environment steps; updates of rows with `mode=offline`.
- **passed**: how many seeds reached the threshold.
- **median return**, **quartiles**, **return per seed**: the best mean return of an evaluation. Rows without a
  threshold show the mean of 100 greedy episodes (MuJoCo: 20) at the end of the run. If learn.yaml sets `scored_from`
  for the row, the row shows the mean of all evaluations (100 episodes each) from this step on.
- **median steps**, **steps per seed**: environment steps until the threshold, or the budget for rows without a
  threshold.
- **seconds per seed**: wall time, on a machine that other programs used too. A line below the table names the runs of
  other machines (scripts/bench/take.py).
- **golden values**: the identity of the golden values of the code that made the row. Golden values are the metrics of
  the first updates of the row's command (scripts/bench/golden.py and golden.json). `old` marks a result whose golden
  values were others than those of this checkout, so that the command would now train in another way. Rows of
  stable-baselines3 have no golden values.

Golden values were introduced after the first 386 runs of drl-cli. The cases of these runs were repeated with the code
of each run or, for 53 runs whose code is in no commit, with the code of the commit that recorded the result.
"""

COLUMNS = """\
| row | command | threshold | budget | passed | median return | quartiles | return per seed | median steps | \
steps per seed | seconds per seed | golden values |"""


def dataset_lines(rows: Iterable[Row], commands: dict[str, list[str]]) -> list[str]:
    """Return the lines that show how the rows' datasets are made, or no lines."""
    names = dict.fromkeys(name for row in rows for name in row.get("data", ()))
    made = [f"- {dataset_path(name)}: `{'; '.join(commands[name])}`" for name in names]
    return ["", "Datasets:", "", *made] if made else []


def page(rows: dict[str, Row], records: Records, current: Current, table: dict[str, dict[str, Any]]) -> str:
    """Return the text of docs/results.md: one table per environment.

    `table["published"]` has a text with published results for some environments, and `table["pictures"]` a picture.
    Both are below the environment's table.
    """
    published, pictures = table.get("published", {}), table.get("pictures", {})
    tables: dict[str, list[str]] = {}
    elsewhere: dict[tuple[str, str], dict[str, list[str]]] = {}  # environment and machine -> row -> seeds
    for name, row in rows.items():
        runs = [records.get(name, {}).get(str(seed)) for seed in row["seeds"]]
        made = [run for run in runs if run is not None]
        if made:
            tables.setdefault(row["env"], []).append(line(name, row, made, current[name]))
            for seed, record in zip(row["seeds"], runs, strict=True):
                if record is not None and "machine" in record:
                    elsewhere.setdefault((row["env"], record["machine"]), {}).setdefault(name, []).append(str(seed))
    lines = [HEAD.rstrip()]
    for env, made in tables.items():
        short = env.rpartition(":")[2]
        lines += ["", f"## {short}", "", COLUMNS, "|---" * 12 + "|", *made]
        for (place, machine), seeds in elsewhere.items():
            if place == env:
                named = ", ".join(f"{name} (seeds {', '.join(own)})" for name, own in seeds.items())
                lines += ["", f"Runs on {machine}: {named}."]
        lines += dataset_lines([row for row in rows.values() if row["env"] == env], table.get("datasets", {}))
        lines += ["", f"Published: {published[env]}"] if env in published else []
        lines += ["", f"![Learning curves on {short}]({pictures[env]})"] if env in pictures else []
    return "\n".join(lines + side_by_side(rows, records, current)) + "\n"


def side_by_side(rows: dict[str, Row], records: Records, current: Current) -> list[str]:
    """Return a table of medians for environments that drl-cli and a peer played with the same budget, or no lines.

    Old records are left out, because they may have been scored differently.
    """
    games: dict[tuple[str, int], dict[str, str]] = {}
    with_peers: set[tuple[str, int]] = set()
    for name, row in rows.items():
        runs = [records.get(name, {}).get(str(seed)) for seed in row["seeds"]]
        returns = [run["return"] for run in runs if run and run["golden"] == current[name]]
        if row["threshold"] is None and returns:
            who = f"{row.get('peer', '')} {row['algo']}".strip()
            game, seeds = (row["env"], row["budget"]), f" ({len(returns)} of {len(row['seeds'])} seeds)"
            cell = f"{np.median(returns):.1f}{seeds if len(returns) < len(row['seeds']) else ''}"
            games.setdefault(game, {}).setdefault(who, cell)
            if "peer" in row:
                with_peers.add(game)
    if not with_peers:
        return []
    sides = list(dict.fromkeys(who for game, made in games.items() if game in with_peers for who in made))
    lines = [
        "",
        "## Side by side",
        "",
        "The table shows median returns of the rows above, except those marked `old`. All rows of an environment have",
        "the same torso, width, batch size, replay and number of updates.",
        "",
    ]
    lines += [f"| environment | env steps | {' | '.join(sides)} |", "|---" * (len(sides) + 2) + "|"]
    for game, made in games.items():
        if game in with_peers:
            lines.append(f"| {game[0]} | {game[1]:,} | {' | '.join(made.get(who, '-') for who in sides)} |")
    return lines


def line(name: str, row: Row, runs: list[Row], current: str | None) -> str:
    returns = [run["return"] for run in runs]
    low, median, high = np.percentile(returns, [25, 50, 75])
    steps = [run["env_steps"] for run in runs]
    passed = sum(step is not None for step in steps)
    middle = sorted(float("inf") if step is None else step for step in steps)[len(steps) // 2]
    reached = f"over {row['budget']:,}" if middle == float("inf") else f"{middle:,}"
    made = {run["golden"] for run in runs} - {None}
    marks = [mark if mark == current else f"{mark} old" for mark in sorted(made)]
    cells = [
        name,
        f"`{' '.join(words_of(row))}`",
        "-" if row["threshold"] is None else f"{row['threshold']}",
        f"{row['budget']:,}",
        "-" if row["threshold"] is None else f"{passed} of {len(row['seeds'])}",
        *(f"{median:.1f}", f"{low:.1f} to {high:.1f}", " / ".join(f"{one:.1f}" for one in returns)),
        *(reached, " / ".join("-" if step is None else f"{step:,}" for step in steps)),
        " / ".join("-" if run["seconds"] is None else f"{run['seconds']}" for run in runs),
        ", ".join(marks) or "-",
    ]
    return f"| {' | '.join(cells)} |"
