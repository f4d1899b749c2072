"""load_weights on the command line: what it may name, and what is refused before anything starts."""

import json
import shutil

import pytest

from drl_cli.errors import CHECKPOINT, USAGE, UsageError
from drl_cli.preflight.preflight import preflight
from drl_cli.preflight.weights import find_weights, with_weights
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill


@pytest.fixture
def copied(small_run, tmp_path):
    """A copy of the small run, to be damaged."""
    folder = tmp_path / "outputs" / "Pendulum-v1" / "sac-async" / small_run.folder.name
    shutil.copytree(small_run.folder, folder, symlinks=True)
    return folder


@pytest.fixture
def check(composed, tmp_path):
    """What drl-train does with load_weights before it starts; gives the config."""

    def check_it(path, *overrides):
        root = f"output_dir={tmp_path}/outputs"
        plain = composed("env=Pendulum-v1", "tuned=none", root, f"load_weights='{path}'", *overrides)
        config = with_weights(fill(build(plain)))
        preflight(config)
        return config

    return check_it


def refusal(check, *args):
    with pytest.raises(UsageError) as caught:
        check(*args)
    (problem,) = caught.value.problems
    return caught.value.exit_code, problem


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("latest", "best"),
        ("{run}", "best"),
        ("{outputs}/*/*/*", "best"),
        ("{id}", "best"),
        ("{run}/checkpoints/best", "best"),
        ("{run}/checkpoints/last", "last"),
        ("{run}/checkpoints/last/model.safetensors", "last"),
    ],
)
def test_what_it_may_name(copied, tmp_path, path, found):
    outputs = tmp_path / "outputs"
    path = path.format(run=copied, outputs=outputs, id=copied.name[:15])
    assert find_weights(path, str(outputs)) == (copied / "checkpoints" / found).resolve()


def test_the_config_names_the_checkpoint_itself(copied, check):
    config = check("latest", "network.hidden=[16,16]")
    assert config.load_weights == str((copied / "checkpoints" / "best").resolve())


def test_another_size_is_exit_8_and_names_both(copied, check):
    params, _ = load_model(copied / "checkpoints" / "best")
    code, problem = refusal(check, "latest", "network.hidden=[8]")
    assert code == CHECKPOINT
    assert f"({len(params)},)" in problem
    assert f"({3 * 8 + 8 + 8 * 2 + 2},)" in problem
    assert "network" in problem
    code, problem = refusal(check, "latest", "network.hidden=[16,16]", "env.normalize_obs=true")
    assert code == CHECKPOINT
    assert "env.normalize_*" in problem


def test_another_environment_that_it_fits_is_named(copied, check, user_folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(user_folder))
    check("latest", "network.hidden=[16,16]", "env=user_envs:Tiny-v0")
    said = f"warning: load_weights: {(copied / 'checkpoints' / 'best').resolve()} is of Pendulum-v1; "
    assert capsys.readouterr().err == f"{said}it fits user_envs:Tiny-v0, too\n"
    code, problem = refusal(check, "latest", "network.hidden=[8]", "env=user_envs:Tiny-v0")
    assert code == CHECKPOINT
    assert "is of Pendulum-v1, and this run has user_envs:Tiny-v0: " in problem


def test_a_tampered_model_is_exit_8(copied, check):
    model = copied / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    code, problem = refusal(check, "latest", "network.hidden=[16,16]")
    assert code == CHECKPOINT
    assert "sha256" in problem


def test_a_checkpoint_that_is_not_there_names_those_that_are(copied, tmp_path):
    with pytest.raises(UsageError, match=r"no 'step_42'.*there is: best, last, step_") as caught:
        find_weights(f"{copied}/checkpoints/step_42", str(tmp_path / "outputs"))
    assert caught.value.exit_code == CHECKPOINT


def test_a_run_that_saved_nothing_is_exit_8(copied, tmp_path):
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(UsageError, match=r"no 'best'.*there is none") as caught:
        find_weights(str(copied), str(tmp_path / "outputs"))
    assert caught.value.exit_code == CHECKPOINT


def test_nothing_of_that_name_is_exit_2(tmp_path):
    with pytest.raises(UsageError, match=r"load_weights: no run 'nope' in .*0 runs there") as caught:
        find_weights("nope", str(tmp_path))
    assert caught.value.exit_code == USAGE


@pytest.mark.slow
def test_the_command_starts_from_it_and_says_no_before_ray_starts(small_run, drl, tmp_path):
    args = (*small_run.args, f"load_weights={small_run.folder}", "orchestrator.min_inserts=300")
    done = drl("train", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("outputs/*/*/*")
    ours, theirs = (
        load_model(folder / "checkpoints" / name)[0] for folder, name in ((run, "last"), (small_run.folder, "best"))
    )
    assert ours.tobytes() == theirs.tobytes()
    refused = drl("train", *args, "network.hidden=[8]", "debug.in_process=false", cwd=tmp_path)
    assert refused.returncode == CHECKPOINT
    assert refused.stderr.startswith("error: load_weights: ")
    assert len(list(tmp_path.glob("outputs/*/*/*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("env=Pendulum-v1", "env.normalize_obs=true", "env.normalize_reward=true"),
        pytest.param(
            ("env=drl_cli.envs.probes:Both-v0", "+env.kwargs.size=24", "algo=dqn"), marks=pytest.mark.exhaustive
        ),
        (
            *("env=drl_cli.envs.probes:Cue-v0", "algo=dqn", "network=lstm", "network.memory_size=8"),
            *("replay=sequences", "replay.seq_len=6", "replay.burn_in=3", "replay.overlap=2"),
        ),
    ],
    ids=["normalised", "cnn", "lstm"],
)
def test_a_run_is_evaluated_as_it_was_and_another_starts_from_it(drl, tiny, tmp_path, args):
    """With its statistics, its torso, or a memory that begins anew in each episode."""
    args = (*args, *tiny, "manage.confirm_episodes=0")
    assert drl("train", *args, cwd=tmp_path).returncode == 0
    returns = []
    for _ in range(2):
        done = drl("eval", "episodes=8", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (path,) = tmp_path.glob("outputs/*/*/*/eval.json")
        returns.append(json.loads(path.read_text())["returns"])
    assert returns[0] == returns[1]
    again = drl("train", *args, "load_weights=latest", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
