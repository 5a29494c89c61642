"""From a batch to its loss and the gradients of a model's variables.

losses       what a job or a compiled model calls its loss, as one function of the batch
processing   what is done to a whole gradient before it is pushed
training     which of these a job and its model ask for together
"""
