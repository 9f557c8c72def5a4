"""An example of a pair of your own: one classifier, trained in two frameworks and compared."""
