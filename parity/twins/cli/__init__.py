"""The commands, options and files of options of the laboratory."""
