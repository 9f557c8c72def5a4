"""The networks, which read almost the same line by line in both frameworks."""

from collections import namedtuple

import paddle

from paddle_impl.attention import attend, attention_keys, attentional, feeding_decoder
from paddle_impl.layers import (
    bidirectional,
    dropout,
    embedding,
    linear,
    log_softmax,
    lstm,
    real_rows,
    recurrent,
    token_cross_entropy,
    zero_state,
)
from parity.twins.spec.stages import begin_layer
from parity.twins.spec.step_arrays import Taps

# One replica's share of a batch: by name the batch's arrays and the state, rows first; by name
# the dropout masks [batch, time, width], or none; scale [1]; and the Taps that record.
Inputs = namedtuple("Inputs", ["batch", "state", "masks", "scale", "tap"])

# A network's results: the replica's share of the loss [1]; by name the state after the batch
# [batch, layers, hidden]; by name the activations, time first.
Outputs = namedtuple("Outputs", ["loss", "state", "activations"])


def language_model(model, inputs):
    """Build the recurrent language model on one replica.

    The loss is the summed cross entropy of the replica's real tokens, times `scale`, which is
    1 / (real tokens of the global batch). The sum over all replicas is then the global loss.

    Args:
      model: LanguageModelSpec.
      inputs: Inputs. The batch has tokens and targets int64 [batch, time] and lengths int64
        [batch]; the state is h and c [batch, layers, hidden]; masks are embedded, lstm_0, ...

    Returns:
      Outputs.

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """
    batch, masks, tap, states = inputs.batch, inputs.masks, inputs.tap, []
    begin_layer("embed")
    tokens = paddle.transpose(batch["tokens"], [1, 0])
    targets = paddle.transpose(batch["targets"], [1, 0])
    hidden = embedding(
        tokens, "embed", model.vocabulary_size, model.embedding_size, inputs.scale.dtype
    )
    hidden = dropout(tap("embedded", hidden), masks.get("embedded"))
    for k, (h, c) in enumerate(split_state(model, inputs.state)):
        name = f"lstm_{k}"
        begin_layer(name)
        hidden, h, c = lstm(hidden, batch["lengths"], h, c, name, model.hidden_size)
        hidden = tap(f"{name}/hidden", hidden)
        hidden = dropout(hidden, masks.get(name))
        states.append((h, c))
    begin_layer("softmax")
    logits = linear(real_rows(hidden, batch["lengths"]), "softmax", model.vocabulary_size)
    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))
    tap("logits", logits)
    tap("token_loss", losses)
    loss = paddle.sum(losses) * inputs.scale
    return Outputs(loss, join_state(states), tap.activations)


def seq2seq(model, inputs):
    """Build the encoder, and the decoder that attends to its output, on one replica.

    The loss is the summed cross entropy of the replica's real target tokens, times `scale`,
    which is 1 / (real target tokens of the global batch).

    Args:
      model: Seq2seqSpec.
      inputs: Inputs. The batch has source int64 [batch, source_time], source_lengths int64
        [batch], tokens and targets int64 [batch, time] and lengths int64 [batch]; masks are
        source_embedded, encoder_0, ..., target_embedded, decoder_0, ..., attentional.

    Returns:
      Outputs, whose state is the encoder's final state.

    Sources: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473;
    Luong et al. 2015, arXiv:1508.04025; Wu et al. 2016, arXiv:1609.08144, section 3.2.
    """
    batch, masks, tap = inputs.batch, inputs.masks, inputs.tap
    memory, states = encode(model, batch, masks, inputs.scale.dtype, tap)
    final = join_state(states)
    for name in sorted(final):
        tap(f"encoder/{name}", final[name])
    begin_layer("attention")
    keys = attention_keys(memory, model.attention)
    fed = paddle.zeros_like(states[-1][0])
    outputs, _, _ = decode(model, batch, states, fed, keys, memory, masks, tap)
    begin_layer("softmax")
    targets = paddle.transpose(batch["targets"], [1, 0])
    outputs = real_rows(dropout(outputs, masks.get("attentional")), batch["lengths"])
    logits = linear(outputs, "softmax", model.target_vocabulary_size)
    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))
    tap("logits", logits)
    tap("token_loss", losses)
    loss = paddle.sum(losses) * inputs.scale
    return Outputs(loss, final, tap.activations)


def encode(model, batch, masks, dtype, tap):
    """Build the encoder.

    Args:
      model: Seq2seqSpec.
      batch: name -> array; source int64 [batch, source_time], source_lengths int64 [batch].
      masks: name -> mask; source_embedded, encoder_0, ...; without a mask there is no dropout.
      dtype: the precision of the parameters.
      tap: Taps.

    Returns:
      memory: the outputs of the top layer, [batch, source_time, hidden].
      states: the final state, a tuple per layer.
    """
    states, lengths = [], batch["source_lengths"]
    begin_layer("encoder/embed")
    tokens = paddle.transpose(batch["source"], [1, 0])
    hidden = embedding(
        tokens, "encoder/embed", model.source_vocabulary_size, model.embedding_size, dtype
    )
    hidden = tap("encoder/embedded", hidden)
    for k in range(model.num_layers):
        name = f"encoder/{model.cell}_{k}"
        begin_layer(name)
        hidden = dropout(hidden, masks.get(f"encoder_{k - 1}" if k else "source_embedded"))
        if k == 0 and model.bidirectional:
            hidden, state = bidirectional(hidden, lengths, name, model.cell, model.hidden_size)
        else:
            state = zero_state(hidden, model.cell, model.hidden_size)
            hidden, state = recurrent(
                hidden, lengths, state, name, model.cell, model.hidden_size
            )
        hidden = tap(f"{name}/hidden", hidden)
        states.append(state)
    return paddle.transpose(hidden, [1, 0, 2]), states


