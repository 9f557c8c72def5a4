"""Causes of a mismatch, confirmed: the oracle makes a suspected mistake itself.

At the first step that differs, the oracle starts from what the side recorded before it and
makes a mistake on purpose. If every tensor then agrees with what the side recorded, to
rounding, and none did without the mistake, the cause is confirmed.

wrong_step.py says what a suspect is: a mistake, made once, as a change of the oracle's
functions; views.py has the changes, suspects.py all suspects, and search.py tries them.
"""
