"""Weights of a run, in the formats of others.

    source   where they come from: the run folder, its log executed again, or a checkpoint
    target   npz, safetensors, a Keras file, a SavedModel

Nothing that is there is overwritten.
"""
