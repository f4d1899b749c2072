"""Train every row of learn.yaml and write docs/results.md.

    python scripts/bench/learn.py [--row NAME ...] [--again] [--jobs 2] [--minutes 8] [--piece 8] [--peers PEERS_VENV]
    python scripts/bench/learn.py --draw

Every seed of a row is one run of drl-train. The run ends when an evaluation reaches the row's threshold (stop.return)
or when the budget is used up. A row without a threshold scores the last evaluation, or with `scored_from` the mean of
all evaluations from that step on, because the score of a single evaluation depends on chance. `--piece` stops a run
after some minutes, and the next call continues the run from outputs/learn. A row with `peer: sb3` runs
stable-baselines3 with the same settings (sb3.py) and needs --peers.

conf/auto.json has the results from which algo=auto chooses.

A row with `data` learns from datasets (mode=offline, where the budget counts updates), whose commands are in
`datasets` of learn.yaml. Missing datasets are made first, in outputs/data.

A finished run moves to outputs/learned, without its checkpoints. `--draw` runs drl-compare on these runs and writes the
pictures that learn.yaml names (`pictures`), one per environment, for environments with runs in outputs/learned.

docs/results.json keeps one record per run, with the identity of the golden values of its command (golden.py). A record
is shown as old if these golden values have changed since, and `--again` repeats the run. A row needs golden values that
fit the code: after a change on purpose, or for a new row, first call golden.py --write.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))
import golden
from alternate import peer_python
from golden_cases import command, flat

ROOT = Path(__file__).resolve().parents[2]
TABLE, RECORDS, PAGE = Path(__file__).with_suffix(".yaml"), ROOT / "docs/results.json", ROOT / "docs/results.md"
AUTO = ROOT / "conf/auto.json"
UNFINISHED, FINISHED = ROOT / "outputs/learn", ROOT / "outputs/learned"
PEER = Path(__file__).with_name("sb3.py")

HEAD = """# Results

scripts/bench/learn.py writes this page from scripts/bench/learn.yaml and docs/results.json. Do not edit the page.

The command of a row is `drl-train COMMAND mode=single seed=SEED stop.return=THRESHOLD total_env_steps=BUDGET`, without
`mode=single` if COMMAND contains a mode, without `stop.return` if the row has no threshold, and with `total_updates`
in place of `total_env_steps` if COMMAND contains `mode=offline`. All other values are
the defaults of drl-train, including tuned values. Rows with `sb3` in their name are runs of stable-baselines3 with the
values of this command.

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

COMPOSING = threading.Lock()  # Hydra has one state for all threads
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


def make_datasets(rows: Iterable[Row], commands: dict[str, list[str]]) -> None:
    """Run the commands of the rows' datasets that are missing. A command that several datasets share runs once."""
    made = set[str]()
    for name in dict.fromkeys(name for row in rows for name in row.get("data", ())):
        if not (ROOT / dataset_path(name)).exists():
            for command in commands[name]:
                tool, *words = command.split()
                if command not in made:
                    run([sys.executable, "-m", f"drl_cli.cli.{tool.removeprefix('drl-')}", *words])
                made.add(command)
            print(dataset_path(name), flush=True)


def identities(rows: dict[str, Row], values: golden.Golden) -> Current:
    """Return the identity of each row's golden values. Rows of a peer, and rows without golden values, have None."""
    return {name: None if "peer" in row else values.get(command(row), {}).get("identity") for name, row in rows.items()}


def made_old(before: golden.Golden, after: golden.Golden) -> list[str]:
    """Return the rows whose results become old if the golden values change."""
    rows: dict[str, Row] = yaml.safe_load(TABLE.read_text())["rows"]
    records: Records = json.loads(RECORDS.read_text())
    first, second = identities(rows, before), identities(rows, after)

    def becomes_old(name: str) -> bool:
        made = {record["golden"] for record in records.get(name, {}).values()}
        return first[name] in made and first[name] != second[name]

    return [name for name in rows if becomes_old(name)]


def check_golden(row: Row) -> None:
    """Raise SystemExit if the golden values of the row's command do not fit the code."""
    case, known = command(row), golden.read()
    found: Sequence[object] = ["no golden values yet"]
    if case in known:
        found = golden.differences(known[case]["values"], golden.make(case)["values"])
    if found:
        raise SystemExit(f'{case}: {found[0]}\nFirst call: python scripts/bench/golden.py --write "{case}"')


