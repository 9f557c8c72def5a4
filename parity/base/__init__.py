"""What everything else builds on: errors, files, progress, cores. Knows nothing of networks."""
