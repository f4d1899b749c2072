import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException

from drl_cli.cli.command import run_words
from drl_cli.errors import EXIT_CODES, LOST, RESOURCES, RoleLost, UsageError
from drl_cli.settings.command_line import command_names
from drl_cli.settings.compose import _usage_errors
from drl_cli.settings.options import parse
from drl_cli.settings.value_types import group_of

NAMES = [name.removeprefix("drl-") for name in command_names()]


def options_of(name):
    module = importlib.import_module(f"drl_cli.cli.{name}")
    return list(group_of(module.Options).keys) if hasattr(module, "Options") else ()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_a_version_and_names_wrong_options(drl_here, name):
    for flag in ("--help", "-h"):
        done = drl_here(name, flag)
        assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", f"drl-{name}")
        first_words = [line.split()[0] for line in done.stdout.splitlines()[2:] if line]
        assert first_words[: len(options_of(name))] == list(options_of(name))
    done = drl_here(name, "--version")
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", "drl-cli")
    done = drl_here(name, "outptu_dir=x", "secnds=1")
    assert (done.returncode, done.stdout) == (2, "")
    if "output_dir" in options_of(name):
        assert done.stderr.startswith("error: outptu_dir: no such option. Did you mean output_dir?")
        assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("word", ["deterministic=false", "greedy=true"])
def test_a_command_names_its_option_for_sampled_actions(word):
    with pytest.raises(UsageError, match=r"no such option. Did you mean stochastic\?   options: "):
        parse([word], importlib.import_module("drl_cli.cli.eval").Options)
    with pytest.raises(UsageError, match=f"{word.partition('=')[0]}: no such option.   options: run, "):
        parse([word, "run=latest"], importlib.import_module("drl_cli.cli.export").Options)


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("play", "length=5", "Did you mean max_steps?"),
        ("play", "render_mode=human", "Did you mean live?"),
        ("eval", "render=true", "drl-play run=RUN shows a policy."),
        ("watch", "refresh=1", "Did you mean period_s?"),
    ],
)
def test_a_word_of_another_tool_names_our_option(name, word, says):
    with pytest.raises(UsageError) as refused:
        parse([word], importlib.import_module(f"drl_cli.cli.{name}").Options)
    assert refused.value.problems[0].startswith(f"{word.partition('=')[0]}: no such option. {says}   options: run")


@pytest.mark.parametrize("word", ["output=foo", "out=foo.json", "file=foo"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eval", "drl-eval writes RUN/eval.json."),
        ("export", "drl-export writes RUN/export/FORMAT-CHECKPOINT, and prints the path."),
        ("play", "drl-play writes into RUN/videos, and prints the path."),
        ("compare", "Say png=FILE for the figure, and csv=FILE for the curves."),
    ],
)
def test_a_command_says_where_its_files_are(word, name, says):
    with pytest.raises(UsageError) as refused:
        parse([word], importlib.import_module(f"drl_cli.cli.{name}").Options)
    assert refused.value.problems[0].startswith(f"{word.partition('=')[0]}: no such option. {says}   options: run")


@pytest.mark.slow
def test_the_package_as_a_program_lists_the_commands(tmp_path):
    done = subprocess.run([sys.executable, "-m", "drl_cli"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    first = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("drl-")}
    assert list(first) == command_names()
    assert first["drl-play"].endswith(" record a video of a run's policy, or show the policy in a window.")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train env=Pendulum-v1", "drl-train env=Pendulum-v1"),
        ("drl-list runs", "drl-list runs"),
        ("x", "python -m drl_cli"),
    ],
)
def test_the_package_as_a_program_takes_no_words(words, says):
    done = subprocess.run(
        [sys.executable, "-m", "drl_cli", *words.split()], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: python -m drl_cli lists the commands and takes no words; say {says}\n"


def test_help_and_wrong_options_import_no_large_package(tmp_path):
    script = f"""
import importlib, sys
for name in {NAMES!r}:
    for word in ("--help", "seedd=1"):
        sys.argv = ["drl-" + name, word]
        try:
            importlib.import_module("drl_cli.cli." + name).main()
        except SystemExit as end:
            assert end.code == 2, (name, word, end.code)
        assert not {{"torch", "ray", "gymnasium", "hydra", "omegaconf", "matplotlib", "PIL"}} & set(sys.modules), name
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def raises(error):
    raise error


@pytest.fixture
def end_of(monkeypatch, capsys):
    """Run a command that fails. Return the exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["drl-test"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    def run(answer):
        with pytest.raises(SystemExit) as caught:
            run_words(answer, str)
        return caught.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def end(end_of):
    """Run a command whose answer raises an error. Return the exit code and stderr."""
    return lambda error: end_of(lambda words: raises(error))


def test_errors_are_lines_with_an_exit_code(end, monkeypatch):
    assert end(UsageError(["one", "two"])) == (2, "error: one\nerror: two\n")
    assert end(RoleLost("first line\nsecond line")) == (LOST, "error: first line\nerror: second line\n")
    assert end(KeyboardInterrupt()) == (130, "")
    code, told = end(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert (code, told.count("\n"), "device=cpu" in told) == (RESOURCES, 1, True)
    assert end(MemoryError("3 GiB"))[0] == RESOURCES
    with pytest.raises(RuntimeError, match="a bug"):
        run_words(lambda words: raises(RuntimeError("a bug")), str)
    monkeypatch.setenv("DRL_DEBUG", "1")
    assert "Traceback" in end(UsageError("one"))[1]


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGHUP", 129), ("SIGINT", 130)])
@pytest.mark.parametrize("raised", [AttributeError, HydraException])
def test_an_error_of_a_library_that_was_interrupted_is_not_reported(end_of, number, code, raised):
    def interrupted(words):
        with _usage_errors():
            try:
                signal.raise_signal(getattr(signal, number))
            finally:
                raise raised("the cleanup of a library fails")

    assert end_of(interrupted) == (code, "")


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_while_a_users_module_is_imported_does_not_blame_the_module(tmp_path, number, code):
    (tmp_path / "slow_mod.py").write_text(f"import signal; signal.raise_signal(signal.{number})\n")
    script = """
import sys
from drl_cli.cli.command import run_words
from drl_cli.utils.outside import import_module
sys.argv = ["drl-test"]
def answer(words):
    sys.path.append(".")
    import_module("slow_mod")
run_words(answer, str)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_docs_and_the_help_list_the_exit_codes(drl_here):
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    lines = drl_here("train", "--help").stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines[lines.index("exit codes") + 1 :][: len(EXIT_CODES)]] == [
        [str(code), meaning] for code, meaning in EXIT_CODES.items()
    ]


def test_ctrl_c_before_the_imports_end_is_silent(tmp_path):
    """Send SIGINT at several times while the command is imported."""
    for delay_s in (0.0, 0.02, 0.1):
        code = (
            "import runpy, signal, sys, threading\n"
            "sys.orig_argv.append('drl_cli.cli.train'); sys.argv[1:] = ['--help']\n"
            f"import drl_cli.cli; threading.Timer({delay_s}, signal.raise_signal, [signal.SIGINT]).start()\n"
            "runpy.run_module('drl_cli.cli.train', run_name='__main__')"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 130), done
        assert done.stderr == ""