def due(rows: dict[str, Row], records: Records, current: Current, again: bool) -> list[tuple[str, int]]:
    """Return row and seed of the missing runs, and with `again` of the old runs."""

    def is_due(name: str, seed: int) -> bool:
        record = records.get(name, {}).get(str(seed))
        return record is None or (again and record["golden"] != current[name])

    return [(name, seed) for name, row in rows.items() for seed in row["seeds"] if is_due(name, seed)]


def play(row: Row, common: list[str], seed: int, folder: Path, piece: float) -> Row | None:
    """Return a record, or None if the run is not finished and can continue from the folder."""
    begun = next(folder.glob("*/*/*/run.json"), None)
    values = [f"resume={begun.parent}"] if begun else [*overrides(row, common), f"seed={seed}", f"output_dir={folder}"]
    if row["threshold"] is not None and not begun:
        values.append(f"stop.return={row['threshold']}")
    if piece < float("inf"):
        values.append(f"stop.wall_s={60 * piece}")
    run([sys.executable, "-m", "drl_cli.cli.train", *values])
    return result(row, folder)


def result(row: Row, folder: Path) -> Row | None:
    """Return the record of the run in the folder, or None if it is not finished."""
    summary = json.loads(next(folder.glob("*/*/*/summary.json")).read_text())
    steps, seconds = summary["time_to_return_env_steps"], summary["time_to_return_s"]
    unit = "opt_steps" if is_offline(row) else "env_steps"
    if steps is None and summary[unit] < row["budget"]:
        return None
    if row["threshold"] is None:
        evaluations = list(csv.DictReader(next(folder.glob("*/*/*/eval.csv")).open()))
        start = row.get("scored_from") or int(evaluations[-1][unit])
        returns = [float(one["mean"]) for one in evaluations if int(one[unit]) >= start]
        return scored(returns, summary[unit], summary["wall_s"])
    return {"return": round(summary["best_return"], 1), "env_steps": steps, "seconds": seconds and round(seconds)}


def play_peer(row: Row, common: list[str], seed: int, folder: Path, piece: float, peers: Path) -> Row | None:
    """Do the same with stable-baselines3."""
    from drl_cli.settings.build import to_yaml_keys
    from drl_cli.settings.compose import compose

    place = place_of_peer(row, folder)
    place.mkdir(parents=True, exist_ok=True)
    with COMPOSING:
        settings = to_yaml_keys(compose(overrides(row, common)))
    (place / "settings.json").write_text(json.dumps(settings))
    name = f"{row['algo']} of stable-baselines3"  # for drl-compare, which also reads eval.csv and run.json
    (place / "config.yaml").write_text(yaml.safe_dump({**settings, "seed": seed, "name": name}))
    given = (peer_python(peers), PEER, place / "settings.json", place, "--seed", seed, "--minutes", piece)
    run([str(part) for part in given])
    return result_of_peer(row, folder)


def place_of_peer(row: Row, folder: Path) -> Path:
    """Return the folder of stable-baselines3's run, which is three levels deeper, as drl-train's."""
    return folder / row["env"] / f"{row['peer']}-{row['algo']}" / "run"


def result_of_peer(row: Row, folder: Path) -> Row | None:
    """Return the record of stable-baselines3's run in the folder, or None if it is not finished."""
    place = place_of_peer(row, folder)
    done = json.loads((place / "state.json").read_text())
    start = row.get("scored_from") or row["budget"]
    returns = [one["mean"] for one in done["evaluations"] if one["env_steps"] >= start]
    if done["env_steps"] < row["budget"]:
        return None
    (place / "run.json").write_text(json.dumps({"status": "done"}))
    return scored(returns, done["env_steps"], done["seconds"])


def scored(returns: list[float], env_steps: int, seconds: float) -> Row:
    """Return the record of a finished run."""
    return {"return": round(float(np.mean(returns)), 1), "env_steps": env_steps, "seconds": round(seconds)}


def run(command: list[str]) -> str:
    """Return the output of a command. Raise SystemExit if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def keep(folder: Path, name: str, seed: int) -> None:
    """Move a finished run to outputs/learned without its checkpoints, and replace an earlier run of this seed."""
    kept = FINISHED / name.replace(" ", "-") / str(seed)
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, kept)
    for checkpoints in kept.glob("*/*/*/checkpoints"):
        shutil.rmtree(checkpoints)


def draw(pictures: dict[str, str], lines: dict[str, list[str]]) -> None:
    """Draw the picture of each environment that has finished runs. `lines` is drl-compare's option, by environment."""
    for env, file in pictures.items():
        runs = FINISHED / "*/*" / env / "*/*"
        if any(FINISHED.glob(f"*/*/{env}/*/*/run.json")):
            words = [
                f"runs=[{runs}]",
                f"png={PAGE.parent / file}",
                "csv=null",
                f"lines=[{','.join(lines.get(env, []))}]",
            ]
            run([sys.executable, "-m", "drl_cli.cli.compare", *words])
            print(file, flush=True)


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


