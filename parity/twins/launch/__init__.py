"""Starting each side's scripts as processes, and saying why one ended."""
