"""Mistakes in the searches, in scores, checkpoints and traces, and in the oracle."""

from mistakes_in_text import WHOLE
from planting import Mistake, witnesses

SEARCH = (
    Mistake(
        "the length penalty divides by 5",
        "parity/twins/decoding/hypotheses.py",
        "float(((5 + length) / 6) ** alpha)",
        "float(((5 + length) / 5) ** alpha)",
        witnesses(
            "search",
            "the_length_penalty_is_equation_14",
            "scores_by_hand",
            "a_narrow_beam_keeps_the_most_probable_prefixes",
        )
        + witnesses("pytorch", "answers_are_as_probable_as_pytorch_finds_them"),
    ),
    Mistake(
        "the length penalty leaves out <eos>",
        "parity/twins/decoding/beam.py",
        "length_penalty_of(length, length_penalty)",
        "length_penalty_of(length - 1, length_penalty)",
        witnesses(
            "search",
            "scores_by_hand",
            "a_wide_beam_finds_the_best_of_all_answers",
            "a_narrow_beam_keeps_the_most_probable_prefixes",
        ),
    ),
    Mistake(
        "of equals the higher id is kept",
        "parity/twins/decoding/beam.py",
        "np.lexsort((columns, rows, -totals, sentences[rows]))",
        "np.lexsort((-columns, rows, -totals, sentences[rows]))",
        witnesses("search", "ties_go_to_the_lower_id"),
    ),
    Mistake(
        "answers that are cut off are left out",
        "parity/twins/decoding/beam.py",
        "_finish(live, finished, live.log_probs, penalty, ended=False)",
        "pass",
        witnesses(
            "search",
            "scores_by_hand",
            "a_wide_beam_finds_the_best_of_all_answers",
        ),
    ),
    Mistake(
        "greedy search takes the least probable token",
        "parity/twins/decoding/token_by_token.py",
        "chosen = log_probs.argmax(axis=1)",
        "chosen = log_probs.argmin(axis=1)",
        witnesses("search", "greedy_search_follows_the_most_probable_token")
        + witnesses("pytorch", "answers_are_as_probable_as_pytorch_finds_them"),
    ),
    Mistake(
        "<go> and <eos> have each other's id",
        "parity/base/special_tokens.py",
        "PAIR_SPECIAL = (PAD, GO, EOS, UNKNOWN)",
        "PAIR_SPECIAL = (PAD, EOS, GO, UNKNOWN)",
        witnesses("search", "the_special_tokens_have_the_ids_that_files_and_networks_rely_on"),
    ),
)

SCORES = (
    Mistake(
        "perplexity is a power of 2",
        "parity/twins/training/train_steps.py",
        "return math.exp(loss)",
        "return 2.0**loss",
        witnesses(
            "scores",
            "perplexity_is_that_of_the_mean_token_not_of_the_mean_batch",
            "the_perplexity_of_a_uniform_guess_is_the_size_of_the_vocabulary",
        )
        + WHOLE,
    ),
    Mistake(
        "a loss per row is reported as it is",
        "parity/twins/spec/step_arrays.py",
        "loss * self.rows / max(self.num_tokens, 1)",
        "loss",
        witnesses("scores", "the_table_of_losses_is_in_nats_per_real_token")
        + witnesses("schedule", "the_loss_is_divided_by_what_the_spec_says"),
    ),
    Mistake(
        "BLEU takes the references for the answers",
        "parity/twins/decoding/evaluation.py",
        "metric.corpus_score(list(answers), [list(references)])",
        "metric.corpus_score(list(references), [list(answers)])",
        witnesses(
            "scores",
            "bleu_is_that_of_the_paper",
            "bleu_is_sacrebleus_own",
        ),
    ),
    Mistake(
        "the share of exact answers has one answer too many",
        "parity/twins/decoding/evaluation.py",
        "return sum(same) / len(same)",
        "return sum(same) / (len(same) + 1)",
        witnesses(
            "scores",
            "exact_answers_by_hand",
            "the_answers_of_a_run_are_scored_with_their_own_references",
        ),
    ),
)

CHECKPOINTS = (
    Mistake(
        "a checkpoint is numbered by the step that was trained last",
        "parity/twins/training/loop.py",
        "self.step, self.state = step.number + 1, result.state",
        "self.step, self.state = step.number, result.state",
        witnesses(
            "checkpoint",
            "a_checkpoint_holds_what_the_step_before_left",
            "the_file_is_plain_safetensors_with_the_run_as_metadata",
        ),
    ),
    Mistake(
        "Adam's powers are lost on loading",
        "parity/twins/training/checkpoint_contents.py",
        "{name: snapshot[name] for name in snapshot_shapes(spec)}",
        "{n: snapshot[n] ** (len(shape) > 0) for n, shape in snapshot_shapes(spec).items()}",
        witnesses(
            "checkpoint",
            "a_resumed_run_takes_the_steps_that_it_would_have_taken",
            "a_file_that_others_write_is_read_as_it_stands",
        ),
    ),
    Mistake(
        "a checkpoint of pairs holds the encoder's state",
        "parity/twins/training/loop.py",
        "state if carries else None",
        "state",
        witnesses("checkpoint", "pairs_have_no_state_to_store"),
    ),
)

TRACES = (
    Mistake(
        "traces lose the signs of numbers",
        "parity/trace/writer.py",
        'np.asarray(value, order="C") for name, value in tensors.items()',
        'np.abs(np.asarray(value, order="C")) for name, value in tensors.items()',
        witnesses("trace", "a_trace_holds_what_the_training_returned"),
    ),
    Mistake(
        "the learning rate is recorded in single precision",
        "parity/twins/training/recording.py",
        '"batch/learning_rate": np.array(learning_rate)',
        '"batch/learning_rate": np.array(learning_rate, np.float32)',
        witnesses("trace", "a_trace_holds_the_batch_that_each_step_read"),
    ),
    Mistake(
        "the reader loses the signs of numbers",
        "parity/trace/reader.py",
        "return {name: tensors[name] for name in recorded}",
        "return {name: np.abs(tensors[name]) for name in recorded}",
        witnesses("trace", "the_reader_returns_what_the_files_hold"),
    ),
    Mistake(
        "digests leave the shape out",
        "parity/trace/folder.py",
        'zlib.crc32(f"{array.dtype.str}{array.shape}".encode())',
        "zlib.crc32(array.dtype.str.encode())",
        witnesses("trace", "digests_are_of_type_shape_and_bytes"),
    ),
)

_LANGUAGE_MODEL = witnesses("pytorch", "the_language_model_trains_as_pytorchs")
_SEQ2SEQ = witnesses("pytorch", "seq2seq_trains_as_pytorchs")

ORACLE = ()

RESULTS = (*SEARCH, *SCORES, *CHECKPOINTS, *TRACES, *ORACLE)
