import json
import re

import pytest
from PIL import Image

from drl_cli.cli.eval import Options as EvalOptions
from drl_cli.cli.eval import evaluate
from drl_cli.cli.play import Options, answer, failures, play, suffix_of
from drl_cli.deploy.trained import open_policy
from drl_cli.errors import MISSING, UsageError


@pytest.mark.slow
def test_a_video_of_the_first_episode_of_drl_eval(copied, drl_here, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    done = drl_here("play", "format=gif", "max_steps=200")
    assert (done.returncode, done.stderr) == (0, "")
    line, path = done.stdout.splitlines()
    best = (copied / "checkpoints" / "best").readlink().name
    assert path.endswith(f"videos/{best}-seed0.gif")
    with Image.open(tmp_path / path) as image:
        assert image.n_frames > 100
    mean = evaluate(copied, EvalOptions(episodes=1), {})["mean"]
    assert re.fullmatch(rf"sac  [\d,]+ env steps: return {mean:.1f}, 200 steps", line)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_evolution_has_one_episode_of_each_checkpoint_in_order(copied):
    *lines, path = play(Options(run=str(copied), evolution=True, format="gif", max_steps=40))
    steps = [int(re.search(r"sac  ([\d,]+) env", line)[1].replace(",", "")) for line in lines]
    manifests = [json.loads(path.read_text()) for path in (copied / "checkpoints").glob("step_*/manifest.json")]
    assert steps == sorted({manifest["env_steps"] for manifest in manifests})
    assert len(steps) > 1
    assert all("40 steps, cut there" in line for line in lines)
    assert len({line.split("return")[1] for line in lines}) > 1  # other weights
    assert path.endswith("videos/evolution-seed0.gif")
    with pytest.raises(UsageError, match="leave episodes out"):
        play(Options(run=str(copied), evolution=True, episodes=2))


@pytest.mark.slow
def test_failures_are_the_worst_episodes_of_the_evaluation(copied):
    chosen = {"run": str(copied), "only": "failures", "format": "gif", "max_steps": 2}
    with pytest.raises(UsageError, match=r"the run has no stop\.return; say below=RETURN"):
        play(Options(**chosen))
    with pytest.raises(UsageError, match=r"greedy evaluation of this checkpoint: drl-eval run=.* episodes=100$"):
        play(Options(**chosen, below=0))
    result = evaluate(copied, EvalOptions(episodes=4), {})
    middle = sum(sorted(result["returns"])[1:3]) / 2
    worst = [seed for _, seed in sorted(zip(result["returns"], result["seeds"], strict=True))]
    policy = open_policy(str(copied), "best")
    assert failures(policy, Options(**chosen, below=middle, episodes=9)) == worst[:2]
    assert failures(policy, Options(**chosen, below=1e9, episodes=3)) == worst[:3]
    *lines, path = play(Options(**chosen, below=middle, episodes=9))
    assert len(lines) == 2
    assert path.endswith("-failures-2episodes.gif")
    with pytest.raises(UsageError, match=rf"all 4 episodes reached -1e\+09, the lowest {min(result['returns']):.1f}"):
        play(Options(**chosen, below=-1e9))
    with pytest.raises(UsageError, match=r"drl-eval run=.* episodes=100 checkpoint=last$"):
        play(Options(**chosen, below=0, checkpoint="last"))
    evaluate(copied, EvalOptions(episodes=1, stochastic=True), {})
    with pytest.raises(UsageError, match="of a greedy evaluation"):
        play(Options(**chosen, below=0))
    evaluate(copied, EvalOptions(episodes=1, env="Pendulum-v1"), {})
    with pytest.raises(UsageError, match="of a greedy evaluation"):
        play(Options(**chosen, below=0))
    assert len(failures(policy, Options(**chosen, below=1e9, env="Pendulum-v1"))) == 1
    with pytest.raises(UsageError, match="below and only=failures belong together"):
        play(Options(run=str(copied), below=0))


def test_what_is_missing_is_exit_3(monkeypatch):
    monkeypatch.setattr("drl_cli.deploy.play.find_ffmpeg", lambda: None)
    with pytest.raises(UsageError, match=r"ffmpeg.*drl-cli\[video\]") as caught:
        play(Options(run="nope", format="mp4"))
    assert (caught.value.exit_code, suffix_of("auto")) == (3, "gif")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match=r"Pillow.*drl-cli\[video\]") as caught:
        play(Options(run="nope"))
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_an_environment_that_can_not_be_drawn_is_exit_2_and_one_that_raises_exit_4(train_here):
    _, folder = train_here("env=user_envs:Tiny-v0", "mode=single")
    with pytest.raises(
        UsageError,
        match=r"user_envs:Tiny-v0 can't be made with render_mode=rgb_array: .*; give its constructor the argument",
    ) as caught:
        play(Options(run=str(folder)))
    assert caught.value.exit_code == 2
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("user_envs:Tiny-v0", "everything:Drawn-v0"))
    with pytest.raises(UsageError, match=r"everything:Drawn-v0: render raised ValueError: no brush") as caught:
        play(Options(run=str(folder), format="gif", trust=True))
    assert caught.value.exit_code == 4
    assert not list((folder / "videos").glob("*"))


def test_a_window_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UsageError, match="live=true needs a display") as raised:
        answer(Options(live=True))
    assert raised.value.exit_code == MISSING
