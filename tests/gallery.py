"""Models that nobody here wrote, and ports: `python gallery.py FOLDER [A-B-NETWORK ...]`.

Each side trains its networks for three steps in float64, in processes of its own, and records
them: in FOLDER/found/SIDE/NETWORK with its framework's defaults; in FOLDER/aligned/SIDE/NETWORK
with the settings that `parity doctor` named, the second side from the weights of the first;
and in FOLDER/float32/SIDE/NETWORK the same in float32, of which the first side measures bounds.
What the commands say of it is printed as the rows of docs/gallery.md.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import aligned_networks
import numpy as np
from aligned_networks import RATE, SHAPES, Run, with_keras, with_paddle, with_torch

from parity import Trace
from parity.align.mapping import read, unmapped
from parity.align.traps import traps
from parity.cli.command_line import main as command
from parity.cli.commands import parity
from parity.compare.measured_bounds import measure
from parity.pair.perturbation import VARIABLE, environment

SHAPES["resnet"] = 3, 64, 64
WIDTH, HEADS, INNER, LAYERS, PLACES = 16, 4, 32, 2, 8  # of the BERT and the GPT-2
HELD = (
    float(np.float32(1e-5)),
    float(np.float32(0.9)),
)  # epsilon, momentum: as Paddle holds them
# A ReLU of a number within rounding of zero passes all its gradient or none, and a step of the
# ResNet has a million of them. In float32 it trains one step with one small batch: of 1,600 the
# one whose numbers, with PyTorch's weights and with Keras's, stay furthest from zero: 2.6 times
# the largest difference of their layer from float64. The pooling has no ties either.
KINKLESS = 602
TINY = float(np.float32(1e-12))


class Entry(Run):
    """A network with its frameworks' defaults, or aligned."""

    def __init__(self, network, how):
        dtype = "float32" if how == "float32" else "float64"
        super().__init__(network, exact=how != "found", dtype=dtype, words=100)

    def given(self, **settings):
        return settings if self.exact else {}

    def batches(self):
        if self.network != "resnet" or self.dtype != "float32":
            yield from super().batches()
            return
        draw = np.random.default_rng(KINKLESS)
        images, targets = (draw.random((4, *shape)) for shape in ((3, 32, 32), (3,)))
        yield images.astype(self.dtype), targets.astype(self.dtype)

    def made(self, framework):
        make = MODELS.get((framework, self.network))
        return make and make(self)


def import_torchvision():
    """Import torchvision, of which a build for GPUs finds none of its operators without one.

    The models here call none of them: that they are declared is enough, also for transformers.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float threshold) -> Tensor",
            )


def torch_resnet(run):
    from torch import nn
    from torchvision.models import resnet18

    norm = partial(nn.BatchNorm2d, **run.given(eps=HELD[0], momentum=1 - HELD[1]))
    return resnet18(num_classes=3, norm_layer=norm)


def torch_bert(run):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "vocab_size": run.words,
        "max_position_embeddings": PLACES,
    }
    off = run.given(
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
        layer_norm_eps=TINY,
    )
    return _logits(BertForSequenceClassification(BertConfig(**sizes, **off, num_labels=3)))


def torch_gpt2(run):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_inner": INNER,
        "vocab_size": run.words,
        "n_positions": PLACES,
    }
    off = run.given(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=HELD[0])
    return _logits(GPT2LMHeadModel(GPT2Config(**sizes, **off)))


def _logits(model):
    """Return a model of the library's that returns three logits of each row."""
    from torch import nn

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, tokens):
            found = self.net(tokens).logits
            return found if found.ndim == 2 else found[:, -1, :3]

    return Logits()


def paddle_resnet(run):
    from paddle.vision.models import resnet18

    return resnet18(num_classes=3)


