"""Mistakes in the way from text to batches, which every side and the oracle read alike."""

from planting import Mistake, witnesses

_STREAM = witnesses("text", "rows_of_a_stream_joined_are_the_text")
_SENTENCES = witnesses("text", "rows_of_sentences_are_the_lines_of_the_text")
_PAIRS = witnesses("text", "rows_of_pairs_are_the_lines_of_the_file")
WHOLE = witnesses("pytorch", "a_whole_training_is_pytorchs")

TEXT = (
    Mistake(
        "targets are the inputs, not shifted by one",
        "data/text_batches.py",
        "targets[row, :length] = ids[1:]",
        "targets[row, :length] = ids[:-1]",
        _STREAM + WHOLE,
    ),
    Mistake(
        "the last token of each row of a stream is dropped",
        "data/text_batches.py",
        "np.clip(self._sizes - column, 0, self._time)",
        "np.clip(self._sizes - column - 1, 0, self._time)",
        _STREAM,
    ),
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
        + WHOLE,
    ),
    Mistake(
        "unknown words are read as <eos>",
        "data/text_corpus.py",
        "map(ids_of.get, words, repeat(TEXT_UNKNOWN_ID))",
        "map(ids_of.get, words, repeat(TEXT_EOS_ID))",
        _STREAM + _SENTENCES,
    ),
    Mistake(
        "the state is carried into the next epoch",
        "data/text_batches.py",
        "lengths, index > 0,",
        "lengths, True,",
        witnesses("text", "a_stream_is_carried_within_an_epoch_and_starts_anew_with_each")
        + WHOLE,
    ),
    Mistake(
        "the state is never carried",
        "data/text_batches.py",
        "lengths, index > 0,",
        "lengths, False,",
        witnesses("text", "a_stream_is_carried_within_an_epoch_and_starts_anew_with_each"),
    ),
    Mistake(
        "validation reads the training text",
        "data/load.py",
        'getattr(corpus, split),\n            settings["batching"]',
        'corpus.train,\n            settings["batching"]',
        _STREAM + _SENTENCES,
    ),
    Mistake(
        "a line too many is trained on",
        "data/text_corpus.py",
        "self.line_offsets[: count + 1]",
        "self.line_offsets[: count + 2]",
        witnesses("text", "the_first_lines_alone_are_trained_on"),
    ),
    Mistake(
        "a pair too many is trained on",
        "data/encoded_pairs.py",
        'facts | {"num_pairs": count}',
        'facts | {"num_pairs": count + 1}',
        witnesses("text", "the_first_lines_alone_are_trained_on"),
    ),
    Mistake(
        "sentences start with <unk> instead of <eos>",
        "data/text_batches.py",
        "tokens[:, 0] = TEXT_EOS_ID",
        "tokens[:, 0] = 0",
        _SENTENCES,
    ),
    Mistake(
        "blank lines are sentences",
        "data/text_batches.py",
        "np.flatnonzero(sizes > 1)",
        "np.flatnonzero(sizes > 0)",
        _SENTENCES,
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
        "answers end without <eos>",
        "data/pair_batches.py",
        "targets[row, len(ids)] = PAIR_EOS_ID",
        "targets[row, len(ids)] = PAIR_GO_ID",
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
        "the vocabulary is counted over validation and test too",
        "data/encoded_pairs.py",
        "if index != 0:",
        "if index < 0:",
        witnesses("text", "vocabularies_of_pairs_are_those_of_the_training_pairs"),
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
