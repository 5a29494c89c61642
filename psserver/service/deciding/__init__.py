"""The coordinator among its peers: what every input goes through, and how a job gets its model and members."""
