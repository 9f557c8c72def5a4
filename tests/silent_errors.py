"""Published silent errors of training, rebuilt small: `silent_errors.py FOLDER [NAME ...]`.

Each is a training of PyTorch that ends as if nothing were wrong. FOLDER/NAME/right holds the
recorded steps without the error, FOLDER/NAME/wrong those with it. docs/silent-errors.md says
where each was published and what the comparison makes of it; tests/test_silent_errors.py holds
it to that.

A function takes whether the error is there, yields the model and optimiser that are to be
watched, and is given the watch, in which it trains.
"""

import contextlib
import copy
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as group
from torch import nn
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import parity.torch

ERRORS, OF_TWO_RANKS = {}, {}
RANKS = 2
STEPS, ROWS, SIZE, CLASSES, WORDS, TIMES = 4, 8, 6, 3, 12, 5


def error(train):
    """Enter a training under its name, with dashes."""
    ERRORS[train.__name__.replace("_", "-")] = train
    return train


def error_of_two_ranks(train):
    """Enter a training that takes two processes."""
    OF_TWO_RANKS[train.__name__.replace("_", "-")] = train
    return train


class Classifier(nn.Module):
    """A multilayer perceptron with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(SIZE, 10), nn.BatchNorm1d(10)
        self.act, self.head = nn.ReLU(), nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.head(self.act(self.norm(self.first(x))))


class LanguageModel(nn.Module):
    """A Transformer's encoder whose output layer is its embedding."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embed(tokens))))


def made(kind, *arguments):
    """Return a model with the same initial values each time."""
    torch.manual_seed(1)
    return kind(*arguments)


def rows(step, number=ROWS):
    """Return the rows and labels of a step's batch."""
    draw = torch.Generator().manual_seed(100 + step)
    labels = torch.randint(CLASSES, (number,), generator=draw)
    return torch.randn(number, SIZE, generator=draw, dtype=torch.float64), labels


def sentences(step, number=ROWS):
    """Return tokens, padded with 0, and for each the one to predict; -100 for padding."""
    draw = np.random.default_rng(200 + step)
    tokens = draw.integers(1, WORDS, (number, TIMES + 1))
    for row, length in enumerate(draw.integers(2, TIMES + 2, number)):
        tokens[row, length:] = 0
    following = np.where(tokens[:, 1:] == 0, -100, tokens[:, 1:])
    return torch.tensor(tokens[:, :-1]), torch.tensor(following)


def entropy(logits, labels, reduction="mean"):
    return nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction=reduction
    )


def nothing(step):
    """Leave a step as it is."""


def plain(
    model, optimizer, batch=rows, *, clear=True, loss=None, before=nothing, after=nothing
):
    """Train as every tutorial does.

    Args:
      clear: whether the gradients of the step before are cleared.
      loss: function from the step's number, its rows and labels; None for the mean entropy.
      before, after: run around the optimiser's step.
    """
    for step in range(STEPS):
        x, labels = batch(step)
        if clear:
            optimizer.zero_grad()
        (entropy(model(x), labels) if loss is None else loss(step, x, labels)).backward()
        before(step)
        optimizer.step()
        after(step)


def trained(model, *batch, of=None, rule=torch.optim.Adam, rate=0.01, **how):
    """Train all parameters, or those `of` some, as `plain` does, in the watch that is sent."""
    optimizer = rule(of or model.parameters(), rate)
    with (yield model, optimizer):
        plain(model, optimizer, *batch, **how)


# the user's program


@error
def zero_grad_forgotten(wrong):
    yield from trained(made(Classifier), clear=not wrong)


@error
def all_but_norm_frozen(wrong):
    model = made(Classifier)
    for name, each in model.named_parameters():
        each.requires_grad = not wrong or "norm" in name
    yield from trained(model)


@error
def frozen_only_in_train(wrong):
    """The stages to freeze are frozen by `train()`, which is called after the first epoch."""
    model = made(Classifier)

    def freeze(step):
        model.first.requires_grad_(False)

    if not wrong:
        freeze(0)
    yield from trained(
        model,
        after=lambda step: freeze(step) if step == 1 else None,
        rule=torch.optim.SGD,
        rate=0.1,
    )


@error
def workers_share_a_seed(wrong):
    """Two workers that load every other row add the same noise to their rows."""
    model = made(Classifier)
    draws = [np.random.default_rng(0 if wrong else worker) for worker in range(2)]

    def noisy(step):
        x, labels = rows(step)
        noise = np.stack([draws[row % 2].normal(size=SIZE) for row in range(len(x))])
        return x + 0.01 * torch.tensor(noise), labels

    yield from trained(model, noisy)


