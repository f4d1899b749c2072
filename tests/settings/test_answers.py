"""Answers of drl-train to wrong commands: one line that names the right word, and an exit code.

The commands run in this process. `slow` runs each in a new process, and measures the time.
"""

import importlib.util
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from drl_cli.settings.build import to_yaml_keys

MY_MOD = '''
"""Environments of a user."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class My(gymnasium.Env):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, g=1.0):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.full(3, 0.5, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(3, self.count % 2, np.float32), 1.0, False, self.count == 50, {}


class Unregistered(My):
    pass


def make_my():
    return My()


gymnasium.register("AnswersMy-v0", My)
'''
ABORTS = """
import os

import gymnasium


class My(gymnasium.Env):
    def __init__(self):
        os.abort()
"""
FILES = {
    "answers_aborts.py": ABORTS,
    "answers_mod.py": MY_MOD,
    "answers_gym.py": "import gym\n",
    "answers_needs.py": MY_MOD.replace("g=1.0", "size, *, speed").replace("AnswersMy", "AnswersNeeds"),
    "answers_broken.py": "import no_such_package_at_all\n",
    "answers_algo.py": "from drl_cli.algos.off_policy.sac import ACTIONS, Algorithm, Config\n",
    "conf/env/hard.yaml": "defaults: [LunarLander]\nname: hard\nid: Pendulum-v1\nkwargs: {g: 12.0}\n",
    "conf/algo/mysac.yaml": "defaults: [sac]\nlr: 1e-3\n",
    "conf/tuned/fast.yaml": "# @package _global_\nalgo:\n  lr: 1e-3\n  tau: 0.01\n",
    "conf/experiment/quick.yaml": "# @package _global_\ntotal_env_steps: 5000\nalgo: {lr: 1e-3}\n",
    "bad/env/broken.yaml": "name: x\nid: [1\nkwargs: {}\n",
    "bad/env/short.yaml": "name: x\nid: Pendulum-v1\nspeed: 3\n",
    "bad/env/words.yaml": "just words\n",
    "bad/experiment/typo.yaml": "# @package _global_\nalgo:\n  lrr: 1e-3\nseed: many\n",
    "bad/experiment/twice.yaml": "# @package _global_\nseed: 1\nalgo: {lr: 1e-3}\nseed: 2\n",
    "bad/experiment/absent.yaml": "# @package _global_\ndefaults:\n  - override /mode: nosuch\n",
    "bad/experiment/loop.yaml": "# @package _global_\nalgo:\n  lr: ${algo.nosuch}\n",
    "same/env/hardly.yaml": (
        "name: hardly\nid: Pendulum-v1\nkwargs: {}\nmax_episode_steps: null\nreward_clip: null\nreward_scale: 1.0\n"
        "frame_stack: 1\nframe_storage: auto\nnormalize_obs: false\nnormalize_reward: false\n"
        "backend: gymnasium\naction_repeat: 1\n"
        "wrappers: []\n"
    ),
    "same/env/LunarLander.yaml": "defaults: [hardly]\nname: same\n",
    "bad/mode/single.yaml": "# @package _global_\nmodes: single\n",
    "bad/main.yaml": "defaults:\n  - train\n  - _self_\nseed: [1\n",
    "mine/main.yaml": "defaults:\n  - train\n  - override /env: Pendulum-v1\n  - _self_\nseed: 5\n",
    "empty/readme.txt": "nothing\n",
}
OWN = "--config-dir conf"
BAD = "--config-dir bad"

