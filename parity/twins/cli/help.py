"""What help says of options: the groups that it lists them in, and the names they take.

Of a command with many options, `--help` shows those that most people need, `--help-all` all.
"""

from typing import Any

import click

from parity.cli.commands import Command
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS

_NETWORK, _TEXT, _TRAINING = "Network", "Text", "Training"
_OTHER = "Other options"
# Heading -> the options under it, whichever command has them, in the order of the help.
_GROUPS = {
    "What to train": (
        *("network", "preset", "seeds", "seed", "count", "start"),
        *("frameworks", "only", "sides", "once", "harmless", "list_only", "show"),
    ),
    _NETWORK: (),
    _TEXT: ("data", "user_dictionary", "on_empty"),
    _TRAINING: ("dtype",),
    "How long": ("steps", "rounds", "max_restarts"),
    "How to run it": (
        *("replicas", "strategy", "sync", "strategies", "stages", "micro_batches"),
        *("shard_weights", "schedule", "staleness", "processes", "servers", "hosts"),
        *("i_trust_this_network", "stall_seconds"),
        *("kernels", "device", "threads", "log_device_placement", "peers", "jobs"),
    ),
    "Hosts and links": (*("links", "local", "compute", "per_host", "most"),),
    "Files": (
        *("config", "print_config", "out", "cache", "json", "history", "resume", "overwrite"),
        *("allow_change", "checkpoint_every", "keep_traces", "keep", "pages"),
    ),
    "Evaluation and answers": (
        *("evaluate", "evaluate_only", "newest", "beam", "length_penalty", "longest", "decode"),
        "confidence",
    ),
    "Recording and comparing": (
        *("trace", "trace_pending", "checks", "check", "throughput"),
        *("after_mismatch", "cause_seconds", "margin", "margin_bleu", "margin_exact"),
        *("profile", "operations"),
    ),
    _OTHER: (),
}
_MANY = 30  # a command with more options has a short help
# The options in it.
_SHORT = {
    *("network", "preset", "data", "frameworks", "sides", "seeds", "links", "checkpoint"),
    *("steps", "epochs", "dtype", "replicas", "strategy", "strategies", "peers", "config"),
    *("out", "json", "resume", "checks", "trace", "help_all"),
}
_ALL = "parity.twins.cli.help"  # key of click's `meta`: whether all options are asked for
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
# Part of a spec -> the group of its fields.
PARTS = {"model": _NETWORK, "text": _TEXT, "training": _TRAINING}


class GroupedCommand(Command):
    """A command whose help lists its options in groups; many options, not all at once."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._is_short = len(self.params) > _MANY
        show_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            hidden=not self._is_short,
            callback=_show_all,
            help="Show all options and exit.",
        )
        self.params.append(show_all)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group under its heading."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
        shows_all, left_out = _ALL in ctx.meta or not self._is_short, 0
        for option in self.get_params(ctx):
            if isinstance(option, click.Argument):  # the first line and the text name them
                continue
            if not (shows_all or option.name in _SHORT or "--help" in option.opts):
                left_out += 1
                continue
            record = option.get_help_record(ctx)
            if record is not None:
                records[_group(option)].append(record)
        for group, found in records.items():
            if found:
                with formatter.section(group):
                    formatter.write_dl(found)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")


def _show_all(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _group(option: click.Parameter) -> str:
    # a field of a spec first: `keep` is a share of units there, and a switch of `faults`
    return getattr(option, "group", None) or _GROUP_OF.get(option.name or "", _OTHER)


def names_text(option: str) -> str:
    """Return the names that an option takes, in brackets; empty for any other option.

    They are those of this moment, of plug-ins that are loaded too.
    """
    if option == "network":
        return f" ({', '.join(NETWORKS)})"
    if option == "preset":
        found = {name: list(each.presets) for name, each in NETWORKS.items()}
    elif option == "strategy":
        found = {
            each.title: [entry.name for entry in each.strategies]
            for each in FRAMEWORKS.values()
        }
    else:
        return ""
    listed = [f"{key}: {', '.join(names)}" for key, names in found.items()]
    return f" ({'; '.join(listed)})"
