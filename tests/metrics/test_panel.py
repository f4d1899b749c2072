import dataclasses
import fcntl
import io
import os
import pty
import re
import struct
import termios
from contextlib import suppress

import pytest
from rich.console import Console

from drl_cli.metrics.panel import BARS, CHANGES, MAX_BARS, Live, bottleneck, panel, sparkline
from drl_cli.metrics.status import Status, evaluation_line, report_line


def make(worker=0.1, trainer=0.1, update=None, environment=None, **fields):
    """A status with these shares of waiting; the rest of the time is split in halves by default."""
    environment = (1 - worker) / 2 if environment is None else environment
    update = (1 - trainer) / 2 if update is None else update
    usual = {"cpus": 4, "cpu_percent": 50.0, "ratio_asked": 0.5, "state": "running", "workers": 3}
    usual["roles"] = {"worker": {"cores": 2.0}, "trainer": {"cores": 0.9}, "manage": {}}
    return Status(
        **{**usual, **fields},
        worker_time={"environment": environment, "policy": 1 - worker - environment, "waiting": worker},
        trainer_time={"batch": 1 - trainer - update, "update": update, "waiting": trainer},
    )


TRAINER = {"worker": 0.45, "update": 0.8}
"""Workers wait for the trainer, which updates."""


@pytest.mark.parametrize(
    ("status", "begin", "has", "has_not"),
    [
        (make(), "both sides are busy", [], [CHANGES]),
        (make(worker=0.2, trainer=0.2), "both sides are busy", [], []),
        (make(worker=0.4, trainer=0.5), "both sides wait for each other (workers 40%, trainer 50%)",
         ["worker.block_rows", CHANGES], []),
        (make(**TRAINER), "the trainer: workers wait 45%", ["compile", f"below 0.5 makes fewer updates ({CHANGES})"],
         ["worker.num"]),
        (make(**TRAINER, cpu_percent=99.0), "the trainer", ["worker.num=2 leaves it more"], []),
        (make(**TRAINER, cpu_percent=99.0, workers=1), "the trainer", [], ["worker.num"]),
        (make(**TRAINER, compiles=True), "the trainer", [], ["compile"]),
        (make(**TRAINER, ratio_asked=None), "the trainer", ["compile"], [CHANGES]),
        (make(**TRAINER, is_on_policy=True), "the trainer", [f"algo.epochs ({CHANGES})"], []),
        (make(worker=0.45, update=0.1), "the trainer", ["replay.shards"], [CHANGES]),
        (make(trainer=0.6), "the workers: the trainer waits 60%", ["worker.num above 3", f"steps ({CHANGES})"], []),
        (make(trainer=0.6, cpu_percent=97.0), "the workers", ["All 4 processors are busy"], ["worker.num"]),
        (make(trainer=0.6, cpu_percent=None), "the workers", ["All 4 processors are busy"], []),
        (make(trainer=0.6, environment=0.1), "the workers", ["worker.envs"], ["worker.num"]),
        (make(trainer=0.6, is_on_policy=True), "the workers", ["worker.num", f"episodes: {CHANGES}"], ["insert_ratio"]),
        (make(trainer=0.6, ratio_asked=None), "the workers", ["worker.num"], [CHANGES]),
        (make(trainer=0.6, roles={"worker": {"cores": 3.5}}), "the workers", ["All 4 processors"], ["worker.num"]),
        (make(**TRAINER, cpu_percent=99.0, roles={"worker": {"cores": 1.5}, "trainer": {"cores": 1.2}}),
         "other programs: all 4 processors are busy, and this run has 2.7 of them", [], ["trainer.compile"]),
        (make(worker=0.8, mode="single", update=0.7), "updates take 80% of the time", ["compile"], ["worker.num"]),
        (make(worker=0.2, mode="single"), "collecting takes 80% of the time", [f"policies are then older, {CHANGES}"],
         ["worker.num"]),
        (make(worker=0.2, mode="sync"), "collecting takes 80%", ["worker.num above 3", "mode=async"], []),
    ],
)  # fmt: skip
def test_one_line_names_the_bottleneck_and_what_to_change(status, begin, has, has_not):
    line = bottleneck(status)
    assert line.startswith(begin)
    assert ([text for text in has if text not in line], [text for text in has_not if text in line]) == ([], [])
    assert "\n" not in line


