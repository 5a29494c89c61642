"""What the checker knows of each named policy, independent of the code of the policies."""
