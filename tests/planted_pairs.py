"""Trainings with a mistake each: `planted_pairs.py torch|paddle|keras FOLDER [NAME ...]`.

Each is recorded in FOLDER/FRAMEWORK/NAME, from one set of weights. PyTorch's have the right
`MISTAKES[name].right`, the port's the wrong `MISTAKES[name].wrong`: options of `Training`.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

STEPS, SIZE, ROWS, TIMES = 4, 8, 6, 5


@dataclass(frozen=True)
class Training:
    """What a training is made of; its defaults are right."""

    network: str = "mlp"  # or "lstm", "encoder"
    optimizer: str = "adam"  # or "sgd", "adamw", "rmsprop"
    options: dict = field(default_factory=dict)  # of the optimiser, as PyTorch names them
    rates: tuple = (0.01,)  # of each step; the last one stays
    loop: str = ""  # a mistake in the loop
    inside: str = ""  # a mistake in the network
    weights: str = ""  # a mistake in the weights carried over
    data: str = ""  # a mistake in the batches
    dtype: str = "float64"

    def rate(self, step):
        return self.rates[min(step, len(self.rates) - 1)]


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what the explanation has to say of it.

    Attributes:
      says: parts of the sentence, without the labels; none: it is not to be explained.
      port: the framework that has it.
    """

    wrong: Training
    says: tuple = ()
    right: Training = Training()
    port: str = "paddle"


def of(says, right=None, port="paddle", **wrong):
    right = Training(**(right or {}))
    return Mistake(replace(right, **wrong), tuple(says), right, port)


SGD = {"optimizer": "sgd", "options": {"momentum": 0.9}}
ADAMW = {"optimizer": "adamw", "options": {"weight_decay": 0.01}}
RATES = (0.01, 0.02, 0.03, 0.04)
LSTM, ENCODER = {"network": "lstm"}, {"network": "encoder"}

MISTAKES = {
    # the optimiser
    "epsilon": of(["epsilon is 1e-08", "1e-05"], options={"eps": 1e-5}),
    "epsilon-of-lstm": of(["epsilon is 1e-08", "1e-06"], LSTM, options={"eps": 1e-6}),
    "beta1": of(["beta1 is 0.9", "0.8"], options={"betas": (0.8, 0.999)}),
    "beta2": of(["beta2 is 0.999", "0.99 "], options={"betas": (0.9, 0.99)}),
    "rate": of(["the rate is 0.01", "0.02", "2 times that"], rates=(0.02,)),
    "rate-late": of(
        ["is that of", "in the step before"], {"rates": RATES}, rates=(0.01, *RATES)
    ),
    "decay": of(
        ["decay is 0.01 of the weight", "0.004 of"], ADAMW, options={"weight_decay": 0.004}
    ),
    "decay-missing": of(
        ["decay is 0.01 of the weight", "none in"], ADAMW, optimizer="adam", options={}
    ),
    "decay-coupled": of(
        ["decay is 0.01 of the weight", "0.01 added to the gradient"], ADAMW, optimizer="adam"
    ),
    "momentum": of(["momentum is 0.9", "0.8"], SGD, options={"momentum": 0.8}),
    "no-momentum": of(["momentum is 0.9", "0 in"], SGD, options={}),
    "nesterov": of(
        ["Nesterov's momentum is not used", ", used"],
        SGD,
        options={"momentum": 0.9, "nesterov": True},
    ),
    "sgd-decay": of(
        ["decay is none", "0.001 added to the gradient"],
        SGD,
        options={"momentum": 0.9, "weight_decay": 0.001},
    ),
    "not-moved": of(["does not move"], loop="frozen"),
    "moved-twice": of(["moves 2 times as fast"], loop="twice"),
    "stale": of(["the gradient of the step before"], SGD, loop="stale"),
    "no-zero-grad": of(["holds that of step 0, too"], loop="no zero_grad"),
    "rms-epsilon": of(
        ["epsilon is added to the root", "below the root"],
        {"optimizer": "rmsprop", "options": {"alpha": 0.9, "eps": 1e-6}},
    ),
    "keras-adam": of(
        ["epsilon is added after", "before it"], {"options": {"eps": 1e-5}}, "keras"
    ),
    "keras-biases": of(["moves 2 times as fast", "pytorch"], {**LSTM, **SGD}, "keras"),
    "keras-decay": of(
        ["decay is 0.01 of the weight", "0.004 of"],
        ADAMW,
        "keras",
        options={"weight_decay": 0.004},
    ),
    "keras-rate": of(["the rate is 0.01", "0.1 in", "10 times"], SGD, "keras", rates=(0.1,)),
    # the loop
    "loss-halved": of(["is 1/2 of"], loop="halved"),
    "loss-summed": of(["is 18 times"], loop="summed"),
    "loss-negated": of(["is minus"], loop="negated"),
    "gradient-doubled": of(["is 2 times", "so are all"], loop="doubled"),
    # the weights
    "transposed": of(["transposed"], weights="transposed"),
    "columns": of(["columns 3 and 7 exchanged"], weights="columns"),
    "gates": of(["4 blocks of rows in the order 0, 2, 1, 3"], LSTM, weights="gates"),
    "rows-reversed": of(["in the reverse order"], weights="reversed"),
    "half": of(["rounded to float16"], weights="half"),
    "single": of(["rounded to float32"], weights="single"),
    "bias-missing": of(["is zero"], weights="no bias"),
    # the network
    "layernorm": of(["each row of", "some 100 times"], inside="epsilon"),
    "layernorm-of-encoder": of(["each row of", "some 100 times"], ENCODER, inside="epsilon"),
    "bfloat16": of(["rounded to bfloat16"], inside="bfloat16"),
    "state-reset": of(["from time step 3 of 5 on"], LSTM, inside="reset"),
    "padding": of(["in padding alone, by batch/0"], LSTM, inside="padding"),
    "negative": of(["masked", "is zero"], inside="relu"),
    # the data
    "row": of(["in row 3 of 6 alone"], data="row"),
    "order": of(["in another order"], data="order"),
    "shifted": of(["shifted by one"], LSTM, data="shifted"),
    # a mistake that is none of these: nothing may be claimed
    "tanh": of([], inside="tanh"),
    "dropout": of(["masked"], inside="dropout"),
    "other-data": of([], data="other"),
}


