"""The pictures of the strategies: drawn by their script, from the code that they show."""

from docs.pictures.draw import FOLDER, drawn

PICTURES = [path for path in sorted(FOLDER.rglob("*")) if path.is_file()]


def _all_pictures() -> dict[str, str]:
    return {path.relative_to(FOLDER).as_posix(): svg for path, svg in drawn()}


def test_files_are_what_the_script_draws(frameworks):
    """`python -m docs.pictures.draw` draws them."""
    found = {p.relative_to(FOLDER).as_posix(): p.read_text(encoding="utf-8") for p in PICTURES}
    expected = frameworks["paddle"].call(_all_pictures)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
