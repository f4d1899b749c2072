"""drl-train -m on a cluster: the jobs are processes on its nodes; everything else works as on one machine."""

import signal

import pytest
from processes import SMALL
from sweep_files import ENV, rows, weights

from drl_cli.run_folder.saved_run import Run

SWEEP = (*SMALL, "mode=single", "debug.in_process=true")


@pytest.fixture
def sweep(start, ray_cluster, tmp_path):
    """Start a sweep on the cluster, in a folder with a user's environment that can read a file."""
    (tmp_path / "near_env.py").write_text(ENV)

    def sweep_it(*args):
        return start("-m", *SWEEP, "env=near_env:Near-v0", f"ray.address={ray_cluster.address}", *args)

    return sweep_it


@pytest.fixture
def jobs(tmp_path):
    return lambda *columns: [tuple(row[column] for column in columns) for row in rows(tmp_path)]


def raylets(sweep):
    """Return the ids of the raylet processes, one for each node, that started jobs of this sweep."""
    found = [process for process in sweep.processes() if process.pid != sweep.process.pid]
    return {parent.pid for process in found for parent in process.parents() if parent.name() == "raylet"}


@pytest.mark.ray
@pytest.mark.exhaustive
def test_jobs_run_on_all_nodes_and_failed_jobs_are_run_again(sweep, jobs, drl, ray_cluster, second_node, tmp_path):
    running = sweep("total_env_steps=1500", "seed=0,1", "env.kwargs.map=null,late.txt")
    running.until(lambda: len(raylets(running)) == 2)
    assert running.wait(240) == 10, running.err
    assert "4 of 4 jobs to run, 4 at once" in running.out
    assert "[job 1 of 4] running  seed=0 env.kwargs.map=null" in running.out
    assert "error: job 2 failed: seed=0 env.kwargs.map=late.txt: near_env:Near-v0 raised FileNotFound" in running.err
    assert jobs("job", "status", "exit_code") == [
        ("1", "done", "0"), ("2", "failed", "4"), ("3", "done", "0"), ("4", "failed", "4")
    ]  # fmt: skip
    assert not list(tmp_path.glob("outputs/multirun/.*")) + list(tmp_path.glob(".*"))
    done = {run for (run,) in jobs("run") if run}
    (tmp_path / "late.txt").write_text("")
    again = drl("train", "-m", "resume=latest", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 of 4 jobs to run, 2 at once" in again.stdout
    assert (jobs("status"), len(set(jobs("run")))) == ([("done",)] * 4, 4)
    assert done < {run for (run,) in jobs("run")}
    assert len(ray_cluster.global_state._live_node_ids()) == 2


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_signal_ends_running_and_waiting_jobs_on_the_nodes_softly(sweep, jobs, ray_cluster, second_node, tmp_path):
    import ray

    holders = [ray.remote(num_cpus=1)(type("Holder", (), {})).remote() for _ in range(2)]
    ray.get([holder.__ray_ready__.remote() for holder in holders])
    running = sweep("seed=0,1,2,3")
    running.until(lambda: len(list(tmp_path.glob("outputs/*/*/*/checkpoints/last"))) == 2)
    assert sorted(jobs("status")) == [("running",)] * 2 + [("waiting",)] * 2
    running.send(signal.SIGINT)
    assert running.wait(240) == 130, running.err
    for holder in holders:
        ray.kill(holder)
    assert "Traceback" not in running.out + running.err
    assert jobs("status", "exit_code") == [("interrupted", "130")] * 4
    runs = [run for (run,) in jobs("run") if run]
    assert ([Run(tmp_path / run).status for run in runs], running.left()) == (["interrupted"] * 2, [])


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # a dozen starts of Ray
def test_a_killed_node_or_sweep_loses_no_job_and_runs_none_twice(
    sweep, jobs, drl, start, ray_cluster, second_node, tmp_path
):
    grid = ("total_env_steps=6000", "checkpoint.period=100", "seed=0,1,2")
    running = sweep(*grid, "sweep.jobs=2")
    running.until(lambda: len(list(tmp_path.glob("outputs/*/*/*/checkpoints/last"))) == 2)
    ray_cluster.remove_node(second_node, allow_graceful=False)
    assert running.wait(240) == 10, running.err
    states = jobs("status", "exit_code")
    assert sorted(states) == [("done", "0")] * 2 + [("killed", "-9")]
    assert "its node, or Ray's process on it, died" in running.err
    assert running.left(30) == []  # the jobs on the node have saved checkpoints
    ended = [tmp_path / run for run, status in jobs("run", "status") if status == "killed"]
    assert [Run(run).status for run in ended] == ["interrupted"]

    resumed, before = start("-m", "resume=latest"), Run(ended[0]).env_steps
    resumed.until(lambda: Run(ended[0]).env_steps > before)
    resumed.process.send_signal(signal.SIGKILL)
    assert resumed.left(30) == []
    assert {Run(run).status for run in ended} <= {"interrupted", "done"}
    assert drl("train", "-m", "resume=latest", cwd=tmp_path).returncode == 0
    assert jobs("status") == [("done",)] * 3
    assert len(set(jobs("run"))) == len(list(tmp_path.glob("outputs/*/*/*/run.json"))) == 3
    interrupted = weights(tmp_path)
    (tmp_path / "outputs").rename(tmp_path / "before")
    assert start("-m", *SWEEP, "env=near_env:Near-v0", *grid).wait(240) == 0
    assert interrupted == weights(tmp_path)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_jobs_on_the_nodes_start_their_roles_on_the_cluster(sweep, jobs, ray_cluster, second_node, tmp_path):
    running = sweep("debug.in_process=false", "mode=single,sync", "worker.proxies=0", "total_env_steps=1500")
    assert running.wait(240) == 0, running.err + "".join(
        file.read_text() for file in tmp_path.glob("outputs/*/*/*.log")
    )
    assert jobs("mode", "status") == [("single", "done"), ("sync", "done")]
