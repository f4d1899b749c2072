import json
import shutil

import pytest

from drl_cli.envs.make import read_spec
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.preflight.algorithm import inherited, misfit
from drl_cli.preflight.preflight import preflight
from drl_cli.run_folder.checkpoint import load_model, read_weights, save_model
from drl_cli.run_folder.load_weights import find_weights, with_weights
from drl_cli.runtime.factories import make_trainer
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill
from drl_cli.types import LoadParams

FITS = "network.hidden=[16,16]"


@pytest.fixture
def check(composed, tmp_path):
    """Check `load_weights=latest` as drl-train does, and return the config."""

    def check_it(*overrides):
        named = (f"output_dir={tmp_path}/outputs", "load_weights=latest")
        config = with_weights(fill(build(composed("env=Pendulum-v1", "tuned=none", *named, *overrides))), overrides)
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
        *[("latest", "best"), ("{run}", "best"), ("{run}/checkpoints/best", "best")],
        *[("{run}/checkpoints/last", "last"), ("{run}/checkpoints/last/model.safetensors", "last")],
    ],
)
def test_a_run_or_a_checkpoint_can_be_named(copied, tmp_path, path, found):
    outputs, path = tmp_path / "outputs", path.format(run=copied)
    assert find_weights(path, str(outputs)) == (copied / "checkpoints" / found).resolve()


def test_of_an_offline_run_it_is_the_last_checkpoint(copied, tmp_path):
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace("mode: async", "mode: offline"))
    assert find_weights(str(copied), "") == (copied / "checkpoints/last").resolve()


@pytest.mark.parametrize(
    ("algo", "fits"), [("cql", True), ("wsrl", True), ("cal_ql", True), ("td3", False), ("mpo", False)]
)
def test_an_algorithm_that_extends_the_saved_one_fits(check, copied, capsys, algo, fits):
    words = (FITS, f"algo={algo}", f"load_weights={copied}/checkpoints/last")
    if fits:
        check(*words)
    else:
        assert f"is of algo=sac, and this run has algo={algo}; say algo=sac" in refusal(check, *words)[1]
    path = (copied / "checkpoints/last").resolve()
    line = f"load_weights: all networks of {path} will be loaded; the optimizers are new\n"
    assert capsys.readouterr().err == line * fits


@pytest.mark.parametrize(
    ("before", "now", "taken"),
    [
        *[("sac", "sac", "all"), ("cql", "sac", "all"), ("sac", "cal_ql", "all"), ("iql", "cal_ql", "actor")],
        *[("td3", "sac", None), ("iql", "td3", None), ("not_installed", "sac", None)],
    ],
)
def test_what_an_algorithm_takes_over_from_another(before, now, taken):
    assert inherited(before, now) == taken


def test_the_policy_alone_is_loaded_by_an_algorithm_with_other_critics(check, copied, capsys):
    check(FITS, "algo=redq", f"load_weights={copied}/checkpoints/last")
    assert "only the policy is loaded, and critics start anew" in capsys.readouterr().err


@pytest.mark.parametrize(("algo", "fits"), [("sac", True), ("cal_ql", True), ("td3", False), ("mpo", False)])
def test_the_parts_of_iql_that_go_on_in_sac_are_named(check, composed, tmp_path, capsys, algo, fits):
    iql = fill(build(composed("env=Pendulum-v1", "tuned=none", FITS, "algo=iql")))
    vector = make_trainer(iql, read_spec(iql.env), "cpu", 0).publish(0, 0)[1]
    folder = save_model(tmp_path / "run/checkpoints/step", LoadParams(0, 0, 0), vector, {})
    (tmp_path / "run/config.yaml").write_text("algo: {name: iql}\nenv: {id: Pendulum-v1}\n")
    words = (FITS, f"algo={algo}", f"load_weights={folder}")
    if not fits:
        assert f"is of algo=iql, and this run has algo={algo}; say algo=iql" in refusal(check, *words)[1]
        return
    check(*words)
    line = "from IQL come the actor (with one standard deviation for all states); the critics and the target networks"
    assert capsys.readouterr().err == f"load_weights: {line}, the temperature and the optimizers are new\n"
    assert "the network needs" in refusal(check, f"algo={algo}", "network.hidden=[8]", words[-1])[1]


