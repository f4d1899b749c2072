"""What device=auto chooses, and which GPUs are refused, with fake GPUs."""

import dataclasses
import io
import os
import time

import pytest
import torch
from graphs import COUNTER, TINY, make_config

import drl_cli.settings.fill as fill
from drl_cli.cli.train import _prepared
from drl_cli.envs import apart
from drl_cli.envs.make import read_spec
from drl_cli.errors import MISSING, RESOURCES, USAGE, UsageError
from drl_cli.metrics.console import Console
from drl_cli.preflight.preflight import preflight
from drl_cli.runtime.place import launch
from drl_cli.settings.build import build
from drl_cli.settings.compose import mapping
from drl_cli.settings.fill import check_gpus, gain, with_device
from drl_cli.sweeps.launcher import takes_gpu
from drl_cli.utils import gpu
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import Node

GOOD, OTHER, OLD = Gpu("0", "H200"), Gpu("1", "H200"), Gpu("0", "K80", "no kernel image")
WIDE, IMAGES = ("network.hidden=[512,512]",), ("env=drl_cli.envs.probes:Patch-v0", "algo=dqn")
HEAD, GPU_NODE = Node("a", "10.0.0.1", 4.0, is_here=True), Node("b", "10.0.0.2", 4.0, gpus=2)
SMALL_LINE = "device: cpu, because the network is small; device=cuda takes the GPU"


def made(*words):
    return make_config("tuned=none", *(words if words[:1] == IMAGES[:1] else ("env=Pendulum-v1", *words)))


@pytest.fixture
def found(monkeypatch):
    """Set the GPUs of this machine. Return the list of questions."""
    asked = []

    def find(*gpus, has_driver=True):
        monkeypatch.setattr(gpu, "gpus", lambda: asked.append("here") or gpus)
        monkeypatch.setattr(gpu, "has_driver", lambda: has_driver)
        return asked

    return find


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), None),
        (("network.hidden=[511,511]",), None),
        (("network.hidden=[64,512]",), "layers of 512 units"),
        (("network.hidden=[1024]",), "layers of 1024 units"),
        (("network.hidden=[]",), None),
        (("algo=ppo", "network=lstm", "network.memory_size=600", "network.hidden=[64]"), "layers of 600 units"),
        (("algo=ppo", "network.memory_size=600", "network.hidden=[64]"), None),  # there is no memory
        (IMAGES, "images"),
        ((*IMAGES, "network.torso=cnn"), "images"),
        ((*IMAGES, "network.torso=mlp"), None),
        ((*IMAGES, "network.torso=their:Torso"), "the torso their:Torso"),
    ],
)
def test_images_and_wide_layers_gain_from_a_gpu(words, reason):
    config = made(*words)
    assert gain(config, read_spec(config.env)) == reason
    assert takes_gpu(config) == (reason is not None)
    assert takes_gpu(dataclasses.replace(config, device="cuda:1"))
    assert not takes_gpu(dataclasses.replace(config, device="cpu"))


@pytest.mark.parametrize(
    ("words", "gpus", "has_driver", "expected", "asks"),
    [
        ((), (GOOD,), True, ("cpu", [SMALL_LINE]), False),
        ((), (), False, ("cpu", []), False),
        (WIDE, (), False, ("cpu", []), False),
        (WIDE, (GOOD,), True, ("cuda", ["device: cuda, because of layers of 512 units"]), True),
        (IMAGES, (GOOD,), True, ("cuda", ["device: cuda, because of images"]), True),
        (("device=cpu", *WIDE), (GOOD,), True, ("cpu", []), False),
        (("device=cuda",), (GOOD,), True, ("cuda", []), True),
        (("device=cuda:1",), (OLD, OTHER), True, ("cuda:1", []), True),
        (
            ("trainer.num=2", *WIDE),
            (GOOD, OTHER),
            True,
            ("cuda", ["device: cuda, because of layers of 512 units"]),
            True,
        ),
    ],
)
def test_auto_becomes_a_device_once(found, capsys, words, gpus, has_driver, expected, asks):
    asked, config = found(*gpus, has_driver=has_driver), made(*words)
    chosen, lines = with_device(config, read_spec(config.env))
    assert (chosen.device, lines) == expected
    assert asked == ["here"] * asks  # the question takes seconds
    assert dataclasses.replace(chosen, device=config.device) == config
    assert with_device(dataclasses.replace(chosen, network=made(*WIDE).network), None) == (
        dataclasses.replace(chosen, network=made(*WIDE).network),
        [],
    )  # a resumed run keeps its device
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("gpus", "words", "why"),
    [
        ((OLD,), (), "torch can't use K80: no kernel image; device=cpu works everywhere"),
        ((), (), "torch finds no CUDA device here; device=cpu works everywhere"),
        ((GOOD,), ("trainer.num=2",), "trainer.num=2, but there are 1 devices"),
    ],
)
def test_auto_warns_and_takes_the_cpu_where_cuda_is_refused(found, capsys, gpus, words, why):
    found(*gpus)
    config = made(*WIDE, *words)
    chosen, lines = with_device(config, read_spec(config.env))
    assert (chosen.device, lines) == ("cpu", [])
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: device=auto takes the CPU. device=cuda")
    assert warning.endswith(why)
    with pytest.raises(UsageError) as refused:
        with_device(made("device=cuda", *words), None)
    assert refused.value.exit_code == MISSING
    assert refused.value.problems[0].endswith(why)


