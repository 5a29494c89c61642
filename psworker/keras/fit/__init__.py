"""Inside `distribute`: what stands in the place of parts of Keras' `fit`."""
