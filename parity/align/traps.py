"""Defaults and conventions in which two watched trainings differ, and what aligns them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from parity.align.kinds import kind_of
from parity.align.mapping import Row
from parity.align.precision import IN_FULL, NONE
from parity.align.proposal import facts_of, framework_of, propose
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of

Settings = Mapping[str, Any]

_NO_MATTER = 1e-20  # an epsilon up to here changes nothing in float64
_NEAR = 1e-6  # relative: a number that one side has rounded to float32
_DIVISOR = "divisor of the moving variance"
NO_SETTING = "no setting aligns it: declare a tolerance"


@dataclass(frozen=True)
class Trap:
    """Something in which two sides differ before anything is trained.

    Attributes:
      what: the setting or convention.
      values: that of each side; none where there is nothing to show.
      fix: what aligns the second side.
      where: the modules of the second side that have it, or "optimizer".
    """

    what: str
    values: tuple[str, ...]
    fix: str
    where: tuple[str, ...] = ()


# what it is -> (frameworks' names of it, whether another convention has to be undone)
_OF_MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "layernorm": {"epsilon": ("eps", "epsilon")},
    **{f"{each}norm": {"epsilon": ("eps", "epsilon")} for each in ("group", "instance", "rms")},
    "batchnorm": {"epsilon": ("eps", "epsilon"), "momentum": ("momentum",)},
    "leakyrelu": {"slope": ("negative_slope",)},
    "conv": {
        "stride": ("stride", "strides"),
        "dilation": ("dilation", "dilation_rate", "kernel_dilation"),
        "groups": ("groups", "feature_group_count"),
        "padding": ("padding",),
    },
    "gru": {"reset_after": ("reset_after",)},
    "embedding": {"padding_idx": ("padding_idx",)},
}
_OF_OPTIMIZERS = {
    "rate": ("lr", "learning_rate"),
    "beta1": ("beta1", "beta_1"),
    "beta2": ("beta2", "beta_2"),
    "rho": ("alpha", "rho"),
    "epsilon": ("eps", "epsilon"),
    "eps_root": ("eps_root",),
    "momentum": ("momentum",),
    "dampening": ("dampening",),
    "nesterov": ("nesterov", "use_nesterov"),
    "decay": ("weight_decay", "lamb_weight_decay"),
    "start": ("initial_accumulator_value",),
    "centered": ("centered",),
    "amsgrad": ("amsgrad",),
    "bias_correction": ("bias_correction",),
}
# Settings that decide how a framework computes, not what, or that are named otherwise.
_ALIKE = (
    *("foreach", "fused", "capturable", "differentiable", "betas", "is_hf_initialized"),
    *("p", "rate", "dropout", "recurrent_dropout", "reversed_padding_repeated_twice"),
    "time_major",  # which the map knows, and an operation of Paddle's static graphs always is
    "eps_in_sqrt",  # told as the place of epsilon
)


def traps(traces: Sequence[Trace]) -> list[Trap]:
    """Return in what two watched trainings differ by their settings and frameworks.

    Raises:
      UsageError: if a trace does not say what its modules and optimiser are.
    """
    return _Doctor(traces).traps()


def traps_at(traces: Sequence[Trace], tensor: str) -> tuple[list[Trap], int]:
    """Return the traps in what computes a tensor, and how many others there are.

    Args:
      tensor: its name, which both sides share: an output, a gradient, a parameter or a slot.

    Raises:
      UsageError: as `traps`.
    """
    doctor = _Doctor(traces)
    found, places = doctor.traps(), doctor.places(tensor)
    here = [each for each in found if places.intersection(each.where)]
    role = tensor.replace("/", ".").rpartition(".")[2]
    if rung_of(tensor) != "weight" or "var" not in role:  # that it is divided by moves no other
        here = [each for each in here if each.what != _DIVISOR]
    if rung_of(tensor) == "batch":  # what was given, or the weights before the first step
        here = [each for each in here if not each.values]
    return here, len(found) - len(here)


class _Doctor:
    def __init__(self, traces: Sequence[Trace]):
        mapping = propose(traces)
        self._traces, self._rows, self._slots = traces, mapping.rows, mapping.slots
        self._sides = [framework_of(each) for each in traces]
        self._labels = mapping.labels
        self._double = all(each.header["dtype"] == "float64" for each in traces)
        self._facts = [each.header["facts"] for each in traces]
        self._first, self._shapes = [], []
        for place, each in enumerate(traces):
            tensors = each.read(each.numbers()[0])  # of which little is kept
            recurrent = self._of_lstms(place)
            self._first.append(
                {n: x for n, x in tensors.items() if n.startswith("batch/") or n in recurrent}
            )
            self._shapes.append({n: x.shape for n, x in tensors.items()})
        self._modules = [
            {module["name"]: module.get("settings", {}) for module in each["modules"]}
            for each in self._facts
        ]

    def _of_lstms(self, place: int) -> set[str]:
        """Return the parameters of a side's LSTMs, before and after the first step."""
        names = {
            name
            for row in self._rows
            if row.kind == "lstm"
            for both in row.parameters.values()
            for name in both[place].names
        }
        return {f"{rung}/{name}" for rung in ("initial", "weight") for name in names}

    def traps(self) -> list[Trap]:
        """Return each trap once, with all the places where it is."""
        places: dict[Trap, list[str]] = {}
        with facts_of(self._traces):
            for where, trap in self._found():
                places.setdefault(trap, []).append(where)
        return [replace(trap, where=tuple(where)) for trap, where in places.items()]

    def places(self, tensor: str) -> set[str]:
        """Return what computes a tensor: modules, by the names of either side, an optimiser."""
        rung, name = rung_of(tensor), tensor.partition("/")[2]
        found = set()
        for row in self._rows:
            shared = row.parameters | row.outputs
            own = [
                key for key in shared if name == key or name.startswith((f"{key}/", f"{key}#"))
            ]
            if own and rung != "optimizer":
                found |= {unit.partition(" ")[0] for unit in row.units} | set(row.units)
            if own and rung in ("optimizer", "weight"):
                found |= {"optimizer", *(f"optimizer of {shared[n][1].names[0]}" for n in own)}
        return found

    def _found(self) -> Iterator[tuple[str, Trap]]:
        yield from self._start()
        yield from self._tf32()
        for row in (each for each in self._rows if each.kind != "batch"):
            names = [name.partition(" ")[0] for name in row.units]
            settings = [
                known.get(name, {}) for known, name in zip(self._modules, names, strict=True)
            ]
            # a function, or a graph, does not say what it was made with
            own_settings = _OF_MODULES.get(row.kind, {}) if all(settings) else {}
            whole = self._with_zeros(names, settings) if row.kind == "conv" else settings
            seen: set[str] = set()
            for what, own in own_settings.items():
                if what == "padding" and self._is_padded_elsewhere(names, whole, seen):
                    continue
                for _, trap in self._setting("", row.kind, what, own, whole):
                    seen.add(what)
                    yield row.units[1], trap
            for trap in self._others(own_settings, settings):
                yield row.units[1], trap
            yield from self._conventions(row, settings)
        yield from self._narrowed_by_keras()
        yield from self._held_by_keras()
        yield from self._held_by_paddle()
        yield from self._attention_of_flax()
        yield from self._dropout()
        yield from self._optimizers()

    def _with_zeros(self, names: Sequence[str], settings: list[Settings]) -> list[Settings]:
        """Add to the settings of convolutions what layers of zero padding before them do."""
        found = []
        for name, own, shapes, facts in zip(
            names, settings, self._shapes, self._facts, strict=True
        ):
            outputs = [each for each in shapes if each.startswith("forward/")]
            before = {b: a for a, b in pairwise(outputs)}.get(f"forward/{name}")
            zeros = [
                each["settings"]["padding"]
                for each in facts["modules"]
                if f"forward/{each['name']}" == before
                and str(each["kind"]).lower().startswith("zeropad")
                and "padding" in each["settings"]
            ]
            found.append({**own, "zeros": zeros[0]} if zeros else own)
        return found

    def _is_padded_elsewhere(
        self, names: Sequence[str], settings: list[Settings], seen: set[str]
    ) -> bool:
        """Return whether a function that no layer tells of pads what a convolution reads.

        If so, both sides return one size, though their layers pad by unequal numbers of zeros.
        Where dilations differ, the padding that suits them does, too.
        """
        pads = [
            _padding(each.get("padding", 0), each, side)
            for each, side in zip(settings, self._sides, strict=True)
        ]
        if seen or "same" in pads:
            return "dilation" in seen
        shapes = [
            sorted(each.get(f"forward/{name}", [place]))
            for place, (name, each) in enumerate(zip(names, self._shapes, strict=True))
        ]
        a, b = ([np.sum(np.broadcast_to(axis, 2)) for axis in each] for each in pads)
        strides = _of_axes("stride", settings[0], self._sides[0])
        apart = any(abs(x - y) >= step for x, y, step in zip(a, b, strides, strict=False))
        return shapes[0] == shapes[1] and apart

    def _start(self) -> Iterator[tuple[str, Trap]]:
        for row in self._rows:
            if row.kind == "batch" and "differ" in row.why:
                fix = "give both the same data, in the same order"
                yield row.units[1], Trap("the values differ", (), fix)
            if "weights differ" in row.why:
                fix = "parity weights carries them over"
                yield row.units[1], Trap("the initial weights differ", (), fix)

    def _tf32(self) -> Iterator[tuple[str, Trap]]:
        """Yield what the sides round to TF32, 11 bits, before they multiply it on a GPU."""
        rounded = [str(each.get("tf32", NONE)) for each in self._facts]
        if not self._double and rounded[0] != rounded[1]:
            fixes = {
                IN_FULL[str(facts.get("backend", side))]: None
                for facts, side, each in zip(self._facts, self._sides, rounded, strict=True)
                if each != NONE
            }
            yield "model", Trap("rounded to TF32", _texts(rounded), f"set {' '.join(fixes)}")

    def _setting(
        self, where: str, kind: str, what: str, own: tuple[str, ...], settings: list[Settings]
    ) -> Iterator[tuple[str, Trap]]:
        found = [next((n for n in own if n in each), None) for each in settings]
        if found == [None, None]:
            return
        values = []
        for name, each, side in zip(found, settings, self._sides, strict=True):
            value = _missing(what) if name is None else each[name]
            values.append(_CONVENTIONS.get((kind, what), _as_it_is)(value, each, side))
        if not _same(*values):
            name, value = found[1], values[0]
            value = 1 - value if (kind, what, self._sides[1]) == _KEPT else value
            prefix = "lamb_" * (f"lamb_{name}" in settings[1])  # as Paddle's Lamb calls it
            fix = f"{prefix}{name}={_text(value)}"
            if name is None:  # the second side has no such setting
                fix = f"{found[0]}={values[1]} in {self._labels[0]}"
            if what == "padding" and (
                any(isinstance(each, list) for each in value)
                or (value != "same" and (values[1] == "same" or self._sides[1] == "keras"))
            ):
                zeros = "a layer of zero padding before it, and "
                zeros *= values[1] == "same" or value != [0] * len(value)
                fix = f"{zeros}padding='valid'"
            yield where, Trap(what, (_text(values[0]), _text(values[1])), fix)
        elif None not in found and (kind, what) in _PADDLE_ROUNDS and self._double:
            held = [
                float(np.float32(value))
                if side == "paddle" and isinstance(value, float)
                else value
                for value, side in zip(values, self._sides, strict=True)
            ]
            if held != values and held[0] != held[1]:
                told = f"{what}, which Paddle rounds to float32"
                fix = "a number that float32 holds, float(numpy.float32(...)), on both"
                yield where, Trap(told, (repr(held[0]), repr(held[1])), fix)

    def _others(
        self, known: Mapping[str, tuple[str, ...]], settings: list[Settings]
    ) -> Iterator[Trap]:
        """Yield the settings of one framework that differ and have no row of their own."""
        if self._sides[0] != self._sides[1]:
            return
        a, b = settings
        named = {*_ALIKE, *(name for own in known.values() for name in own)}
        for name in (each for each in a if each in b and each not in named):
            if not _same(a[name], b[name]):
                values = _text(a[name]), _text(b[name])
                yield Trap(name, values, f"{name}={a[name]!r}")

    def _conventions(self, row: Row, settings: list[Settings]) -> Iterator[tuple[str, Trap]]:
        """Yield what follows from the frameworks alone."""
        a, b = self._sides
        where = row.units[1]
        if row.kind == "batchnorm" and (a == "torch") != (b == "torch"):
            of = {"torch": "n - 1"}
            values = of.get(a, "n"), of.get(b, "n")
            yield where, Trap(_DIVISOR, values, NO_SETTING)
        for own in row.parameters.values() if row.kind == "lstm" else ():
            if any("concatenate" in step for part in own for step in part.layout):
                continue  # two matrices, or biases, side by side
            terms = self._moving(0, own[0].names), self._moving(1, own[1].names)
            if terms[0] != terms[1] and min(terms):  # or the first step moves nothing yet
                fix = "where there are two, freeze the second, which is for the state"
                yield where, Trap("biases, each of which is trained", _texts(terms), fix)
        if row.kind == "avgpool" and any(_padded(each) for each in settings):
            counts = tuple(
                _counts_padding(*each) for each in zip(self._sides, settings, strict=True)
            )
            if counts[0] != counts[1]:
                fix = "count_include_pad in PyTorch, exclusive in Paddle"
                yield where, Trap("padding counts in the average", _texts(counts), fix)

    def _moving(self, side: int, names: Sequence[str]) -> int:
        """Return how many of some parameters the first step moves."""
        first = self._first[side]
        return sum(
            f"weight/{name}" not in first
            or not np.array_equal(first[f"initial/{name}"], first[f"weight/{name}"])
            for name in names
        )

    def _narrowed_by_keras(self) -> Iterator[tuple[str, Trap]]:
        """Yield that a Keras of float64 computes in float32, as it may on JAX and PyTorch."""
        narrow = [each.get("of_float64", "float64") != "float64" for each in self._facts]
        if self._double and narrow[0] != narrow[1]:
            values = ["float64, some of it float32" if each else "float64" for each in narrow]
            fix = "KERAS_BACKEND=tensorflow, or float32 on both sides and parity bounds"
            trap = Trap("the precision that is computed in", _texts(values), fix)
            for each in self._facts[narrow.index(True)]["modules"]:
                yield each["name"], trap
            yield "optimizer", trap

    def _held_by_keras(self) -> Iterator[tuple[str, Trap]]:
        """Yield the constants inside its layers that Keras on TensorFlow holds in float32."""
        if not self._double or self._sides.count("keras") != 1:
            return
        facts = self._facts[self._sides.index("keras")]
        for each in facts["modules"] if facts.get("backend") == "tensorflow" else ():
            size, slope = (each["settings"].get(name) for name in ("key_dim", "negative_slope"))
            if size:
                fix = "a key_dim that is a power of 4, or a tolerance"
                found = "scale of attention", 1 / float(size) ** 0.5, fix
            elif each["settings"].get("activation") == "gelu":
                fix = "a function of your own with constants of float64, or a tolerance"
                found = "square root in GELU", 2**0.5, fix
            elif slope:
                fix = "a slope that float32 holds, float(numpy.float32(...)), on both"
                found = "slope of the leaky ReLU", float(slope), fix
            else:
                continue
            what, exact, fix = found
            held = float(np.float32(exact))
            values = [repr(held if side == "keras" else exact) for side in self._sides]
            if held != exact:
                yield each["name"], Trap(f"{what}, held in float32", _texts(values), fix)

    def _held_by_paddle(self) -> Iterator[tuple[str, Trap]]:
        """Yield the constants inside its layers that Paddle holds in float32."""
        if not self._double or self._sides.count("paddle") != 1:
            return
        place = self._sides.index("paddle")
        forward = {n: x for n, x in self._shapes[place].items() if n.startswith("forward/")}
        for each in self._facts[place]["modules"]:
            kind, name = kind_of(each["kind"]), f"forward/{each['name']}"
            if kind == "hardsigmoid":
                what, exact, held = "slope of the hard sigmoid", 1 / 6, 0.1666667
                fix = "a function of your own"
            elif kind in ("avgpool", "adaptiveavgpool") and name in forward:
                what = "1 / the numbers of an average, in its gradient"
                fix = "sizes of 2, 4 or 8"
                before = list(forward.values())[: [*forward].index(name)]
                exact = held = _share(each["settings"], forward[name], before)
            else:
                continue
            held = float(np.float32(held))
            values = [repr(held if side == "paddle" else exact) for side in self._sides]
            if held != exact:
                told = f"{what}, held in float32"
                yield each["name"], Trap(told, _texts(values), f"{fix}, or a tolerance")

    def _attention_of_flax(self) -> Iterator[tuple[str, Trap]]:
        """Yield flax's attention, which is computed in float32 by default."""
        if not self._double or self._sides.count("jax") != 1:
            return
        values = ["float32" if side == "jax" else "float64" for side in self._sides]
        fix = "an attention_fn of your own, or a tolerance"
        for each in self._facts[self._sides.index("jax")]["modules"]:
            if each["settings"].get("attention_fn") == "dot_product_attention":
                yield each["name"], Trap("attention is computed in", _texts(values), fix)

    def _dropout(self) -> Iterator[tuple[str, Trap]]:
        """Yield where a side drops at random, which no other framework repeats."""
        rates = [
            {each["name"]: rate for each in facts["modules"] if (rate := _dropped(each))}
            for facts in self._facts
        ]
        most = [max(each.values(), default=0) for each in rates]
        if most[0] != most[1] or (most[0] and self._sides[0] != self._sides[1]):
            fix = "0 on both: no two frameworks drop alike"
            for name in rates[1] or rates[0]:
                yield name, Trap("dropout", (_text(most[0]), _text(most[1])), fix)

    def _optimizers(self) -> Iterator[tuple[str, Trap]]:
        """Yield in what the optimisers differ, or each pair of them that moves a parameter."""
        whole = [each.get("optimizer", {}) for each in self._facts]
        pairs: dict[str, tuple[list[Any], list[str]]] = {}
        for both in (each for row in self._rows for each in row.parameters.values()):
            given = [
                _that_moves(part.names, facts)
                for part, facts in zip(both, self._facts, strict=True)
            ]
            if None not in given:
                pairs.setdefault(repr(given), (given, []))[1].append(both[1].names[0])
        if len(pairs) < 2:
            given = next((given for given, _ in pairs.values()), whole)
            yield from (("optimizer", trap) for trap in self._of_rules(given))
            return
        for given, names in pairs.values():
            for trap in self._of_rules(given):
                yield from ((f"optimizer of {name}", trap) for name in names)

    def _of_rules(self, given: list[Any]) -> Iterator[Trap]:
        kinds = [_KINDS.get(str(each.get("kind")).lower(), each.get("kind")) for each in given]
        if "optax" in kinds or "" in kinds:
            return  # a rule of optax whose parts are not known, or of the user's own
        if str(kinds[0]).lower() != str(kinds[1]).lower():
            yield Trap("kind", _texts(kinds), "one optimiser on both sides")
            return
        kind = str(kinds[0]).lower()
        settings = [_betas(each.get("settings", {})) for each in given]
        for what, own in _OF_OPTIMIZERS.items():
            if what == "rate" and (rates := _scheduled(settings)):
                alike = self._sides[0] == self._sides[1]  # or a loop may set the rate itself
                firsts = [_first_of(each, own) for each in settings]
                alike = alike or ("a schedule" not in rates and not _same(*firsts))
                if alike and rates[0] != rates[1]:
                    yield Trap(what, _texts(rates), "one rate, or one schedule, on both")
                continue
            yield from (trap for _, trap in self._setting("", kind, what, own, settings))
        yield from self._others(_OF_OPTIMIZERS, settings)
        yield from _decays(kind, settings)
        if kind in ("adam", "adamw"):
            yield from self._held(settings)
        frameworks, told, its, others = _ODD.get(kind, ((), "", "", ""))
        odd = [
            side in frameworks or each.get("eps_in_sqrt") is False
            for side, each in zip(self._sides, settings, strict=True)
        ]
        backends = [each.get("backend") for each in self._facts]
        if kind in _ADAPTIVE and backends.count("tensorflow") == 1 and self._twice():
            values = ("of each row alone" if each else "of their sum" for each in backends)
            fix = "no word twice in a batch, or a tolerance"
            yield Trap("an embedding's squared gradient", _texts(list(values)), fix)
        epsilons = [_first_of(each, _OF_OPTIMIZERS["epsilon"]) for each in settings]
        if odd[0] != odd[1] and max(epsilons) > _NO_MATTER:
            fix = "an epsilon of 1e-30 on both, whose place does not matter, or a tolerance"
            if "eps_in_sqrt" in settings[1]:
                fix = f"eps_in_sqrt={not odd[0]}"
            elif "eps_in_sqrt" in settings[0]:
                fix = f"eps_in_sqrt={not odd[1]} in {self._labels[0]}"
            yield Trap(told, (its if odd[0] else others, its if odd[1] else others), fix)

    def _twice(self) -> bool:
        """Return whether a row of an embedding is in the first batch twice."""
        words = [
            each
            for name, each in self._first[0].items()
            if name.startswith("batch/") and each.dtype.kind in "iu"
        ]
        repeated = any(np.unique(each).size < each.size for each in words)
        return repeated and any(row.kind == "embedding" for row in self._rows)

    def _held(self, settings: list[Settings]) -> Iterator[Trap]:
        """Yield that a side computes 1 - beta2 in float32, of which few digits are left."""
        squares = [each.get("beta2", each.get("beta_2")) for each in settings]
        if not all(isinstance(each, float) for each in squares) or not _same(*squares):
            return
        holds = ("keras", "tensorflow", *(() if self._double else ("paddle", "jax")))
        a, b = (
            1 - (float(np.float32(square)) if side in holds else square)
            for side, square in zip(self._sides, squares, strict=True)
        )
        fix = _BETAS
        if slot := next((n for n, both in self._slots.items() if "moment2" in both), None):
            fix = f"{_BETAS}, or optimizer/*/{slot}=0,{_rounded_up(abs(a / b - 1)):g}"
        if a != b:
            yield Trap("1 - beta2, held in float32", (_text(a), _text(b)), fix)


