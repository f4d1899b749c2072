"""Record runs of learn.yaml's rows that were made on another machine.

    python scripts/bench/take.py FOLDER --machine "one core of a 16-core Xeon"

FOLDER/ROW/SEED is the output_dir of drl-train; ROW is the row's name with - for spaces. The folder of sb3.py is
FOLDER/ROW/SEED/ENV/sb3-ALGO/run. The run needs the row's settings. Finished runs move to outputs/learned, as after
learn.py, and docs/results.json names the machine. Unfinished runs stay where they are.
"""

import argparse
import json
from pathlib import Path

import golden
import learn
import yaml


def take(folder: Path, machine: str) -> None:
    """Record each finished run in the folder."""
    rows = yaml.safe_load(learn.TABLE.read_text())["rows"]
    records: learn.Records = json.loads(learn.RECORDS.read_text())
    current = learn.identities(rows, golden.read())
    for name, row in rows.items():
        for seed in row["seeds"]:
            place = folder / name.replace(" ", "-") / str(seed)
            if not any([*place.glob("*/*/*/state.json"), *place.glob("*/*/*/summary.json")]):
                continue
            record = (learn.result_of_peer if "peer" in row else learn.result)(row, place)
            print(name, seed, record or "is not finished")
            if record is not None:
                learn.keep(place, name, seed)
                records.setdefault(name, {})[str(seed)] = record | {"golden": current[name], "machine": machine}
    learn.RECORDS.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
    learn.write_page()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", required=True)
    args = parser.parse_args()
    take(args.folder, args.machine)
