"""What codecs and local steps cost in accuracy, and what they bring over a thin link."""