# as exact in float32 as their powers, and near the usual ones
_BETAS = "betas 0.875, 0.9990234375"
# What Paddle computes with in float32, of a model in float64.
_PADDLE_ROUNDS = {
    ("layernorm", "epsilon"),
    ("batchnorm", "epsilon"),
    ("batchnorm", "momentum"),
    ("sgd", "momentum"),
    ("sgd", "decay"),
    ("adamw", "decay"),
}
# A kind of optimiser -> the frameworks that compute it in a way of their own, and which.
_ODD = {
    **dict.fromkeys(
        ("adam", "adamw"),
        (
            ("keras", "tensorflow"),
            *("epsilon is added", "before the bias correction", "after it"),
        ),
    ),
    "rmsprop": (("torch",), "epsilon is added", "to the root", "below the root"),
    "adagrad": (("keras",), "epsilon is added", "below the root", "to the root"),
}
_ADAPTIVE = ("adam", "adamw", "rmsprop", "adagrad")
_KINDS = {"momentum": "SGD", "gradientdescent": "SGD"}
_KEPT = ("batchnorm", "momentum", "torch")


def _that_moves(names: Sequence[str], facts: Mapping[str, Any]) -> Any:
    """Return the optimiser of a parameter and its settings; None: nothing moves it."""
    if groups := facts.get("optimizers"):
        return next((each for each in groups if set(names) & set(each["parameters"])), None)
    return facts.get("optimizer", {})


