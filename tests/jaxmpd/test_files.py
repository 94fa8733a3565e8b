"""Files that are whole or absent."""

import pytest

from jaxmpd import files


def test_replacing_leaves_the_old_file_on_failure(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with files.replacing(path) as temporary:
        temporary.write_text("old")

    def fail():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
