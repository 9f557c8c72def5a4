"""The documentation's site, opened from the disk in a real browser."""

import pytest
from browser import Browser
from conftest import run_python

SEARCH = """
document.querySelector("[data-md-toggle=search]").click();
const field = document.querySelector(".md-search__input");
field.value = {word!r};
field.dispatchEvent(new Event("keyup"));
"""


@pytest.mark.thorough
@pytest.mark.browser
def test_pages_from_the_disk_are_searched_in_either_language(tmp_path):
    run_python(
        "-m", "mkdocs", "build", "--quiet", f"--site-dir={tmp_path / 'site'}", check=True
    )
    window = Browser(tmp_path / "profile")
    try:
        for page, language, word in (
            ("comparing.html", "en", "staleness"),
            ("zh/comparing.html", "zh", "梯度"),
        ):
            window.open(tmp_path / "site" / page)
            window.evaluate(SEARCH.format(word=word))
            window.wait_for("document.querySelectorAll('.md-search-result__item').length > 2")
            assert window.evaluate("document.documentElement.lang") == language
            menu = window.evaluate("document.querySelector('.md-nav--primary').innerText")
            assert ("术语表" in menu) == (language == "zh")
            assert ("Glossary" in menu) == (language == "en")
        assert not [each for each in window.requests if each.startswith("http")]
    finally:
        window.close()