def test_there_is_no_advice_without_data():
    assert (bottleneck(Status(state="running")), bottleneck(make(awaits="warm-up", worker=0.9))) == ("", "")
    assert bottleneck(Status(state="running", worker_time={"waiting": 0.9})) == "the first update is still to come"
    slow = Status(state="running", worker_time={"waiting": 0.9}, opt_steps=3)
    assert bottleneck(slow) == "the trainer: no update has ended lately"


STATUS = Status(
    title="LunarLanderContinuous sac async seed 0", state="running", started=100.0, written=134.0, wall_s=34.0,
    left_s=238.0, env_steps=12_288, total_env_steps=100_000, opt_steps=1403, episodes=204, train_return=-182.34,
    train_length=112.4, train_episodes=100, scores=((5000, -300.0), (10_000, 201.5)), best=(10_000, 201.5), goal=240.0,
    env_steps_per_s=812.4, opt_steps_per_s=101.6, ratio=0.4832, ratio_asked=0.5, policy_lag=12.4,
    worker_time={"environment": 0.52, "policy": 0.21, "rows": 0.07, "waiting": 0.2},
    trainer_time={"batch": 0.03, "update": 0.9, "waiting": 0.07}, losses={"critic_loss": 0.1234, "actor_loss": -12.3},
    roles={
        "main": {"processes": 1, "cores": 0.04, "rss_mb": 210.0},
        "worker": {"processes": 3, "cores": 2.9, "rss_mb": 1310.0},
        "trainer": {"processes": 1, "cores": 0.97, "rss_mb": 400.0},
    },
    cpu_percent=60.0, cpus=8, replay_size=12_288, replay_capacity=200_000, workers=3,
)  # fmt: skip
SCORE = {"mean": 201.5, "std": 3.25, "min": 195.0, "max": 205.0, "episodes": 10}


