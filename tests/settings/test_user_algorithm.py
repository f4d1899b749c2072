import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from drl_cli.cli.bench import read
from drl_cli.cli.eval import Options, evaluate
from drl_cli.cli.train import help_text, overview, train
from drl_cli.errors import CHECKPOINT, USAGE, USER_CODE, UsageError
from drl_cli.preflight.preflight import preflight
from drl_cli.run_folder.checkpoint import write_json
from drl_cli.run_folder.find import read_config
from drl_cli.run_folder.load_weights import with_weights
from drl_cli.run_folder.resume import changed_code, resume, verdict
from drl_cli.run_folder.run_json import make_folder
from drl_cli.run_folder.saved_run import read_json
from drl_cli.runs.named import named_run, with_config_of_run
from drl_cli.settings.algorithm import config_class
from drl_cli.settings.build import build, default_values
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.fill import fill
from drl_cli.settings.trust import remember
from drl_cli.settings.value_types import group_of

ALGO = Path(__file__).parents[1] / "support" / "outside" / "my_algo.py"
HEAD = """from dataclasses import dataclass

from drl_cli.api import Count
from drl_cli.algos.value import dqn
from my_pkg.my_algo import *
"""
QUEUE = HEAD + "TABLES = ('fifo-once',)\n"
CONFIG = HEAD + "\n\n@dataclass(frozen=True, kw_only=True)\nclass Config(Config):\n    size: {}\n"
PAIR = """
    def __post_init__(self):
        if self.size > 3:
            raise ValueError("above 3 it needs wings")
"""
CRASH = "class Algorithm(Algorithm):\n    def update(self, *args):\n        raise ValueError('no idea')\n"
WIDTH = "class Policy(Policy):\n    @staticmethod\n    def extra_columns(*args):\n        return 1 / 0\n"
GREEDY = "class Policy(Policy):\n    def greedy(self, obs, last=None):\n        raise ValueError('no idea')\n"
LACKS = """class Policy(Policy):
    @staticmethod
    def extra_columns(*args):
        return {'value': Column((), 'float32')}
"""
PREFERENCES = """# @package _global_
defaults:
  - override /replay: prioritized

algo:
  lr: 3e-3
network:
  hidden: [7]
"""
FILES = {
    "my_pkg/__init__.py": "",
    "my_pkg/my_algo.py": ALGO.read_text(),
    "my_pkg/my_net.py": "class Net:\n    pass\n",
    "my_bug.py": "int('x')\n",
    "my_notes.py": "",
    "my_queue.py": QUEUE,
    "my_queue_yaml.py": QUEUE,
    "my_queue_yaml.yaml": "lr: 2e-3\n",
    "my_queue_global.py": QUEUE,
    "my_queue_global.yaml": "# @package _global_\nalgo:\n  lr: 2e-3\ntrainer:\n  batch_size: 512\n",
    "my_queue_other.py": QUEUE,
    "my_queue_other.yaml": "# @package _global_\ndefaults:\n  - override /replay: prioritized\n",
    "my_need.py": CONFIG.format("Count"),
    "my_bytes.py": CONFIG.format("bytes = b''"),
    "my_hint.py": CONFIG.format("'Counter' = 1"),
    "my_wrong.py": CONFIG.format("Count = 0"),
    "my_pair.py": CONFIG.format("Count = 1") + PAIR,
    "my_crash.py": HEAD + CRASH,
    "my_width.py": HEAD + WIDTH,
    "my_greedy.py": HEAD + GREEDY,
    "my_lacks.py": HEAD + "from drl_cli.api import Column\n" + LACKS,
    "my_yaml.py": HEAD,
    "my_yaml.yaml": "lr: 2e-3\nloss: mse\nname: something\n",
    "my_prefer.py": HEAD,
    "conf/algo/my_prefer.yaml": PREFERENCES,
    "my_odd.py": CONFIG.format("Count = 1"),
    "my_odd.yaml": "lrr: 1\n",
    "my_cut.py": HEAD,
    "my_cut.yaml": "lr: [1\n",
}
"""What a user has where they stand."""