NAMES = [
    ("env=MiniGrid-Empty-5x5-v0", 3, "pip install minigrid   then env=minigrid:MiniGrid-Empty-5x5-v0"),
    ("env=FetchReach-v2", 3, "FetchReach-v2 needs gymnasium_robotics:  pip install 'drl-cli[robotics]'"),
    ("env=HalfCheetah-v2", 2, "HalfCheetah-v2 is of an older Gymnasium; say env=HalfCheetah-v5"),
    ("env=answers_mod.My", 2, "no environment 'answers_mod.My'. Did you mean env=answers_mod:My?"),
    ("env=answers_mod", 2, "it is a module. Did you mean env=answers_mod:AnswersMy-v0, env=answers_mod:Unregistered?"),
    ("env=./answers_mod.py:My", 2, "Did you mean env=answers_mod:My?"),
    ("env=answers_mod:Unregisterd", 2, "answers_mod has no environment 'Unregisterd'. Did you mean answers_mod:Unreg"),
    ("env=answers_aborts:My", 4, "its constructor ended the process by SIGABRT (Aborted) (answers_aborts.py:9)"),
    ("env=answers_gym:My", 2, "No module named 'gym'; gym is gymnasium now: write import gymnasium as gym"),
    ("env=answers_needs:My", 2, "env.kwargs: answers_needs:My needs size; say env.kwargs.size=..."),
    ("env=answers_broken:Any-v0", 2, "can't import 'answers_broken': No module named 'no_such_package_at_all'"),
    ("env=no_such_mod:My-v0", 2, "no environment 'no_such_mod:My-v0': there is no module 'no_such_mod' to import"),
    ("env=Pendulum-v9", 2, "no environment 'Pendulum-v9'. Did you mean Pendulum-v1"),
    ("env=LunarLaner", 2, "no environment 'LunarLaner'. Did you mean LunarLander, LunarLanderContinuous?"),
    ("env=xyzzy", 2, "no environment 'xyzzy'.   drl-list envs has all; one of your own is my_mod:MyEnv"),
    ("env=", 2, "env: say which, as env=Pendulum-v1"),
    ("env=antigravity", 2, "no environment 'antigravity'"),
    ("env=CartPole-v1 algo=sac", 2, "SAC needs a continuous (Box) action space; CartPole-v1 has Discrete(2). For this"),
    ("env=CartPole-v1 algo.lrr=1", 2, "algo.lrr: dqn has no option 'lrr'. Did you mean algo.lr?"),
    ("env=CartPole-v1 algo=ppo worker.envs=5000", 2, "is more than trainer.batch_size=512, so that rollouts"),
    ("env=BitFlip algo=ppo replay=hindsight", 2, "PPO can't learn from replay=hindsight; say replay=fifo-once"),
    ("env=CartPole-v1 algo=ppo replay=fifo replay.times=2", 2, "PPO can't learn from replay=fifo with replay.times"),
    ("env=CartPole-v1 algo=impala replay.times=2", 2, "replay=fifo-once serves each row once; say replay=fifo"),
    ("env=Pendulum-v1 algo=bc", 2, "it runs in offline: say mode=offline data=PATH"),
    ("algo=sca", 2, "unknown algorithm 'sca'. Did you mean 'sac'?   available: "),
    ("algo=answers_algo", 2, "answers_algo ("),
    ("mode=asink", 2, "no mode option 'asink'. Did you mean async?   available: async, offline, single, sync"),
    ("network=answers_mod:Net", 2, "no network 'answers_mod:Net': answers_mod has no 'Net'."),
    ("network=[256,256]", 2, "no network option '[256,256]'. Did you mean network.hidden=[256,256]?"),
    ("replay=per", 2, "no replay option 'per'."),
    ("replay=1e6", 2, "Did you mean replay.capacity=1e6?"),
    ("optimizer=Adam", 2, "no optimizer option 'Adam'. Did you mean adam?"),
    ("tuned=sac-Pendulum", 2, "no set of tuned values 'sac-Pendulum'. Did you mean sac-Pendulum-v1?   available: "),
    ("algo=dqn env=CartPole-v1 tuned=dqn-MinAtar-Brakout", 2, "'dqn-MinAtar-Brakout'. Did you mean dqn-MinAtar-"),
    ("algo=dqn env=CartPole-v1 tuned=sac-Pendulum-v1", 2, "tuned=sac-Pendulum-v1 is of algo=sac, and this run has"),
    ("env=LunarLanderContinuous algo=droq algo.dropout=1.5", 2, "algo.dropout: droq has no option 'dropout'. Did you "),
    ("env=CartPole-v1 algo=ppo algo.n_step=3", 2, "must be 1, got 3, because ppo learns from rollouts; algo"),
    ("mode=offline env=CartPole-v1 algo=sac data=x.npz", 2, "Discrete(2). For this: algo=cql_discrete or algo=bc\n"),
]
WORDS = [
    ("--env Pendulum-v1", 2, "no flag '--env': options have no dashes; say env=Pendulum-v1"),
    ("--lr 1e-3", 2, "no flag '--lr': options have no dashes; say algo.lr=1e-3"),
    *[("--hidden 256", 2, "say network.hidden=[256]"), ("--cuda", 2, "say device=cuda")],
    *[("--seed", 2, "say seed=..."), ("--foo", 2, "no flag '--foo'.")],
    ("--env.foo 3", 2, "options have no dashes; env.foo: env has no option 'foo'.   drl-list keys"),
    ("--algo.lrr=1", 2, "no flag '--algo.lrr': options have no dashes; algo.lrr: sac has no option 'lrr'. Did you mea"),
    ("--env.kwargs.g 9", 2, "no flag '--env.kwargs.g': options have no dashes; say env.kwargs.g=9"),
    ("--config c.yaml", 2, "no flag '--config'; say --config-path . --config-name c"),
    ("--cfg hydra", 2, "--cfg: only --cfg job is possible"),
    ("env=Pendulum-v1 --resolve", 2, "--package and --resolve say how the config is printed: add --cfg job"),
    ("--multi-run seed=0,1", 2, "no flag '--multi-run'. Did you mean --multirun?"),
    ("Pendulum-v1", 2, "'Pendulum-v1' is not of the form key=value. Did you mean env=Pendulum-v1?"),
    ("wroker --help", 2, "no group or key 'wroker'. Did you mean worker?   groups: "),
    ("-m explain=true seed=0,1", 2, "explain=true explains one run: leave -m and the lists of values out"),
    ("help", 2, "Did you mean --help?"),
    ("bench", 2, "drl-bench is another command"),
    ("qwerty", 2, "'qwerty' is not of the form key=value.   try --help"),
    ("env Pendulum-v1", 2, "'env Pendulum-v1': key and value are one word; say env=Pendulum-v1"),
    ("env = Pendulum-v1", 2, "key and value are one word; say env=Pendulum-v1"),
    ("network.hidden=[64, 64]", 2, "a value with spaces needs quotes around it: 'network.hidden=[64, 64]'"),
    ("seed", 2, "seed: has no value; say seed=..."),
    ("=3", 2, "'=3' is not of the form key=value"),
]
KEYS = [
    ("optimizer.lr=1e-3", 2, "optimizer.lr: optimizer has no option 'lr'. Did you mean algo.lr?"),
    ("stop=200", 2, "stop: is a group of options; say stop.return=200"),
    ("network.hidden=256", 2, "network.hidden: must be a list, got 256; say network.hidden=[256]"),
    ("name=a,b", 2, "name=a,b: several values are a sweep"),
    ("output_dir=' '", 2, "output_dir: must be the path of a folder, such as . for this folder"),
    ("name='(a)'", 2, "name: must be 1 to 60 letters, digits, spaces and . : / @ + = - _"),
    ("wandb=true", 2, "wandb: no such option at the top level. Did you mean logger.wandb=offline?"),
    ("env.frame_skip=2", 2, "env has no option 'frame_skip'. For that: env.action_repeat=N repeats each action"),
    ("env.action_repeat=0", 2, "env.action_repeat: must be >= 1, got 0"),
    ("deterministic=false", 2, "evaluations take the best action; drl-eval run=RUN stochastic=true samples actions"),
    ("hpo=optuna", 2, "no hpo option 'optuna'. Did you mean hpo=tpe?"),
    ("hpo=optuna seed=2", 2, "needs -m: drl-train -m hpo=tpe seed=2 'algo.lr=tag(log,interval(1e-4,1e-2))'"),
    ("logger.wandb=true", 2, "logger.wandb: true is not one of none, offline, online. Did you mean offline?"),
    ("runs=latest", 2, "runs: no such option at the top level. For that: drl-train goes on with a run by resume=RUN"),
    ("++foo=3", 2, "foo: no such option at the top level."),
    ("+seed=3", 2, "+seed: this key is there already, so say seed=3"),
    ("~seed", 2, "seed: is missing, say seed=..."),
    ("~env", 2, "~env: a group can't be left out; say env=OPTION"),
    ("env@x=Pendulum-v1", 2, "env@x: no such option at the top level."),
    ("replay.alpha=0.5", 2, "replay.alpha: only replay=prioritized and replay=sequences have this option"),
    ("algo=mrq replay=uniform", 2, "error: algo=mrq needs replay.alpha and replay.uniform_mix, which replay.sampler="),
    ("env=CartPole-v1 algo=appo replay=prioritized", 2, "algo=appo needs replay.max_staleness, which replay.sampler"),
    ("env=Pong algo=auto algo.epochs=3", 2, "pqn, reppo, vmpo   algo=auto chose mrq: "),
    ("env=CartPole-v1 algo=auto,ppo", 2, "algo=auto,ppo: several values are a sweep, which needs -m: drl-train -m"),
]  # fmt: skip
VALUES = [
    ("seed=0,1", 2, "seed=0,1: several values are a sweep, which needs -m: drl-train -m seed=0,1"),
    ("network.hidden=64,64", 2, "network.hidden: a list needs brackets: network.hidden=[64,64]"),
    ("-m seed=0", 2, "-m sweeps over several values, as in seed=0,1 or algo.lr=1e-4,1e-3; for one run leave -m out"),
    ("device=gpu", 2, "device: must be auto, cpu, cuda or cuda:N, got gpu. Did you mean cuda?"),
    ("algo.lr=fast", 2, "algo.lr: must be a number, got 'fast'"),
    ("algo.lr=0,001", 2, "algo.lr=0,001: a number has a point; say algo.lr=0.001"),
    ("seed=[0,1,2]", 2, "must be a whole number, got [0, 1, 2]; several values are a sweep: drl-train -m seed=0,"),
    ("-m seed=0..4", 2, "several values are a sweep: drl-train -m 'seed=range(0,5)'"),
    ("-m seed=0,0", 2, "-m: all 2 jobs are the same, because a value is given twice"),
    ("-m algo.lr=[1e-3,1e-4]", 2, "several values are a sweep: drl-train -m algo.lr=1e-3,1e-4"),
    ("replay.capacity=2GB", 2, "got '2GB'; replay.capacity has no unit of time or size: drl-list keys repl"),
    ("checkpoint.period=10min", 2, "got '10min'; say checkpoint.period_s=600"),
    ("logger.tensorboard=off", 2, "logger.tensorboard: must be true or false, got 'off'. Did you mean false?"),
    ("reward=curiosity", 2, "no reward option 'curiosity'. Did you mean reward=icm?"),
    ("mode=offline algo=bc data=latest", 2, "'latest' is a run, not a dataset; say data=run:latest"),
    ("@args.txt", 2, "'@args.txt' is not of the form key=value"),
    ("algo.lr=[1", 2, "algo.lr=[1: can't be read: a quote or a bracket is not closed"),
    (["output_dir=a b=c,d"], 2, "output_dir=a b=c,d: several values are a sweep"),
    ("algo.lr=${algo.nosuch}", 2, "algo.lr: there is no key algo.nosuch to take the value of"),
    ("algo.lr=${nosuch:1}", 2, "algo.lr: there is no resolver nosuch"),
    ("network.torso=cnnn", 2, "network.torso: must be auto, mlp, cnn, resnet, multi, or a class of yours as my_pkg"),
    ("total_env_steps=1,000,000", 2, "a number has no commas; say total_env_steps=1_000_000"),
    ("env:CartPole-v1", 2, "'env:CartPole-v1' is not of the form key=value; say env=CartPole-v1"),
    ("seed=null", 2, "seed: must be a whole number, got null"),
    ("total_env_steps=100k", 2, "got '100k'; say total_env_steps=100000"),
    ("ray.object_store_mb=100GB", 2, "got '100GB'; say ray.object_store_mb=100000"),
    ("env=Pendulum-v1 network.hidden=[256,]", 2, "can't be read: a comma at the end; say network.hidden=[256]"),
    ("logger=wandb", 2, "no logger option 'wandb'. Did you mean logger.wandb=offline?"),
    ("env=Pendulum-v1 total_env_steps=10", 2, "say total_env_steps=130 or more"),
    ("env=Pendulum-v1 hpo=tpe", 2, "drl-train -m env=Pendulum-v1 hpo=tpe 'algo.lr=tag(log,interval(1e-4,1e-2))'"),
    ("hpo=tpe algo.lr=interval(1,2)", 2, "drl-train -m hpo=tpe 'algo.lr=interval(1,2)'"),
    ("-m seed=range(0,100000)", 2, "this sweep has 100,000 jobs, and sweep.max_jobs=1000 is the most"),
    ("hydra.run.dir=/tmp/x", 2, "hydra.run.dir: this setting of the config system has no effect; say output_dir=DIR"),
    ("network.hidden=[100000,100000] env=Pendulum-v1", 7, "network.hidden=[100000, 100000] needs 298.0 GiB"),
    ("worker.num=100000 env=Pendulum-v1", 7, "worker.num=100000 needs"),
    ("worker.envs=1000000 env=Pendulum-v1", 2, "which does not fit in replay.capacity=100000; lower worker.envs"),
    ("worker.envs=1000000000 mode=single", 7, "worker.num=1 x worker.envs=1000000000 needs 4656.6 GiB"),
    ("env=Pendulum-v1 env.kwargs.colour=1", 2, "Pendulum-v1 has no argument 'colour'.   arguments: render_mode, g"),
    ("env=answers_mod:AnswersMy-v0 env.kwargs.gg=1", 2, "has no argument 'gg'. Did you mean g?   arguments: g"),
    ("env=Pendulum-v1 env.kwarg.colour=1", 2, "env.kwarg has no option 'colour'. Did you mean env.kwargs.colour?"),
    ("env=Pendulum-v1 env.max_episode_steps=none", 2, "a whole number, got 'none'; say env.max_episode_steps=null"),
]
RUNS = [
    ("resume=", 2, "resume: say which run: resume=latest, a path, the start of a run id, or a run's name"),
    ("resume=lastest", 2, "Did you mean latest?"),
    ("from_config=latest algo=ppo", 2, "leave it out, or begin a new run: drl-train algo=ppo ..."),
    ("resume=nope", 2, "no run 'nope' in {cwd}/outputs (3 runs there, the newest is 20260301-100000-000000-s0)"),
    ("resume=empty", 2, "empty is no run: it has no run.json"),
    ("resume=outputs/Pendulum-v1", 2, "outputs/Pendulum-v1 is no run: it has no run.json; the newest of 3 runs below "),
    ("resume=answers_mod.py", 2, "answers_mod.py is a file; a run is the folder in which run.json is"),
    ("resume={run}/checkpoints/step_7", 8, "no checkpoint 'step_7' in {run}/checkpoints; there is: step_000000100"),
    ("resume=latest env=CartPole-v1", 2, "resume: env=CartPole-v1 can't be chosen here: the saved weights"),
    ("resume=nope env=CartPole-v1", 2, "no run 'nope' in {cwd}/outputs"),
    ("resume=latest from_config=latest", 2, "resume goes on with a run, from_config starts another: say one of them"),
    ("load_weights=nope env=Pendulum-v1", 2, "load_weights: no run 'nope'"),
    ("load_weights={run}/checkpoints/step_000000100 env=Pendulum-v1 algo=ppo", 8, "is of algo=sac, and this run has a"),
]
OWN_YAML = [
    (f"{BAD} env=broken", 2, "bad/env/broken.yaml:3: no valid yaml: "),
    (f"{BAD} env=short", 2, "bad/env/short.yaml:3: env.speed: env has no option 'speed'."),
    (f"{BAD} env=short", 2, "bad/env/short.yaml: lacks kwargs, max_episode_steps"),
    (f"{BAD} mode=single", 2, "bad/mode/single.yaml:2: modes: no such option at the top level. Did you mean mode?"),
    (f"{BAD} env=words", 2, "bad/env/words.yaml:1: must hold key: value"),
    (f"{BAD} +experiment=typo", 2, "bad/experiment/typo.yaml:3: algo.lrr: sac has no option 'lrr'. Did you mean algo."),
    (f"{BAD} experiment=typo", 2, "bad/experiment/typo.yaml:4: seed: must be a whole number, got 'many'"),
    (f"{BAD} experiment=twice", 2, "bad/experiment/twice.yaml:4: seed is given twice, in line 2, too"),
    (f"{BAD} experiment=absent env=Pendulum-v1", 2, "there is no mode/nosuch"),
    (f"{BAD} experiment=loop env=Pendulum-v1", 2, "algo.lr: there is no key algo.nosuch to take the value of"),
    (f"{BAD} experiment=nosuch", 2, "no experiment option 'nosuch'.   available: absent, loop, twice, typo"),
    (f"{OWN} env=hardd", 2, "no environment 'hardd'. Did you mean hard?"),
    (f"{OWN} algo=mysacc", 2, "unknown algorithm 'mysacc'"),
    (f"{OWN} algo=ppo env=CartPole-v1 tuned=fast", 2, "conf/tuned/fast.yaml:4: algo.tau: ppo has no option 'tau'"),
    ("--config-dir nowhere", 2, "--config-dir: there is no folder {cwd}/nowhere"),
    ("--config-path nowhere", 2, "--config-path: there is no {cwd}/nowhere/train.yaml"),
    ("--config-path bad --config-name main", 2, "bad/main.yaml:5: no valid yaml"),
    ("--config-name nosuch", 2, "--config-name: say by --config-path in which folder nosuch.yaml is"),
    ("hydra.searchpath=conf", 2, "hydra.searchpath: must be a list of folders"),
    ("hydra.searchpath=[pkg://no_such_pkg]", 2, "hydra.searchpath: there is no folder pkg://no_such_pkg"),
]
RIGHT = [
    ("", "To begin: drl-train env=CartPole-v1 stop.return=475"),
    ("env=CartPole-v1 dry_run=true", "memory: at least replay 0.0"),
    ("env=CartPole-v1 dry_run=true", "CartPole-v1: (4,) observations, Discrete(2) actions; all checks passed"),
    ("env=CartPole-v1 algo=auto dry_run=True", "algo=auto chose "),
    ("-m env=CartPole-v1 algo=auto seed=0,1 dry_run=true", "algo=auto chose "),
    ("env=LunarLanderContinuous env.kwargs.continuous=false explain=true", "action space  env=LunarLanderContinuous"),
    ("-m env=CartPole-v1,Pendulum-v1 seed=0,1 dry_run=true", "4 jobs; all checks passed"),
    ("-m env=CartPole-v1 algo=dqn tuned=none,dqn-CartPole-v1 dry_run=true", "2 jobs; all checks passed"),
    ("-m env=CartPole-v1 algo=sqn tuned=glob(sqn-*) dry_run=true", "3 jobs; all checks passed"),
    ("from_config=latest mode=sync dry_run=true", "Pendulum-v1: (3,) observations"),
    ("resume=latest mode=single explain=true", "conf/mode/single.yaml"),
    ("env=Pendulum-v1 env.kwargs.g=5 total_env_steps=130 dry_run=true", "orchestrator.min_inserts=128 (not 1000)"),
    ("env=answers_mod:My dry_run=true", "answers_mod:My: (3,) observations"),
    ("env=answers_mod:make_my dry_run=true", "answers_mod:make_my: (3,) observations"),
    ([r"env=answers_mod\:AnswersMy-v0", "dry_run=true"], "answers_mod:AnswersMy-v0: (3,) observations"),
    (f"{OWN} env=hard dry_run=true", "hard: (3,) observations"),
    ("--config-dir same env=LunarLander dry_run=true", "same: (3,) observations"),
    ("-cd conf env=hard algo=mysac dry_run=true", "hard: (3,) observations"),
    (f"{OWN} experiment=quick env=Pendulum-v1 dry_run=true", "all checks passed"),
    ("hydra.searchpath=[file://conf] env=hard tuned=fast dry_run=true", "hard: (3,) observations"),
    ("--config-path mine --config-name main dry_run=true", "(3,) observations"),
    (f"{OWN} -m env=hard seed=0,1 dry_run=true", "2 jobs; all checks passed"),
    ("-m env=answers_mod:AnswersMy-v0 seed=0,1 hydra.searchpath=[conf] dry_run=true", "2 jobs; all checks passed"),
    (f"{OWN} --help", "experiment    quick"),
    ("--version", "drl-cli "),
]  # fmt: skip
TABLE = [*NAMES, *WORDS, *KEYS, *VALUES, *RUNS, *OWN_YAML]

