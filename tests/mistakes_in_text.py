"""Mistakes in the way from text to batches, which every side and the oracle read alike."""

from planting import Mistake, witnesses

_STREAM = witnesses("text", "rows_of_a_stream_joined_are_the_text")
_SENTENCES = witnesses("text", "rows_of_sentences_are_the_lines_of_the_text")
_PAIRS = witnesses("text", "rows_of_pairs_are_the_lines_of_the_file")
WHOLE = witnesses("pytorch", "a_whole_training_is_pytorchs")

TEXT = (
    Mistake(
        "ids are one less than the line of the vocabulary",
        "data/text_corpus.py",
        "for place, token in enumerate(vocabulary.tokens)}",
        "for place, token in enumerate(vocabulary.tokens[1:])}",
        _STREAM + _SENTENCES,
    ),
    Mistake(
        "the rarest words are kept, not the most frequent",
        "data/vocabulary.py",
        "key=lambda word: (-counts[word], word)",
        "key=lambda word: (counts[word], word)",
        witnesses(
            "text",
            "the_vocabulary_has_the_most_frequent_words_of_the_training_text",
            "vocabularies_of_pairs_are_those_of_the_training_pairs",
        )
        + WHOLE
        + witnesses("pytorch", "the_witness_reads_text_without_spaces"),
    ),
    Mistake(
        "the state is carried into the next epoch",
        "data/text_batches.py",
        "lengths, index > 0,",
        "lengths, True,",
        witnesses("text", "a_stream_is_carried_within_an_epoch_and_starts_anew_with_each")
        + WHOLE
        + witnesses("pytorch", "a_side_that_shares_no_mistake_matches_the_witness"),
    ),
    Mistake(
        "the witness carries the state into the next epoch, as the sides do",
        "parity/twins/peers/pytorch_witness.py",
        "carry = bool(streams and place)",
        "carry = bool(streams)",
        witnesses("pytorch", "the_witness_finds_a_mistake_that_sides_and_oracle_share"),
    ),
    Mistake(
        "a line too many is trained on",
        "data/text_corpus.py",
        "self.line_offsets[: count + 1]",
        "self.line_offsets[: count + 2]",
        witnesses("text", "the_first_lines_alone_are_trained_on"),
    ),
    Mistake(
        "padding repeats a word",
        "data/text_batches.py",
        "tokens = np.zeros((len(lengths), self._time), dtype=np.int64)",
        "tokens = np.full((len(lengths), self._time), 5)",
        witnesses("text", "padding_is_zero_and_behind_the_tokens"),
    ),
    Mistake(
        "sentences are not shuffled again in later epochs",
        "data/text_batches.py",
        "if not self._shuffle:\n            epoch = 0",
        "if True:\n            epoch = 0",
        witnesses("text", "every_epoch_of_sentences_has_an_order_of_its_own"),
    ),
    Mistake(
        "pairs are not shuffled again in later epochs",
        "data/pair_batches.py",
        "if not self._shuffle:\n            epoch = 0",
        "if True:\n            epoch = 0",
        witnesses("text", "pairs_are_shuffled_anew_in_every_epoch_of_training_alone"),
    ),
    Mistake(
        "the decoder reads the word that it has to write",
        "data/pair_batches.py",
        "tokens[row, 1 : len(ids) + 1] = ids",
        "tokens[row, : len(ids)] = ids",
        _PAIRS,
    ),
    Mistake(
        "pairs are split by line, so that a question is in two splits",
        "data/pair_splits.py",
        "return indices[of_pair.reshape(-1)]",
        "return np.resize(indices, len(of_pair))",
        witnesses("text", "no_question_is_in_two_splits"),
    ),
    Mistake(
        "conversations are torn apart",
        "data/pair_splits.py",
        "return np.repeat(of_block, sizes)",
        "return np.resize(of_block, total)",
        witnesses("text", "no_conversation_is_in_two_splits"),
    ),
    Mistake(
        "references are in another order than questions",
        "data/load.py",
        "[pairs.texts(row)[1] for row in range(pairs.num_pairs)]",
        "[pairs.texts(row)[1] for row in range(pairs.num_pairs)][::-1]",
        witnesses("text", "answers_are_decoded_for_the_questions_that_they_are_compared_with")
        + witnesses("scores", "the_answers_of_a_run_are_scored_with_their_own_references"),
    ),
)
