"""What workers push to a shard: taken in once, checked on the way, held until it is decided about."""
