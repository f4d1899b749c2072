import errno

import pytest

from drl_cli.utils.files import reserve, write_or_make_room


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("needed", [0, 1, 2])
def test_room_is_made_until_the_write_succeeds(code, needed):
    made = []

    def write():
        if len(made) < needed:
            raise OSError(code, "full")
        return "written"

    assert write_or_make_room(write, lambda: made.append("a"), lambda: made.append("b")) == "written"
    assert made == ["a", "b"][:needed]


@pytest.mark.parametrize(("code", "made"), [(errno.ENOSPC, 1), (errno.EIO, 0)])
def test_the_last_error_is_raised_and_any_other_error_at_once(code, made):
    calls = []

    def write():
        raise OSError(code, "no")

    with pytest.raises(OSError, match="no"):
        write_or_make_room(write, lambda: calls.append(1))
    assert len(calls) == made


def test_a_reserve_is_filled_once_and_never_left_half_filled(tmp_path, monkeypatch):
    path = tmp_path / "reserve"
    reserve(path, 10)
    reserve(path, 20)
    assert path.stat().st_size == 10
    reserve(tmp_path / "missing" / "reserve", 10)  # an OSError is ignored
    assert [file.name for file in tmp_path.iterdir()] == ["reserve"]