@pytest.mark.parametrize("saved", [False, True])
def test_weights_bring_the_normalisation_of_their_run(copied, composed, saved):
    file, named = copied / "config.yaml", ("env=Pendulum-v1", "tuned=none", f"load_weights={copied}")
    file.write_text(file.read_text().replace("normalize_obs: false", f"normalize_obs: {saved}".lower()))

    def taken(*words):
        env = with_weights(fill(build(composed(*named, *words))), words).env
        return env.normalize_obs, env.normalize_reward

    assert taken() == (saved, False)
    assert taken("env.normalize_obs=false", "env.normalize_reward=true") == (False, True)


def test_weights_bring_the_widths_of_their_layers(copied, composed):
    def taken(*words):
        words = ("env=Pendulum-v1", "tuned=none", f"load_weights={copied}", *words)
        return with_weights(fill(build(composed(*words))), words).network.hidden

    assert taken() == (16, 16)
    assert taken("network.hidden=[8]") == (8,)


def test_networks_that_do_not_fit_give_a_warning(copied, composed):
    config = fill(build(composed("env=Pendulum-v1", "tuned=none", FITS)))
    networks = read_weights(copied / "checkpoints/last").networks
    spec = read_spec(config.env)
    assert misfit(config, spec, networks) is None
    assert "'params' has shape" in misfit(config, spec, networks | {"params": networks["params"][1:]})


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["network.hidden=[8]"],
            (
                "({size},)",
                f"({3 * 8 + 8 + 8 * 2 + 2},)",
                "network.hidden is [16,16] there and [8] here; say network.hidden=[16,16]",
            ),
        ),
        (
            [FITS, "env.normalize_obs=true"],
            ("; env.normalize_obs is false there and true here; say env.normalize_obs=false",),
        ),
        (["network.hidden=[8]", "env=user_envs:Tiny-v0"], ("is of Pendulum-v1, and this run has user_envs:Tiny-v0: ",)),
        ([FITS, "tampered"], ("sha256",)),
    ],
)
def test_weights_that_do_not_fit_are_exit_8(copied, check, user_folder, monkeypatch, overrides, parts):
    monkeypatch.syspath_prepend(str(user_folder))
    model = copied / "checkpoints" / "best" / "model.safetensors"
    params, _ = load_model(model.parent)
    if "tampered" in overrides:
        content = bytearray(model.read_bytes())
        content[-1] ^= 1
        model.write_bytes(content)
    code, problem = refusal(check, *(override for override in overrides if override != "tampered"))
    assert code == CHECKPOINT
    assert all(part.format(size=len(params)) in problem for part in parts)


@pytest.mark.slow
def test_weights_of_another_environment_that_fit_give_a_warning(copied, check, user_folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(user_folder))
    config = check(FITS, "env=user_envs:Tiny-v0")
    best = (copied / "checkpoints" / "best").resolve()
    assert config.load_weights == str(best)
    line = f"load_weights: {best} is of Pendulum-v1; it fits user_envs:Tiny-v0, too"
    told = f"load_weights: the policy of {best} will be loaded; other networks and the optimizers are new"
    assert capsys.readouterr().err == f"warning: {line}\n{told}\n"


def test_a_missing_checkpoint_names_the_others(copied):
    code, problem = refusal(find_weights, f"{copied}/checkpoints/step_42", "")
    assert (code, "there is: best, last, step_" in problem) == (CHECKPOINT, True)
    shutil.rmtree(copied / "checkpoints")
    code, problem = refusal(find_weights, str(copied), "")
    assert (code, problem.endswith("there is none")) == (CHECKPOINT, True)


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
def test_a_run_with_statistics_images_or_memory_is_evaluated_and_started_from(
    drl_here, tiny, tmp_path, monkeypatch, args
):
    monkeypatch.chdir(tmp_path)

    def drl(*words):
        done = drl_here(*words)
        assert done.returncode == 0, done.stderr

    args = (*args, *tiny, "manage.confirm_episodes=0")
    drl("train", *args)
    returns = []
    for _ in range(2):
        drl("eval", "episodes=8")
        (path,) = tmp_path.glob("outputs/*/*/*/eval.json")
        returns.append(json.loads(path.read_text())["returns"])
    assert returns[0] == returns[1]
    drl("train", *args, "load_weights=latest")