def _scheduled(settings: list[Settings]) -> list[str]:
    """Return what is known of the rates where a side has a schedule; nothing elsewhere."""
    rates = []
    for each in settings:
        first = next((_text(each[n]) for n in _OF_OPTIMIZERS["rate"] if n in each), None)
        begins = f"a schedule that begins with {first}" if "initial_lr" in each else first
        rates.append(begins or "a schedule")
    return rates if any(each.startswith("a schedule") for each in rates) else []


def _decays(kind: str, settings: list[Settings]) -> Iterator[Trap]:
    """Yield that a decay in Keras, of whatever optimiser, is one as AdamW's."""
    of_keras = ["use_ema" in each for each in settings]
    alike = kind in ("adamw", "lamb")
    alike = alike or any(each.get("decoupled_weight_decay") for each in settings)
    # without momentum SGD moves a weight equally by either
    alike = alike or (kind == "sgd" and not any(each.get("momentum") for each in settings))
    both = all(each.get("weight_decay") for each in settings)
    if both and of_keras[0] != of_keras[1] and not alike:
        values = (
            "of the weight itself" if each else "added to the gradient" for each in of_keras
        )
        fix = "in Keras an L2 regularizer of half of it, not weight_decay"
        yield Trap("decay", _texts(list(values)), "AdamW on both" if kind == "adam" else fix)


