"""Weights of a run, in the formats of others.

    source   where they come from: the run folder, or its log executed again
    target   npz, safetensors, a Keras file, a SavedModel

Nothing that is there is overwritten.
"""