def auto(rows: dict[str, Row], records: Records) -> str:
    """Return the text of conf/auto.json, from which algo=auto chooses (drl_cli.runs.auto.py).

    The results are those of rows that name only env, algo, mode and evaluations. With a threshold, every recorded seed
    has to reach it. A row without a threshold counts only if no row of its environment has one. A row that names a mode
    counts only if there is no other row of its environment and algorithm.
    """
    plain: list[dict[str, Any]] = []
    with_mode: list[dict[str, Any]] = []
    has_threshold = {row["env"] for row in rows.values() if row["threshold"] is not None}
    for name, row in rows.items():
        words = [*flat(row["overrides"])]
        own = [
            word for word in words if not word.startswith(("mode=", "worker.num=", "manage.", "logger.", "checkpoint."))
        ]
        has_mode = any(word.startswith("mode=") for word in words)
        runs = [records.get(name, {}).get(str(seed)) for seed in row["seeds"]]
        made = [run for run in runs if run is not None]
        if "data" in row or (row["threshold"] is None and row["env"] in has_threshold):
            continue
        is_passed = row["threshold"] is None or all(
            run["return"] >= row["threshold"] and run["env_steps"] is not None for run in made
        )
        if own or "peer" in row or ":" in row["env"] or not made or not is_passed:
            continue
        medians = {key: float(np.median([run[key] for run in made])) for key in ("env_steps", "return", "seconds")}
        result = {key: row[key] for key in ("env", "algo", "threshold")} | {"seeds": len(made)}
        result |= {"steps": int(medians["env_steps"]), "return": medians["return"], "seconds": medians["seconds"]}
        (with_mode if has_mode else plain).append(result)
    known = {(result["env"], result["algo"]) for result in plain}
    found = plain + [result for result in with_mode if (result["env"], result["algo"]) not in known]
    return "[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n"


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


def write_page() -> None:
    """Write docs/results.md and conf/auto.json."""
    table, records = yaml.safe_load(TABLE.read_text()), json.loads(RECORDS.read_text())
    PAGE.write_text(page(table["rows"], records, identities(table["rows"], golden.read()), table))
    AUTO.write_text(auto(table["rows"], records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="several may be given; all")
    parser.add_argument("--again", action="store_true", help="make old records anew")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--piece", type=float, default=float("inf"), help="minutes after which a run stops for now")
    parser.add_argument("--peers", type=Path, help="virtual environment of the peers (requirements.txt)")
    parser.add_argument("--draw", action="store_true", help="draw the pictures from outputs/learned, and run nothing")
    args = parser.parse_args()
    args.peers = args.peers and args.peers.absolute()
    os.chdir(ROOT)
    table = yaml.safe_load(TABLE.read_text())
    if args.draw:
        draw(table.get("pictures", {}), table.get("lines", {}))
        return
    rows: dict[str, Row] = table["rows"]
    if unknown := set(args.row or ()) - set(rows):
        raise SystemExit(f"no row {', '.join(sorted(unknown))} in {TABLE.name}; it has: {', '.join(rows)}")
    records: Records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    current = identities(rows, golden.read())
    wanted = {name: row for name, row in rows.items() if args.row is None or name in args.row}
    wanted = {name: row for name, row in wanted.items() if args.peers or "peer" not in row}
    until = time.monotonic() + 60 * args.minutes

    def make(job: tuple[str, int]) -> None:
        name, seed = job
        if time.monotonic() > until:
            return
        folder = UNFINISHED / f"{name.replace(' ', '-')}-{current[name]}" / str(seed)
        given = (rows[name], table["common"], seed, folder, args.piece)
        record = play_peer(*given, args.peers) if "peer" in rows[name] else play(*given)
        if record is None:
            print(name, seed, "goes on with the next call", flush=True)
            return
        keep(folder, name, seed)
        record["golden"] = current[name]
        print(name, seed, record, flush=True)
        if RECORDS.exists():
            latest = json.loads(RECORDS.read_text())  # another that runs beside may have added some, or dropped them
            records.clear()
            records.update(latest)
        records.setdefault(name, {})[str(seed)] = record
        RECORDS.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
        write_page()

    jobs = due(wanted, records, current, args.again)
    for name in dict.fromkeys(name for name, _ in jobs if "peer" not in rows[name]):
        check_golden(rows[name])
    make_datasets((rows[name] for name, _ in jobs), table.get("datasets", {}))
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(make, jobs))
    write_page()


if __name__ == "__main__":
    main()
