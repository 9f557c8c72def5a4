"""Whatever reads from outside is reached by a fuzzed reader, or stands here with a reason.

That a fuzzer reaches it is not said but seen: the lines that its readers run are noted.
"""

import ast
import sys

from fuzzed_readers import READERS
from test_security import SOURCES, dotted

from parity.twins.launch.processes import ROOT

# Calls that take something from outside: by name, or of any object where a dot comes first.
OPENINGS = {
    *("open", ".open", "open_input", "open_regular", "read_file", ".read_text", ".read_bytes"),
    *("safe_open", "np.load", "np.fromfile", "np.memmap", "csv.DictReader", "input"),
    *("json.load", "json.loads", "parse_json", "tomllib.loads", "marshal.loads", "yaml.parse"),
    *(".get_single_data", ".ParseFromString", ".accept", ".recv", ".readline"),
}
# Calls that return text, or what a text said; `int` and `float` of these read a number.
TEXTS = {
    *(".split", ".rsplit", ".splitlines", ".partition", ".rpartition", ".strip", ".decode"),
    *(".removeprefix", ".findall", ".fullmatch", ".group", ".read_text"),
    *("json.loads", "parse_json"),
}
PASSED_ON = {"enumerate", "zip", "list", "filter"}
STRINGS = ("str", "bytes", "str | bytes", "str | None")

# why no fuzzer is needed -> file -> its functions that read without one
UNREACHED = {
    "hashed, compared or searched as it is, or not read at all": {
        "data/cache.py": "file_hash file_stats",
        "data/download.py": "_check",
        "parity/base/files.py": "sync_file sync_folder",
        "parity/base/standard_streams.py": "guard_standard_streams",
        "parity/twins/bench/history.py": "_append",
        "parity/twins/converge/converging.py": "_training_text_hash",
        "parity/twins/converge/trainings.py": "_last_step _listed_schedule",
        "parity/twins/processes/handshake.py": "_accept _exactly",
        "parity/twins/processes/private_network.py": "__init__",
        "parity/twins/processes/supervisor.py": "_fork",
        "parity/twins/training/checkpoint.py": "write_vocabularies",
        "parity/twins/training/evaluate.py": "resume",
    },
    "what is wrong with it leaves a name out of a message": {
        "parity/base/locks.py": "_holder",
    },
    "of the operating system, or an engine": {
        "parity/base/machine.py": "_cpuinfo asked_for usable_cores",
        "parity/twins/training/meter.py": "peak_memory seconds_alive",
        "parity/twins/training/start.py": "memory_limit",
        "tf_impl/eager_profiler.py": "_read",
    },
    "a file of this project, or one of its cache whose hash is checked": {
        "data/encoded_pairs.py": "__init__ rows",
        "data/segmenters.py": "_frequencies",
        "data/text_corpus.py": "__init__ line_offsets",
        "parity/report/page.py": "_text",
        "parity/twins/faults/patches.py": "read_mistakes",
        "parity/twins/launch/edited_source.py": "diff_of edited_texts",
    },
    "of a process that this one has started, or that has started this one": {
        "parity/pair/perturbation.py": "asked_for",
        "parity/twins/bench/product_rates.py": "_seconds main",
        "parity/twins/bench/profile.py": "profile",
        "parity/twins/bench/timing.py": "_timed_run",
        "parity/twins/converge/trainings.py": "_finish",
        "parity/twins/launch/fork_server.py": "_answer end handle printed serve start wait",
        "parity/twins/launch/processes.py": "raise_for_status",
        "parity/twins/peers/pytorch_data_parallel.py": "__init__ _call_all _serve",
        "parity/twins/processes/agent.py": "_next obey",
        "parity/twins/run/measure_throughput.py": "train_untraced",
        "parity/twins/run/whole_run_checks.py": "_ask_again",
        "parity/twins/scale/timed_step.py": "_seconds echo message_seconds",
    },
    "checked already: a port of the launcher, or a message of a rank that knows the secret": {
        "paddle_impl/strategies/server_connection.py": "_await_server run_server",
        "parity/twins/processes/group.py": "all_gather",
        "parity/twins/processes/handshake.py": "__init__ visit",
        "parity/twins/processes/launcher_variables.py": "meeting_point",
        "parity/twins/training/checkpoint_contents.py": "shared_checkpoint",
    },
    "a word of the command line, or what is typed": {
        "parity/cli/commands.py": "_range _tolerance",
        "parity/twins/chat/conversation.py": "_typed",
        "parity/twins/scale/quantities.py": "_number",
        "parity/twins/spec/asynchronous_schedule.py": "schedule_of",
    },
    "a text that the code itself has made": {
        "parity/align/bare.py": "natural",
        "parity/align/traps.py": "_rounded_up",
        "parity/jax.py": "_watched_output seen",
        "parity/keras.py": "_output",
        "parity/twins/peers/pytorch_witness.py": "_lines",
    },
}


