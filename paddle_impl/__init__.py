"""The networks trained by Paddle's ParallelExecutor; the twin of `tf_impl`."""
