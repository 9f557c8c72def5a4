"""The special tokens of the vocabularies, and their ids.

They are always the first entries of a vocabulary. There are two kinds of vocabularies: those of
plain text, for language models, and those of pairs of a question and an answer.
"""

PAD = "<pad>"  # fills up rows that are shorter than the longest of their batch
GO = "<go>"  # the first input of a decoder
EOS = "<eos>"  # the end of a sentence
UNKNOWN = "<unk>"  # any word that has no entry of its own

TEXT_SPECIAL = (UNKNOWN, EOS)
TEXT_UNKNOWN_ID, TEXT_EOS_ID = range(len(TEXT_SPECIAL))

PAIR_SPECIAL = (PAD, GO, EOS, UNKNOWN)
PAIR_PAD_ID, PAIR_GO_ID, PAIR_EOS_ID, PAIR_UNKNOWN_ID = range(len(PAIR_SPECIAL))
