"""The documentation says what is there: commands, files, names, and the same in Chinese."""

import ast
import dataclasses
import itertools
import re
import shlex
from collections import Counter
from pathlib import Path

import click
import pytest

from docs.tables.write import filled
from parity.cli.commands import parity as parity_command
from parity.trace.rungs import RUNGS, rungs
from parity.twins.cli.command_line import command_options, spec_from, spec_options, take_options
from parity.twins.cli.config import config_options
from parity.twins.cli.options import ChatOptions, RunOptions, TrainOptions
from parity.twins.commands import COMMANDS as LABORATORY
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS

COMMANDS = parity_command.commands | LABORATORY
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted(DOCS.rglob("*.md"))]
PAGES += [ROOT / "parity" / "trace" / "TRACE.md"]
CHINESE = sorted((DOCS / "zh").rglob("*.md"))
PAIRS = [(ROOT / "README.md", ROOT / "README.zh.md")]
PAIRS += [(DOCS / page.relative_to(DOCS / "zh"), page) for page in CHINESE]

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
PYTHONS = ("python", ".venv/bin/python", ".venv-horovod/bin/python")
# Programs that are not this project's; what follows them is not checked.
OTHERS = ("pip", ".venv/bin/mkdocs", "source")
# Flags that pages mention of other programs.
OTHER_FLAGS = {"--gres", "--host", "--rank", "--server_num", "--strict"}
OTHER_FLAGS |= {"--junitxml", "--parity-html"}  # of pytest


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def each_page():
    return pytest.mark.parametrize("page", PAGES, ids=name_of)


def prose(page):
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page):
    """Return (language, code) of each block of code."""
    return [
        (each["language"], each["code"])
        for each in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def commands(page):
    """Return the words of every command line, from blocks of code and from running text."""
    lines = [
        line
        for language, code in blocks(page)
        if language == "sh"
        for line in code.splitlines()
    ]
    starts = ("make ", "python ", ".venv/bin/python ", "pip ", "parity run", "parity bench")
    lines += [code for code in INLINE.findall(prose(page)) if code.startswith(starts)]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def trainer():
    """Return the command line of both `train.py`, which train nothing."""

    @click.command()
    @config_options
    @command_options(TrainOptions)
    @spec_options()
    def command(**values):
        pass

    (config,) = (each for each in command.params if each.name == "config")
    config.callback = None  # the file of an example is not there
    return command


def chatter():
    """Return the command line of both `chat.py`."""
    return click.command()(command_options(ChatOptions)(lambda **values: None))


def parse(command, words):
    """Parse a command line without running it."""
    return command.make_context("documented", list(words)).params


def check_parity(words):
    if not words or words == ["--version"]:
        return
    command = COMMANDS.get(words[0])
    assert command is not None, f"no command {words[0]!r}"
    if words[1:] in (["--help"], ["--help-all"]):
        return
    values = parse(command, [*words[1:]])
    if values.get("network") and values.get("preset"):
        assert values["preset"] in NETWORKS[values["network"]].presets


def check_script(script, words):
    assert (ROOT / script).is_file(), f"no {script}"
    if words in (["--help"], ["--help-all"]):
        return
    if script.endswith("/train.py"):
        values = parse(trainer(), words)
        del values["print_config"]
        options = take_options(TrainOptions, values)
        spec_from(options.network, options.preset, values)
        folder = script.split("/")[0]
        framework = next(f for f in FRAMEWORKS.values() if f.folder == folder)
        if options.strategy != "mine":  # stands for a strategy of the reader's own
            framework.strategies.entry(options.strategy)
    elif script.endswith("/chat.py"):
        take_options(ChatOptions, parse(chatter(), words))
    else:
        check_flags(ROOT / script, words)


def check_module(module, words):
    if module == "parity":
        check_parity(words)
    elif module == "pytest":
        assert all((ROOT / word).exists() for word in words)
    elif module != "pip":
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert path.is_file(), f"no module {module}"
        check_flags(path, words)


def check_flags(path, words):
    """See that a script's source knows the flags it is given."""
    source = path.read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            assert f'"{word}"' in source, f"{path.name} has no {word}"


def check_command(words):
    """See that a command line would be understood.

    Raises:
      AssertionError, click.ClickException, parity.base.errors.UsageError: if not.
    """
    while re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    program, *rest = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (word for word in rest if "=" not in word):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
    elif program == "parity":
        check_parity(rest)
    elif program in PYTHONS and rest[0] == "-m":
        check_module(rest[1], rest[2:])
    elif program in PYTHONS:
        check_script(rest[0], rest[1:])
    else:
        assert program in OTHERS, f"no program {program!r}"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=f"{name_of(page)}: {shlex.join(words)}")
        for page in PAGES
        for words in commands(page)
    ],
)
def test_commands_exist(words):
    check_command(words)


def known_flags():
    """Return the flags of all commands."""
    every = [*COMMANDS.values(), trainer(), chatter()]
    flags = {
        flag for each in every for p in each.params for flag in (*p.opts, *p.secondary_opts)
    }
    return flags | {"--help", "--help-all", "--version"} | OTHER_FLAGS


@each_page()
def test_flags_in_the_text_exist(page):
    known = known_flags()
    named = {
        flag
        for code in INLINE.findall(prose(page))
        for flag in re.findall(r"--[a-z][\w-]*", code)
    }
    assert named <= known, f"{name_of(page)}: {sorted(named - known)}"


@each_page()
def test_links_lead_somewhere(page):
    for link in LINK.finditer(prose(page)):
        target = link["target"].partition("#")[0]
        if target and not target.startswith(("http://", "https://")):
            assert (page.parent / target).resolve().is_file(), (
                f"{name_of(page)}: {link['target']}"
            )


