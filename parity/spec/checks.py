"""The checks of a run that compare more than single recorded steps, each a rung of its own."""

# In the order in which a run makes them, once its recorded steps match.
CHECKS = ("evaluation", "answers", "resume", "repeat", "untraced", "counting")
