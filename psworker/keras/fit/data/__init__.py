"""The data of one `fit`, where the coordinator deals it."""
