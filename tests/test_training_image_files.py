"""Pictures: what figures hold, what files are, and characters that no font has."""

import warnings

import numpy as np
import pytest
from conftest import run_python
from matplotlib import image

from parity.twins.chat.attention_plot import attention_figure, plot_attention
from parity.twins.training import image_files as pictures
from parity.twins.training.image_files import font_families


def sentences(count=3):
    draw = np.random.default_rng(1)
    found = []
    for number in range(count):
        source = [f"s{number}{place}" for place in range(2 + number % 3)]
        target = [f"t{number}{place}" for place in range(4 - number % 2)] + ["<eos>"]
        found.append((source, target, draw.dirichlet(np.ones(len(source)), len(target))))
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_panel_has_the_tokens_and_the_weights(count):
    drawn = sentences(count)
    figure = attention_figure(drawn)
    *panels, scale = figure.axes
    assert len(panels) == count
    assert scale.get_ylabel() == "weight"
    assert figure.get_suptitle().startswith("Attention: ")
    titles = [f"question {i}" for i in range(1, count + 1)] if count > 1 else [""]
    assert [axes.get_title() for axes in panels] == titles
    for axes, (source, target, weights) in zip(panels, drawn, strict=True):
        assert axes.get_xlabel() == "word of the question"
        assert axes.get_ylabel() == "word of the answer"
        assert [label.get_text() for label in axes.get_xticklabels()] == source
        assert [label.get_text() for label in axes.get_yticklabels()] == target
        assert list(axes.get_xticks()) == list(range(len(source)))
        assert list(axes.get_yticks()) == list(range(len(target)))
        (picture,) = axes.get_images()
        np.testing.assert_array_equal(picture.get_array(), weights)
        assert picture.get_clim() == (0, 1)
        assert picture.get_cmap()(1.0)[:3] == (0, 0, 0), "black is all of the attention"


@pytest.mark.parametrize(
    ("ending", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_the_ending_says_what_is_written(tmp_path, ending, head):
    path = tmp_path / f"attention.{ending}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_attention(sentences(), path)
    assert path.read_bytes().startswith(head)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    if ending == "png":
        ink = image.imread(path)[..., :3].min(axis=2) < 0.9
        assert 0.05 < ink.mean() < 0.95
        columns = np.flatnonzero(ink.any(axis=0))
        assert columns[0] < 0.2 * ink.shape[1]
        assert columns[-1] > 0.8 * ink.shape[1]


# A character of the private use area is in no Chinese font either.
@pytest.mark.parametrize(("text", "named"), [("你好 a 你", "你好"), ("\ue123", "\\ue123")])
def test_what_no_font_has_is_told_once_and_drawn_as_boxes(
    tmp_path, capsys, monkeypatch, text, named
):
    monkeypatch.setattr(pictures, "_CHINESE", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_attention(
            [(text.split(), ["b"], np.ones((1, len(text.split()))))], tmp_path / "a.png"
        )
    said = capsys.readouterr().err
    assert said == (
        f"no font for '{named}', drawn as boxes; allowed: install a Chinese font, such as the "
        "system's package fonts-noto-cjk or fonts-wqy-zenhei\n"
    )


def test_a_chinese_font_is_used_if_it_is_installed(monkeypatch):
    """Of several the first in the table; matplotlib's own is one that surely is installed."""
    monkeypatch.setattr(pictures, "_CHINESE", ("No Such", "DejaVu Serif", "DejaVu Sans Mono"))
    assert font_families() == ["DejaVu Sans", "DejaVu Serif"]


def test_matplotlib_itself_says_nothing(tmp_path):
    """As when its folder cannot be written, and its list of fonts is made anew."""
    code = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from parity.twins.chat.attention_plot import plot_attention\n"
        f"path = Path({str(tmp_path / 'a.png')!r})\n"
        "plot_attention([(['a'], ['b'], np.ones((1, 1)))], path)\n"
    )
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file")
    environment = {"PATH": "", "HOME": nowhere, "MPLCONFIGDIR": nowhere}
    done = run_python("-W", "default", "-c", code, env=environment, check=True)
    assert done.stderr == ""
    assert (tmp_path / "a.png").exists()
