"""What happens around the batches of a `fit`: callbacks, the ends of epochs, backups."""
