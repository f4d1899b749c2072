"""LeftBehind: the records and checkpoints that a resume leaves behind. They are kept until the first new checkpoint.

A resume cuts the records of a run (metrics.jsonl, eval.csv, event files, videos) at its checkpoint. Before, it links
the records into the folder `.resume` of the run, where they have numbers as names, so that TensorBoard ignores them.
If the run is killed before its first new checkpoint, the next resume can still continue from every checkpoint.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from drl_cli.metrics.truncate import Cut, is_record, record_files
from drl_cli.utils.files import link, remove_folder, replace_file, sync_folder

FOLDER, LIST = ".resume", "resume.json"


@dataclass(frozen=True)
class LeftBehind:
    """The content of resume.json. `records` has the size in bytes of each record, which other processes may append to.

    `base` is the checkpoint from which the run resumed, "" for none. `steps` are all checkpoints at this moment, and
    `behind` are those that the run no longer needs after its first new checkpoint.
    """

    base: str
    steps: list[str]
    behind: list[str]
    records: Mapping[str, int]

    def write(self, folder: Path) -> None:
        replace_file(folder / LIST, json.dumps(asdict(self)).encode())


def read(run: Path) -> LeftBehind | None:
    """Return what the last resume left behind, or None if a checkpoint was saved since."""
    try:
        found = LeftBehind(**json.loads((run / FOLDER / LIST).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if all(map(is_record, found.records)) else None


def keep(run: Path, base: str, steps: list[str], behind: list[str]) -> LeftBehind:
    """Keep the records of a run that resumes from the checkpoint `base`. Return what is kept.

    If the previous resume has not saved a checkpoint, what this resume kept stays.
    """
    if (found := read(run)) is not None:
        return found
    folder, draft = run / FOLDER, run / f"{FOLDER}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    records = {}
    for number, path in enumerate(record_files(run)):
        if not link(path, draft / str(number)):
            shutil.copyfile(path, draft / str(number))
        records[str(path.relative_to(run))] = path.stat().st_size
    found = LeftBehind(base, steps, behind, records)
    found.write(draft)
    if folder.exists():  # its list is damaged
        remove_folder(folder)
    draft.rename(folder)
    sync_folder(run)
    return found


def cut_records(run: Path, base: str, behind: list[str], cut: Cut) -> list[str]:
    """Cut the records of a run. Return a line for each record with damaged lines. `keep` must have been called before.

    The kept records are cut if the previous resume was from another checkpoint: it may have cut more.
    """
    left = read(run)
    assert left is not None
    if left.base != base:
        for path in record_files(run):
            if str(path.relative_to(run)) not in left.records:  # the previous resume wrote it
                path.unlink()
        for number, (name, size) in enumerate(left.records.items()):
            content = (run / FOLDER / str(number)).read_bytes()[:size]
            (run / name).parent.mkdir(exist_ok=True)
            replace_file(run / name, content)
    problems = cut.apply(run)
    replace(left, base=base, behind=behind).write(run / FOLDER)
    return problems


def forget(run: Path) -> None:
    """Remove what the last resume left behind, but not its checkpoints."""
    if (run / FOLDER).exists():
        remove_folder(run / FOLDER)
