"""The frameworks that a network can be trained in: each has a folder and an entry here.

A module that PARITY_PLUGINS names may register a further one; see docs/extending.md.
"""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.report.frameworks import title_of
from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry

ROOT = Path(__file__).resolve().parents[3]  # the checkout


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
      name: the framework's name in flags, in traces and in the keys of reports.
      folder: the package that trains with it, of which `parity run` needs train.py, engine.py
        and strategies; the packages of this project have the same files.
      root: the folder that the package lies in; by default this checkout.
      imports: what Python imports the framework by; by default its name.
      networks: the networks that it trains; None for all.
      transposed: the last part of the name of every parameter that it stores transposed.
      huge_pages: whether its processes ask glibc for huge pages; see parity/base/process.py.
    """

    name: str
    folder: str
    root: Path = ROOT
    imports: str = ""
    networks: tuple[str, ...] | None = None
    transposed: tuple[str, ...] = ()
    huge_pages: bool = False

    @property
    def title(self) -> str:
        """Return the framework's name as people write it."""
        return title_of(self.name)

    @property
    def strategies(self) -> StrategyRegistry:
        """Return the framework's strategies, without loading the framework."""
        registry: StrategyRegistry = self.load("strategies:STRATEGIES")
        return registry

    @property
    def collective(self) -> StrategyEntry:
        """Return its first strategy whose processes sum their gradients, without servers."""
        return next(
            entry
            for entry in self.strategies
            if entry.traits.synchronous and entry.traits.processes and not entry.traits.serves
        )

    @property
    def path(self) -> Path:
        """Return the path of its package."""
        return self.root / self.folder

    def trains(self, network: str) -> bool:
        """Return whether it trains a network."""
        return self.networks is None or network in self.networks

    def load(self, path: str) -> Any:
        """Return an object of its package, such as "engine:load_engine"."""
        if str(self.root) not in sys.path:
            sys.path.append(str(self.root))
        return load_object(f"{self.folder}.{path}")


_SYNCHRONOUS = "-sync"
ALL = "all"  # in place of a strategy's name, every one

FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework(
            "paddle",
            "paddle_impl",
            # its `rnn` operator stores kernels as [gates * hidden, inputs]
            transposed=("input_kernel", "recurrent_kernel"),
            huge_pages=True,
        ),
        Framework("tensorflow", "tf_impl"),
    )
}


def register_framework(framework: Framework) -> None:
    """Add a framework, for `--frameworks` and every list of frameworks.

    Raises:
      ValueError: if there is one of that name.
    """
    if framework.name in FRAMEWORKS:
        raise ValueError(f"the framework {framework.name!r} is there already")
    FRAMEWORKS[framework.name] = framework


def strategies_named(
    words: Iterable[str], option: str = "--strategy", among: Collection[str] | None = None
) -> dict[str, list[StrategyEntry]]:
    """Return the strategies that a user names, by framework, in the order of the frameworks.

    Args:
      words: names of strategies, each of every framework that has it, or of one framework as
        "framework=strategy"; "all" in place of a name, for every one that runs in the
        framework's own environment. A strategy may be named several times.
      option: the name of the flag that was given, for messages.
      among: the frameworks that words may mean; by default all.

    Returns:
      Framework -> its strategies, in the order in which they were named; a framework that no
      word names is left out.

    Raises:
      UsageError: for an unknown framework, or a strategy that it or every framework lacks.
    """
    found: dict[str, dict[str, StrategyEntry]] = {}
    known = {name: FRAMEWORKS[name] for name in among or FRAMEWORKS}
    for word in words:
        framework, of_one, name = word.rpartition("=")
        if of_one and framework_of(framework).name not in known:
            raise UsageError(
                f"{option} is {word!r}; allowed: strategies of {', '.join(known)}, which "
                "take part"
            )
        frameworks = [FRAMEWORKS[framework]] if of_one else list(known.values())
        chosen = [
            (each.name, entry)
            for each in frameworks
            for entry in each.strategies
            if name == entry.name or (name == ALL and not entry.environment)
        ]
        if not chosen:
            lacking = f" for {framework}" if of_one else ""
            names = dict.fromkeys(e.name for each in frameworks for e in each.strategies)
            reason = "".join(each.strategies.reason(name) for each in frameworks)
            raise UsageError(
                f"{option} is {word!r}{reason}; allowed{lacking}: {', '.join([ALL, *names])}"
            )
        for each, entry in chosen:
            found.setdefault(each, {})[entry.name] = entry
    return {name: list(found[name].values()) for name in FRAMEWORKS if name in found}


def synchronous_form(word: str | None) -> str:
    """Return the strategy that `--sync` makes of another one: NAME-sync.

    Args:
      word: the name of a strategy, or framework=strategy; None if none is given.

    Raises:
      UsageError: for a strategy that has no such form in any framework.
    """
    names = {entry.name for each in FRAMEWORKS.values() for entry in each.strategies}
    forms = sorted(name for name in names if name + _SYNCHRONOUS in names)
    if word is None:
        raise UsageError(
            f"--sync is given without --strategy; allowed: with {', '.join(forms)}"
        )
    if word.endswith(_SYNCHRONOUS):
        return word
    if word.rpartition("=")[2] not in forms:
        raise UsageError(
            f"--sync is given with --strategy {word}; allowed: --strategy {', '.join(forms)}"
        )
    return word + _SYNCHRONOUS


def framework_of(name: str, what: str = "framework") -> Framework:
    """Return a framework by name.

    Args:
      name: its name.
      what: what was given, for the message.

    Raises:
      UsageError: for an unknown name; the message lists the known ones.
    """
    if name not in FRAMEWORKS:
        raise UsageError(f"{what} is {name!r}; allowed: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