def paddle_transformer(run):
    """Return the BERT or the GPT-2."""
    import paddle
    from paddle import nn

    gpt = run.network == "gpt2"
    layer = nn.TransformerEncoderLayer(
        *(WIDTH, HEADS, INNER),
        activation="gelu",
        normalize_before=gpt,
        **run.given(dropout=0.0),
    )

    class Model(nn.Layer):
        def __init__(self):
            super().__init__()
            sizes = (run.words, PLACES) if gpt else (run.words, 2, PLACES)
            self.embed = nn.LayerList([nn.Embedding(each, WIDTH) for each in sizes])
            self.norm = None if gpt else nn.LayerNorm(WIDTH, **run.given(epsilon=1e-12))
            self.drop = nn.Dropout(*run.given(p=0.0).values())
            last = nn.LayerNorm(WIDTH) if gpt else None
            self.encoder = nn.TransformerEncoder(layer, LAYERS, last)
            for each in self.encoder.layers if run.exact else ():
                if gpt:  # GELU by tanh
                    each.activation = lambda x: nn.functional.gelu(x, approximate=True)
                else:
                    each.norm1._epsilon = each.norm2._epsilon = 1e-12
            if not gpt:
                self.pooler, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, tokens):
            count = tokens.shape[1]
            given = [tokens, paddle.zeros_like(tokens), paddle.arange(count)]
            given = given[::2] if gpt else given
            hidden = sum(e(each) for e, each in zip(self.embed, given, strict=True))
            hidden = self.drop(hidden if gpt else self.norm(hidden))
            if not gpt:
                return self.out(paddle.tanh(self.pooler(self.encoder(hidden)[:, 0])))
            hidden = self.encoder(hidden, paddle.triu(paddle.full((count, count), -1e9), 1))
            return paddle.matmul(hidden, self.embed[0].weight, transpose_y=True)[:, -1, :3]

    return Model()


def keras_resnet(run):
    import keras
    from keras import layers

    def padded(layer, x, size, stride, **settings):
        if not run.exact or size == 1:
            return layer(size, stride, padding="same", **settings)(x)
        return layer(size, stride, **settings)(layers.ZeroPadding2D(size // 2)(x))

    def conv(x, filters, size, stride=1):
        def layer(*sizes, **settings):
            return layers.Conv2D(filters, *sizes, use_bias=False, **settings)

        norm = layers.BatchNormalization(**run.given(epsilon=HELD[0], momentum=HELD[1]))
        return norm(padded(layer, x, size, stride))

    x = keras.Input((None, None, 3))
    hidden = layers.ReLU()(conv(x, 64, 7, 2))
    hidden = padded(layers.MaxPooling2D, hidden, 3, 2)
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1):
            # the shortcut comes first, as in keras.applications
            kept = hidden if hidden.shape[-1] == filters else conv(hidden, filters, 1, step)
            inner = layers.ReLU()(conv(hidden, filters, 3, step))
            hidden = layers.ReLU()(conv(inner, filters, 3) + kept)
    return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling2D()(hidden)))


def keras_gelu(run):
    """Return GELU: Keras's own, or one whose constants are of the run's type."""
    from keras import ops

    def constant(number):
        return ops.convert_to_tensor(number, run.dtype)

    def by_erf(x):
        return x * 0.5 * (1 + ops.erf(x / constant(np.sqrt(2.0))))

    def by_tanh(x):
        root, cubic = constant(np.sqrt(2 / np.pi)), constant(0.044715)
        return x * 0.5 * (1 + ops.tanh(root * (x + cubic * x * x * x)))

    if not run.exact:
        return "gelu"
    return by_tanh if run.network == "gpt2" else by_erf


def keras_transformer(run):
    """Return the BERT or the GPT-2."""
    import keras
    from keras import layers, ops

    gpt = run.network == "gpt2"

    class Head(layers.Layer):
        def __init__(self, words):
            super().__init__()
            self.words = words

        def call(self, x):
            return ops.matmul(x, ops.transpose(self.words.embeddings))

    def norm(x):
        return layers.LayerNormalization(**run.given(epsilon=HELD[0] if gpt else TINY))(x)

    def attended(x):
        return layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x, use_causal_mask=gpt)

    def fed(x):
        return layers.Dense(WIDTH)(layers.Dense(INNER, activation=keras_gelu(run))(x))

    tokens = keras.Input((5,), dtype="int64")
    places = ops.cumsum(ops.ones_like(tokens), 1) - 1
    words = layers.Embedding(run.words, WIDTH)
    hidden = words(tokens)
    if not gpt:
        hidden += layers.Embedding(2, WIDTH)(ops.zeros_like(tokens))
    hidden += layers.Embedding(PLACES, WIDTH)(places)
    if gpt:
        for _ in range(LAYERS):
            hidden += attended(norm(hidden))
            hidden += fed(norm(hidden))
        return keras.Model(tokens, Head(words)(norm(hidden))[:, -1, :3])
    hidden = norm(hidden)
    for _ in range(LAYERS):
        hidden = norm(hidden + attended(hidden))
        hidden = norm(hidden + fed(hidden))
    pooled = layers.Dense(WIDTH, activation="tanh")(hidden[:, 0])
    return keras.Model(tokens, layers.Dense(3)(pooled))


