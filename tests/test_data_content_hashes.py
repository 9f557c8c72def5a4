"""A folder's hashes: what was written is known again, whatever else the list of them holds."""

import pytest

from data.content_hashes import HASHES, damage, sealed, write_hashes


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two files and their hashes."""
    for name in ("train.tokens", "字"):
        (tmp_path / name).write_bytes(name.encode())
    write_hashes(tmp_path, tmp_path.name)
    return tmp_path


def test_what_was_written_is_known_again(folder):
    assert damage(folder) is None


@pytest.mark.parametrize(
    "listed",
    [
        "",
        "\n",
        "x",
        "0" * 32,
        f"{'0' * 32}  ",
        f"{'0' * 32}  a\0b\n",
        f"{'0' * 32}  ../x\n",
        "\xff",
    ],
)
def test_a_list_of_something_else_is_damage(listed, folder):
    (folder / HASHES).write_bytes(sealed(listed.encode("latin-1"), folder.name))
    assert damage(folder) == f"{HASHES} does not list files"


def test_a_file_that_is_listed_and_not_there_is_named(folder):
    (folder / "字").unlink()
    assert damage(folder) == "字 cannot be read"
