"""What drl-train prints for each `console=`, and what it leaves when it does not come to train."""

import json

import pytest

from drl_cli.cli.train import console_kind
from drl_cli.metrics.status import Status


def test_json_is_nothing_but_objects(train_here, capsys):
    summary, folder = train_here("env=Pendulum-v1", "console=json", "logger.report_s=0.01", "logger.console_s=0.01")
    out = capsys.readouterr().out
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[:3] == ["note", "note", "awaits"]
    assert events[2]["what"] == "the trainer and the workers"
    assert kinds[-1] == "end"
    assert kinds.count("end") == 1
    assert {"status", "evaluation"} <= set(kinds)
    assert events[-1]["best_return"] == summary["best_return"]
    assert "NaN" not in out
    status = Status.read(folder)
    assert [event["mean"] for event in events if event["event"] == "evaluation"] == [mean for _, mean in status.scores]
    assert status.env_steps == 160


def test_quiet_is_silent(train_here, capsys):
    _, folder = train_here("env=Pendulum-v1", "console=quiet")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert Status.read(folder).state == "done"


@pytest.mark.parametrize(
    ("args", "kind"),
    [([], "auto"), (["console=json"], "json"), (["seed=1", "console=json", "console=quiet", "algo=sac"], "quiet")],
)
def test_the_command_line_says_which_kind(args, kind):
    assert console_kind(args) == kind
