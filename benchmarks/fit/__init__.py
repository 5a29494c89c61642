"""`scripts/bench fit`: samples per second of `model.fit` on a server beside plain `fit`."""
