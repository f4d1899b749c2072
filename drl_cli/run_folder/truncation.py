"""Remove what a run recorded after the checkpoint from which it resumes, so that no curve goes backwards.

A resume cuts the records of a run (metrics.jsonl, eval.csv, event files, videos) at its checkpoint. Before, it links
the records into the folder `.resume` of the run, where they have numbers as names, so that TensorBoard ignores them.
If the run is killed before its first new checkpoint, the next resume can still continue from every checkpoint.
"""

import csv
import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath

from drl_cli.run_folder.checkpoint import COUNTERS, Checkpoint, point
from drl_cli.run_folder.pruning import checkpoints, newer, remove_drafts, repair_best
from drl_cli.utils.files import link, remove_folder, replace_file, sync_folder
from drl_cli.utils.run_clock import RunClock, Unit

METRICS, EVALUATIONS, EVENTS, VIDEOS = "metrics.jsonl", "eval.csv", "events.out.tfevents.*", "videos/eval_*[0-9].gif"
PATTERNS = METRICS, EVALUATIONS, EVENTS, VIDEOS
FOLDER, LIST = ".resume", "resume.json"
HEAD, FOOT = struct.calcsize("<QI"), struct.calcsize("<I")
"""Bytes of a TFRecord before its data (length, checksum) and after its data (checksum)."""


def record_files(run: Path) -> list[Path]:
    """Return the files to which a run appends its results, and its videos."""
    return [path for pattern in PATTERNS for path in sorted(run.glob(pattern))]


def is_record(name: str) -> bool:
    """Return whether a path, relative to a run's folder, is one of `record_files`."""
    parts = PurePath(name).parts
    return any(PurePath(name).match(each) and len(parts) == len(PurePath(each).parts) for each in PATTERNS)