@pytest.mark.parametrize(
    ("device", "trainers", "gpus", "code", "line"),
    [
        ("cuda", 2, (GOOD, OTHER), None, ""),
        ("cuda", 1, (GOOD, OLD), None, ""),  # only the first is needed
        ("cuda", 3, (GOOD, OTHER), MISSING, "device=cuda: trainer.num=3, but there are 2 devices"),
        ("cuda:0", 1, (GOOD, OLD), None, ""),
        ("cuda:1", 1, (OLD, OTHER), None, ""),
        ("cuda:2", 1, (GOOD, OTHER), MISSING, "device=cuda:2: the CUDA devices here are cuda:0 to cuda:1"),
        ("cuda:1", 2, (GOOD, OTHER), USAGE, "device=cuda:1 is one device; for trainer.num=2 say device=cuda"),
        (
            *("cuda:1", 1, (GOOD, OLD), MISSING),
            "device=cuda:1: torch can't use K80: no kernel image; device=cpu works everywhere",
        ),
        (
            *("cuda", 2, (GOOD, OLD), MISSING),
            "device=cuda: torch can't use K80: no kernel image; device=cpu works everywhere",
        ),
        ("cuda", 1, (), MISSING, "device=cuda, but torch finds no CUDA device here; device=cpu works everywhere"),
    ],
)
def test_the_gpus_that_a_run_needs(device, trainers, gpus, code, line):
    config = made()
    config = dataclasses.replace(config, device=device, trainer=dataclasses.replace(config.trainer, num=trainers))
    if code is None:
        check_gpus(config, gpus)
        return
    with pytest.raises(UsageError) as caught:
        check_gpus(config, gpus)
    assert (caught.value.exit_code, caught.value.problems) == (code, [line])


@pytest.mark.parametrize(
    ("words", "there", "expected"),
    [
        (("mode=async", "device=cuda"), [GOOD, OTHER], "cuda"),
        (("mode=async", *WIDE), [GOOD], "cuda"),
        (("mode=sync", "trainer.num=2", "worker.num=2", "device=cuda"), [GOOD, OTHER], "cuda"),
        (("mode=async", "device=cuda"), [], "in the cluster; "),
        (("mode=async", "device=cuda"), [OLD], "torch can't use K80"),
        (("mode=sync", "device=cuda"), [GOOD], "CUDA device here; "),  # its trainer is in the process of the command
        (("mode=single", "device=cuda"), [GOOD], "CUDA device here; "),
        (("mode=async", "device=cuda:1"), [GOOD, OTHER], "CUDA device here; "),  # one device of the command's node
        (("mode=async", "debug.in_process=true", "device=cuda"), [GOOD], "CUDA device here; "),
    ],
)
def test_a_cluster_whose_head_has_no_gpu(found, words, there, expected):
    found(has_driver=False)
    config = made("ray.address=a:1", *words)
    spec = read_spec(config.env)
    if expected == "cuda":
        assert with_device(config, spec, [HEAD, GPU_NODE], lambda: there)[0].device == expected
        return
    with pytest.raises(UsageError, match=expected) as refused:
        with_device(config, spec, [HEAD, GPU_NODE], lambda: there)
    assert refused.value.exit_code == MISSING


def test_auto_asks_no_node_without_a_gpu(found):
    found(GOOD)  # of the head, which the trainer does not use
    config = made("ray.address=a:1", "mode=async", *WIDE)
    assert with_device(config, read_spec(config.env), [HEAD])[0].device == "cpu"


def test_no_fork_comes_after_the_first_use_of_cuda(found, monkeypatch, tmp_path):
    """The checks ask a child process about GPUs, so that they can fork to try an environment of the user."""
    (tmp_path / "gpu_envs.py").write_text(
        "import gymnasium\nclass Tall(gymnasium.make('Pendulum-v1').unwrapped.__class__):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    events, fork = [], os.fork
    monkeypatch.setattr(apart.os, "fork", lambda: events.append("fork") or fork())
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: events.append("CUDA"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: events.append("CUDA") or True)
    found(GOOD)
    config = made("env=gpu_envs:Tall", "device=cuda", *TINY)
    preflight(config)
    assert events.count("fork") >= 2
    assert "CUDA" not in events


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError("3 GiB")])
def test_a_trial_update_for_which_memory_is_too_small_is_exit_7(monkeypatch, error):
    def full(*args):
        raise error

    monkeypatch.setattr("drl_cli.runtime.factories.make_trainer", full)
    with pytest.raises(UsageError, match=r"memory is full: .*lower") as refused:
        prepared("dry_run=true", "device=cpu")
    assert refused.value.exit_code == RESOURCES


