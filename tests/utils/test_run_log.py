import logging
import re
import sys

from drl_cli.utils.run_log import run_log, tell


def test_the_file_has_all_messages_with_times_also_those_before_it_was_opened(tmp_path, capsys):
    log, path = logging.getLogger("drl_cli.somewhere"), tmp_path / "train.log"
    before = logging.getLogger("drl_cli").handlers[:]
    with run_log() as open_log:
        tell("warning: the first")
        log.warning("the second")
        open_log(path)
        log.info("the third")
        tell("error: the fourth")
    log.warning("too late")
    lines, times = path.read_text().splitlines(), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    assert [re.sub(f"^{times}", "", line) for line in lines] == [
        "INFO warning: the first", "WARNING the second", "INFO the third", "INFO error: the fourth"
    ]  # fmt: skip
    assert all(re.match(times, line) for line in lines)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:3] == ["warning: the first", "warning: the second", "error: the fourth"]
    assert logging.getLogger("drl_cli").handlers == before


def test_without_a_file_only_warnings_are_shown(capsys):
    with run_log():
        logging.getLogger("drl_cli.somewhere").info("hidden")
        tell("shown")
    assert capsys.readouterr().err == "shown\n"


def test_what_code_of_the_user_prints_is_in_the_file_too(tmp_path, capsys):
    path, before = tmp_path / "train.log", (sys.stdout, sys.stderr)
    with run_log() as open_log:
        print("early")
        open_log(path)
        print("a half", end="")
        print(" line\x1b")
        print("UserWarning: mind the step", file=sys.stderr)
        tell("once")
        assert sys.stdout.isatty() is False
    assert (sys.stdout, sys.stderr) == before
    texts = [re.sub(r"^\S+ \S+ INFO ", "", line) for line in path.read_text().splitlines()]
    assert texts == ["early", r"a half line\x1b", "UserWarning: mind the step", "once"]
    out, err = capsys.readouterr()
    assert out == "early\na half line\x1b\n"
    assert err == "UserWarning: mind the step\nonce\n"