@dataclass(frozen=True)
class Cut:
    """A position of a run's clock, which counts in `unit`. Records after it are removed.

    Evaluations are kept up to `eval_position`. Damaged records are removed, too: a kill or a power cut may leave half a
    record or random bytes.
    """

    position: int
    eval_position: int
    unit: Unit = "env_steps"

    def apply(self, run: Path) -> list[str]:
        """Cut all records of a run. Return a line for each file with damaged records."""
        problems = []
        for path in record_files(run):
            if path.match(VIDEOS):
                if int(path.stem.removeprefix("eval_")) > self.eval_position:
                    path.unlink()
                continue
            content = path.read_bytes()
            try:
                kept, num_damaged = self._cut(path.name, content)
            except (ValueError, csv.Error):
                aside = path.rename(path.with_name(f"{path.name}.damaged"))
                problems.append(f"{path.name}: the first line is damaged; the file is now {aside.name}")
                continue
            if num_damaged:
                problems.append(f"{path.name}: {num_damaged} damaged record{'s' * (num_damaged > 1)} skipped")
            if kept != content:
                replace_file(path, kept)
        return problems

    def _cut(self, name: str, content: bytes) -> tuple[bytes, int]:
        """Return the records to keep, and the number of damaged ones. Raise ValueError for a csv file without head."""
        read = {METRICS: self._lines, EVALUATIONS: self._rows}.get(name, self._events)
        kept, num_damaged = list[bytes](), 0
        for record, position, last in read(content):
            num_damaged += position is None
            if position is not None and position <= last:
                kept.append(record)
        return b"".join(kept), num_damaged

    def _lines(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each line, its position, or None if it is damaged, and the last position to keep."""
        for line in content.splitlines(keepends=True):
            yield line, json_position(line, self.unit), self.position

    def _rows(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each row as `_lines` does. A row has as many cells as the first line."""
        if not content:
            return
        head, *lines = content.splitlines(keepends=True)
        names = next(csv.reader([head.decode()]))
        column = names.index(self.unit)
        yield head, 0, 0
        for line in lines:
            cells = line.split(b",")
            is_whole = line.endswith(b"\n") and len(cells) == len(names) and re.fullmatch(rb"-?\d+", cells[column])
            yield line, int(cells[column]) if is_whole else None, self.eval_position

    def _events(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each event as `_lines` does. Without the length of an event, the rest of the file can't be read."""
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event

        start = 0
        while start < len(content):
            head = content[start : start + HEAD]
            end = start + HEAD + struct.unpack("<QI", head)[0] + FOOT if len(head) == HEAD else len(content) + 1
            try:
                event = Event.FromString(content[start + HEAD : end - FOOT]) if end <= len(content) else None
            except DecodeError:
                event = None
            is_evaluation = event and any(value.tag.startswith("eval/") for value in event.summary.value)
            last = self.eval_position if is_evaluation else self.position
            yield content[start:end], event and event.step, last
            start = end


def json_position(line: bytes, unit: Unit) -> int | None:
    """Return the position in a line of metrics.jsonl, or None if the line is damaged."""
    try:
        position = json.loads(line)[unit] if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None
    return position if isinstance(position, int) else None


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


def left_behind(run: Path) -> LeftBehind | None:
    """Return what the last resume left behind, or None if a checkpoint was saved since."""
    try:
        found = LeftBehind(**json.loads((run / FOLDER / LIST).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if all(map(is_record, found.records)) else None


def cut_back(run: Path, checkpoint: Checkpoint | None, clock: RunClock) -> list[str]:
    """Cut the records of a run at the checkpoint from which it resumes. Let `last` point to the checkpoint.

    Return a line for each file with damaged records, and for a damaged best model. All checkpoints, and what is cut,
    are kept until the run has saved a new checkpoint: a run that is killed before can resume from each of them.
    Evaluations of later versions than the checkpoint's are cut, too. In mode=async, such a version may be of the same
    position as the checkpoint.
    """
    root, base, cut = run / "checkpoints", Path(), Cut(-1, -1, clock.unit)
    if checkpoint is not None:
        base, unfinished = checkpoint.folder, checkpoint.unfinished
        evaluated = clock.of(unfinished) - 1 if unfinished else clock.of(checkpoint.params_header)
        cut = Cut(clock.of(checkpoint), evaluated, clock.unit)
        if base.name != "last":  # not a link in a copy of a run
            point(root, "last", base)
    remove_drafts(root)
    for path in run.glob(".*.[0-9]*"):  # half-written files of killed processes, see `replace_file`
        if path.is_file() and (run / path.stem[1:]).exists():
            path.unlink()
    lines = repair_best(root)
    names = [path.name for path in checkpoints(root) if (path / COUNTERS).exists()]  # not a model alone
    left, behind = left_behind(run), [path.name for path in newer(root, base)]
    if left is None or not set(names) <= set(left.steps):  # the run was killed right after a new checkpoint
        left = _keep(run, LeftBehind(base.name, names, behind, {}))
    if left.base != base.name:  # the previous resume was from another checkpoint, and may have cut more
        for path in record_files(run):
            if str(path.relative_to(run)) not in left.records:  # the previous resume wrote it
                path.unlink()
        for number, (name, size) in enumerate(left.records.items()):
            content = (run / FOLDER / str(number)).read_bytes()[:size]
            (run / name).parent.mkdir(exist_ok=True)
            replace_file(run / name, content)
    lines += cut.apply(run)
    replace(left, base=base.name, behind=behind).write(run / FOLDER)
    return lines


def _keep(run: Path, left: LeftBehind) -> LeftBehind:
    """Keep the records of a run. Return `left` with their sizes."""
    folder, draft, records = run / FOLDER, run / f"{FOLDER}.draft", dict[str, int]()
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for number, path in enumerate(record_files(run)):
        if not link(path, draft / str(number)):
            shutil.copyfile(path, draft / str(number))
        records[str(path.relative_to(run))] = path.stat().st_size
    left = replace(left, records=records)
    left.write(draft)
    remove_kept(run)
    draft.rename(folder)
    sync_folder(run)
    return left


def remove_kept(run: Path) -> None:
    """Remove the records that the last resume kept, but not its checkpoints."""
    if (run / FOLDER).exists():
        remove_folder(run / FOLDER)


def remove_left_behind(root: Path) -> None:
    """Remove what the last resume left behind: its kept records, and the checkpoints that it no longer needs."""
    if (left := left_behind(root.parent)) is not None:
        for path in checkpoints(root):
            if path.name in left.behind:
                remove_folder(path)
        remove_kept(root.parent)