BELOW = re.compile(
    r"Traceback|Hydra|OmegaConf|omegaconf|DictConfig|hydra\.cc|HYDRA_|Error executing|Could not|Interpolation|usage: "
    r"|NoViable|\bstruct\b|full_key|drl_cli\.cli"
)
"""Words of the tools below, and of Python where it fails."""


@pytest.fixture(scope="module")
def place(tmp_path_factory, composed):
    """A user's folder: modules, own yaml options, three runs that were ended."""
    from drl_cli.settings.build import build
    from drl_cli.settings.fill import fill

    cwd = tmp_path_factory.mktemp("answers")
    for name, text in FILES.items():
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(text)
    config = to_yaml_keys(fill(build(composed("env=Pendulum-v1"))))
    for month in (1, 2, 3):
        run = cwd / f"outputs/Pendulum-v1/sac-async/20260{month}01-100000-000000-s0"
        step = run / "checkpoints" / "step_000000100"
        step.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        (step / "manifest.json").write_text("{}")
        (step / "model.safetensors").write_bytes(b"")
    return SimpleNamespace(cwd=cwd, run=run)


@pytest.fixture
def answer(place, monkeypatch, drl_here):
    """drl-train in this process, as far as its start: its exit code, and what it says on both streams."""
    monkeypatch.chdir(place.cwd)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("drl_cli.runtime.run.run", lambda *args, **options: pytest.fail("it trains"))

    def run(args):
        done = drl_here("train", *(args if isinstance(args, list) else shlex.split(filled(args, place))))
        return done.returncode, done.stdout, done.stderr

    return run


