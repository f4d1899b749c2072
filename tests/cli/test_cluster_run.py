"""drl-train on an existing cluster: it joins, ships the user's modules, and leaves the cluster running."""

import json
import os
from collections import Counter

import pytest

from drl_cli.preflight.pace import node_problems, pace_problems
from drl_cli.settings.build import build
from drl_cli.settings.fill import as_saved, fill
from drl_cli.utils.machine import Node, num_cores

ON_RAY = "debug.in_process=false"
NODES = [Node("a1b2c3d4", "10.0.0.1", 4.0), Node("b1c2d3e4", "10.0.0.2", 3.0)]


@pytest.mark.parametrize(
    ("overrides", "nodes", "num", "proxies"),
    [
        (("worker.num=null",), NODES, 6, 2),  # 7 CPUs, one left for the trainer
        (("worker.num=null",), NODES[:1], 3, 1),
        (("worker.num=null", "worker.proxies=0"), NODES, 6, 0),
        (("worker.num=null",), [Node(f"{i}", "10.0.0.1", 1.0) for i in range(5)], 5, 5),  # at least one per node
        *[(("worker.num=8",), NODES, 8, 2), (("worker.num=8", "worker.proxies=4"), NODES, 8, 4)],
        *[(("worker.num=null", "mode=single"), NODES, 1, 0), (("worker.num=3",), (), 3, 0)],
    ],
)
def test_workers_and_proxies_of_a_cluster(composed, overrides, nodes, num, proxies):
    config = fill(build(composed(*overrides)), nodes)
    assert (config.num_workers, config.worker.num_proxies) == (num, proxies)
    assert not [problem for problem in pace_problems(config) if "proxies" in problem]


CLUSTER = ("worker.num=auto", "mode=async", "ray.address=auto")
OURS = [Node("a1b2c3d4", "10.0.0.1", 4.0, is_here=True), NODES[1]]


@pytest.mark.parametrize(
    ("overrides", "nodes", "num", "proxies", "most"),
    [
        (CLUSTER, OURS, 6, 2, 64),  # the trainer takes one of 7 CPUs
        (CLUSTER, OURS[:1], 3, 1, 64),
        ((*CLUSTER, "worker.max_num=5"), OURS, 5, 2, 5),
        ((*CLUSTER, "mode=sync"), OURS, 6, 2, None),  # a number, so that a resumed run has the same
        ((*CLUSTER, "mode=sync", "worker.max_num=5"), OURS, 4, 2, None),
        ((*CLUSTER, "mode=single"), OURS[:1], 1, 0, None),
        (CLUSTER, (), max(1, num_cores() - 1), 0, None),  # debug.in_process
        (("worker.num=2", "worker.max_num=5"), OURS, 2, 2, None),
    ],
)
def test_workers_come_and_go_only_in_async_on_a_cluster(composed, overrides, nodes, num, proxies, most):
    config = fill(build(composed(*overrides)), nodes)
    assert (config.num_workers, config.worker.num_proxies, config.worker.max_num) == (num, proxies, most)
    asked = as_saved(config).worker
    assert (asked.num, asked.proxies) == (("auto", "auto") if most else (num, proxies))
    assert not [problem for problem in pace_problems(config) if "proxies" in problem]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("worker.max_num=8",), "worker.max_num=8 has no effect: only the number of worker.num=auto has a maximum"),
        (("worker.num=4", "worker.max_num=8"), "say worker.num=auto, or worker.num=8 alone"),
        ((*CLUSTER, "worker.proxies=2"), "worker.proxies=2: with worker.num=auto every node of the cluster has one"),
        ((*CLUSTER, "worker.max_num=8"), None),
        ((*CLUSTER, "worker.proxies=2", "mode=sync"), None),
        (("worker.max_num=null",), None),
    ],
)
def test_keys_that_do_not_fit_auto_are_refused(composed, words, line):
    lines = [*node_problems(build(composed(*words)), words)]
    assert len(lines) == (line is not None)
    assert all(line in each for each in lines)


@pytest.mark.ray
def test_a_run_joins_the_cluster_with_the_users_modules_and_leaves_it_running(
    drl, tiny, user_folder, ray_cluster, second_node, tmp_path
):
    args = (*tiny, ON_RAY, "env=user_envs:Tiny-v0", "worker.num=2", f"ray.address={ray_cluster.address}")
    done = drl(
        "train", *args, "mode=sync", "algo=user_algo", "debug.trace=true", f"output_dir={tmp_path}", cwd=user_folder
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("*/*/*")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["opt_steps"]) == ("done", summary["samples"])
    lines = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    sent = Counter((line["member"], line["version"]) for line in lines if line["route"] == 7)
    assert {member for member, _ in sent} == {0, 1}  # a proxy on each node
    assert (set(sent.values()), len(ray_cluster.global_state._live_node_ids())) == ({1}, 2)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_node_without_our_package_gets_it(drl, tiny, user_folder, ray_cluster, tmp_path, monkeypatch):
    (tmp_path / "drl_cli").mkdir()
    (tmp_path / "drl_cli" / "__init__.py").write_text("raise ImportError('not here')")
    args = (
        *tiny,
        *(ON_RAY, "env=user_envs:Tiny-v0", "worker.num=2", f"ray.address={ray_cluster.address}", "dry_run=true"),
    )
    ours = os.environ.get("PYTHONPATH", "")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PYTHONPATH", str(tmp_path))
        node = ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    try:
        done = drl("train", *args, cwd=user_folder, PYTHONPATH=ours)
    finally:
        ray_cluster.remove_node(node)
    assert done.returncode == 0, done.stderr
    assert "all checks passed" in done.stdout


@pytest.mark.ray
def test_a_module_that_is_missing_on_the_nodes_is_named_for_each(drl, tiny, ray_cluster, second_node, tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "far_env.py").write_text(
        "import gymnasium\nimport far_helper\n"
        "gymnasium.register('Far-v0', 'gymnasium.envs.classic_control.pendulum:PendulumEnv')\n"
    )
    (elsewhere / "far_helper.py").write_text("")
    args = (*tiny, ON_RAY, "env=far_env:Far-v0", f"ray.address={ray_cluster.address}", f"output_dir={tmp_path}/out")
    paths = os.pathsep.join([str(elsewhere), os.environ.get("PYTHONPATH", "")])
    done = drl("train", *args, cwd=here, PYTHONPATH=paths)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("error: node ")
        assert "No module named 'far_helper'" in line
    assert not (tmp_path / "out").exists()
