"""Jobs: `trainer.Trainer` makes a `psworker.Job` a compiled Keras model with data, on any of Keras' backends."""
