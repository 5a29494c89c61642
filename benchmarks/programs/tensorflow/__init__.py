"""Programs that run what is measured beside ours: TensorFlow's own strategies and Keras's own optimizers."""