def drawn(status, moment=135.0, width=110, encoding="utf-8", height=50):
    """Return the panel's lines on a terminal of this size."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    Console(file=out, width=width, height=height, force_terminal=False, legacy_windows=False).print(
        panel(status, moment)
    )
    return raw.getvalue().decode(encoding).splitlines()


def row(status, name, **options):
    """Return the content of a row of the panel."""
    (line,) = [line for line in drawn(status, **options) if line.strip("│| ").startswith(name)]
    return line.strip("│| ").removeprefix(name).strip()


def test_the_rows_of_the_panel():
    rows = {
        "training": "return -182.3   length 112   mean of the last 100 of 204 episodes",
        "evaluation": "return 201.5 at step 10,000   best 201.5 at 10,000   target 240   ▁█",
        "speed": "812 env/s   102 updates/s   ratio 0.483 of 0.5   policy lag 12 updates",
        "workers": "environment 52%   policy 21%   rows 7%   waiting 20%",
        "trainer": "batch 3%   update 90%   waiting 7%",
        "losses": "critic_loss 0.123   actor_loss -12.3",
        "memory": "main 210 MB   worker x3 1.3 GB   trainer 400 MB   replay holds 12,288 of 200,000",
        "processors": "main 0.04   worker x3 2.90   trainer 0.97   60% of 8 busy",
        "bottleneck": "both sides are busy: only more processors make it faster",
        "elapsed": "0:00:35   left at most 0:03:58   1,403 updates",
    }
    assert {name: row(STATUS, name) for name in rows} == rows
    lines = drawn(STATUS)
    assert "LunarLanderContinuous sac async seed 0" in lines[0]
    assert "12.3%   12,288 / 100,000 env steps" in lines[1]
    assert 6 <= lines[1].count("━") <= 12  # an eighth of the bar
    assert "running" in lines[-1]


def test_the_panel_of_a_starting_run():
    lines = drawn(Status(title="x", awaits="warm-up", done=640, needed=1000, started=100.0), moment=103.2)
    assert len(lines) == 5
    assert "elapsed 0:00:03   0 updates" in lines[2]
    assert lines[3].strip("│ ") == "waiting for  warm-up 640/1,000"
    assert "starting" in lines[-1]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Status)])
def test_any_field_may_be_unknown(field):
    empty = {f.name: getattr(Status(), f.name) for f in dataclasses.fields(Status)}[field]
    text = "\n".join(drawn(dataclasses.replace(STATUS, **{field: empty})))
    line = report_line(dataclasses.replace(STATUS, **{field: empty}))
    assert "nan" not in text + line
    assert "None" not in text + line
    assert not re.search(r"(^| )-( |$)", line)
    assert line == line.rstrip()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_panel_fits_the_terminal_and_splits_no_item(width):
    lines = drawn(STATUS, width=width)
    assert {len(line) for line in lines} == {width}
    if width > 40:
        assert any("policy lag 12 updates" in line for line in lines)
        assert any("replay holds 12,288 of 200,000" in line for line in lines)


BUSY = dataclasses.replace(STATUS, worker_time={**STATUS.worker_time, "waiting": 0.9}, note="")


@pytest.mark.parametrize(("width", "height"), [(40, 15), (80, 15), (80, 9), (110, 50)])
def test_a_small_terminal_keeps_the_bottleneck(width, height):
    lines = drawn(BUSY, width=width, height=height)
    assert len(lines) <= height
    assert any("bottleneck" in line for line in lines)
    text = " ".join(line.strip("│ ") for line in lines)
    assert "workers wait 90%" in text.replace("  ", " ")
    assert ("processors" in text) == (height == 50)
    assert "env steps" in text


def test_an_ascii_terminal_gets_ascii_bars():
    assert row(STATUS, "evaluation", encoding="ascii").endswith("target 240   _@")


def test_the_panel_of_an_ended_run():
    lines = drawn(dataclasses.replace(STATUS, state="killed", note="nobody writes any more"), moment=1e6)
    assert "elapsed 0:00:34   1,403 updates" in lines[2]
    assert "nobody writes any more" in lines[-2]
    assert "killed" in lines[-1]


def test_a_sparkline_goes_from_the_least_to_the_greatest():
    assert (sparkline([0.0, 5.0, 10.0, 7.5], "abc"), sparkline([3.0, 3.0], "abc")) == ("abcc", "aa")
    many = dataclasses.replace(STATUS, scores=tuple((i, float(i)) for i in range(60)))
    assert sum(letter in BARS for letter in row(many, "evaluation")) == MAX_BARS


def test_lines_of_training_and_evaluation_are_aligned():
    reports = [
        report_line(STATUS),
        report_line(dataclasses.replace(STATUS, train_return=12.0, env_steps=99, env_steps_per_s=None, wall_s=40_000)),
    ]
    assert reports[0] == (
        "  0:00:34   12.3%  step  12,288  train return    -182.3  length    112     812 env/s     102 updates/s  "
        "ratio 0.483 of 0.5  lag   12  left at most 0:03:58"
    )
    assert (
        len({line.index("train return") for line in reports}) == len({line.index("updates/s") for line in reports}) == 1
    )
    score = evaluation_line(STATUS, SCORE, 10_000, is_best=True)
    assert score == (
        "  0:00:34   12.3%  step  12,288  eval  return     201.5  +- 3.25 [195.0, 205.0] over 10 episodes  "
        "best 201.5  target 240  at step 10,000  (new best)"
    )
    assert score.index("201.5") + 5 == reports[0].index("-182.3") + 6  # the returns end in one column
    assert evaluation_line(STATUS, {"mean": 1.0}, 10_000, is_best=False).endswith(
        "1.0  best 201.5  target 240  at step 10,000"
    )


def test_a_line_before_the_first_episode_has_ended_says_so():
    line, before = report_line(STATUS), report_line(dataclasses.replace(STATUS, train_return=None, train_length=None))
    assert "step  12,288  no episode has ended yet  " in before
    assert before[before.index("env/s") :] == line[line.index("env/s") :]
    assert before.index("env/s") == line.index("env/s")
    assert report_line(dataclasses.replace(STATUS, state="ending")) == line[: line.index("  left")]


def test_re_analysed_steps_stand_beside_the_replay_ratio():
    status = dataclasses.replace(STATUS, reanalyzed=0.9876, reanalyzed_asked=1.0)
    assert "ratio 0.483 of 0.5  re-analysed 0.988 of 1  lag   12" in report_line(status)
    assert "re-analysed 0.988 of 1" in row(status, "speed")
    assert "re-analysed - of 1" in report_line(dataclasses.replace(status, reanalyzed=None))
    assert "re-analysed" not in report_line(STATUS) + row(STATUS, "speed")


def test_a_line_about_waiting():
    warm = dataclasses.replace(STATUS, awaits="warm-up", done=640, needed=1000)
    assert "waiting for warm-up 640/1,000     812 env/s" in report_line(warm)
    unknown = dataclasses.replace(warm, env_steps_per_s=None, opt_steps_per_s=None)
    assert report_line(unknown).endswith("  waiting for warm-up 640/1,000")


def test_the_first_report_leaves_out_what_is_not_known_yet():
    rates = {"env_steps_per_s": None, "opt_steps_per_s": None, "left_s": None}
    first, line = report_line(dataclasses.replace(STATUS, **rates)), report_line(STATUS)
    assert first == f"{line[: line.index('    812')]:<{line.index('ratio')}}ratio 0.483 of 0.5  lag   12"
    without = report_line(dataclasses.replace(STATUS, **rates, ratio=None, policy_lag=None))
    assert without.endswith("length    112")
    assert report_line(dataclasses.replace(STATUS, opt_steps_per_s=None)).endswith(
        f"  812 env/s{' ' * 20}ratio 0.483 of 0.5  lag   12  left at most 0:03:58"
    )


def test_a_cluster_has_a_row_with_the_use_of_each_node():
    node = {"worker": {"processes": 2, "cores": 1.5, "rss_mb": 200.0}, "proxy": {"processes": 1, "rss_mb": 50.0}}
    nodes = {"far": node, "here": {"trainer": {"processes": 1, "cores": 0.5, "rss_mb": 400.0}}}
    (line,) = [line for line in drawn(dataclasses.replace(STATUS, nodes=nodes)) if "nodes" in line]
    assert "far 2 workers 1.50 cores 250 MB   here 0 workers 0.50 cores 400 MB" in line
    alone = drawn(dataclasses.replace(STATUS, nodes={"here": node}))
    assert not [line for line in alone if "nodes" in line]


@pytest.fixture
def terminal(monkeypatch):
    """Return the stream of a terminal, a function that sets its size, and one that returns the new output."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    main, end = pty.openpty()
    os.set_blocking(main, False)

    def resize(width, height):
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    resize(100, 30)
    with os.fdopen(end, "w") as out:
        monkeypatch.setattr("rich.console._STD_STREAMS", (end,))  # rich asks the standard streams for the size
        yield out, resize, lambda: read_all(main).decode()
    os.close(main)


