"""Reads and checks checkpoints, scores and curves of a run's folder."""

import csv
import json
from collections import defaultdict

from drl_cli.run_folder.checkpoint import COUNTERS, open_checkpoint, read_manifest


def eval_steps(folder):
    path = folder / "eval.csv"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [int(row["env_steps"]) for row in csv.DictReader(line for line in lines if line.endswith("\n"))]


def metrics_steps(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["env_steps"] for line in lines if line.endswith("\n")]


def tensorboard_steps(folder):
    """Return the environment steps of each curve's points, in the order in which TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    steps = defaultdict(list)
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name != "hparams":
                    steps[value.tag].append(event.step)
    return steps


def check_checkpoints(folder):
    """Check that all checkpoints can be read and match their sha256. Return their environment steps."""
    import hashlib

    steps = []
    for path in sorted((folder / "checkpoints").glob("step_*")):
        manifest = read_manifest(path)
        for name, sha256 in manifest["sha256"].items():
            assert hashlib.sha256((path / name).read_bytes()).hexdigest() == sha256, path / name
        if not path.name.endswith("-best"):
            is_whole = COUNTERS in manifest["sha256"]  # otherwise a full disk has left only the model
            steps.append(open_checkpoint(path).env_steps if is_whole else manifest["env_steps"])
    return steps


def check_curves(folder):
    rows = eval_steps(folder)
    assert rows == sorted(set(rows))
    assert metrics_steps(folder) == sorted(metrics_steps(folder))
    curves = tensorboard_steps(folder)
    assert "eval/return_mean" in curves
    for tag, steps in curves.items():
        assert steps == sorted(steps), tag
    assert curves["eval/return_mean"] == rows