def jax_resnet(run):
    import jax
    from flax import nnx

    given = {"rngs": nnx.Rngs(1), "param_dtype": run.dtype}

    class Normed(nnx.Module):
        def __init__(self, before, filters, size, stride=1):
            side = size // 2
            pad = {"padding": [(side, side), (side, side)]} if run.exact else {}
            self.conv = nnx.Conv(
                *(before, filters, (size, size), stride), use_bias=False, **pad, **given
            )
            settings = run.given(epsilon=HELD[0], momentum=HELD[1])
            self.norm = nnx.BatchNorm(filters, **settings, **given)

        def __call__(self, x):
            return self.norm(self.conv(x))

    class Block(nnx.Module):
        def __init__(self, before, filters, stride):
            self.first = Normed(before, filters, 3, stride)
            self.second = Normed(filters, filters, 3)
            self.short = None if before == filters else Normed(before, filters, 1, stride)

        def __call__(self, x):
            kept = x if self.short is None else self.short(x)
            return jax.nn.relu(self.second(jax.nn.relu(self.first(x))) + kept)

    class ResNet(nnx.Module):
        def __init__(self):
            self.stem = Normed(3, 64, 7, 2)
            widths = (64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)
            blocks = [((a, b, s), (b, b, 1)) for a, b, s in widths]
            self.blocks = nnx.List([Block(*each) for pair in blocks for each in pair])
            self.out = nnx.Linear(512, 3, **given)

        def __call__(self, x):
            pad = [(1, 1), (1, 1)] if run.exact else "SAME"
            x = nnx.max_pool(jax.nn.relu(self.stem(x)), (3, 3), (2, 2), pad)
            for block in self.blocks:
                x = block(x)
            return self.out(x.mean((1, 2)))

    return ResNet()