def batches(training):
    draw = np.random.default_rng(3)
    for step in range(STEPS):
        if training.network == "lstm":
            x = draw.integers(1, 11, (ROWS, TIMES))
            for row, length in enumerate((5, 3, 4, 2, 5, 3)):
                x[row, length:] = 0
        elif training.network == "encoder":
            x = draw.normal(size=(ROWS, TIMES, 4))
        else:
            x = draw.normal(size=(ROWS, SIZE))
        y = draw.normal(size=(ROWS, 3))
        if training.data == "row":
            x[3] = draw.normal(size=x[3].shape)
        elif training.data == "order":
            x = x[[2, 0, 1, 4, 5, 3]]
        elif training.data == "shifted":
            x = np.concatenate([x[:, :1], x[:, :-1]], 1)
        elif training.data == "other":
            x = np.random.default_rng(step).normal(size=x.shape)
        yield (x if x.dtype.kind == "i" else x.astype(training.dtype)), y.astype(training.dtype)


def values(name, shape, training):
    """Return the initial values of a parameter, named and laid out as in PyTorch."""
    draw = np.random.default_rng(sum(map(ord, name)))
    array = draw.normal(size=shape) * 0.3
    if "norm" in name:
        array = np.ones(shape) if name.endswith("weight") else np.zeros(shape)
    wrong = training.weights
    if name == "first.weight":
        if wrong == "transposed":
            array = array.T.copy()
        elif wrong == "columns":
            array[:, [3, 7]] = array[:, [7, 3]]
        elif wrong == "reversed":
            array = array[::-1].copy()
        elif wrong == "half":
            array = array.astype(np.float16).astype(np.float64)
        elif wrong == "single":
            array = array.astype(np.float32).astype(np.float64)
    if name == "out.bias" and wrong == "no bias":
        array[:] = 0
    if name == "rnn.weight_ih_l0" and wrong == "gates":
        array = np.concatenate([np.split(array, 4)[i] for i in (0, 2, 1, 3)])
    return array.astype(training.dtype)


