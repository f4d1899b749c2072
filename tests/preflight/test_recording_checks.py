import sys
from dataclasses import replace

import pytest
from fake_services import install_wandb

from drl_cli.errors import MISSING, USAGE, USER_CODE, UsageError
from drl_cli.preflight.environment import check_evaluation, environment_spec
from drl_cli.preflight.preflight import check_recording
from drl_cli.run_folder.checkpoint import write_json
from drl_cli.run_folder.resume import changed_code
from drl_cli.settings.compose import compose

MLFLOW = "logger.mlflow: must be none, offline or a tracking server's URI (http://...), got"


def telling(*overrides):
    return compose(["env=telling:Telling-v0", "tuned=none", *overrides])


def refusal(check, *args):
    with pytest.raises(UsageError) as caught:
        check(*args)
    return caught.value.exit_code, caught.value.problems


@pytest.mark.parametrize(
    ("override", "code", "problem"),
    [
        ("logger.recorders=[nowhere:Own]", USAGE, "logger.recorders: there is no module 'nowhere' to import from"),
        ("logger.recorders=[telling:Onw]", USAGE, "logger.recorders: telling has no 'Onw'. Did you mean Own?"),
        ("logger.recorders=[telling:NUMBER]", USAGE, "logger.recorders: telling:NUMBER is not a class"),
        ("logger.recorders=[telling:Lacking]", USAGE, "logger.recorders: telling:Lacking has no method close"),
        ("logger.recorders=[telling:without_arguments]", USAGE, "logger.recorders: telling:without_arguments must acc"),
        ("manage.evaluator=telling:Own", USAGE, "manage.evaluator: telling:Own must accept (config, spec, seeds): "),
        ("manage.evaluator=gymnasium.spaces:Box", USAGE, "manage.evaluator: gymnasium.spaces:Box has no method"),
        ("manage.evaluator=builtins:slice", USAGE, "manage.evaluator: builtins is a module of Python, which has no"),
        (
            "logger.recorders=[broken_recorder:Any]",
            USER_CODE,
            "logger.recorders: broken_recorder raised OSError: no licence (broken_recorder.py:1)",
        ),
        *((f"logger.mlflow='{value}'", USAGE, f"{MLFLOW} {value}") for value in ("true", "Offline", "localhost:5000")),
    ],
)  # fmt: skip
def test_what_is_no_recorder_or_evaluator_is_refused(override, code, problem, tmp_path, monkeypatch):
    (tmp_path / "broken_recorder.py").write_text("raise OSError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("drl_cli.preflight.preflight.source_file", lambda module: module)
    found, (line,) = refusal(check_recording, telling(override))
    assert found == code
    assert line.startswith(problem)


def test_an_unknown_argument_of_the_evaluation_environment_has_its_own_key():
    config = compose(["env=CartPole-v1", "algo=dqn", "manage.env_kwargs.nope=3"])
    found, (line,) = refusal(check_evaluation, config, environment_spec(config))
    assert (found, line.partition(" has ")[0]) == (USAGE, "manage.env_kwargs.nope: CartPole-v1")


@pytest.mark.slow
def test_recorders_and_evaluators_that_fit_are_accepted(monkeypatch):
    check_recording(telling("logger.recorders=[telling:Own]", "manage.evaluator=telling:Generous"))
    monkeypatch.setattr("drl_cli.preflight.preflight.source_file", lambda module: module)
    for place in ("http://host:5000", "databricks", "offline"):
        check_recording(telling(f"logger.mlflow='{place}'"))


@pytest.mark.slow
@pytest.mark.parametrize(("package", "value"), [("wandb", "offline"), ("mlflow", "http://server:5000")])
def test_a_missing_package_is_an_extra(package, value, monkeypatch):
    monkeypatch.setattr("drl_cli.preflight.preflight.source_file", lambda module: None)
    code, (line,) = refusal(check_recording, telling(f"logger.{package}={value}"))
    assert code == MISSING
    assert line == f"logger.{package}={value} needs a package that is not installed:  pip install 'drl-cli[{package}]'"
    check_recording(telling(f"logger.{package}=none"))


def test_a_folder_named_wandb_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    real = [path for path in sys.path if path != str(tmp_path) and "site-packages" not in path]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *real])
    assert refusal(check_recording, telling("logger.wandb=offline"))[0] == MISSING
    install_wandb(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "code", "problem"),
    [
        ("manage.env_kwargs.width=3", USAGE, "manage.env_kwargs: with them the environment has other observations"),
        ("manage.env_kwargs.size=3", USAGE, "manage.env_kwargs.size: telling:Telling-v0 has no argument 'size'"),
    ],
)
def test_an_evaluation_environment_that_does_not_fit_is_refused(override, code, problem):
    config = telling(override)
    found, (line,) = refusal(check_evaluation, config, environment_spec(config))
    assert found == code
    assert line.startswith(problem)


def test_the_source_of_recorders_is_shipped_and_may_change(tmp_path):
    config = compose(["env=Pendulum-v1"])
    own = replace(config, logger=replace(config.logger, recorders=("telling:Own",)))
    own = replace(own, manage=replace(own.manage, evaluator="fake_services:FakeWandb"))
    assert (own.outside_modules, own.outside()) == (["fake_services", "telling"], [])
    write_json(tmp_path / "run.json", {"code": {"telling": "0" * 64}})
    assert changed_code(tmp_path, own) == []