def filled(text, place):
    return text.replace("{cwd}", str(place.cwd)).replace("{run}", str(place.run))


def ids(row):
    return " ".join(row[0]) if isinstance(row[0], list) else row[0]


def assert_answer(place, given, code, says):
    found, out, err = given
    assert (found, out) == (code, ""), err
    assert 1 <= len(err.splitlines()) <= 4, err
    assert all(line.startswith(("error: ", "warning: ")) for line in err.splitlines()), err
    assert filled(says, place) in err.replace(f"{place.cwd}/bad", "bad"), err
    assert not BELOW.search(err), err


@pytest.mark.parametrize("row", TABLE, ids=ids)
def test_a_wrong_command(place, answer, row):
    args, code, says = row
    assert_answer(place, answer(args), code, says)


@pytest.mark.parametrize(("args", "says"), RIGHT)
def test_a_right_command(answer, args, says):
    code, out, err = answer(args)
    assert (code, err) == (0, ""), err
    assert says in out


@pytest.mark.slow
def test_the_page_about_options_of_your_own_is_right(answer, monkeypatch, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "own-options.md").read_text()
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        file = tmp_path / re.search(r"# (my_conf/\S+?\.yaml)", text)[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^drl-train (--config-dir .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for args in commands:
        code, out, err = answer(f"{args} dry_run=true")
        assert (code, err) == (0, "")
        assert "all checks passed" in out


@pytest.mark.parametrize(
    "args",
    [
        "--env Pendulum-v1 --lr 1e-3",
        "Pendulum-v1 sac learning_rate=3 mode=asink algo.gamma=7",
        "algo.lrr=1 seed=-1 mode=asink worker.num=many sed=1 env=LunarLaner tuned=best =1",
    ],
)
def test_all_problems_of_a_command_at_once(answer, args):
    code, _, err = answer(args)
    assert (code, len(err.splitlines())) == (2, 2 if "--" in args else len(args.split()))


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="mujoco is installed here")
def test_a_missing_extra_is_named_with_its_pip_command(place, answer):
    assert_answer(place, answer("env=Ant-v5"), 3, "Ant-v5 needs MuJoCo:  pip install 'drl-cli[mujoco]'")


def test_rendering_mujoco_in_a_window_needs_a_display(place, answer, monkeypatch):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("drl_cli.utils.machine.sys.platform", "linux")
    says = "env.kwargs.render_mode=human needs a display; leave it out, and record a video with drl-play run=RUN"
    monkeypatch.setattr("drl_cli.preflight.environment.is_mujoco", lambda id: id == "Pendulum-v1")
    assert_answer(place, answer("env=Pendulum-v1 env.kwargs.render_mode=human"), 3, says)


@pytest.mark.parametrize("env", ["LunarLanderContinuous", "Pong-v5"])  # the second one has no other backend
def test_without_envpool_the_extra_is_named(place, answer, monkeypatch, env):
    monkeypatch.setitem(sys.modules, "envpool", None)  # its import raises ImportError
    says = "env.backend=envpool needs EnvPool:  pip install 'drl-cli[envpool]'"
    assert_answer(place, answer(f"env={env} env.backend=envpool"), 3, says)


def test_without_ale_py_the_extra_is_named(place, answer, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("drl_cli.envs.atari.metadata.version", missing)
    says = "env.backend=ale needs ale-py:  pip install 'drl-cli[atari]'"
    assert_answer(place, answer("env=Pong algo=dqn env.backend=ale"), 3, says)


def test_a_game_that_ale_py_lacks_is_refused(place, answer):
    pytest.importorskip("ale_py", minversion="0.12.1", reason="needs the extra atari:  pip install 'drl-cli[atari]'")
    says = "env: env.backend=ale has only Atari games, such as env=Pong or env=ALE/Seaquest-v5, not 'LunarLander-v3'"
    assert_answer(place, answer("env.backend=ale"), 2, f"{says}; say env.backend=gymnasium")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["train --help", "list envs"])
def test_a_pipe_that_is_closed_is_no_traceback(place, line):
    """As `drl-list envs | head` closes it."""
    import subprocess

    piped = f"{sys.executable} -m drl_cli.cli.{line} | head -c 1 | wc -c; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], cwd=place.cwd, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout.split()) == ("", ["1", "0"])
