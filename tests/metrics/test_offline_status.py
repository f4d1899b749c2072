import io

from rich.console import Console

from drl_cli.metrics.panel import bottleneck, panel
from drl_cli.metrics.status import Status, evaluation_line, report_line

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