def names_of(node):
    """Return what a call goes by, such as {"path.open", ".open"}; empty for no call."""
    if not isinstance(node, ast.Call):
        return set()
    last = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else None
    return {dotted(node.func), last} - {None}


def is_text(node, texts):
    """Return whether an expression is text, or part of what a text said."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.BoolOp):
        return any(is_text(each, texts) for each in node.values)
    if names_of(node) & PASSED_ON:
        return any(is_text(each, texts) for each in node.args)
    return bool(names_of(node) & TEXTS) or (isinstance(node, ast.Name) and node.id in texts)


def bound_to_text(function):
    """Return the names of a function that are text: its parameters, and by assignment."""
    parameters = [*function.args.args, *function.args.kwonlyargs]
    texts = {each.arg for each in parameters if ast.unparse(each.annotation or each) in STRINGS}
    for node in ast.walk(function):  # outer statements come first
        value = getattr(node, "iter", None) or getattr(node, "value", None)
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if value and targets != [None] and is_text(value, texts):
            found = [each for target in targets for each in ast.walk(target)]
            texts |= {each.id for each in found if isinstance(each, ast.Name)}
    return texts


def reads(node, texts):
    """Return whether an expression is a call by which something comes in, or a number."""
    names = names_of(node)
    if names == {"map"} and isinstance(node.args[0], ast.Name):
        return node.args[0].id in ("int", "float") and is_text(node.args[1], texts)
    if names & {"int", "float"}:
        return bool(node.args) and is_text(node.args[0], texts)
    if not names & OPENINGS:
        return False
    modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
    return not any(str(mode)[:1] in ("w", "a", "x") for mode in modes)


def places(source):
    """Return function -> the lines, as ranges, of its calls that read from outside."""
    found = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            texts = bound_to_text(function)
            lines = [
                range(node.lineno, node.end_lineno + 1)
                for node in ast.walk(function)
                if reads(node, texts)
            ]
            if lines:
                found.setdefault(function.name, []).extend(lines)
    return found


def executed(files, folder):
    """Return the (file, line) that run while each fuzzed reader reads a whole file."""
    found = set()

    def note_line(frame, event, _):
        found.add((frame.f_code.co_filename, frame.f_lineno))
        return note_line

    def note_call(frame, event, _):
        return note_line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    for name, reader in READERS.items():
        (folder / name).mkdir()
        opened = reader.open(folder / name)
        sys.settrace(note_call)
        try:
            assert opened.accepts(opened.seed)
        finally:
            sys.settrace(before)
    return found


def test_what_no_fuzzer_reaches_has_a_reason(tmp_path):
    """Only as much as stands in the list: what is reached by now has to leave it."""
    by_file = {str(path): places(path.read_text(encoding="utf-8")) for path in SOURCES}
    ran = executed({file for file, functions in by_file.items() if functions}, tmp_path)
    unreached = {
        f"{file.removeprefix(f'{ROOT}/')}:{function}"
        for file, functions in by_file.items()
        for function, ranges in functions.items()
        if any(not any((file, line) in ran for line in lines) for lines in ranges)
    }
    listed = {
        f"{file}:{function}"
        for files in UNREACHED.values()
        for file, functions in files.items()
        for function in functions.split()
    }
    assert unreached - listed == set(), "give it a fuzzed reader, or a reason"
    assert listed - unreached == set(), "no reason is needed any more"
