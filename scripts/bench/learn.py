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
from learn_page import page
from learn_rows import Current, Records, Row, dataset_path, is_offline, overrides

ROOT = Path(__file__).resolve().parents[2]
TABLE, RECORDS, PAGE = Path(__file__).with_suffix(".yaml"), ROOT / "docs/results.json", ROOT / "docs/results.md"
AUTO = ROOT / "conf/auto.json"
UNFINISHED, FINISHED = ROOT / "outputs/learn", ROOT / "outputs/learned"
PEER = Path(__file__).with_name("sb3.py")

COMPOSING = threading.Lock()  # Hydra has one state for all threads


def make_datasets(rows: Iterable[Row], commands: dict[str, list[str]]) -> None:
    """Run the commands of the rows' datasets that are missing. A command that several datasets share runs once."""
    made = set[str]()
    for name in dict.fromkeys(name for row in rows for name in row.get("data", ())):
        if not (ROOT / dataset_path(name)).exists():
            for line in commands[name]:
                tool, *words = line.split()
                if line not in made:
                    run([sys.executable, "-m", f"drl_cli.cli.{tool.removeprefix('drl-')}", *words])
                made.add(line)
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
        found = golden.differences(known[case]["values"], golden.make(case)["values"], case)
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
