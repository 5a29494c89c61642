"""What daemons log: events with stable names, lines that are bounded, texts made safe to print."""
