"""The pictures of the strategies: drawn by their script, from the code that they show."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from docs.pictures.draw import FOLDER, drawn
from docs.pictures.timelines import Pass, pipeline_passes, worker_bars, workers
from parity.twins.spec.frameworks import FRAMEWORKS

FILES = sorted(FOLDER.rglob("*"))
PICTURES = [path for path in FILES if path.is_file()]


def _all_pictures() -> dict[str, str]:
    return {path.relative_to(FOLDER).as_posix(): svg for path, svg in drawn()}


def _pipelines() -> list[tuple[int, int, list[Pass]]]:
    cases = [(stages, count) for stages in (1, 2, 4) for count in (1, 2, 3, 8)]
    return [(*case, pipeline_passes(*case)) for case in cases]


def test_files_are_what_the_script_draws(frameworks):
    """`python -m docs.pictures.draw` draws them."""
    found = {p.relative_to(FOLDER).as_posix(): p.read_text(encoding="utf-8") for p in PICTURES}
    expected = frameworks["paddle"].call(_all_pictures)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_a_picture_is_text_and_loads_nothing(path):
    content = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(content)
    assert root.findall(".//{*}image") == root.findall(".//{*}use") == []
    assert "href=" not in content
    assert "url(" not in content
    said = " ".join(text.text for text in root.iterfind(".//{*}text"))
    is_chinese = path.parent.name == "zh"
    assert bool(re.search("[\u4e00-\u9fff]", said)) == is_chinese
    assert root.find("{*}title").text


def test_every_strategy_has_a_picture():
    for framework in FRAMEWORKS.values():
        for entry in framework.strategies:
            for folder in (FOLDER, FOLDER / "zh"):
                assert folder / f"{entry.name}.svg" in PICTURES


def test_pipelines_do_one_thing_at_a_time_and_are_idle_as_the_page_says(frameworks):
    for stages, count, found in frameworks["paddle"].call(_pipelines):
        passes = [Pass(*each) for each in found]
        stop = {(p.stage, p.micro_batch, p.direction): p.stop for p in passes}
        assert len(stop) == len(passes) == 2 * stages * count
        for one in passes:
            at = one.stage, one.micro_batch
            if one.direction == "backward":
                assert stop[(*at, "forward")] <= one.start
            neighbour = one.stage + (1 if one.direction == "backward" else -1)
            if 0 <= neighbour < stages:
                assert stop[neighbour, one.micro_batch, one.direction] <= one.start
        for stage in range(stages):
            own = sorted((p for p in passes if p.stage == stage), key=lambda p: p.start)
            assert all(a.stop <= b.start for a, b in pairwise(own))
            idle = 1 - sum(p.stop - p.start for p in own) / max(stop.values())
            assert idle == pytest.approx((stages - 1) / (count + stages - 1)), (stages, count)


def test_a_worker_reads_after_its_own_update():
    bars = list(worker_bars(workers().updates, 40.0))
    for worker in range(3):
        own = [(start, stop) for start, stop, each, _ in bars if each == worker]
        assert len(own) == 4
        assert all(a[1] < b[0] for a, b in pairwise(own))
    assert {staleness for *_, staleness in bars} == {0, 1, 2}