def _first_of(settings: Settings, names: Sequence[str]) -> float:
    return next((float(settings[each]) for each in names if each in settings), 0.0)


def _as_it_is(value: Any, settings: Settings, side: str) -> Any:
    return value


def _kept(value: Any, settings: Settings, side: str) -> Any:
    """Return which part of a moving average is kept; PyTorch says which is replaced."""
    return 1 - value if side == "torch" and value is not None else value


def _padding(value: Any, settings: Settings, side: str) -> Any:
    """Return the zeros before and behind each axis; "same" where they depend on the size.

    One number stands for an axis with as many before as behind.
    """
    sizes = settings.get("kernel_size", [])
    stride, dilation = (_of_axes(each, settings, side) for each in ("stride", "dilation"))
    if isinstance(value, str) and value.lower() == "valid":
        value = 0
    elif isinstance(value, str):
        spans = [(size - 1) * step for size, step in zip(sizes, dilation, strict=True)]
        if any(span % 2 for span in spans) or set(stride) != {1}:
            return "same"
        value = [span // 2 for span in spans]
    own = _each_axis(value, settings, side)
    zeros = settings.get("zeros", [0, 0] * len(own))
    if not any(isinstance(each, list) for each in zeros):  # PyTorch begins with the last axis
        zeros = [zeros[place : place + 2] for place in range(0, len(zeros), 2)][::-1]
    both = [np.add(*pair).tolist() for pair in zip(own, zeros, strict=False)]
    return [each[0] if each[0] == each[1] else each for each in both]


def _groups(value: Any, settings: Settings, side: str) -> Any:
    """Return into how many parts the channels fall; Keras has layers that take each alone."""
    inputs = settings.get("in_channels", settings.get("in_features"))
    alone = "depth_multiplier" in settings or (inputs == value and value != 1)
    return "of one channel" if alone else value


def _of_axes(what: str, settings: Settings, side: str) -> Any:
    own = (settings[n] for n in _OF_MODULES["conv"][what] if n in settings)
    return _each_axis(next(own, 1), settings, side)


def _each_axis(value: Any, settings: Settings, side: str) -> Any:
    return [value] * len(settings.get("kernel_size", [])) if isinstance(value, int) else value


_CONVENTIONS: dict[tuple[str, str], Callable[[Any, Settings, str], Any]] = {
    ("batchnorm", "momentum"): _kept,
    ("rmsnorm", "epsilon"): lambda value, *_: "that of the type" if value is None else value,
    ("conv", "padding"): _padding,
    ("conv", "groups"): _groups,
    ("embedding", "padding_idx"): lambda value, *_: "None" if value is None else value,
    **dict.fromkeys((("conv", "stride"), ("conv", "dilation")), _each_axis),
}


def _missing(what: str) -> Any:
    """Return the value of a setting that a framework has not."""
    none = {"reset_after": True, "groups": 1, "eps_root": 0.0, "bias_correction": False}
    return none.get(what)


def _betas(settings: Settings) -> Settings:
    betas = settings.get("betas")
    return {**settings, "beta1": betas[0], "beta2": betas[1]} if betas else settings


def _dropped(module: Mapping[str, Any]) -> float:
    """Return the largest rate at which a module drops."""
    names = ["dropout", "recurrent_dropout"]  # of attention, of recurrent layers
    names += ["p", "rate"] * (kind_of(module["kind"]) == "dropout")
    rates = [module["settings"].get(name) for name in names]
    return max((each for each in rates if isinstance(each, (int, float))), default=0)


def _padded(settings: Settings) -> bool:
    padding = settings.get("padding", 0)
    return padding not in (0, "valid") and padding != [0] * len(np.atleast_1d(padding))


def _share(settings: Settings, shape: Sequence[int], before: Sequence[Sequence[int]]) -> float:
    """Return 1 / the numbers that a pooling averages; 1 if what it reads is not among these.

    Args:
      shape: of what it returns, [batch, channels, ...].
      before: of what was returned before it.
    """
    if size := settings.get("ksize", settings.get("kernel_size")):  # not an adaptive one
        return 1 / float(np.prod(np.broadcast_to(size, len(shape) - 2)))
    read = [each for each in before if len(each) == len(shape) and each[:2] == shape[:2]]
    return float(np.prod(shape[2:]) / np.prod(read[-1][2:])) if read else 1.0


def _counts_padding(side: str, settings: Settings) -> bool:
    return bool(
        settings.get("count_include_pad", True)
        if side == "torch"
        else side == "paddle" and not settings.get("exclusive", True)
    )


def _same(a: Any, b: Any) -> bool:
    numbers = [
        isinstance(each, (int, float, np.floating)) and not isinstance(each, bool)
        for each in (a, b)
    ]
    if all(numbers):
        return abs(float(a) - float(b)) <= _NEAR * abs(float(a))
    return a == b or (not a and not b and not (isinstance(a, list) or isinstance(b, list)))


def _rounded_up(value: float) -> float:
    """Return a number with one digit that is not below a positive one."""
    digit, _, power = f"{value:.0e}".partition("e")
    return float(f"{int(digit) + 1}e{power}")


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _texts(values: Sequence[Any]) -> tuple[str, str]:
    return str(values[0]), str(values[1])