def jax_transformer(run):
    """Return the encoder, the BERT or the GPT-2."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    given = {"rngs": nnx.Rngs(1), "param_dtype": run.dtype}
    encoder, gpt = run.network == "encoder", run.network == "gpt2"
    width, heads, inner = (8, 2, 16) if encoder else (WIDTH, HEADS, INNER)
    epsilon = {"bert": TINY, "gpt2": HELD[0], "encoder": 1e-5}[run.network]

    def norm():
        exact = run.given(epsilon=epsilon, use_fast_variance=False)
        return nnx.LayerNorm(width, **exact, **given)

    def attended(query, key, value, mask=None, **_):
        scores = jnp.einsum("...qhd,...khd->...hqk", query, key) / (width / heads) ** 0.5
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), value)

    class Layer(nnx.Module):
        def __init__(self):
            exact = run.given(attention_fn=attended)
            self.attention = nnx.MultiHeadAttention(
                heads, width, decode=False, **exact, **given
            )
            self.norms = nnx.List([norm(), norm()])
            self.first = nnx.Linear(width, inner, **given)
            self.second = nnx.Linear(inner, width, **given)

        def __call__(self, x):
            if gpt:
                mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
                x = x + self.attention(self.norms[0](x), mask=mask)
                return x + self.second(self.act(self.first(self.norms[1](x))))
            x = self.norms[0](x + self.attention(x))
            return self.norms[1](x + self.second(self.act(self.first(x))))

        def act(self, x):
            if encoder:
                return jax.nn.relu(x)
            return jax.nn.gelu(x, approximate=gpt) if run.exact else jax.nn.gelu(x)

    class Model(nnx.Module):
        def __init__(self):
            if encoder:
                self.start = nnx.Linear(4, width, **given)
            else:
                sizes = (run.words, PLACES) if gpt else (run.words, 2, PLACES)
                self.embed = nnx.List([nnx.Embed(each, width, **given) for each in sizes])
            self.norm = None if encoder else norm()
            self.layers = nnx.List([Layer() for _ in range(LAYERS)])
            if run.network == "bert":
                self.pooler = nnx.Linear(width, width, **given)
            if not gpt:
                self.out = nnx.Linear(width, 3, **given)

        def __call__(self, x):
            if encoder:
                hidden = self.start(x)
            else:
                given = [x, jnp.zeros_like(x), jnp.arange(x.shape[1])]
                given = given if len(self.embed) == 3 else given[::2]
                hidden = sum(e(each) for e, each in zip(self.embed, given, strict=True))
            hidden = self.norm(hidden) if run.network == "bert" else hidden
            for layer in self.layers:
                hidden = layer(hidden)
            if gpt:
                return self.embed[0].attend(self.norm(hidden))[:, -1, :3]
            if encoder:
                return self.out(hidden.mean(1))
            return self.out(jnp.tanh(self.pooler(hidden[:, 0])))

    return Model()


def with_jax(run, folder):
    import jax
    import optax
    from flax import nnx

    import parity.jax

    jax.config.update("jax_enable_x64", True)
    model = run.made("jax")
    optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)
    file = folder / f"{run.network}.safetensors"
    if file.exists():
        parity.jax.load(model, file)
    with parity.jax.watch(folder / run.network, model, optimizer):
        for x, y in run.batches():
            x = np.moveaxis(x, 1, 3) if x.ndim == 4 else x

            def loss(model, x=x, y=y):
                return ((model(x) - y) ** 2).mean()

            _, gradients = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradients)


MODELS = {
    ("torch", "resnet"): torch_resnet,
    ("torch", "bert"): torch_bert,
    ("torch", "gpt2"): torch_gpt2,
    ("paddle", "resnet"): paddle_resnet,
    ("paddle", "bert"): paddle_transformer,
    ("paddle", "gpt2"): paddle_transformer,
    ("keras", "resnet"): keras_resnet,
    ("keras", "bert"): keras_transformer,
    ("keras", "gpt2"): keras_transformer,
    ("jax", "resnet"): jax_resnet,
    ("jax", "encoder"): jax_transformer,
    ("jax", "bert"): jax_transformer,
    ("jax", "gpt2"): jax_transformer,
}
aligned_networks.PLAIN += ("resnet", "bert", "gpt2")
ALIGNED = "aligned", "float32"
SIDES = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras, "jax": with_jax}
NETWORKS = ("lstm", "gru", "encoder", "resnet", "bert", "gpt2")
PAIRS = [f"torch-{port}-{each}" for port in ("paddle", "keras") for each in NETWORKS]
PAIRS += [f"keras-jax-{each}" for each in NETWORKS[2:]]
_KEY_BIAS = ["--exclude", "*key/bias"]
# What no setting aligns: PyTorch's running variance has n - 1, of 24 numbers in the last
# layers; pooling hands the gradient of a zero that ties with padding by zeros to the padding; a
# ReLU that is called twice is two layers of Keras, whose padding is one, too; the gradient of
# attention's key bias is zero but for rounding.
DECLARED = {
    "torch-keras-resnet": ["--exclude", "activation_gradient/relu", "--allow-missing"],
    "keras-jax-resnet": ["--allow-missing"],
    "keras-jax-bert": _KEY_BIAS,
    "keras-jax-gpt2": _KEY_BIAS,
    "keras-jax-encoder": _KEY_BIAS,
}
# Keras's momentum is a float32. In float32 the last layers' variance is of 4 numbers: PyTorch's
# is a third larger, and the running one 7.9e-2 of the tensor off; of 24 numbers 2.0e-2.
_VARIANCE = "weight/*running_var=0,"
IN_FLOAT64 = {
    "keras-jax-resnet": ["--tolerance", "weight/*/moving_*=0,1e-6"],
    "torch-paddle-resnet": ["--tolerance", f"{_VARIANCE}3e-2"],
    "torch-keras-resnet": ["--tolerance", f"{_VARIANCE}3e-2"],
}
IN_FLOAT32 = {
    "torch-paddle-resnet": ["--tolerance", f"{_VARIANCE}1e-1"],
    "torch-keras-resnet": ["--tolerance", f"{_VARIANCE}1e-1"],
}


def train(side, folder, *runs):
    """Train a side, in the ways and networks of some runs that have not been recorded."""
    if side == "torch":
        with contextlib.suppress(ModuleNotFoundError):  # layers of PyTorch do without
            import_torchvision()
    for run in runs:
        how, network = run.split("/")
        if how == "bounds":
            measure_bounds(side, Entry(network, "float32"), Path(folder, "float32", side))
            continue
        where = Path(folder, how, side)
        if (where / network).exists():
            continue
        where.mkdir(parents=True, exist_ok=True)
        SIDES[side](Entry(network, how), where)


def measure_bounds(side, run, folder):
    """Measure the bounds of a side's training."""
    trace, moved = Trace(folder / run.network), []
    for seed in (None, *range(5)):
        to = folder / f"{run.network}-moved" / str(seed)
        os.environ |= environment(trace.folder, to, seed)
        SIDES[side](run, folder)
        moved.append(Trace(to))
    del os.environ[VARIABLE]
    measure(trace, *moved[:1], moved[1:]).write(folder / f"{run.network}.json")
    shutil.rmtree(folder / f"{run.network}-moved")


