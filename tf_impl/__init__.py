"""The networks trained by TensorFlow towers; the twin of `paddle_impl`."""