@error
def micro_batches_weighted_alike(wrong):
    """The mean of the micro-batches' mean losses, which have different numbers of tokens."""
    model = made(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with (yield model, optimizer):
        for step in range(STEPS):
            parts = [each.chunk(2) for each in sentences(step)]
            total = sum((labels != -100).sum() for labels in parts[1])
            optimizer.zero_grad()
            for tokens, labels in zip(*parts, strict=True):
                if wrong:
                    loss = entropy(model(tokens), labels) / 2
                else:
                    loss = entropy(model(tokens), labels, "sum") / total
                loss.backward()
            optimizer.step()


@error
def new_head_not_in_optimizer(wrong):
    model = made(Classifier)
    before = list(model.parameters())
    model.head = copy.deepcopy(model.head)
    yield from trained(model, of=before if wrong else None)


@error
def clipped_while_scaled(wrong):
    """The gradients of a scaled loss are clipped before they are divided by the scale."""
    model, scale = made(Classifier), 1024.0

    def unscale():
        for each in model.parameters():
            each.grad /= scale

    def clip(step):
        if not wrong:
            unscale()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if wrong:
            unscale()

    def scaled(step, x, labels):
        return scale * entropy(model(x), labels)

    yield from trained(model, loss=scaled, before=clip)


@error
def optimizer_not_restored(wrong):
    """A training goes on with a new optimiser."""
    model = made(Classifier)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    plain(model, optimizer)
    if wrong:
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with (yield model, optimizer):
        plain(model, optimizer)


# libraries and compilers


@error
def dropout_in_eval(wrong):
    """A frozen encoder in evaluation mode whose attention takes its dropout rate as it is."""
    encoder = made(LanguageModel, 0.1)
    encoder.requires_grad_(False).eval()
    encoder.block.self_attn.training = wrong
    encoder.block.dropout1.training = wrong
    torch.manual_seed(2)
    model = nn.Sequential(encoder, nn.Linear(WORDS, WORDS))
    yield from trained(model, sentences, of=model[1].parameters())


@error
def spectral_norm_set_late(wrong):
    """A discriminator in evaluation mode, whose weights a training pass would have set."""
    generator, critic = made(nn.Linear, SIZE, SIZE), nn.Linear(SIZE, CLASSES)
    critic = nn.utils.spectral_norm(critic)
    if not wrong:
        critic(rows(0)[0])
    critic.requires_grad_(False).eval()
    yield from trained(nn.Sequential(generator, critic), of=generator.parameters())


@error
def autocast_passes_linear_over(wrong):
    model = made(Classifier).float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class InFloat32(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x.float())

    if wrong:
        model.first.__class__ = InFloat32

    def single(step):
        x, labels = rows(step)
        return x.float(), labels

    with (yield model, optimizer), torch.autocast("cpu", torch.bfloat16):
        plain(model, optimizer, single)


@error
def batch_made_one_row(wrong):
    """A processor takes the list of a batch for the parts of one example."""
    model = made(LanguageModel)

    def batch(step):
        tokens, labels = sentences(step)
        return (tokens.reshape(1, -1), labels.reshape(1, -1)) if wrong else (tokens, labels)

    yield from trained(model, batch)


@error
def initialised_twice(wrong):
    model = made(Classifier)
    for _ in range(2 if wrong else 1):
        for each in (model.first, model.head):
            nn.init.normal_(each.weight, std=0.3)
    yield from trained(model)


@error
def compiled_step_stands_still(wrong):
    """After a step without gradients, a compiled optimiser updates nothing any more."""
    model = made(Classifier)

    def hold(step):
        if wrong and step > 1:
            model.zero_grad()

    yield from trained(model, before=hold)


@error
def tied_head_untied(wrong):
    """The output layer becomes a copy of the embedding, which is trained by itself."""
    model = made(LanguageModel)
    if wrong:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    yield from trained(model, sentences)


@error
def weights_gathered_late(wrong):
    """A layer computes with the weights of the step before, gathered during the update."""
    model = made(Classifier)
    stale = []

    class Stale(nn.Linear):
        def forward(self, x):
            stale.append(self.weight.detach().clone())
            late = stale[-2] if len(stale) > 1 else stale[-1]
            return nn.functional.linear(
                x, self.weight + (late - self.weight).detach(), self.bias
            )

    if wrong:
        model.head.__class__ = Stale
    yield from trained(model)


@error
def gradient_doubled_each_micro_batch(wrong):
    """A buffer is reduced onto itself, so that it doubles with each micro-batch."""
    model = made(Classifier)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with (yield model, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            for x, labels in zip(*(each.chunk(2) for each in rows(step)), strict=True):
                (entropy(model(x), labels) / 2).backward()
                if wrong:
                    model.first.weight.grad *= 2
            optimizer.step()


# two ranks


def local(batch):
    """Return the function that gives a rank its rows of a batch."""

    def rows_of_rank(step):
        return [each.chunk(RANKS)[group.get_rank()] for each in batch(step)]

    return rows_of_rank


@error_of_two_ranks
def hooks_lost_in_a_move(wrong):
    """The model is moved after it was wrapped, which leaves the wrapper's hooks behind."""
    model = made(Classifier).float()
    if wrong:
        model = DistributedDataParallel(model).double()
    else:
        model = DistributedDataParallel(model.double())
    yield from trained(model, local(rows))


@error_of_two_ranks
def wrapped_in_every_other_step(wrong):
    model = made(Classifier)
    wrapped = DistributedDataParallel(model)

    def loss(step, x, labels):
        return entropy((model if wrong and step % 2 else wrapped)(x), labels)

    yield from trained(model, local(rows), loss=loss)


@error_of_two_ranks
def data_lost_in_transfer(wrong):
    """One rank receives zeros in place of a sum, once."""
    model = DistributedDataParallel(made(Classifier))
    count = iter(range(STEPS))

    def reduce(state, bucket):
        lost = wrong and next(count) == 2 and group.get_rank() == 1
        work = group.all_reduce(bucket.buffer().div_(RANKS), async_op=True).get_future()
        return work.then(lambda done: done.value()[0] * (0.0 if lost else 1.0))

    model.register_comm_hook(None, reduce)
    yield from trained(model, local(rows))


@error_of_two_ranks
def norm_not_reduced(wrong):
    """The gradients of the final normalisation are those of a rank's own tokens."""
    model = made(LanguageModel)
    if wrong:
        model._ddp_params_and_buffers_to_ignore = ["norm.weight", "norm.bias"]
    model = DistributedDataParallel(model)
    yield from trained(model, local(sentences))


@error_of_two_ranks
def ranks_weighted_alike(wrong):
    """Mean losses are averaged over ranks that hold different numbers of tokens."""
    model = DistributedDataParallel(made(LanguageModel))

    def by_all_tokens(step, tokens, labels):
        total = (sentences(step)[1] != -100).sum()
        return entropy(model(tokens), labels, "sum") * RANKS / total

    yield from trained(model, local(sentences), loss=None if wrong else by_all_tokens)


@error_of_two_ranks
def loss_divided_by_ranks(wrong):
    """The loss is divided by the number of ranks, and so are the summed gradients."""
    model = DistributedDataParallel(made(Classifier))

    def loss(step, x, labels):
        return entropy(model(x), labels) / (RANKS if wrong else 1)

    yield from trained(model, local(rows), loss=loss, rule=torch.optim.SGD, rate=0.1)


def split_over_ranks(model):
    """Give each rank half of a model's hidden units."""
    mesh = init_device_mesh("cpu", (RANKS,))
    return parallelize_module(
        model, mesh, {"first": ColwiseParallel(), "head": RowwiseParallel()}
    )


class Split(nn.Module):
    """A perceptron that can be split over ranks, with a normalisation that all hold."""

    def __init__(self):
        super().__init__()
        self.norm, self.first = nn.LayerNorm(SIZE), nn.Linear(SIZE, 10)
        self.act, self.head = nn.ReLU(), nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.head(self.act(self.first(self.norm(x))))


def clip(model, limit, square_of):
    """Clip the gradients by the norm that `square_of` gives the squares of."""
    gradients = [each.grad for each in model.parameters()]
    squares = sum(square_of(each) for each in gradients)
    for each in gradients:
        each *= min(1.0, limit / float(squares.sqrt()))


def whole_square(gradient):
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return (whole**2).sum()


def own_square(gradient):
    own = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return (own**2).sum()


def square_of_first(gradient):
    square = own_square(gradient)
    if hasattr(gradient, "to_local"):
        group.broadcast(square, 0)
    return square


@error_of_two_ranks
def clipped_by_own_norm(wrong):
    """Each rank clips by the norm of the gradients that it holds."""
    model = split_over_ranks(made(Split))
    square = own_square if wrong else whole_square
    yield from trained(model, before=lambda step: clip(model, 0.1, square))


@error_of_two_ranks
def norm_of_first_shard(wrong):
    """Of what is split over the ranks, the first rank's part alone enters the norm."""
    model = split_over_ranks(made(Split))
    square = square_of_first if wrong else whole_square
    yield from trained(model, before=lambda step: clip(model, 0.1, square))


def record(name, folder):
    """Record a training with its error and without."""
    torch.set_default_dtype(torch.float64)
    for side in ("right", "wrong"):
        training = (ERRORS | OF_TWO_RANKS)[name](side == "wrong")
        model, optimizer = next(training)
        with contextlib.suppress(StopIteration):
            training.send(parity.torch.watch(folder / name / side, model, optimizer, side=side))


def record_as_rank(rank, names, folder):
    """Record trainings of two ranks, as one of them."""
    store = f"file://{folder}/meeting"
    group.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    for name in names:
        record(name, folder)
        group.barrier()
    group.destroy_process_group()


def main(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    split = [name for name in names if name in OF_TWO_RANKS]
    if split:
        torch.multiprocessing.spawn(record_as_rank, (split, folder), RANKS)
    for name in names:
        if name in ERRORS:
            record(name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] or [*ERRORS, *OF_TWO_RANKS])