def read_all(main):
    """Return everything that the terminal has received; one read returns a part of it."""
    parts = []
    with suppress(BlockingIOError):
        while part := os.read(main, 1 << 16):
            parts.append(part)
    return b"".join(parts)


def rows_up(text):
    """Return how many rows the cursor goes up before the first text."""
    return sum(int(count) for count in re.findall(r"\x1b\[(\d+)A", text.partition("\u256d")[0]))


@pytest.mark.parametrize(
    ("width", "height", "factor"), [(100, 30, 1), (120, 30, 1), (50, 30, 2), (49, 30, 3), (50, 7, 2)]
)
def test_a_narrower_terminal_leaves_no_remains_of_the_panel(terminal, width, height, factor):
    out, resize, read = terminal
    live, status = Live(out), Status(title="x", awaits="warm-up", done=640, needed=1000)
    live.tick(status)
    rows = read().rpartition("\u256d")[2].count("\n") + 1
    resize(width, height)
    live.tick(status)
    text = read()
    assert rows_up(text) == min(rows * factor, height) - 1
    assert ("\x1b[J" in text) == (width < 100)
    live.tick(status)
    assert "\x1b[J" not in read()
    live.close()


def test_a_command_is_one_line_on_a_narrow_terminal(terminal):
    out, resize, read = terminal
    resize(40, 30)
    live = Live(out)
    live.close()
    read()
    command = f"next: drl-eval run=outputs/{'x' * 60} episodes=100"
    live.end(Status(), {}, command)
    assert command in read()


@pytest.mark.parametrize(
    ("environment", "is_plain"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "", "LANG": "POSIX"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ({}, False),
    ],
)
def test_the_locale_c_gets_ascii(terminal, monkeypatch, environment, is_plain):
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out, _, read = terminal
    live = Live(out)
    live.tick(STATUS)
    live.close()
    assert read().isascii() is is_plain


@pytest.mark.parametrize(("done", "left"), [(40, 120), (100, 0), (130, 0)])
def test_no_time_is_left_once_everything_awaited_is_there(done, left):
    status = Status(awaits="warm-up", done=done, needed=100, done_per_s=0.5)
    assert status.awaited == f"warm-up {done}/100, 0.5 steps/s, about {left} s left"


def test_a_doubt_is_a_row():
    assert row(dataclasses.replace(STATUS, doubt="no evaluation is better"), "learning") == "no evaluation is better"


@pytest.mark.parametrize(("batch", "waits"), [(0.5, False), (0.51, True)])
def test_a_trainer_waits_for_batches_if_they_take_longer_than_updates(batch, waits):
    trainer = {"batch": batch, "update": 0.5, "waiting": 0.0}
    status = Status(state="running", worker_time={"waiting": 0.9}, trainer_time=trainer)
    assert ("It waits for its batches" in bottleneck(status)) == waits
