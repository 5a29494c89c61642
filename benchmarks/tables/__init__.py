"""`scripts/bench tables`: a Criteo-like click model on sparse tables, beside TensorFlow's ParameterServerStrategy."""