@pytest.fixture(scope="module")
def outside_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def standing_there(outside_folder):
    """Commands put the current folder on sys.path. Other files have modules of these names, too."""
    forget_modules()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(outside_folder)
        patch.syspath_prepend(str(outside_folder))
        patch.setattr(sys, "argv", ["drl-train"])
        yield
    forget_modules()


def forget_modules():
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("my_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def own_run(outside_folder, composed, tiny):
    """A run of the user's algorithm, in this process."""
    summary = train(composed(*tiny, "algo=my_pkg.my_algo", "env=CartPole-v1", "output_dir=runs"))
    (folder,) = outside_folder.glob("runs/CartPole-v1/my_pkg.my_algo-async/*")
    return SimpleNamespace(folder=folder, summary=summary)


@pytest.fixture
def copied(own_run, tmp_path):
    """A copy of that run, which may be changed. The user trusts it."""
    folder = tmp_path / "outputs" / "CartPole-v1" / "my_pkg.my_algo-async" / own_run.folder.name
    shutil.copytree(own_run.folder, folder, symlinks=True)
    remember(folder / "config.yaml", yaml.safe_load((folder / "config.yaml").read_text()))
    return folder


def refused(call, *args):
    with pytest.raises(UsageError) as caught:
        call(*args)
    return caught.value.exit_code, caught.value.problems


def check(*args):
    check_command(read_command(args))


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["algo=my_bug"], USER_CODE, ["my_bug raised ValueError: invalid literal for int() with base 10: 'x'"]),
        (["algo=my_notes"], USAGE, ["is no algorithm: it needs Config"]),
        (["algo=my_pkg.my_alg"], USAGE, ["unknown algorithm 'my_pkg.my_alg': there is no module 'my_pkg.my_alg'"]),
        (["algo=my_pkg/my_algo.py"], USAGE, ["is no import path; say my_pkg.my_algo"]),
        (["algo=my_bytes"], USAGE, ["my_bytes: Config.size is <class 'bytes'>; a field can be bool, int"]),
        (["algo=my_hint"], USAGE, ["my_hint: the types of Config can't be read: name 'Counter' is not defined"]),
        (
            ["algo=my_pkg.my_algo", "algo.lr=-1", "algo.margin=3", "algo.loss=l1", "sed=1"],
            USAGE,
            ["algo.lr: must be > 0, got -1", "algo.margin: must be <= 2", "algo.loss: 'l1' is not", "sed: no such"],
        ),
        (["algo=my_bug", "sed=1"], USAGE, ["sed: no such option", "my_bug raised ValueError"]),
        (["-m", "algo=sac,my_bug"], USER_CODE, ["my_bug raised ValueError"]),
        (["network=my_pkg.my_net:Nett"], USAGE, ["no network 'my_pkg.my_net:Nett': my_pkg.my_net has no 'Nett'. Did"]),
        (["network=my_pkg.my_nets:Net"], USAGE, ["there is no module 'my_pkg.my_nets' to import from"]),
        (["network=my_bug:Net"], USER_CODE, ["my_bug raised ValueError"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_exit_code(args, code, says):
    exit_code, problems = refused(check, *args)
    assert exit_code == code
    assert len(problems) == len(says), problems
    assert all(part in problem for part, problem in zip(says, problems, strict=True)), problems


@pytest.mark.parametrize(
    "args",
    [
        ["algo='my_pkg.my_algo'", "algo.margin=2"],
        ["-m", "algo=my_pkg.my_algo", "algo.lr=1e-3,1e-4"],
        ["network=my_pkg.my_net:Net", "network.hidden=[8]"],
    ],
)
def test_what_is_right_passes(args):
    check(*args)


@pytest.mark.slow
def test_without_a_yaml_the_values_are_the_defaults(composed):
    node = composed("algo=my_pkg.my_algo", "algo.lr=1e-2")
    defaults = default_values(config_class("my_pkg.my_algo"))
    assert (defaults["margin"], defaults["tau"]) == (1.0, 1.0)  # the second one is in the yaml of DQN
    chosen = {key: node["algo"][key] for key, value in defaults.items() if value is None}
    assert chosen.keys() == {"preset", "gamma", "n_step", "epsilon_repeat"}
    assert node["algo"] == {**defaults, **chosen, "name": "my_pkg.my_algo", "lr": 1e-2}
    assert type(build(node).algo).__module__ == "my_pkg.my_algo"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_queue", "my_queue_yaml", "my_queue_global"])
def test_an_on_policy_module_gets_the_queue_without_warm_up(composed, name):
    config = build(composed(f"algo={name}", "env=CartPole-v1"))
    assert config.replay.sampler == "fifo-once"
    assert (config.min_inserts, config.sample_load_ratio, config.random_steps) == (0, 1, 0)
    assert config.algo.lr == (1e-3 if name == "my_queue" else 2e-3)
    assert config.trainer.batch_size == (512 if name == "my_queue_global" else 2048)
    assert build(composed(f"algo={name}", "replay=uniform")).replay.sampler == "uniform"  # what the user types wins


@pytest.mark.slow
def test_a_value_that_nobody_gives_is_asked_for(composed):
    assert refused(build, composed("algo=my_need")) == (USAGE, ["algo.size: is missing, say algo.size=..."])
    assert build(composed("algo=my_need", "algo.size=3")).algo.size == 3
    assert refused(build, composed("algo=my_wrong")) == (USAGE, ["algo.size: must be >= 1, got 0"])


@pytest.mark.slow
def test_values_that_do_not_go_together_are_refused_in_the_algorithms_words(composed):
    assert build(composed("algo=my_pair", "algo.size=3")).algo.size == 3
    assert refused(build, composed("algo=my_pair", "algo.size=4")) == (USAGE, ["algo: above 3 it needs wings"])
    assert refused(build, composed("algo=my_pair", "algo.size=4", "algo.lr=-1"))[1] == ["algo.lr: must be > 0, got -1"]


@pytest.mark.slow
def test_a_yaml_beside_the_module_comes_before_the_defaults(composed):
    algo = build(composed("algo=my_yaml", "algo.margin=0.5")).algo
    assert (algo.name, algo.lr, algo.loss, algo.margin, algo.target_period) == ("my_yaml", 2e-3, "mse", 0.5, 20)


@pytest.mark.slow
def test_a_yaml_may_prefer_values_of_other_groups(composed):
    config = build(composed("algo=my_prefer"))
    assert (config.algo.name, config.algo.lr, config.algo.margin) == ("my_prefer", 3e-3, 1.0)
    assert (config.replay.sampler, config.network.hidden) == ("prioritized", (7,))
    assert build(composed("algo=my_prefer", "network.hidden=[9]")).network.hidden == (9,)


@pytest.mark.slow
def test_a_wrong_yaml_is_said(composed, drl_here):
    code, (problem,) = refused(build, composed("algo=my_odd"))
    assert (code, problem) == (USAGE, "algo.lrr: my_odd has no option 'lrr'. Did you mean algo.lr?")
    done = drl_here("train", "algo=my_cut")
    assert done.returncode == USAGE
    (line,) = done.stderr.splitlines()
    assert "my_cut.yaml: not readable: " in line


def test_a_network_of_the_users_is_a_torso_of_the_default_network(composed):
    plain, own = composed()["network"], composed("network=my_pkg.my_net:Net", "network.hidden=[8]")["network"]
    assert own == {**plain, "hidden": [8], "torso": "my_pkg.my_net:Net"}


def test_help_has_the_options_of_an_algorithm():
    def defaults(algo):
        return {
            line.split()[0]: line for line in help_text([f"algo={algo}"]).splitlines() if line.startswith("  algo.")
        }

    assert defaults("my_pkg.my_algo")["algo.target_period"].split()[1:] == ["int", ">=", "1", "20"]
    assert "2e-3" in defaults("my_yaml")["algo.lr"]
    assert defaults("my_yaml").keys() == {f"algo.{name}" for name in group_of(config_class("my_yaml")).keys}
    assert "algo.tau" in defaults("sac")
    assert help_text(["env=CartPole-v1"]).splitlines() == overview()
    assert refused(help_text, ["algo=my_bug"])[0] == USER_CODE
    assert "my_cut.yaml: not readable: " in refused(help_text, ["algo=my_cut"])[1][0]


def test_a_run_says_of_which_code_it_is(own_run, outside_folder, small_run):
    assert (own_run.summary["status"], own_run.summary["algo"]) == ("done", "my_pkg.my_algo")
    code = hashlib.sha256((outside_folder / "my_pkg" / "my_algo.py").read_bytes()).hexdigest()
    assert read_json(own_run.folder / "run.json")["code"] == {"my_pkg.my_algo": code}
    assert read_json(small_run.folder / "run.json")["code"] == {}


@pytest.mark.slow
def test_later_commands_need_nothing_but_the_run(own_run, copied, composed, tiny):
    result = evaluate(copied, Options(episodes=2), {})
    assert json.loads((copied / "eval.json").read_text())["mean"] == result["mean"]
    plain = composed(*tiny, "algo=my_pkg.my_algo", "env=CartPole-v1", f"load_weights='{copied}'")
    config = with_weights(fill(build(plain)))
    preflight(config)
    options, command, _ = read([f"from_config={copied}", "seconds=1", "algo.lr=1e-4"])
    assert options.seconds == 1
    assert refused(read, [f"from_config={copied}", "algo.lrr=1"])[1] == [
        "algo.lrr: my_algo has no option 'lrr'. Did you mean algo.lr?"
    ]
    command = read_command([f"resume={copied}", "total_env_steps=320"])
    check_command(with_config_of_run(command))


def test_another_source_is_confirmed_or_refused(copied, outside_folder):
    config = replace(read_config(copied), resume=str(copied), total_env_steps=320)
    assert [change.text for change in resume(config, []).changes] == ["total_env_steps=320 (was 160)"]
    source = outside_folder / "my_pkg" / "my_algo.py"
    source.write_text(f"{FILES['my_pkg/my_algo.py']}# another line\n")
    new, old = (hashlib.sha256(content).hexdigest() for content in (source.read_bytes(), ALGO.read_bytes()))
    try:
        code, (problem,) = refused(resume, config, [])
        assert code == CHECKPOINT
        what = f"{source} has changed (sha256 {new[:8]}, was {old[:8]})"
        assert problem == f"resume: {what}: changes what is learned from here on; say confirm=true"
        record = resume(replace(config, confirm=True), []).cut_records(["drl-train"])
    finally:
        source.write_text(FILES["my_pkg/my_algo.py"])
    assert record["code"] == {"my_pkg.my_algo": new}
    assert what in record["resumed"][-1]["changes"]


def test_the_environments_source_is_judged_too(composed, outside_folder, tmp_path):
    config = build(composed("env=my_pkg.my_net:Some-v0"))
    assert config.outside_modules == ["my_pkg.my_net"]
    assert build(composed("env=drl_cli.envs.probes:Counter-v0")).outside_modules == []
    write_json(tmp_path / "run.json", {"code": {"my_pkg.my_net": "0" * 64}})
    (change,) = changed_code(tmp_path, config)
    assert (change.key, verdict(change.key)) == (str(outside_folder / "my_pkg" / "my_net.py"), "careful")
    write_json(tmp_path / "run.json", {})
    assert changed_code(tmp_path, config) == []


def test_what_the_algorithm_raises_is_its_own_error(composed, tiny, capsys, tmp_path):
    summary = train(composed(*tiny, "algo=my_crash", "env=CartPole-v1", f"output_dir={tmp_path}"))
    assert summary["exit_code"] == USER_CODE
    out, err = capsys.readouterr()
    folder, line = tmp_path / "CartPole-v1", len((HEAD + CRASH).splitlines())
    (error_text,) = folder.glob("*/*/error.txt")
    assert err.splitlines() == [
        f"error: algo=my_crash: update raised ValueError: no idea (my_crash.py:{line})",
        f"  traceback: {error_text}; DRL_DEBUG=1 prints it",
    ]
    assert "raise ValueError('no idea')" in error_text.read_text()
    assert "last saved: step 0 of 32" in out  # the run has waited for nothing
    assert "resume" not in out
    code, problems = refused(train, composed(*tiny, "algo=my_width", "env=CartPole-v1", f"output_dir={tmp_path}"))
    line = len((HEAD + WIDTH).splitlines())
    assert (code, problems) == (
        USER_CODE,
        [f"my_width raised ZeroDivisionError: division by zero (my_width.py:{line})"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("my_greedy", f"my_greedy raised ValueError: no idea (my_greedy.py:{len((HEAD + GREEDY).splitlines())})"),
        ("my_lacks", "my_lacks: Policy.act gives no value; extra_columns declares it"),
    ],
)
def test_every_run_tries_its_policy_before_it_starts(composed, tiny, tmp_path, name, problem):
    code, problems = refused(train, composed(*tiny, f"algo={name}", "env=CartPole-v1", f"output_dir={tmp_path}"))
    assert (code, problems) == (USER_CODE, [problem])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("mode", "tries"), [("single", 1), ("async", 0)])
def test_an_algorithm_of_ours_is_tried_where_torch_is_needed_anyway(composed, tiny, monkeypatch, mode, tries):
    seen = []
    monkeypatch.setattr("drl_cli.runtime.trial_update.try_policy", lambda *args: seen.append(args))
    preflight(fill(build(composed(*tiny, "algo=dqn", "env=CartPole-v1", f"mode={mode}"))))
    assert len(seen) == tries


def test_what_the_policy_raises_in_an_evaluation_is_its_own_error(copied):
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace("my_pkg.my_algo", "my_greedy"))
    code, problems = refused(evaluate, copied, Options(trust=True), {})
    assert (code, problems) == (
        USER_CODE,
        [f"my_greedy raised ValueError: no idea (my_greedy.py:{len((HEAD + GREEDY).splitlines())})"],
    )