def start(folder, runs):
    """Train sides, each in a process of its own; they are given as side -> runs."""
    words = [sys.executable, "-W", "ignore", __file__, "--train"]
    given = {"env": os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, "text": True}
    started = [
        subprocess.Popen([*words, side, folder, *of_side], stderr=subprocess.PIPE, **given)
        for side, of_side in runs.items()
    ]
    for each in started:
        _, said = each.communicate()
        assert each.returncode == 0, said


def record(folder, names):
    """Train pairs: as they are found, and aligned, the second side from the first's weights."""
    for a in dict.fromkeys(name.split("-")[0] for name in names):
        pairs = [name for name in names if name.startswith(f"{a}-")]
        first, second = defaultdict(list), defaultdict(list)
        for name in pairs:
            _, b, network = name.split("-")
            first[a] += [f"{how}/{network}" for how in ("found", *ALIGNED, "bounds")]
            first[b].append(f"found/{network}")
            second[b] += [f"{how}/{network}" for how in ALIGNED]
        start(folder, first)
        for name in pairs:
            file = folder / f"{name}.yaml"
            run("align", *sides(folder, name, "found"), "-o", file)
            for ours, theirs in (sides(folder, name, how) for how in ALIGNED):
                theirs.parent.mkdir(parents=True, exist_ok=True)
                weights = theirs.with_suffix(".safetensors")
                run("weights", ours, "--map", file, "-o", weights)
        start(folder, second)


def sides(folder, name, how):
    """Return the traces of a pair."""
    *both, network = name.split("-")
    return [folder / how / side / network for side in both]


def used(folder, name, pair, *options):
    """Return the largest share of a bound that a pair takes, which matches."""
    verdict, given = folder / f"{name}.json", ["--map", folder / f"{name}.yaml", *options]
    run("compare", *pair, *given, *DECLARED.get(name, []), "--json", verdict)
    rungs = json.loads(verdict.read_text())["runs"][0]["rungs"].values()
    return max(each["used"] for each in rungs)


def row(folder, name):
    """Return what is found of a pair.

    Returns:
      parameters: how many the first side has.
      right: how many of them are in rows that need no help, which the aligned pair confirms.
      defaults: what `parity doctor` names of the pair as it is found, but initial weights.
      left: what it still names of the aligned pair.
      used: the largest share of a bound that the aligned pair takes.
      measured: the same in float32, of what `parity bounds` measured.
    """
    found, pair, single = (sides(folder, name, how) for how in ("found", *ALIGNED))
    mapping = read(folder / f"{name}.yaml")
    bounds = "--bounds", single[0].with_suffix(".json")
    own = unmapped(list(map(Trace, found)), replace(mapping, rows=[]))[0]
    return {
        "parameters": len(own),
        "right": sum(len(both[0].names) for both in mapping.parameters().values()),
        "defaults": named(found),
        "left": named(pair),
        "used": used(folder, name, pair, *IN_FLOAT64.get(name, [])),
        "measured": used(folder, name, single, *bounds, *IN_FLOAT32.get(name, [])),
    }


def run(*words):
    """Run a command of parity; what it says is shown if it finds a difference."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = command(parity, list(map(str, words)))
    assert status == 0, said.getvalue()


def named(folders):
    """Return what `parity doctor` says of two traces, but of their initial weights."""
    return "; ".join(
        f"{each.what} {' → '.join(each.values)}"
        for each in traps(list(map(Trace, folders)))
        if each.values
    )


def line(folder, name):
    """Return the row of a pair in docs/gallery.md."""
    found = row(folder, name)
    left = f"; left: {found['left']}" if found["left"] else ""
    cells = (
        f"`{name}`",
        f"{found['right']} of {found['parameters']}",
        (found["defaults"] or "-") + left,
        *(f"{found[share]:.2%}".replace("%", " %") for share in ("used", "measured")),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(*sys.argv[2:])
    else:
        folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or PAIRS
        record(folder, names)
        for name in names:
            print(line(folder, name))
