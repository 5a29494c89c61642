"""Keras models on any of Keras' backends.

variables   a model's variables, named and ordered the same way in every worker
step        one step of a compiled model: what it is given, and what a backend does
reductions  whether losses of several workers add up to that of one process
"""