def with_torch(name, training, folder):
    import torch
    from torch import nn

    import parity.torch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            kind = training.network
            if kind == "lstm":
                self.embed = nn.Embedding(11, SIZE)
                self.rnn = nn.LSTM(SIZE, SIZE, batch_first=True)
            elif kind == "encoder":
                self.first = nn.Linear(4, SIZE)
                self.norm = nn.LayerNorm(SIZE)
                self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)
            else:
                self.first = nn.Linear(SIZE, SIZE)
                self.norm = nn.LayerNorm(SIZE)
                self.act = nn.ReLU()
            self.out = nn.Linear(SIZE, 3)

        def forward(self, x):
            if training.network == "lstm":
                hidden = self.rnn(self.embed(x))[0].sum(1)
            elif training.network == "encoder":
                hidden = self.norm(self.first(x))
                hidden = self.attention(hidden, hidden, hidden)[0].mean(1)
            else:
                hidden = self.act(self.norm(self.first(x)))
            return self.out(hidden)

    torch.set_default_dtype(getattr(torch, training.dtype))
    model = Model()
    with torch.no_grad():
        for own, each in model.named_parameters():
            each.copy_(torch.tensor(values(own, tuple(each.shape), training)))
    kinds = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
    }
    optimizer = kinds[training.optimizer](
        model.parameters(), training.rate(0), **training.options
    )
    with parity.torch.watch(folder / name, model, optimizer):
        for step, (x, y) in enumerate(batches(training)):
            optimizer.param_groups[0]["lr"] = training.rate(step)
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_paddle(name, training, folder):
    import parity.paddle  # isort: skip
    import paddle
    from paddle import nn

    paddle.set_default_dtype(training.dtype)
    wrong = training.inside

    class Recurrent(nn.LSTM):
        def forward(self, x):
            if wrong == "reset":
                parts = super().forward(x[:, :3])[0], super().forward(x[:, 3:])[0]
                return paddle.concat(parts, 1), ()
            return super().forward(x)

    class Embedding(nn.Embedding):
        def forward(self, x):
            found = super().forward(x)
            return (
                found * (x != 0).unsqueeze(-1).cast(found.dtype)
                if wrong == "padding"
                else found
            )

    class Act(nn.ReLU):
        def forward(self, x):
            if wrong == "tanh":
                return paddle.tanh(x)
            if wrong == "dropout":
                keep = np.random.default_rng(0).random(x.shape) > 0.2
                return super().forward(x) * paddle.to_tensor(keep.astype(training.dtype))
            return super().forward(x)

    class First(nn.Linear):
        def forward(self, x):
            found = super().forward(x)
            if wrong == "bfloat16":
                return found.cast("float32").cast("bfloat16").cast("float32").cast("float64")
            return nn.functional.relu(found) if wrong == "relu" else found

    class Model(nn.Layer):
        def __init__(self):
            super().__init__()
            kind = training.network
            epsilon = 1e-3 if wrong == "epsilon" else 1e-5
            if kind == "lstm":
                self.embed = Embedding(11, SIZE)
                self.rnn = Recurrent(SIZE, SIZE)
            elif kind == "encoder":
                self.first = nn.Linear(4, SIZE)
                self.norm = nn.LayerNorm(SIZE, epsilon)
                self.attention = nn.MultiHeadAttention(SIZE, 2)
            else:
                self.first = First(SIZE, SIZE)
                self.norm = nn.LayerNorm(SIZE, epsilon)
                self.act = Act()
            self.out = nn.Linear(SIZE, 3)

        def forward(self, x):
            if training.network == "lstm":
                hidden = self.rnn(self.embed(x))[0].sum(1)
            elif training.network == "encoder":
                hidden = self.norm(self.first(x))
                hidden = self.attention(hidden, hidden, hidden).mean(1)
            else:
                hidden = self.act(self.norm(self.first(x)))
            return self.out(hidden)

    model = Model()
    joined = {}
    for own, each in model.named_parameters():
        if "attention" in own:
            part, kind = own.split(".")[1:]
            if part == "out_proj":
                array = values(f"attention.out_proj.{kind}", each.shape[::-1], training)
            else:
                whole = (3 * SIZE, SIZE) if kind == "weight" else (3 * SIZE,)
                joined = np.split(values(f"attention.in_proj_{kind}", whole, training), 3)
                array = joined["qkv".index(part[0])]
        else:
            flip = own.endswith("weight") and own.split(".")[0] in ("first", "out")
            shape = each.shape[::-1] if flip else each.shape
            array = values(own, tuple(shape), training)
        flip = array.ndim == 2 and own.split(".")[0] in ("first", "out", "attention")
        each.set_value(array.T if flip else array)
    given = dict(training.options)
    options = {}
    if "betas" in given:
        options |= {"beta1": given["betas"][0], "beta2": given["betas"][1]}
    for own, theirs in {
        "eps": "epsilon",
        "alpha": "rho",
        "momentum": "momentum",
        "weight_decay": "weight_decay",
    }.items():
        if own in given:
            options[theirs] = given[own]
    if given.get("nesterov"):
        options["use_nesterov"] = True
    optimizers = paddle.optimizer
    kind = {
        "adam": optimizers.Adam,
        "adamw": optimizers.AdamW,
        "sgd": optimizers.Momentum if "momentum" in given else optimizers.SGD,
        "rmsprop": optimizers.RMSProp,
    }[training.optimizer]
    parameters = model.parameters()
    if training.loop == "frozen":
        parameters = [each for each in parameters if each is not model.out.bias]
    if training.loop == "twice":
        model.out.bias.optimize_attr["learning_rate"] = 2.0
    optimizer = kind(training.rate(0), parameters=parameters, **options)
    with parity.paddle.watch(folder / name, model, optimizer):
        if training.loop == "stale":
            stale_step(paddle, model, optimizer)
        for step, (x, y) in enumerate(batches(training)):
            optimizer.set_lr(training.rate(step))
            loss = (model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2
            loss = loss.sum() if training.loop == "summed" else loss.mean()
            loss = {"halved": 0.5, "negated": -1.0}.get(training.loop, 1.0) * loss
            loss.backward()
            if training.loop == "doubled":
                for each in parameters:
                    each.grad.set_value(2 * each.grad)
            optimizer.step()
            if training.loop != "no zero_grad":
                optimizer.clear_grad()


def stale_step(paddle, model, optimizer):
    """Let each step use the gradients of the one before, behind the watch's record."""
    watched, before = optimizer._apply_optimize, {}

    def apply(*arguments, **named):
        pairs = named.get("params_grads", arguments[-1] if arguments else None)
        now = {p.name: g.clone() for p, g in pairs}
        late = [(p, before.get(p.name, paddle.zeros_like(g))) for p, g in pairs]
        before.clear()
        before.update(now)
        named["params_grads"] = late
        return watched(*arguments[:-1] if arguments else (), **named)

    optimizer._apply_optimize = apply


def with_keras(name, training, folder):
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras
    import tensorflow as tf
    from keras import layers

    import parity.keras

    keras.utils.clear_session()
    keras.config.set_floatx(training.dtype)
    if training.network == "lstm":
        tokens = keras.Input((TIMES,), dtype="int64")
        hidden = layers.Embedding(11, SIZE, name="embed")(tokens)
        hidden = layers.LSTM(SIZE, return_sequences=True, name="rnn")(hidden)
        model = keras.Model(tokens, layers.Dense(3, name="out")(keras.ops.sum(hidden, 1)))
    else:
        x = keras.Input((SIZE,))
        hidden = layers.Dense(SIZE, name="first")(x)
        hidden = layers.ReLU()(layers.LayerNormalization(epsilon=1e-5, name="norm")(hidden))
        model = keras.Model(x, layers.Dense(3, name="out")(hidden))
    for each in model.variables:
        layer, _, role = each.path.rpartition("/")
        layer = layer.removesuffix("/lstm_cell")
        if layer == "rnn":
            parts = {"kernel": ["weight_ih"], "recurrent_kernel": ["weight_hh"]}
            parts = parts.get(role, ["bias_ih", "bias_hh"])
            shape = tuple(each.shape)[::-1]
            array = sum(values(f"rnn.{part}_l0", shape, training) for part in parts)
        else:
            own = "bias" if role in ("bias", "beta") else "weight"
            flip = role == "kernel"
            shape = tuple(each.shape)[::-1] if flip else tuple(each.shape)
            array = values(f"{layer}.{own}", shape, training)
            if not flip:
                each.assign(array)
                continue
        each.assign(array.T)
    given = dict(training.options)
    options = {"epsilon": given["eps"]} if "eps" in given else {}
    options |= {n: given[n] for n in ("momentum", "nesterov", "weight_decay") if n in given}
    kinds = {
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "sgd": keras.optimizers.SGD,
    }
    if training.optimizer == "adamw":
        options["epsilon"] = 1e-8
    optimizer = kinds[training.optimizer](training.rate(0), **options)
    with parity.keras.watch(folder / name, model, optimizer):
        for x, y in batches(training):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)


def main(framework, folder, names):
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[framework]
    for name in names:
        mistake = MISTAKES[name]
        if framework == "torch":
            train(name, mistake.right, folder / framework)
        elif framework == mistake.port:
            train(name, mistake.wrong, folder / framework)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or MISTAKES)
