"""Runs of a few hundred steps: what they print and record of training, and the warm-up that fits their budget."""

import json
import re

import pytest

MODES = ("single", "sync", "async")


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_that_ended_is_shown_and_recorded(train_here, capsys, mode):
    summary, folder = train_here("env=Pendulum-v1", f"mode={mode}")  # episodes of 20 steps
    assert summary["episodes"] == 8
    (shown,) = re.findall(r"100\.0%  step 160  train return +(\S+)  length +20  ", capsys.readouterr().out)
    means = [line["rollout/return_mean"] for line in lines_of(folder) if "rollout/return_mean" in line]
    assert min(means) - 0.1 < float(shown) < max(means) + 0.1
    (events,) = folder.glob("events.out.tfevents.*")
    assert b"rollout/return_mean" in events.read_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_run_in_which_no_episode_ended_says_so(train_here, capsys, mode):
    train_here("env=Pendulum-v1", f"mode={mode}", "env.max_episode_steps=200")
    out = capsys.readouterr().out
    assert re.search(r"100\.0%  step 160  no episode has ended yet +[\d,]+ env/s +[\d,]+ updates/s  ratio ", out)
    assert "- env/s" not in out
