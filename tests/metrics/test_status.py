import json
import math

from drl_cli.metrics.status import STATUS_FILE, Status

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