def test_the_name_of_an_algorithm_is_one_folder(composed, tmp_path):
    config = build(composed("algo=dqn", "env=CartPole-v1", f"output_dir={tmp_path}"))
    folder = make_folder(replace(config, algo=replace(config.algo, name="their/algo:new")))
    assert folder.parent == tmp_path / "CartPole-v1" / "their_algo_new-async"


@pytest.mark.slow
def test_a_checkpoint_of_another_format_is_refused_by_name(copied, composed, tiny):
    path = copied / "checkpoints" / "last" / "manifest.json"
    manifest = json.loads(path.read_text())
    for written, change in ((1, lambda: manifest.pop("format")), (3, lambda: manifest.update(format=3))):
        change()
        for name in ("last", "best"):
            (copied / "checkpoints" / name / "manifest.json").write_text(json.dumps(manifest))
        (copied / "config.yaml").write_text("from another time: true\n")
        says = f"its checkpoint format is {written}, this drl-cli reads 2"
        weights = build(composed(*tiny, "algo=my_pkg.my_algo", "env=CartPole-v1", f"load_weights='{copied}'"))
        for call, *args in (
            (named_run, read_command([f"resume={copied}"])),
            (evaluate, copied, Options(), {}),
            (lambda config: preflight(with_weights(fill(config))), weights),
        ):
            code, (problem,) = refused(call, *args)
            assert code == CHECKPOINT
            assert problem.endswith(says)