@each_page()
def test_files_that_are_named_exist(page):
    folders = ("data", "docs", "paddle_impl", "parity", "tests", "tf_impl")
    for code in INLINE.findall(prose(page)):
        if re.fullmatch(rf"({'|'.join(folders)})/[\w./-]*", code):
            assert (ROOT / code).exists(), f"{name_of(page)} names {code}"
        if re.fullmatch(r"[A-Za-z.]+\.(md|toml|lock)", code):
            assert (ROOT / code).is_file(), f"{name_of(page)} names {code}"


def source_of(module):
    """Return the source of a module of this project, which need not be importable."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert path.is_file(), f"no module {module}"
    return path.read_text(encoding="utf-8")


@each_page()
def test_names_in_python_exist(page):
    ours = ("data", "paddle_impl", "parity", "tf_impl")
    for language, code in blocks(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ours:
                source = source_of(node.module)
                for alias in node.names:
                    assert re.search(rf"\b{alias.name}\b", source), (
                        f"{node.module} {alias.name}"
                    )
    for module, name in re.findall(
        r'"(\w+(?:\.\w+)+):(\w+)"', page.read_text(encoding="utf-8")
    ):
        assert re.search(rf"^(class|def) {name}\b", source_of(module), re.MULTILINE)


def headings(page):
    return [len(level) for level in re.findall(r"^(#+) ", prose(page), re.MULTILINE)]


def code_without_comments(page):
    """Return the blocks of code without what is translated."""
    found = []
    for language, code in blocks(page):
        if language in ("sh", "python", "toml"):
            code = "\n".join(line.split(" #")[0].rstrip() for line in code.splitlines())
        found.append((language, code))
    return found


def figures(page):
    """Return how often each number stands in the text."""
    text = LINK.sub("", prose(page))
    return Counter(re.findall(r"\d[\d,.]*\d|\d", text))


def links(page):
    """Return the pages that a page leads to, whichever their language."""
    targets = (link["target"].partition("#")[0] for link in LINK.finditer(prose(page)))
    return Counter(target.rpartition("/")[2].replace(".zh.md", ".md") for target in targets)


def rows(page):
    return len(re.findall(r"^\|", prose(page), re.MULTILINE))


@pytest.mark.parametrize("part", [headings, code_without_comments, figures, links, rows])
@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: name_of(page))
def test_both_languages_say_the_same(english, chinese, part):
    assert part(english) == part(chinese)


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def test_every_preset_is_described():
    for network, page in (("language-model", "training.md"), ("seq2seq", "chatting.md")):
        for folder in (DOCS, DOCS / "zh"):
            text = (folder / page).read_text(encoding="utf-8")
            for preset in NETWORKS[network].presets:
                assert f"| `{preset}`" in text, f"{page}: {preset}"


def table(page, first):
    """Return the cells of the rows below a heading whose first cell is given."""
    rows = page.read_text(encoding="utf-8").partition(f"\n| {first} |")[2].splitlines()[2:]
    rows = itertools.takewhile(lambda row: row.startswith("|"), rows)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


@pytest.mark.parametrize(("folder", "rung"), [(DOCS, "rung"), (DOCS / "zh", "级")])
def test_every_rung_is_described(folder, rung):
    described = [row[0] for row in table(folder / "comparing.md", rung)]
    assert described == rungs()
    beginnings = {
        name: each
        for each, cell in table(folder / "any-pair.md", rung)
        for name in INLINE.findall(cell)
    }
    assert beginnings == RUNGS


@pytest.mark.parametrize(("folder", "flag"), [(DOCS, "flag"), (DOCS / "zh", "参数")])
def test_the_defaults_of_run_are_those_of_the_code(folder, flag):
    options = {field.name: field for field in dataclasses.fields(RunOptions)}
    checked = 0
    for name, _, default in table(folder / "comparing.md", flag):
        given = default.strip("`")
        if given == default and not default.isdigit():
            continue  # in words
        field = options[name.strip("`").split()[0].removeprefix("--").replace("-", "_")]
        seen = field.default
        seen = ",".join(seen) if isinstance(seen, tuple) else f"{seen:g}"
        assert given == seen or f"[default: {given};" in field.metadata["help"], name
        checked += 1
    assert checked == 5


def test_every_strategy_has_a_page():
    for folder in (DOCS, DOCS / "zh"):
        overview = (folder / "strategies.md").read_text(encoding="utf-8")
        sections = []
        for framework in FRAMEWORKS.values():
            for entry in framework.strategies:
                assert f"(strategies/{entry.name}.md)" in overview
                path = folder / "strategies" / f"{entry.name}.md"
                page = path.read_text(encoding="utf-8")
                module = entry.path.partition(":")[0].replace(".", "/")
                assert f"`{module}.py`" in page, f"{name_of(path)} names no {module}.py"
                assert re.search(rf"!\[.+\]\(.+/{entry.name}\.svg\)", page), name_of(path)
                sections.append(re.findall("^## .*", page, re.MULTILINE))
        shared = [title for title in sections[0] if all(title in each for each in sections)]
        assert shared == sections[0]  # when to use it, what it costs, and so on


def test_readme_is_two_screens():
    for page in PAIRS[0]:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 110


# Tables of figures


def test_list_of_differences_is_up_to_date():
    """`python -m docs.tables.write` writes it."""
    page = (DOCS / "differences.md").read_text(encoding="utf-8")
    after, missing = filled(page)
    assert not missing
    assert after == page
