"""What `--help` says of options: the groups that it lists them in, and the names they take."""

import click

from parity.cli.main import Command
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
        *("kernels", "device", "threads", "calibrate", "log_device_placement", "peers", "jobs"),
    ),
    "Hosts and links": (*("links", "local", "compute", "per_host", "most"),),
    "Files": (
        *("config", "print_config", "out", "cache", "json", "history", "resume", "overwrite"),
        *("allow_change", "checkpoint_every", "keep_traces", "keep", "pages"),
        *("json_file", "html_file"),
    ),
    "Evaluation and answers": (
        *("evaluate", "evaluate_only", "beam", "length_penalty", "longest", "decode"),
    ),
    "Recording and comparing": (
        *("trace", "trace_pending", "isolate", "checks", "check", "throughput"),
        *("after_mismatch", "cause_seconds", "margin", "margin_bleu", "margin_exact"),
        *("profile", "operations", "save_signatures"),
    ),
    _OTHER: (),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
# Part of a spec -> the group of its fields.
PARTS = {"model": _NETWORK, "text": _TEXT, "training": _TRAINING}


class GroupedCommand(Command):
    """A command whose `--help` lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group under its heading."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
        for option in self.get_params(ctx):
            if isinstance(option, click.Argument):  # the first line and the text name them
                continue
            record = option.get_help_record(ctx)
            if record is not None:
                records[_group(option)].append(record)
        for group, found in records.items():
            if found:
                with formatter.section(group):
                    formatter.write_dl(found)


def _group(option: click.Parameter) -> str:
    # a field of a spec first: `keep` is a share of units there, and a switch of `faults`
    return getattr(option, "group", None) or _GROUP_OF.get(option.name or "", _OTHER)


def names_text(option: str) -> str:
    """Return the names that an option takes, in brackets; empty for any other option.

    They are those of this moment, of plug-ins that are loaded too. Strategies are left out
    where the trainers are missing, as in an installed wheel.
    """
    if option == "network":
        return f" ({', '.join(NETWORKS)})"
    if option == "preset":
        found = {name: list(each.presets) for name, each in NETWORKS.items()}
    elif option == "strategy":
        try:
            found = {
                each.title: [entry.name for entry in each.strategies]
                for each in FRAMEWORKS.values()
            }
        except ModuleNotFoundError:
            return ""
    else:
        return ""
    listed = [f"{key}: {', '.join(names)}" for key, names in found.items()]
    return f" ({'; '.join(listed)})"
