"""Recorders and evaluators of the user's, and the environment of evaluations, are checked before anything starts."""

import sys
from dataclasses import replace

import pytest
from fake_services import install_wandb

from drl_cli.errors import MISSING, USAGE, USER_CODE, UsageError
from drl_cli.preflight.environment import check_evaluation, environment_spec
from drl_cli.preflight.recording import check_recording
from drl_cli.runs.changes import changed_code
from drl_cli.runtime.files.checkpoint import write_json
from drl_cli.settings.build import build
from drl_cli.settings.compose import compose

TELLING = ("env=telling:Telling-v0", "tuned=none")


def refusal(check, *args):
    with pytest.raises(UsageError) as caught:
        check(*args)
    return caught.value.exit_code, caught.value.problems


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A module that can't be imported."""
    (tmp_path / "broken_recorder.py").write_text("raise OSError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("logger.recorders=[nowhere:Own]", "logger.recorders: there is no module 'nowhere' to import from"),
        ("logger.recorders=[telling:Onw]", "logger.recorders: telling has no 'Onw'. Did you mean Own?"),
        ("logger.recorders=[telling:NUMBER]", "logger.recorders: telling:NUMBER is not a class"),
        ("logger.recorders=[telling:Lacking]", "logger.recorders: telling:Lacking has no method close"),
        (
            "logger.recorders=[telling:without_arguments]",
            "logger.recorders: telling:without_arguments must accept",
        ),
        ("manage.evaluator=telling:Own", "manage.evaluator: telling:Own must accept (config, spec, seeds): "),
        ("manage.evaluator=builtins:slice", "manage.evaluator: builtins:slice has no method evaluate and no close"),
    ],
)
def test_what_is_no_recorder_or_evaluator_is_refused(override, problem):
    code, (line,) = refusal(check_recording, compose([*TELLING, override]))
    assert code == USAGE
    assert line.startswith(problem)


def test_all_problems_are_said_at_once():
    config = compose([*TELLING, "logger.recorders=[telling:Own,telling:Onw,nowhere:X]", "manage.evaluator=telling:Own"])
    _, problems = refusal(check_recording, config)
    assert [problem.split(":")[0] for problem in problems] == ["logger.recorders"] * 2 + ["manage.evaluator"]


@pytest.mark.usefixtures("broken")
def test_a_module_that_raises_is_the_users():
    code, (line,) = refusal(check_recording, compose([*TELLING, "logger.recorders=[broken_recorder:Any]"]))
    assert code == USER_CODE
    assert line.startswith("logger.recorders: broken_recorder raised OSError: no licence (broken_recorder.py:1)")


def test_what_fits_is_taken():
    check_recording(compose([*TELLING, "logger.recorders=[telling:Own]", "manage.evaluator=telling:Generous"]))
    check_recording(compose([*TELLING]))


@pytest.mark.parametrize(
    "override", ["logger.recorders=[my_mod.Own]", "manage.evaluator=Own", "logger.wandb=yes please"]
)
def test_the_form_of_a_value_is_checked_without_importing_anything(override):
    with pytest.raises(UsageError) as caught:
        compose([*TELLING, override])
    (problem,) = caught.value.problems
    assert problem.startswith(override.split("=")[0])
    assert "my_pkg.my_mod:Class" in problem or "none, offline, online" in problem


@pytest.mark.parametrize(("package", "value"), [("wandb", "offline"), ("mlflow", "http://server:5000")])
def test_a_package_that_is_missing_is_an_extra(package, value, monkeypatch):
    monkeypatch.setattr("drl_cli.preflight.recording.source_file", lambda module: None)
    code, (line,) = refusal(check_recording, compose([*TELLING, f"logger.{package}={value}"]))
    assert code == MISSING
    assert line == f"logger.{package}={value} needs a package that is not installed:  pip install 'drl-cli[{package}]'"
    check_recording(compose([*TELLING, f"logger.{package}=none"]))


@pytest.mark.parametrize("value", ["true", "Offline", "localhost:5000"])
def test_what_is_no_place_for_mlflow_is_refused(value, monkeypatch):
    monkeypatch.setattr("drl_cli.preflight.recording.source_file", lambda module: module)
    code, (line,) = refusal(check_recording, compose([*TELLING, f"logger.mlflow='{value}'"]))
    assert code == USAGE
    assert line == f"logger.mlflow: must be none, offline or a tracking server's URI (http://...), got {value}"
    for place in ("http://host:5000", "databricks", "offline"):
        check_recording(compose([*TELLING, f"logger.mlflow='{place}'"]))


def test_a_folder_that_wandb_left_here_is_not_its_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    real = [path for path in sys.path if path != str(tmp_path) and "site-packages" not in path]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *real])
    assert refusal(check_recording, compose([*TELLING, "logger.wandb=offline"]))[0] == MISSING
    install_wandb(monkeypatch)


@pytest.mark.parametrize(
    ("override", "code", "problem"),
    [
        ("manage.env_kwargs.width=3", USAGE, "manage.env_kwargs: with them the environment has other observations"),
        ("manage.env_kwargs.size=3", USER_CODE, "manage.env_kwargs={'size': 3}: telling:Telling-v0 raised TypeError"),
    ],
)
def test_an_environment_for_evaluations_that_does_not_fit_is_refused(override, code, problem):
    config = compose([*TELLING, override])
    found, (line,) = refusal(check_evaluation, config, environment_spec(config))
    assert found == code
    assert line.startswith(problem)


def test_an_environment_for_evaluations_that_fits_is_taken():
    config = compose([*TELLING, "env.kwargs.level=1", "manage.env_kwargs={level: 2}"])
    check_evaluation(config, environment_spec(config))
    assert (config.env.kwargs, config.manage.env_kwargs) == ({"level": 1}, {"level": 2})


def test_a_recorders_source_is_shipped_and_noted_but_may_change(composed, tmp_path):
    config = build(composed("env=Pendulum-v1"))
    own = replace(config, logger=replace(config.logger, recorders=("telling:Own",)))
    own = replace(own, manage=replace(own.manage, evaluator="fake_services:FakeWandb"))
    assert (own.outside_modules, own.learning_modules) == (["fake_services", "telling"], [])
    write_json(tmp_path / "run.json", {"code": {"telling": "0" * 64}})
    assert changed_code(tmp_path, own) == []
