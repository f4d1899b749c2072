import os
import pty
import shutil
import subprocess
import sys

import pytest

from drl_cli.cli.complete import completions, shell_completion
from drl_cli.config.config import Config
from drl_cli.errors import UsageError
from drl_cli.settings.command_line import command_names
from drl_cli.settings.conf import groups, options

BASH = shutil.which("bash")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("drl-train mode=", {"mode=async", "mode=offline", "mode=single", "mode=sync"}),
        ("drl-train dry_run=", {"dry_run=false", "dry_run=true"}),
        ("drl-train worker.n", {"worker.num="}),
        ("drl-train +worker.nu", {"+worker.num="}),
        ("drl-train network.torso=m", {"network.torso=mlp", "network.torso=multi"}),
        ("drl-train op", {"optimizer.", "optimizer="}),
        ("drl-train seed=3 st", {"stop."}),
        ("drl-train stop.", {"stop.return=", "stop.wall_s="}),
        ("drl-train algo=dqn algo.d", {"algo.double=", "algo.dueling="}),
        ("drl-train algo=ppo algo.d", set()),
        ("drl-train algo=nothing algo.ga", {"algo.gamma="}),
        ("drl-train -m mode=single,as", {"mode=single,async"}),
        ("drl-train --config-d", {"--config-dir"}),
        ("drl-train --config-dir ", set()),
        ("drl-train --help tra", None),
        ("drl-train env=LunarLanderC", {"env=LunarLanderContinuous", "env=LunarLanderContinuous-v3"}),
        *[("drl-train algo.lr=", set()), ("drl-train --nonsense mode=sy", {"mode=sync"})],
        *[("drl-bench mode=sy", {"mode=sync"}), ("/opt/bin/drl-train mode=sy", {"mode=sync"})],
        *[("drl-list mo", {"modes"}), ("drl-list keys work", None), ("drl-list modes ", set())],
        *[("drl-list runs na", {"name="}), ("drl-list runs sort=be", {"sort=best"}), ("drl-train na", {"name="})],
        ("drl-eval checkpoint=", {"checkpoint=best", "checkpoint=last"}),
        ("drl-nothing x", set()),
        ("drl-train", None),
    ],
)
def test_the_words_that_complete_a_line(line, found):
    words = completions(line)
    if found is not None:
        assert set(words) == found
    assert words == sorted(words)
    assert all(word.startswith(line.split()[-1]) for word in words if not line.endswith(" ") and " " in line)


def test_an_empty_word_offers_groups_and_keys():
    words = set(completions("drl-train "))
    assert {f"{name}=" for name in groups() if options(name) != ["default"]} <= words
    assert {name.removesuffix(".").removesuffix("=") for name in words} == {*Config.__dataclass_fields__, "tuned"}


@pytest.mark.parametrize("line", ["drl-train --help ", "drl-list keys "])
def test_topics_are_groups_options_and_keys(line):
    assert {"worker", "algo=sac", "worker.num", "stop.return"} <= set(completions(line))


def test_runs_of_this_folder(small_run, monkeypatch):
    monkeypatch.chdir(small_run.cwd)
    folder = str(small_run.folder.relative_to(small_run.cwd))
    for key in ("drl-train resume", "drl-train from_config", "drl-eval run"):
        assert {word.partition("=")[2] for word in completions(f"{key}=")} >= {"latest", folder}


def test_every_command_is_completed_and_can_be_uninstalled():
    assert {"drl-train", "drl-eval", "drl-list", "drl-bench"} <= set(command_names())
    assert (
        shell_completion("install=bash", "")[-1] == f"complete -o default -F _drl_complete {' '.join(command_names())}"
    )
    assert shell_completion("uninstall=bash", "")[0] == f"complete -r {' '.join(command_names())}"
    assert shell_completion("install=fish", "") is None
    for shell in ("bash", "fish"):  # zsh asks as bash does
        assert shell_completion(f"query={shell}", "drl-train env=Pendulu") == ["env=Pendulum-v1"]
    with pytest.raises(UsageError, match="say install=bash"):
        shell_completion("-sc", "")


def _read(main):
    try:
        return os.read(main, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_a_bash_completes_what_is_typed_and_lists_what_is_possible(tmp_path):
    """The drl-train of this bash prints its arguments."""
    script = f'#!{BASH}\nif [ "$1" = -sc ]; then exec {sys.executable} -m drl_cli.cli.train "$@"; fi\necho "GOT:$*:"\n'
    (tmp_path / "drl-train").write_text(script)
    (tmp_path / "drl-train").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb", "INPUTRC": "/dev/null"}
    lines = (
        'eval "$(drl-train -sc install=bash)"',
        "drl-train algo=dq\talgo.targ\t7 env=my_mod:My-v0 mode=asy\tnetwork.torso=mu\t",
        "drl-train algo=\t\t",
        "./drl-tr\tmode=single,sy\t",
        "exit\n",
    )
    main, child = pty.openpty()
    command = [BASH, "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=os.environ | env, start_new_session=True
    ):
        os.close(child)
        os.write(main, "\n".join(lines).encode())
        shown = b""
        while chunk := _read(main):
            shown += chunk
    os.close(main)
    _, completed, listed, *_ = shown.decode().split("GOT:")
    assert completed.startswith("algo=dqn algo.target_period=7 env=my_mod:My-v0 mode=async network.torso=multi:")
    assert {"dqn", "ppo", "sac"} <= set((completed + listed).split())
