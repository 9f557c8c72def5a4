"""Whether both sides learn equally well: whole trainings from several seeds, and a test.

`parity run` proves that single steps are the same. This room asks what a user cares about in
the end: the perplexity or BLEU that a whole training reaches. In float32 two trainings drift
apart by rounding after some hundred steps, and their results differ a little even where every
step is right. An equivalence test over several seeds says whether they differ by less than a
stated margin.
"""
