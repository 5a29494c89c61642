"""Inside `distribute`: the replacements for parts of Keras' `fit`."""