def prepared(*words):
    config = made(*TINY, "worker.num=2", *words)
    with Console("quiet", io.StringIO(), time.time(), 30.0) as console:
        return _prepared(config, console, words)


def test_a_run_begins_with_the_chosen_device(found):
    found(GOOD)
    config, lines, *_ = prepared()
    assert (config.device, lines[-1]) == ("cpu", SMALL_LINE)  # config.yaml records this config
    config, lines, *_ = prepared(*WIDE)
    assert (config.device, lines[-1]) == ("cuda", "device: cuda, because of layers of 512 units")


def test_a_run_begins_with_a_shortened_warm_up_and_its_line():
    config, (line, *_), *_ = prepared("total_env_steps=64")
    assert config.orchestrator.min_inserts == 16
    assert line.startswith("warm-up: orchestrator.min_inserts=16 (not 64)")


def test_a_run_on_a_cluster_begins_with_the_gpus_of_its_nodes(found, monkeypatch):
    found(has_driver=False)
    cluster = type("Cluster", (), {"nodes": [HEAD, GPU_NODE], "gpus": lambda self: [GOOD]})()
    monkeypatch.setattr(launch, "Cluster", lambda *args, only_here: cluster)
    config, *_ = prepared("ray.address=a:1", "mode=async", "device=cuda")
    assert config.device == "cuda"


@pytest.mark.parametrize(("words", "devices"), [((), ["cpu"]), (WIDE, ["cuda"])])
def test_the_trial_update_of_a_dry_run_is_on_the_chosen_device(found, monkeypatch, words, devices):
    found(GOOD)
    tried = []
    monkeypatch.setattr(
        "drl_cli.preflight.algorithm.update_seconds", lambda config, spec: tried.append(config.device) or 0.0
    )
    prepared("dry_run=true", *words)
    assert tried == devices


MODE = {"async": ("mode=async", "worker.num=3"), "sync": ("mode=sync", "worker.num=3"), "single": ("mode=single",)}


@pytest.mark.parametrize(
    ("mode", "cores", "trainers", "batch_size", "hidden", "threads"),
    [
        ("single", 8, 1, 256, "[256,256]", 1),
        ("single", 8, 1, 2048, "[256,256]", 2),
        ("single", 1, 1, 2048, "[256,256]", 1),
        ("single", 8, 1, 1024, "[64,512,512,64]", 4),
        ("single", 8, 1, 16, "[]", 1),
        ("sync", 8, 1, 1024, "[512,512]", 4),
        ("sync", 8, 2, 1024, "[512,512]", 2),
        ("async", 5, 1, 1024, "[512,512]", 2),
        ("async", 2, 1, 1024, "[512,512]", 1),
    ],
)
def test_auto_threads_follow_from_the_largest_product_and_the_free_cores(
    monkeypatch, mode, cores, trainers, batch_size, hidden, threads
):
    monkeypatch.setattr(fill, "num_cores", lambda: cores)
    sizes = (f"trainer.batch_size={batch_size}", f"network.hidden={hidden}", f"trainer.num={trainers}")
    assert make_config(*TINY, COUNTER, *MODE[mode], *sizes, "trainer.threads=auto").trainer.num_threads == threads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "cores", "num", "why"),
    [
        (["algo=dqn", "total_env_steps=5000"], 64, 1, "total_env_steps"),  # blocks of 64 steps
        (["algo=dqn", "total_env_steps=50_000"], 64, 15, "total_env_steps"),
        (["algo=dqn", "total_env_steps=50_000"], 8, 7, None),
        (["algo=dqn", "total_env_steps=10_000_000"], 100, 99, None),
        (["algo=dqn", "total_env_steps=10_000_000", "worker.num=auto"], 100, 64, None),
        (["algo=dqn", "total_env_steps=5000", "worker.num=5"], 64, 5, None),
        (["algo=dqn", "total_env_steps=5000", "worker.num=auto", "worker.max_num=9"], 64, 9, None),
        (["algo=dqn", "total_env_steps=5000", "mode=single"], 64, 1, None),
        (["algo=ppo", "total_env_steps=30_000"], 64, 2, "trainer.batch_size"),  # 512 = 2 x 16 x 16
        (["algo=ppo", "total_env_steps=1e6"], 64, 8, "trainer.batch_size"),
        (["algo=ppo", "total_env_steps=1e6", "mode=sync"], 64, 8, "trainer.batch_size"),
        (["algo=ppo", "total_env_steps=1e6", "worker.unroll=4"], 64, 63, None),
        (["algo=ppo", "trainer.batch_size=64"], 64, 1, "trainer.batch_size"),  # 4 steps of 16 environments
    ],
)
def test_a_run_has_no_more_workers_than_it_has_use_for(monkeypatch, words, cores, num, why):
    monkeypatch.setattr(fill, "num_cores", lambda: cores)
    asked = build(mapping(["env=CartPole-v1", "tuned=none", *words]))
    assert fill.fill(asked).num_workers == num
    line = fill.few_workers_line(asked)
    assert (line is None) == (why is None)
    assert line is None or line.startswith(f"{num} worker{'s' * (num > 1)} on 63 free cores, as many as {why} has")