def decode(model, batch, states, fed, keys, memory, masks, tap):
    """Build the decoder, which attends to the source.

    Args:
      model: Seq2seqSpec.
      batch: name -> array; tokens int64 [batch, time], lengths and source_lengths int64
        [batch].
      states: the state before the first step, a tuple per layer, each part [batch, hidden].
      fed: the attentional output before the first step, [batch, hidden].
      keys: the keys that `attention_keys` returned, [batch, source_time, hidden].
      memory: the memory that `encode` returned, [batch, source_time, hidden].
      masks: name -> mask; target_embedded, decoder_0, ...; without a mask there is no dropout.
      tap: Taps.

    Returns:
      outputs: the attentional outputs, [time, batch, hidden].
      states: the state after the last step, a tuple per layer.
      fed: the attentional output after the last step, [batch, hidden].
    """
    layers = range(model.num_layers)
    names = [f"decoder/{model.cell}_{k}" for k in layers]
    begin_layer("decoder/embed")
    tokens = paddle.transpose(batch["tokens"], [1, 0])
    embedded = embedding(
        tokens, "decoder/embed", model.target_vocabulary_size, model.embedding_size, fed.dtype
    )
    inputs = dropout(tap("decoder/embedded", embedded), masks.get("target_embedded"))
    between = [masks.get(f"decoder_{k}") for k in layers[:-1]]
    if model.input_feeding:
        begin_layer(names[0])  # and all above it, and the attention, which share one loop
        hidden, context, weights, outputs, states, fed = feeding_decoder(
            inputs, states, fed, keys, memory, batch["source_lengths"], between, model
        )
        # a single loop, in which nothing can be cut: the taps only record
        for k in layers:
            tap(f"{names[k]}/hidden", hidden[k])
        tap("attention/weights", weights)
        tap("attention/context", context)
    else:
        hidden, last = [], []
        for k, mask in zip(layers, [*between, None], strict=True):
            begin_layer(names[k])
            output, state = recurrent(
                inputs, batch["lengths"], states[k], names[k], model.cell, model.hidden_size
            )
            output = tap(f"{names[k]}/hidden", output)
            inputs = dropout(output, mask)
            hidden.append(output)
            last.append(state)
        states = last
        begin_layer("attention")
        context, weights = attend(
            hidden[-1], keys, memory, batch["source_lengths"], model.attention
        )
        tap("attention/weights", weights)
        context = tap("attention/context", context)
        outputs = attentional(context, hidden[-1])
    return tap("attention/output", outputs), states, fed


def decoding_start(model, source, source_lengths, dtype):
    """Build the state that decoding starts from: the encoded source.

    Args:
      model: Seq2seqSpec.
      source: token ids, int64 [batch, source_time].
      source_lengths: number of real tokens per row, int64 [batch].
      dtype: the precision of the parameters.

    Returns:
      The decoder's state by name, rows first: memory and keys [batch, source_time, hidden],
      source_lengths [batch], weights of the last step's attention [batch, source_time], fed
      [batch, hidden], h and for an LSTM c [batch, layers, hidden].
    """
    batch = {"source": source, "source_lengths": source_lengths}
    memory, states = encode(model, batch, {}, dtype, Taps())
    return {
        "memory": memory,
        "keys": attention_keys(memory, model.attention),
        "source_lengths": source_lengths,
        "weights": paddle.zeros_like(memory[:, :, 0]),
        "fed": paddle.zeros_like(states[-1][0]),
        **join_state(states),
    }


def decoding_step(model, tokens, state):
    """Build one step of decoding.

    Args:
      model: Seq2seqSpec.
      tokens: the last token of each row, int64 [batch]; `<go>` before the first step.
      state: the state that `decoding_start` or the previous step returned.

    Returns:
      log probabilities of the next token [batch, vocabulary], and the state after the step.
    """
    batch = {
        "tokens": tokens[:, None],
        "lengths": paddle.ones_like(tokens),
        "source_lengths": state["source_lengths"],
    }
    tap = Taps()
    outputs, states, fed = decode(
        model,
        batch,
        split_state(model, state),
        state["fed"],
        state["keys"],
        state["memory"],
        masks={},
        tap=tap,
    )
    logits = linear(outputs[0], "softmax", model.target_vocabulary_size)
    weights = tap.activations["attention/weights"][0]
    return log_softmax(logits), {
        **state,
        "weights": weights,
        "fed": fed,
        **join_state(states),
    }


def split_state(model, state):
    """Return a state as a tuple per layer, each part [batch, hidden].

    Args:
      model: LanguageModelSpec or Seq2seqSpec.
      state: name -> array; h and for an LSTM c, [batch, layers, hidden].
    """
    parts = [state[name] for name in ("h", "c") if name in state]
    return [tuple(part[:, k] for part in parts) for k in range(model.num_layers)]


def join_state(states):
    """Return a state by name: h and for an LSTM c, each [batch, layers, hidden].

    Args:
      states: a tuple per layer, each part [batch, hidden].
    """
    parts = zip(*states, strict=True)
    return {
        name: paddle.stack(part, axis=1) for name, part in zip(("h", "c"), parts, strict=False)
    }
