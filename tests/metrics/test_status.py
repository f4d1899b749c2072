import io
import json
import math

from rich.console import Console

from drl_cli.metrics.panel import bottleneck, panel
from drl_cli.metrics.status import STATUS_FILE, Status, evaluation_line, report_line

FULL = Status(
    title="Pendulum-v1 sac async seed 0",
    state="running",
    started=100.0,
    wall_s=34.0,
    left_s=238.0,
    env_steps=12_288,
    scores=((1000, -300.0), (2000, 20.0)),
    best=(2000, 20.0),
    worker_time={"environment": 0.5, "waiting": 0.5},
    losses={"critic_loss": 0.1},
    roles={"worker": {"processes": 2, "cores": 1.5, "rss_mb": 200.0}},
)


def test_a_status_file_restores_the_status(tmp_path):
    FULL.write(tmp_path)
    assert (Status.read(tmp_path), [path.name for path in tmp_path.iterdir()]) == (FULL, [STATUS_FILE])


def test_values_that_are_not_finite_become_unknown(tmp_path):
    broken = FULL.evaluated(3000, math.nan)
    Status.write(Status.of({**vars(broken), "losses": {"a": math.inf, "b": 1.0}, "left_s": math.nan}), tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / STATUS_FILE).read_text(), parse_constant=refuse)
    read = Status.read(tmp_path)
    assert ((read.losses, read.left_s, read.scores), read.best) == (({"b": 1.0}, None, FULL.scores), FULL.best)


def test_unknown_fields_and_broken_files_are_ignored(tmp_path):
    assert Status.read(tmp_path) is None
    (tmp_path / STATUS_FILE).write_text('{"title": "x", "hopes": 3}')
    assert Status.read(tmp_path) == Status(title="x")
    for text in ("", "{", "3"):
        (tmp_path / STATUS_FILE).write_text(text)
        assert Status.read(tmp_path) is None


def test_the_newest_evaluations_and_the_first_best_are_kept():
    status = Status()
    for i in range(60):
        status = status.evaluated(i, float(min(i, 50)))
    assert [steps for steps, _ in status.scores] == [*range(60)]
    status = status.evaluated(60, 50.0)
    assert [steps for steps, _ in status.scores] == [*range(1, 61)]
    assert status.best == (50, 50.0)


def test_the_age_grows_until_the_run_ends():
    assert FULL.age_s(150.0) == 50.0
    over = Status(**{**vars(FULL), "state": "done"})
    assert (over.age_s(1e9), (FULL.is_over, over.is_over)) == (34.0, (False, True))
    assert Status(env_steps=120, total_env_steps=100).share == 1.0


STATUS = Status(
    state="running",
    wall_s=60.0,
    opt_steps=2500,
    total_updates=10_000,
    total_env_steps=1_000_000,
    opt_steps_per_s=80.0,
    env_steps_per_s=0.0,
    left_s=94.0,
    scores=((2000, 5.0),),
    best=(2000, 5.0),
    losses={"critic_loss": 0.25, "q_mean": 3.0, "actor_loss": -3.0, "alpha": 0.1},
    trainer_time={"batch": 0.2, "update": 0.8, "waiting": 0.0},
    worker_time={"waiting": 1.0},
    mode="offline",
)


def shown(status):
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(panel(status, 60.0))
    return out.getvalue()


def test_the_position_counts_updates():
    assert (STATUS.position, STATUS.total, STATUS.share) == (2500, 10_000, 0.25)
    online = Status(env_steps=10, total_env_steps=40, opt_steps=3)
    assert (online.position, online.total, online.share) == (10, 40, 0.25)
    assert Status.of({"total_updates": 7, "opt_steps": 7}).share == 1.0


def test_a_line_has_updates_and_losses_and_no_environment_steps():
    assert report_line(STATUS) == (
        "  0:01:00   25.0%  update  2,500  critic_loss 0.25  q_mean 3  actor_loss -3      80 updates/s"
        "              left 0:01:34"
    )


def test_an_evaluation_says_at_which_update_it_was():
    line = evaluation_line(STATUS, {"mean": 5.0}, 2000, is_best=True)
    assert line.startswith("  0:01:00   25.0%  update  2,500  eval  return       5.0")
    assert "at update 2,000" in line


def test_the_panel_has_no_row_about_environment_steps():
    text = shown(STATUS)
    assert "2,500 / 10,000 updates" in text
    assert "return 5.0 at update 2,000" in text
    assert "80 updates/s" in text
    assert not any(word in text for word in ("env/s", "env steps", "ratio", "training", "environment"))


def test_the_advice_is_about_updates():
    assert bottleneck(STATUS) == "updates take all the time: trainer.compile=true"
