"""The algorithm of docs/add-an-algorithm.md runs from another folder, as a reader would run it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from graphs import make_config
from pages import blocks

from drl_cli import api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.errors import UsageError
from drl_cli.preflight.preflight import preflight
from drl_cli.testing import Case, check_algorithm, check_gradients, check_learning

DOC = Path(__file__).parents[2] / "docs" / "add-an-algorithm.md"
SHORT = ("network.hidden=[16,16]", "total_env_steps=512", "orchestrator.min_inserts=64", "worker.envs=4")
SHORT += ("trainer.batch_size=16", "manage.eval_episodes=1", "manage.confirm_episodes=0", "worker.block_rows=32")
ACTOR = "drl.MLP(self.torso.size, spec.action.size, network)"
TINY = ("env=Pendulum-v1", "network.hidden=[16,16]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with my_td3.py, the code of the document."""
    (tmp_path / "my_td3.py").write_text(block("algorithm"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_td3", raising=False)
    yield tmp_path
    sys.modules.pop("my_td3", None)


STARTS = {"algorithm": '"""TD3', "a2c": '"""A2C', "test": "from drl_cli.testing", "columns": "def columns("}
STARTS |= {"sac": "def networks("}
REAL = {"off_policy/sac.py": '"""Soft Actor-Critic', "value/dqn.py": '"""Deep Q-Network'}
"""Files of drl-cli that the page shows."""


def block(kind):
    """Return one block of the document's Python code."""
    every = blocks(DOC.name)
    assert len(every) == len(STARTS) + len(REAL), "a block of the page is not tested"
    (found,) = [one for one in every if one.startswith(STARTS[kind])]
    return found


@pytest.mark.parametrize("file", REAL)
def test_the_page_shows_the_real_files(file):
    text = (DOC.parents[1] / "drl_cli" / "algos" / file).read_text()
    assert [each for each in blocks(DOC.name) if each.startswith(REAL[file])] == [text], "copy the file"
    assert text.count("\n") <= 100


def change(folder, *pairs):
    """Replace parts of the algorithm's code."""
    text = (folder / "my_td3.py").read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (folder / "my_td3.py").write_text(text)


@pytest.fixture
def a2c(tmp_path, monkeypatch):
    """A folder with my_a2c.py and my_a2c.yaml."""
    (tmp_path / "my_a2c.py").write_text(block("a2c"))
    (yaml,) = [one for one in re.findall(r"```yaml\n(.*?)```", DOC.read_text(), re.DOTALL) if "rows per update" in one]
    (tmp_path / "my_a2c.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_a2c", raising=False)
    yield tmp_path
    sys.modules.pop("my_a2c", None)


@pytest.mark.slow
def test_the_on_policy_algorithm_is_sound_and_learns(a2c):
    check_algorithm("my_a2c", "network.hidden=[16,16]", "env=CartPole-v1")
    check_learning("my_a2c", "algo.lr=1e-2", updates=60)


def test_the_on_policy_algorithm_gets_the_defaults_of_the_document(a2c):
    config = make_config("env=CartPole-v1", "algo=my_a2c", "worker.unroll=16")
    assert (config.replay.sampler, config.random_steps, config.sample_load_ratio) == ("fifo-once", 0, 1)
    assert (config.block_rows, config.network.hidden) == (16 * config.worker.envs, (64, 64))
    preflight(config)


def test_a_policy_that_stores_its_log_probability(a2c):
    (a2c / "my_a2c.py").write_text(block("a2c") + "\n\n" + block("columns"))
    case = Case("my_a2c", "env=CartPole-v1", "network.hidden=[16,16]")
    algorithm, obs = case.algorithm(), case.obs(50)
    policy = case.policy(0, algorithm)
    columns = policy.act(obs)
    log_probs = algorithm.nets.actor(torch.from_numpy(obs)).log_softmax(-1)[range(50), columns["action"]]
    np.testing.assert_allclose(columns["log_prob"], log_probs.detach(), rtol=1e-5)
    assert policy.random(obs)["log_prob"] == pytest.approx(np.full(50, -np.log(2)))


def test_the_functions_of_sac_on_the_page_are_those_of_its_file():
    scope = {"drl": drl, "__name__": "page"}
    exec(block("sac"), scope)
    case, outs = Case("sac", *TINY), []
    for module in (scope, vars(sac)):
        torch.manual_seed(0)
        parts = module["networks"](SimpleNamespace(initial_alpha=1.0), case.config.network, case.spec)
        nets = SimpleNamespace(**{**parts, "encoder": parts["encoder"].features})
        outs.append(module["policy"](nets, torch.from_numpy(case.obs(5)), {}).mode)
        assert parts.keys() == {"encoder", "actor", "critic", "log_alpha"}
    torch.testing.assert_close(*outs)
    for name in ("policy_parts", "targets"):
        assert getattr(scope["Algorithm"], name) == getattr(sac.Algorithm, name)


@pytest.mark.slow
def test_sac_of_the_page_is_sound():
    check_algorithm("outside.my_sac", *TINY)


@pytest.mark.slow
def test_muzero_of_the_page_is_sound():
    check_algorithm("outside.my_muzero", "network.hidden=[8]", "algo.simulations=2")


def test_every_public_name_has_a_line():
    names = {name for name in vars(drl) if not name.startswith("_")} - {
        "TYPE_CHECKING",
        "Any",
        "public",
        "AlgoContext",
    } | {"MLP", "Network", "Scalar", "search"}
    names |= {f"losses.{name}" for name in drl.losses.__all__}
    for name in sorted(names):
        lines = [line for line in DOC.read_text().splitlines() if line.startswith("|") and f"`drl.{name}" in line]
        assert lines, f"docs/add-an-algorithm.md has no line for drl.{name}"


@pytest.mark.slow
def test_its_own_test_passes(folder):
    scope = {}
    exec(block("test"), scope)
    scope["test_my_td3"]()


@pytest.mark.slow
def test_it_learns_from_images_and_priorities(folder):
    check_algorithm("my_td3", *TINY, "replay=prioritized")
    case = Case("my_td3", *TINY)
    case.spec = type(case.spec)("x", type(case.spec.obs)((36, 36, 3), "uint8"), case.spec.action)
    algorithm = case.algorithm()
    case.learn(algorithm, 0, 2, rows=4)
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in algorithm.params.modules["critic"].modules())
    assert case.policy(0, algorithm).act(case.obs(2))["action"].shape == (2, 1)


def test_gradients_against_finite_differences(folder):
    case = Case("my_td3", *TINY)
    algorithm, batch = case.algorithm(), case.batch()
    actor, critic = (algorithm.params.modules[name] for name in ("actor", "critic"))

    def loss():
        return critic(batch["obs"], actor(batch["obs"])).square().mean()

    check_gradients(algorithm.params, loss)

    def wrong():
        loss().backward()
        algorithm.params["actor"].grad.mul_(1.2)

    with pytest.raises(AssertionError, match="the slope is"):
        check_gradients(algorithm.params, loss, wrong)


VARIANTS = {
    "the first updates change the critic only": (
        "counts.opt_steps % config.actor_period == 0",
        "counts.opt_steps % 5 == 4",
    ),
    "priorities without importance weights": (
        'critic_loss = drl.losses.twin_critics(q, target, batch.get("weight"))',
        "critic_loss = nn.functional.huber_loss(q, target.expand(2, -1))",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_algorithm_pass(folder, variant):
    change(folder, VARIANTS[variant], ("class Algorithm(", "WEIGHTS = False\n\n\nclass Algorithm("))
    check_algorithm("my_td3", *TINY)


MISTAKES = {
    "each trainer draws its own noise": (
        (
            '(noise,) = self.randn(len(batch["reward"]), self.spec.action.size)',
            'noise = torch.randn(*batch["action"].shape, generator=self.generator)',
        ),
        "not equal to one with all rows",
    ),
    "noise that is not saved": (
        (
            "        nets, config, obs",
            '        self.generator = getattr(self, "own", torch.Generator())\n'
            "        self.own = self.generator\n        nets, config, obs",
        ),
        "a resumed run differs",
    ),
    "parameters changed without the optimizer": (
        (
            'self.optimizer.minimize(critic_loss, "critic")',
            'critic_loss.backward()\n        self.params["critic"].flat.sub_(0.01 * self.params["critic"].grad)\n'
            "        self.optimizer.zero_grad()",
        ),
        "two trainers drift apart",
    ),
    "a counter in an attribute": (
        (
            "        if counts.opt_steps % ",
            '        self.calls = getattr(self, "calls", 0) + 1\n        if self.calls // 7 % ',
        ),
        "a resumed run differs",
    ),
    "weights ignored": ((', batch.get("weight")', ""), "ignores the weights"),
    "actions out of bounds": (
        ('drl.Deterministic(nets.actor(obs), explore["noise"])', "drl.Gaussian(nets.actor(obs), torch.ones(1))"),
        r"act: actions are in \[-1, 1\]",
    ),
    "no exploration": ((', explore["noise"])', ")"), "does not explore"),
    "actions of another type": (("nets.actor(obs), explore", "nets.actor(obs).double(), explore"), "action is float64"),
    "a sum over rows": (("minimize(critic_loss,", "minimize(len(target) * critic_loss,"), "not equal to one"),
    "a batch that is changed": (('target = batch["reward"]', 'target = batch["reward"].mul_(2)'), "changes its batch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(folder, mistake):
    pair, says = MISTAKES[mistake]
    change(folder, pair)
    with pytest.raises((AssertionError, AttributeError, ValueError), match=says):
        check_algorithm("my_td3", *TINY)


def test_an_algorithm_that_does_not_learn_is_found(folder):
    change(folder, ("actor_loss = -nets.frozen.critic", "actor_loss = nets.frozen.critic"))
    with pytest.raises(AssertionError, match="misses the goals"):
        check_learning("my_td3", "algo.lr=3e-3", "algo.tau=0.05", "algo.gamma=0.9", updates=60)


def test_the_api_imports_torch_only_when_it_is_needed():
    code = "import sys, drl_cli.api; assert not {'torch', 'gymnasium', 'ray', 'hydra'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


ANSWER = """
import sys
from drl_cli.cli.train import main
sys.argv = ["drl-train", "env=Pendulum-v1", f"algo={sys.argv[1]}", "algo.lrr=1"]
try:
    main()
except SystemExit as end:
    print(end.code, *sys.modules, sep="\\n")
"""


def test_a_wrong_option_is_answered_without_an_import_of_torch(folder):
    """The file of the page has its own modules. The answer imports no more than for an algorithm of drl-cli."""
    imported = {}
    for name in ("my_td3", "td3"):
        done = subprocess.run([sys.executable, "-c", ANSWER, name], capture_output=True, text=True)
        assert f"algo.lrr: {name} has no option 'lrr'" in done.stderr
        code, *imported[name] = done.stdout.splitlines()
        assert code == "2"
    more = {*imported["my_td3"]} - {*imported["td3"]}
    assert "my_td3" in more
    assert {name.partition(".")[0] for name in more} <= {"my_td3", "drl_cli"}


REFUSALS = {
    "layers of several trainers": (
        (ACTOR, f"nn.Sequential({ACTOR}, nn.Dropout(0.1))"),
        ("mode=sync", "worker.num=1", "trainer.num=2"),
        r"my_td3: actor\.mlp\.1 is a Dropout, .* say trainer\.num=1",
    ),
    "another dtype": (
        ('"actor": Actor(network, spec)', '"actor": Actor(network, spec).double()'),
        (),
        r"my_td3: parameter actor\.mlp\.flat is torch\.float64",
    ),
    "a torso that does not fit": (None, ("network=cnn",), r"my_td3: network\.torso=cnn needs an image"),
    "a memory": (
        None,
        ("network.memory=lstm",),
        r"network\.memory=lstm: my_td3 has no memory; say network\.memory=none",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_an_algorithm_that_cannot_run_is_refused_before_the_start(folder, what):
    pair, args, says = REFUSALS[what]
    change(folder, *([pair] if pair else []))
    config = make_config("env=Pendulum-v1", "algo=my_td3", *args)
    with pytest.raises(UsageError, match=says):
        preflight(config)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options", [("mode=single", "trainer.compile=true"), ("mode=sync", "worker.num=1", "trainer.num=2")]
)
def test_it_trains_compiled_and_with_two_trainers(folder, start, options):
    run = start("env=Pendulum-v1", "algo=my_td3", *options, *SHORT)
    assert run.wait(240.0) == 0, run.err
    assert json.loads((run.folder / "summary.json").read_text())["opt_steps"] > 50


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_command_of_the_page_reaches_its_goal(folder, start):
    _, *words = DOC.read_text().rpartition("## Measured")[2].split("```")[1].replace("\\\n", " ").split()
    run = start(*words, "ray.object_store_mb=200")
    assert run.wait(500.0) == 0, run.err
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["best_return"] >= -200
    assert summary["time_to_return_env_steps"] is not None
